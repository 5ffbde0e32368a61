"""kafka-topics: lists, describes, creates, alters and deletes topics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kclient.cli.kafka_tools import java_order
from kclient.cli.kafka_tools.java_errors import message_of
from kclient.cli.kafka_tools.java_numbers import integer
from kclient.cli.kafka_tools.options import Given, Option, OptionError, not_honoured
from kclient.cli.kafka_tools.tool import (
    FAILED,
    Failure,
    Tool,
    UsageError,
    admin_settings,
    forbid,
    one_action,
    print_error,
    require,
    run_admin,
)
from kclient.cli.kafka_tools.topic_filter import topic_filter
from kclient.types import NewTopic, TopicPartition

ACTIONS = ("create", "list", "alter", "describe", "delete")
_REPORTS = (
    "under-replicated-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
    "unavailable-partitions",
)
_IN_CONFIGS = (
    " (the kafka-configs CLI supports altering topic configs with a --bootstrap-server option)"
)
_MOST_REPLICAS = 32_767
NO_ZOOKEEPER = "removed in Kafka 3.0 (KIP-604); give --bootstrap-server"

OPTIONS = (
    Option("bootstrap-server", "The brokers to connect to; required.", "server to connect to"),
    Option("command-config", "Properties file of the admin client.", "command config property file"),
    Option("list", "List the topics."),
    Option("create", "Create a topic."),
    Option("delete", "Delete topics."),
    Option("alter", "Add partitions to topics, with replicas of choice."),
    Option("describe", "Describe topics."),
    Option("topic", "A topic; except with --create a regular expression.", "topic"),
    Option("topic-id", "The id of a topic to describe.", "topic-id"),
    Option("config", "A setting of a topic that is created; may be repeated.", "name=value"),
    Option("partitions", "Number of partitions; the cluster's default without it.", "# of partitions", int),
    Option("replication-factor", "Replicas; the cluster's default without it.", "replication factor", int),
    Option("replica-assignment", "Brokers of each partition, 1:2,2:3.", "broker ids"),
    Option("under-replicated-partitions", "Describe only partitions with an ISR that lacks a replica."),
    Option("unavailable-partitions", "Describe only partitions without a live leader."),
    Option("under-min-isr-partitions", "Describe only partitions below min.insync.replicas."),
    Option("at-min-isr-partitions", "Describe only partitions at min.insync.replicas."),
    Option("topics-with-overrides", "Describe only topics with settings of their own."),
    Option("if-exists", "With --alter, --delete, --describe: a missing topic is no error."),
    Option("if-not-exists", "With --create: an existing topic is no error."),
    Option("exclude-internal", "List or describe no internal topics."),
    Option(
        "partition-size-limit-per-response",
        "Accepted: the Metadata API, which answers here and in every ZooKeeper cluster, has no such limit.",
        "maximum number of partitions in one response.",
        int,
    ),
    not_honoured("delete-config", "Kafka refuses it, too, with --bootstrap-server; use kafka-configs"),
    not_honoured("zookeeper", NO_ZOOKEEPER, kafka=False),
    not_honoured("force", "removed in Kafka 3.0", takes="flag", kafka=False),
)  # fmt: skip


def main(given: Given) -> int | None:
    """Check the command line and run the action."""
    action = one_action(
        given,
        ACTIONS,
        "Command must include exactly one action: --list, --describe, --create, --alter or --delete",
    )
    if not given.has("bootstrap-server"):
        raise OptionError("--bootstrap-server must be specified")
    _check(given)
    try:
        settings = admin_settings(given)
    except Failure as problem:
        return print_error(problem)

    async def body(admin: Any) -> int:
        await _BODIES[action](admin, given)
        return 0

    def failed(problem: BaseException) -> int:
        print(f"Error while executing topic command : {message_of(problem)}")
        return FAILED

    return run_admin(TOOL.print_usage, settings, body, failed)


def _check(given: Given) -> None:
    if given.has("describe") and given.has("if-exists"):
        if not given.has("topic") and not given.has("topic-id"):
            raise UsageError("--topic or --topic-id is required to describe a topic")
        if given.has("topic") and given.has("topic-id"):
            print(
                "Only topic id will be used when both --topic and --topic-id are specified and topicId is not "
                "Uuid.ZERO_UUID"
            )
    if not given.has("list") and not given.has("describe"):
        require(given, "topic")
    if given.has("alter"):
        if given.has("config"):
            raise UsageError(
                'Option combination "[[bootstrap-server], [config]]" can\'t be used with option "[alter]"'
                f"{_IN_CONFIGS}"
            )
        require(given, "partitions")
    for name, allowed in _ALLOWED:
        others = [action for action in ACTIONS if action not in allowed]
        if name in _REPORTS:
            others.append("topics-with-overrides")
        if name == "topics-with-overrides":
            others += _REPORTS
        forbid(given, name, *others)
        if name == "replica-assignment" and given.has("create"):
            forbid(given, name, "partitions", "replication-factor")


_ALLOWED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("config", ("alter", "create")),
    ("partitions", ("alter", "create")),
    ("replication-factor", ("create",)),
    ("replica-assignment", ("alter", "create")),
    *((name, ("describe",)) for name in _REPORTS),
    ("topics-with-overrides", ("describe",)),
    ("if-exists", ("alter", "delete", "describe")),
    ("if-not-exists", ("create",)),
    ("exclude-internal", ("list", "describe")),
)
"""The actions of each option that is not for all."""


# --- actions


async def _matching(admin: Any, given: Given) -> list[str]:
    with_internal = not given.has("exclude-internal")
    found = await admin.list_topics(internal=with_internal)
    if not given.has("topic"):
        return list(found)
    matches = topic_filter(given.value("topic"))
    return [name for name in found if matches(name)]


def _need(found: Sequence[object], what: str, wanted: str, given: Given) -> None:
    if wanted and not found and not given.has("if-exists"):
        raise Failure(f"{what} '{wanted}' does not exist as expected")


async def _list(admin: Any, given: Given) -> None:
    print("\n".join(await _matching(admin, given)))


async def _create(admin: Any, given: Given) -> None:
    from kclient.wire.errors import TopicAlreadyExists

    name, partitions, factor = map(given.value, ("topic", "partitions", "replication-factor"))
    assigned = _assignment(given)
    configs = _configs(given)
    if "." in name or "_" in name:
        print(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could "
            "collide. To avoid issues it is best to use either, but not both."
        )
    if factor is not None and not 1 <= factor <= _MOST_REPLICAS:
        raise Failure(f"The replication factor must be between 1 and {_MOST_REPLICAS} inclusive")
    if partitions is not None and partitions < 1:
        raise Failure("The partitions must be greater than 0")
    new = NewTopic(
        name,
        -1 if partitions is None else partitions,
        -1 if factor is None else factor,
        configs=dict(configs),
        replica_assignment=dict(enumerate(assigned)) or None,
    )
    try:
        await admin.create_topics(new)
    except TopicAlreadyExists:
        if not given.has("if-not-exists"):
            raise
    else:
        print(f"Created topic {name}.")


def _configs(given: Given) -> dict[str, str]:
    found = {}
    for text in given.values("config"):
        # As Java's split: empty parts at the end do not count.
        parts = re.split(r"\s*=\s*", text)
        while parts and not parts[-1]:
            parts.pop()
        if len(parts) != 2:
            raise Failure(
                'requirement failed: Invalid topic config: all configs to be added must be in the format "key=val".'
            )
        found[parts[0].strip()] = parts[1].strip()
    return found


def _assignment(given: Given) -> list[list[int]]:
    """Return the brokers of each partition in --replica-assignment."""
    text = given.value("replica-assignment")
    found: list[list[int]] = []
    for part in text.split(",") if text else ():
        brokers = [integer(number.strip()) for number in part.split(":")]
        twice = sorted({broker for broker in brokers if brokers.count(broker) > 1})
        if twice:
            listed = ",".join(map(str, twice))
            raise Failure(f"Partition replica lists may not contain duplicate entries: {listed}")
        found.append(brokers)
        if len(brokers) != len(found[0]):
            raise Failure(f"Partition {len(found) - 1} has different replication factor: {brokers}")
    return found


async def _alter(admin: Any, given: Given) -> None:
    assigned, total = _assignment(given), given.value("partitions")
    names = await _matching(admin, given)
    _need(names, "Topic", f"Optional[{given.value('topic')}]", given)
    if not names:
        return
    described = await admin.describe_topics(names)
    await admin.create_partitions(
        dict.fromkeys(names, total),
        assignments={
            name: assigned[len(topic.partitions) :] for name, topic in described.items() if assigned
        },
    )


async def _delete(admin: Any, given: Given) -> None:
    names = await _matching(admin, given)
    _need(names, "Topic", f"Optional[{given.value('topic')}]", given)
    if names:
        await admin.delete_topics(names)


async def _describe(admin: Any, given: Given) -> None:
    from kclient.admin.configs import ConfigResource, ResourceType

    topics = await _described(admin, given)
    if not topics:
        return
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in topics}
    configs = await admin.describe_configs(resources.values())
    live = (await admin.describe_cluster()).brokers
    moving = await _moving(admin, topics)
    show = _Description(given, live, moving)
    for name in java_order.described_topics(topics):
        show.topic(topics[name], configs[resources[name]])


async def _described(admin: Any, given: Given) -> dict[str, Any]:
    """Return the topics to describe; internal ones unless they are excluded."""
    from kclient.wire.uuids import decode_uuid

    text = given.value("topic-id")
    if text and text != "A" * 22:
        try:
            wanted = decode_uuid(text)
        except ValueError as problem:
            raise Failure(str(problem)) from None
        known = await admin.describe_topics(internal=not given.has("exclude-internal"))
        found = {name: topic for name, topic in known.items() if topic.topic_id == wanted}
        _need(list(found), "TopicId", text, given)
        return found
    names = await _matching(admin, given)
    if given.has("topic"):
        _need(names, "Topic", f"Optional[{given.value('topic')}]", given)
    return dict(await admin.describe_topics(names)) if names else {}


async def _moving(admin: Any, topics: Mapping[str, Any]) -> Mapping[TopicPartition, Any]:
    from kclient.wire.errors import UnsupportedVersion

    wanted = [TopicPartition(name, n) for name, topic in topics.items() for n in topic.partitions]
    try:
        return await admin.list_partition_reassignments(wanted)  # type: ignore[no-any-return]
    except UnsupportedVersion:
        return {}


class _Description:
    """Prints topics as the options ask for."""

    def __init__(self, given: Given, live: Mapping[int, Any], moving: Mapping[TopicPartition, Any]):
        self._live, self._moving = live, moving
        self._reports = [name for name in _REPORTS if given.has(name)]
        self._only_overridden = given.has("topics-with-overrides")

    def topic(self, topic: Any, configs: Mapping[str, Any]) -> None:
        """Print one topic."""
        ordered = sorted(topic.partitions.values(), key=lambda p: p.partition)
        names = java_order.strings(configs)
        shown = [f"{n}={configs[n].value}" for n in names if not configs[n].is_default]
        if not self._reports and (shown or not self._only_overridden):
            print(self._topic_line(topic, ordered, ",".join(shown)))
        if self._only_overridden:
            return
        min_isr = int(configs["min.insync.replicas"].value)
        for p in ordered:
            if not self._reports or any(
                self._is_in(report, p, min_isr) for report in self._reports
            ):
                print(self._partition_line(p))

    def _topic_line(self, topic: Any, ordered: Sequence[Any], configs: str) -> str:
        from kclient.wire.uuids import encode_uuid

        topic_id = "" if topic.topic_id is None else f"\tTopicId: {encode_uuid(topic.topic_id)}"
        return (
            f"Topic: {topic.name}{topic_id}\tPartitionCount: {len(ordered)}"
            f"\tReplicationFactor: {self._factor(ordered[0])}\tConfigs: {configs}"
        )

    def _partition_line(self, p: Any) -> str:
        moving = self._moving.get(TopicPartition(p.topic, p.partition))
        changes = (
            f"\tAdding Replicas: {_listed(moving.adding)}\tRemoving Replicas: {_listed(moving.removing)}"
            if moving
            else ""
        )
        return (
            f"\tTopic: {p.topic}\tPartition: {p.partition}"
            f"\tLeader: {p.leader if p.leader in self._live else 'none'}"
            f"\tReplicas: {_listed(p.replicas)}\tIsr: {_listed(p.isr)}{changes}"
            "\tElr: N/A\tLastKnownElr: N/A"
        )

    def _factor(self, p: Any) -> int:
        """Return the number of replicas, without those that are only being added."""
        moving = self._moving.get(TopicPartition(p.topic, p.partition))
        if moving and set(p.replicas) & {*moving.adding, *moving.removing}:
            return len(moving.replicas) - len(moving.adding)
        return len(p.replicas)

    def _is_in(self, report: str, p: Any, min_isr: int) -> bool:
        has_leader = p.leader in self._live
        match report:
            case "under-replicated-partitions":
                return self._factor(p) > len(p.isr)
            case "unavailable-partitions":
                return not has_leader
            case "under-min-isr-partitions":
                return not has_leader or len(p.isr) < min_isr
            case _:
                return len(p.isr) == min_isr


def _listed(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


_BODIES = {
    "list": _list,
    "create": _create,
    "alter": _alter,
    "delete": _delete,
    "describe": _describe,
}

TOOL = Tool(
    "kafka-topics",
    "This tool helps to create, delete, describe, or change a topic.",
    OPTIONS,
    main,
    differs=(
        "Settings of --config are checked by the broker, not before it is asked: the text about an invalid one is the "
        "broker's.",
        "A regular expression is Python's: Java's \\p{L}, and && in a character class, are not there.",
    ),
)
