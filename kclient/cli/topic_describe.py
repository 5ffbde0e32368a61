"""`kclient topic describe`: partitions, leaders, replicas, ISR; in the line format of Kafka's tool, for scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from kclient.cli.answers import code_for, good_answers
from kclient.cli.commands import with_settings
from kclient.cli.help import Command
from kclient.cli.names import TOPIC
from kclient.cli.output import print_error, show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client
from kclient.wire.uuids import encode_uuid

if TYPE_CHECKING:
    from kclient.admin.reassignment_plan import Reassignment
    from kclient.net.metadata import PartitionMetadata, TopicMetadata

    _Moving = Mapping[tuple[str, int], Reassignment]
    """Active reassignments, by topic and partition."""

MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True)
class _Filters:
    """Which partitions to show: those that match any filter; all without filters."""

    under_replicated: bool
    under_min_isr: bool
    at_min_isr: bool
    unavailable: bool
    overridden: bool
    """Only the lines of topics that have settings of their own, without partitions."""
    exclude_internal: bool

    @property
    def any_state(self) -> bool:
        return self.under_replicated or self.under_min_isr or self.at_min_isr or self.unavailable


@dataclass(frozen=True)
class _Described:
    """A topic and its configs."""

    topic: TopicMetadata
    overrides: Mapping[str, str | None]
    min_isr: int


@click.command(
    "describe",
    cls=Command,
    examples=(
        "kclient topic describe orders",
        "kclient topic describe --under-replicated-partitions",
    ),
)
@click.argument("names", nargs=-1, metavar="[TOPIC...]", type=TOPIC)
@click.option("-i", "--internal", is_flag=True, help="Include internal topics.")
@click.option("--exclude-internal", is_flag=True, help="Exclude internal topics, even if named.")
@click.option(
    "--under-replicated-partitions",
    "under_replicated",
    is_flag=True,
    help="Only partitions with an ISR that lacks a replica.",
)
@click.option(
    "--under-min-isr-partitions",
    "under_min_isr",
    is_flag=True,
    help="Only partitions that reject acks=all.",
)
@click.option(
    "--at-min-isr-partitions",
    "at_min_isr",
    is_flag=True,
    help="Only partitions at min.insync.replicas: one more failure stops acks=all.",
)
@click.option(
    "--unavailable-partitions",
    "unavailable",
    is_flag=True,
    help="Only partitions without a live leader.",
)
@click.option(
    "--topics-with-overrides",
    "overridden",
    is_flag=True,
    help="Only topics with settings of their own, without partitions.",
)
@with_settings
def describe(settings: Settings, names: tuple[str, ...], internal: bool, **options: Any) -> None:
    """Show partitions, leaders, replicas, ISR and the topic's own settings.

    With a filter on partitions, internal topics are included, because operators must not overlook them.
    """
    filters = _Filters(**options)
    with_internal = not filters.exclude_internal and (internal or filters.any_state)

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            found = await admin.describe_topics(
                names or None, internal=with_internal, raise_errors=False
            )
            good = good_answers(found)
            shown = {
                name: topic
                for name, topic in good.items()
                if not (filters.exclude_internal and topic.is_internal)
            }
            described = await with_configs(admin, shown)
            moving = await _moving(admin)
            live = admin.cluster.metadata.brokers.keys()
        _show(settings, described, filters, _wanted(filters, live, moving), moving)
        return code_for(len(good), len(found))

    run(main)


async def with_configs(admin: Any, topics: Mapping[str, TopicMetadata]) -> list[_Described]:
    """Add the configs of each topic; a deleted one has none."""
    from kclient.admin.configs import ConfigResource, ResourceType

    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in topics}
    configs = (
        await admin.describe_configs(resources.values(), raise_errors=False) if resources else {}
    )
    found = []
    for name, topic in sorted(topics.items()):
        entries = configs.get(resources[name])
        entries = entries if isinstance(entries, dict) else {}
        overrides = {e.name: e.value for e in entries.values() if e.source.name.startswith("TOPIC")}
        min_isr = entries[MIN_ISR].value if MIN_ISR in entries else None
        found.append(_Described(topic, overrides, int(min_isr or 1)))
    return found


async def _moving(admin: Any) -> _Moving:
    """Return the active reassignments; none if the cluster does not support them or its controller is down."""
    from kclient.wire.errors import KafkaError, UnsupportedVersion

    try:
        found: _Moving = await admin.list_partition_reassignments(timeout=3)
    except UnsupportedVersion:
        return {}
    except KafkaError as problem:
        print_error(f"reassignments are unknown: {problem}")
        return {}
    return found


def _wanted(
    filters: _Filters, live: Any, moving: _Moving
) -> Callable[[PartitionMetadata, int], bool]:
    from kclient.admin import health

    def wanted(p: PartitionMetadata, min_isr: int) -> bool:
        under_way = moving.get((p.topic, p.partition))
        adding = under_way.adding if under_way else ()
        return (
            not filters.any_state
            or (filters.under_replicated and health.is_under_replicated(p, adding))
            or (filters.under_min_isr and health.is_under_min_isr(p, min_isr))
            or (filters.at_min_isr and health.is_at_min_isr(p, min_isr))
            or (filters.unavailable and health.is_unavailable(p, live))
        )

    return wanted


def _show(
    settings: Settings,
    topics: list[_Described],
    filters: _Filters,
    wanted: Callable[[PartitionMetadata, int], bool],
    moving: _Moving,
) -> None:
    rows = []
    for each in topics:
        if filters.overridden and not each.overrides:
            continue
        ordered = sorted(each.topic.partitions.values(), key=lambda p: p.partition)
        chosen = [p for p in ordered if wanted(p, each.min_isr)]
        rows += [_row(each, p, moving.get((p.topic, p.partition))) for p in chosen]
        if settings.is_text:
            if not filters.any_state:
                click.echo(_topic_line(each))
            for p in () if filters.overridden else chosen:
                click.echo(_partition_line(p, moving.get((p.topic, p.partition))))
    if not settings.is_text:
        show(rows, ("topic", "partition", "leader", "replicas", "isr"), settings.format)


def _row(each: _Described, p: PartitionMetadata, moving: Reassignment | None) -> dict[str, Any]:
    return {
        "topic": each.topic.name,
        "topic_id": _topic_id(each),
        "partition": p.partition,
        "leader": p.leader,
        "leader_epoch": p.leader_epoch,
        "replicas": list(p.replicas),
        "isr": list(p.isr),
        "offline_replicas": list(p.offline_replicas),
        "adding_replicas": list(moving.adding) if moving else [],
        "removing_replicas": list(moving.removing) if moving else [],
        "min_isr": each.min_isr,
        "configs": dict(each.overrides),
    }


def _topic_id(each: _Described) -> str | None:
    """Return the id in Kafka's form, which its tools print and take; brokers before 2.8 return none."""
    return None if each.topic.topic_id is None else encode_uuid(each.topic.topic_id)


def _topic_line(each: _Described) -> str:
    configs = ",".join(f"{k}={v}" for k, v in sorted(each.overrides.items()))
    partitions = each.topic.partitions
    factor = max((len(p.replicas) for p in partitions.values()), default=0)
    return (
        f"Topic: {each.topic.name}\tTopicId: {_topic_id(each) or ''}"
        f"\tPartitionCount: {len(partitions)}\tReplicationFactor: {factor}\tConfigs: {configs}"
    )


def _partition_line(p: PartitionMetadata, moving: Reassignment | None) -> str:
    leader = p.leader if p.leader >= 0 else "none"
    line = (
        f"\tTopic: {p.topic}\tPartition: {p.partition}\tLeader: {leader}\t"
        f"Replicas: {_listed(p.replicas)}\tIsr: {_listed(p.isr)}"
    )
    if moving is None:
        return line
    return (
        f"{line}\tAdding Replicas: {_listed(moving.adding)}"
        f"\tRemoving Replicas: {_listed(moving.removing)}"
    )


def _listed(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))
