"""The tools as commands of `kclient`: the words behind the name go to the tool as they are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

TOOLS = {
    "kafka-topics": "topics",
    "kafka-console-producer": "console_producer",
    "kafka-console-consumer": "console_consumer",
    "kafka-consumer-groups": "consumer_groups",
    "kafka-get-offsets": "get_offsets",
    "kafka-delete-records": "delete_records",
    "kafka-leader-election": "leader_election",
    "kafka-log-dirs": "log_dirs",
    "kafka-configs": "configs",
    "kafka-reassign-partitions": "reassign_partitions",
    "kafka-cluster": "cluster",
    "kafka-transactions": "transactions",
    "kafka-producer-perf-test": "producer_performance",
    "kafka-consumer-perf-test": "consumer_performance",
    "kafka-verifiable-producer": "verifiable_producer",
    "kafka-verifiable-consumer": "verifiable_consumer",
    "kafka-dump-log": "dump_log",
    "kafka-broker-api-versions": "broker_api_versions",
}
"""The module of each tool."""

NOT_HERE = {
    "kafka-acls": "kbroker has no ACLs yet",
    "kafka-delegation-tokens": "kbroker has no delegation tokens",
    "kafka-features": "features of a cluster (KIP-584) are of clusters with KRaft",
    "kafka-metadata-quorum": "only clusters with KRaft have a quorum",
    "kafka-metadata-shell": "only clusters with KRaft have a metadata log",
    "kafka-storage": "only clusters with KRaft format their directories",
    "kafka-client-metrics": "kbroker has no client metrics (KIP-714)",
    "kafka-server-start, kafka-server-stop": "`kbroker start`, `kbroker stop`",
    "kafka-mirror-maker, connect-mirror-maker": "`kmirror`",
    "kafka-e2e-latency": "`kclient perf latency`",
    "kafka-replica-verification": "`kclient cluster health`",
    "kafka-streams-application-reset": "kclient has no Kafka Streams",
    "kafka-jmx": "kbroker has no JMX",
    "zookeeper-shell": "ZooKeeper's own tool works",
}
"""Tools of Kafka that are no command of kclient, with the reason or the replacement."""


def command_of(name: str) -> click.Command | None:
    """Return the command of a tool, also under its name in Kafka's bin (kafka-topics.sh).

    Raise UsageError with the reason for a tool of Kafka that is not here.
    """
    known = name.removesuffix(".sh")
    if known in TOOLS:
        return ToolCommand(known)
    for names, reason in NOT_HERE.items():
        if known in names.split(", "):
            raise click.UsageError(f"kclient has no {known}: {reason}")
    return None


def tool_of(name: str) -> Any:
    """Return the tool *name*; only its module is imported."""
    return import_module(f"kclient.cli.kafka_tools.{TOOLS[name]}").TOOL


class ToolCommand(click.Command):
    """A command that is one of Kafka's tools."""

    def __init__(self, name: str) -> None:
        super().__init__(name, help=f"Kafka's {name}; docs/kafka-tools.md.", add_help_option=False)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave the words to the tool."""
        ctx.args = list(args)
        return ctx.args

    def invoke(self, ctx: click.Context) -> Any:
        """Run the tool and end with its exit code."""
        before = ctx.parent
        given = [] if before is None else [
            param.opts[0]
            for param in before.command.params
            if param.name and before.get_parameter_source(param.name) is click.core.ParameterSource.COMMANDLINE
        ]  # fmt: skip
        if given:
            raise click.UsageError(
                f"{self.name} takes Kafka's options only: {', '.join(given)} before its name does not count"
            )
        ctx.exit(tool_of(self.name or "")(ctx.args))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Return the options of Kafka that begin with *incomplete*."""
        from click.shell_completion import CompletionItem

        names = tool_of(self.name or "").names()
        return [CompletionItem(name) for name in names if name.startswith(incomplete or "--")]
