"""kafka-leader-election: elects preferred or unclean leaders."""

from __future__ import annotations

from typing import Any

from kclient.cli.kafka_tools import java_order
from kclient.cli.kafka_tools.java_errors import described
from kclient.cli.kafka_tools.json_files import partitions_in, repeated
from kclient.cli.kafka_tools.options import Given, Option, OptionError
from kclient.cli.kafka_tools.tool import (
    Failure,
    Tool,
    admin_settings,
    print_error,
    print_message,
    run_admin,
    text_of,
)
from kclient.errors import KafkaTimeoutError
from kclient.types import TopicPartition

_TYPES = ("PREFERRED", "UNCLEAN")

OPTIONS = (
    Option("bootstrap-server", "The brokers to connect to; required.", "host:port"),
    Option("admin.config", "Properties file of the admin client.", "config file"),
    Option("path-to-json-file", 'JSON: {"partitions":[{"topic":"foo","partition":1}]}', "Path to JSON file"),
    Option("topic", "The topic of the partition.", "topic name"),
    Option("partition", "The number of the partition.", "partition id", int),
    Option("all-topic-partitions", "All partitions that need an election of this type."),
    Option("election-type", "preferred or unclean; required.", "election type"),
)  # fmt: skip


def main(given: Given) -> int | None:
    """Check the command line and elect leaders."""
    try:
        _check(given)
        kind = given.value("election-type").upper()
        if kind not in _TYPES:
            raise OptionError(
                f"Cannot parse argument '{given.value('election-type')}' of option election-type"
            )
        tps = _partitions(given)
        usual = {"default.api.timeout.ms": 30_000, "request.timeout.ms": 15_000}
        settings = admin_settings(given, usual, "admin.config")
    except Failure as problem:
        return print_error(problem)

    async def body(admin: Any) -> int:
        from kclient.admin.elections import ElectionType

        try:
            answers = await admin.elect_leaders(ElectionType[kind], tps, raise_errors=False)
        except KafkaTimeoutError:
            print("Timeout waiting for election results")
            raise Failure("Timeout waiting for election results") from None
        return _print(answers, kind)

    return run_admin(TOOL.print_usage, settings, body, print_message)


def _check(given: Given) -> None:
    missing = [name for name in ("bootstrap-server", "election-type") if not given.has(name)]
    if missing:
        raise Failure(f"Missing required option(s): {', '.join(missing)}")
    choices = ("topic", "all-topic-partitions", "path-to-json-file")
    if sum(map(given.has, choices)) != 1:
        raise Failure(
            f"One and only one of the following options is required: {', '.join(choices)}"
        )
    if given.has("topic") and not given.has("partition"):
        raise Failure("Missing required option(s): partition")
    if not given.has("topic") and given.has("partition"):
        raise Failure("Option partition is only allowed if topic is used")


def _partitions(given: Given) -> list[TopicPartition] | None:
    if given.has("topic"):
        return [TopicPartition(given.value("topic"), given.value("partition"))]
    if given.has("all-topic-partitions"):
        return None
    entries = partitions_in(text_of(given.value("path-to-json-file")), "Replica election data")
    tps = [tp for tp, _ in entries]
    if twice := repeated(tps):
        raise Failure(f"Replica election data contains duplicate partitions: [{', '.join(twice)}]")
    return tps


def _print(answers: dict[TopicPartition, Any], kind: str) -> int:
    from kclient.wire.errors import ElectionNotNeeded

    ordered = java_order.partitions(answers)
    done = [tp for tp in ordered if answers[tp] is None]
    unneeded = [tp for tp in ordered if isinstance(answers[tp], ElectionNotNeeded)]
    failed = [tp for tp in ordered if tp not in done and tp not in unneeded]
    if done:
        listed = ", ".join(map(str, done))
        print(f"Successfully completed leader election ({kind}) for partitions {listed}")
    if unneeded:
        print(f"Valid replica already elected for partitions {', '.join(map(str, unneeded))}")
    for tp in failed:
        print(
            f"Error completing leader election ({kind}) for partition: {tp}: {described(answers[tp])}"
        )
    if failed:
        raise Failure(f"{len(failed)} replica(s) could not be elected")
    return 0


TOOL = Tool(
    "kafka-leader-election",
    "This tool attempts to elect a new leader for a set of topic partitions. The type of elections supported are "
    "preferred replicas and unclean replicas.",
    OPTIONS,
    main,
)
