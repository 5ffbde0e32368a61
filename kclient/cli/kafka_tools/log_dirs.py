"""kafka-log-dirs: the log directories of brokers with their replicas, as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kclient.cli.kafka_tools import java_order
from kclient.cli.kafka_tools.java_errors import class_of
from kclient.cli.kafka_tools.java_numbers import integer
from kclient.cli.kafka_tools.json_files import compact, in_map_order
from kclient.cli.kafka_tools.options import Given, Option
from kclient.cli.kafka_tools.tool import (
    Failure,
    Tool,
    admin_settings,
    print_error,
    print_message,
    require,
    run_admin,
)

OPTIONS = (
    Option("bootstrap-server", "The brokers to connect to; required.", "The server(s) to use for bootstrapping"),
    Option("command-config", "Properties file of the admin client.", "Admin client property file"),
    Option("describe", "Describe the log directories; required."),
    Option("topic-list", "Only these topics, separated by commas.", "Topic list", str, ""),
    Option("broker-list", "Only these brokers, separated by commas.", "Broker list", str, ""),
)  # fmt: skip


def main(given: Given) -> int | None:
    """Check the command line and print the log directories."""
    require(given, "bootstrap-server", "describe")
    topics = {name for name in given.value("topic-list").split(",") if name}
    texts = [text for text in given.value("broker-list").split(",") if text]
    try:
        settings = admin_settings(given, {"client.id": "log-dirs-tool"})
    except Failure as problem:
        return print_error(problem)

    async def body(admin: Any) -> int:
        wanted = set(map(integer, texts))
        live = (await admin.describe_cluster()).brokers
        brokers = _sorted(wanted or live)
        absent = [broker for broker in brokers if broker not in live]
        if absent:
            raise Failure(
                f"ERROR: The given brokers do not exist from --broker-list: {_listed(absent)}. Current existent "
                f"brokers: {_listed(_sorted(live))}"
            )
        print("Querying brokers for log directories information", flush=True)
        found = await admin.describe_log_dirs(brokers)
        print(f"Received log directory information from brokers {_listed(brokers)}")
        rows = [
            in_map_order(
                broker=broker, logDirs=[_directory(d, topics) for d in found[broker].values()]
            )
            for broker in brokers
        ]
        print(compact(in_map_order(version=1, brokers=rows)))
        return 0

    return run_admin(TOOL.print_usage, settings, body, print_message)


def _sorted(brokers: Iterable[int]) -> list[int]:
    return java_order.hash_map_order(sorted(brokers), lambda each: each & 0xFFFFFFFF)


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _directory(found: Any, topics: set[str]) -> dict[str, Any]:
    tps = [tp for tp in found.replicas if not topics or tp.topic in topics]
    replicas = [(tp, found.replicas[tp]) for tp in java_order.partitions(tps)]
    return in_map_order(
        logDir=found.path,
        error=class_of(found.error) if found.error else None,
        partitions=[
            in_map_order(
                partition=str(tp),
                size=each.size,
                offsetLag=each.offset_lag,
                isFuture=each.is_future,
            )
            for tp, each in replicas
        ],
    )


TOOL = Tool(
    "kafka-log-dirs",
    "This tool helps to query log directory usage on the specified brokers.",
    OPTIONS,
    main,
)
