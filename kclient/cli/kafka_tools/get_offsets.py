"""kafka-get-offsets: offsets of partitions by time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kclient.cli.kafka_tools.java_errors import as_failed_future, described
from kclient.cli.kafka_tools.options import Given, Option, OptionError, not_honoured
from kclient.cli.kafka_tools.tool import (
    BOOTSTRAP,
    FAILED,
    Failure,
    Tool,
    admin_settings,
    check_bootstrap,
    print_error,
    run_admin,
)
from kclient.cli.kafka_tools.topic_filter import topic_filter
from kclient.errors import KafkaError
from kclient.types import TopicPartition

_SPECIAL = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
}
_CHOICES = "-1 or latest / -2 or earliest / -3 or max-timestamp / -4 or earliest-local / -5 or latest-tiered"
_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")

_Filter = Callable[[str, int | None], bool]
"""(topic, partition) -> whether it is wanted; with None, whether any partition of the topic can be."""

OPTIONS = (
    Option("broker-list", "The same as --bootstrap-server, which wins.", "HOST1:PORT1,...,HOST3:PORT3"),
    Option("bootstrap-server", "The brokers to connect to; required.", "HOST1:PORT1,...,HOST3:PORT3",
           required_unless="broker-list"),
    Option("topic-partitions", "Partitions, topic:0,topic:1-3; topics are regular expressions.",
           "topic1:1,topic2:0-3,topic3,topic4:5-,topic5:-3"),
    Option("topic", "A topic, or a regular expression.", "topic"),
    Option("partitions", "Partitions, separated by commas.", "partition ids"),
    Option("time", "A time in ms since the epoch, or a place.", f"<timestamp> / {_CHOICES}", str, "latest"),
    Option("command-config", "Properties file of the admin client.", "config file"),
    Option("exclude-internal-topics", "Exclude internal topics."),
    not_honoured("max-wait-ms", "removed in Kafka 3.0", kafka=False),
    not_honoured("offsets", "removed in Kafka 3.0: there is one offset for a time", kafka=False),
)  # fmt: skip


def _error(problem: object) -> int:
    return print_error(f"Error occurred: {problem}")


def main(given: Given) -> int | None:
    """Check the command line and print the offsets."""
    servers = given.value("bootstrap-server") or given.value("broker-list")
    check_bootstrap(servers)
    try:
        has_rules = given.has("topic-partitions")
        if has_rules and (given.has("topic") or given.has("partitions")):
            raise Failure("--topic-partitions cannot be used with --topic or --partitions")
        at = _time(given.value("time"))
        wanted = (
            _of_rules(given.value("topic-partitions"))
            if has_rules
            else _of_topic(given.value("topic"), given.value("partitions"))
        )
        settings = admin_settings(given)
    except (Failure, OptionError) as problem:
        return _error(problem)

    async def body(admin: Any) -> int:
        topics = await admin.describe_topics(internal=not given.has("exclude-internal-topics"))
        tps = [
            TopicPartition(name, n)
            for name, topic in topics.items()
            if wanted(name, None)
            for n in topic.partitions
            if wanted(name, n)
        ]
        if not tps:
            raise Failure("Could not match any topic-partitions with the specified filters")
        answers = await admin.list_offsets(dict.fromkeys(tps, at), raise_errors=False)
        for tp, answer in sorted(answers.items(), key=lambda each: str(each[0])):
            if isinstance(answer, KafkaError):
                print_error(
                    f"Skip getting offsets for topic-partition {tp} due to error: {described(answer)}"
                )
            elif answer.offset >= 0:
                print(f"{tp.topic}:{tp.partition}:{answer.offset}")
        return 0

    def failed(problem: BaseException) -> int:
        shown = as_failed_future(problem) if isinstance(problem, KafkaError) else problem
        _error(shown)
        return FAILED

    settings.update({BOOTSTRAP: servers, "client.id": "GetOffsetShell"})
    return run_admin(TOOL.print_usage, settings, body, failed)


def _time(text: str) -> int:
    if text in _SPECIAL:
        return _SPECIAL[text]
    try:
        return int(text)
    except ValueError:
        raise Failure(
            f"Malformed time argument {text}. Please use {_CHOICES}, or a specified long format timestamp"
        ) from None


def _of_topic(topic: str | None, partitions: str | None) -> _Filter:
    matches = topic_filter(".*" if topic is None else topic)
    try:
        numbers = {int(each) for each in partitions.split(",")} if partitions else set()
    except ValueError:
        raise Failure(
            f"--partitions expects a comma separated list of numeric partition ids, but received: {partitions}"
        ) from None
    return lambda name, n: matches(name) and (n is None or not numbers or n in numbers)


def _of_rules(text: str) -> _Filter:
    rules = []
    for rule in text.split(","):
        found = _RULE.fullmatch(rule)
        if found is None:
            raise Failure(f"Invalid rule specification: {rule}")
        name, only, first, behind = (each or None for each in found.groups())
        low = int(only or first or 0)
        high = low + 1 if only else int(behind) if behind else None
        rules.append((topic_filter(name or ".*"), low, high))

    def wanted(name: str, n: int | None) -> bool:
        return any(
            matches(name) and (n is None or (low <= n and (high is None or n < high)))
            for matches, low, high in rules
        )

    return wanted


TOOL = Tool(
    "kafka-get-offsets",
    "An interactive shell for getting topic-partition offsets.",
    OPTIONS,
    main,
    before_option_errors="Error occurred: ",
)
