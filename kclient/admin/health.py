"""The health of a cluster, computed from its metadata. Pure.

The terms are Kafka's, as in `kafka-topics --describe`. A partition is *under-replicated* if its ISR lacks a replica;
replicas that a reassignment is adding do not count. It is *under min ISR* if the ISR is smaller than
min.insync.replicas or there is no leader. It is *at min ISR* if the loss of one more replica would stop acks=all, and
*unavailable* without a live leader.

In: a metadata snapshot, min.insync.replicas by topic   Out: `Health`
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kclient.net.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from kclient.types import TopicPartition


def is_under_replicated(p: PartitionMetadata, adding: Collection[int] = ()) -> bool:
    """Return whether the ISR lacks a replica; those in *adding* do not count."""
    return len(p.isr) < len(set(p.replicas) - set(adding))


def is_under_min_isr(p: PartitionMetadata, min_isr: int) -> bool:
    """Return whether acks=all is rejected."""
    return p.leader < 0 or len(p.isr) < min_isr


def is_at_min_isr(p: PartitionMetadata, min_isr: int) -> bool:
    """Return whether acks=all would be rejected if one more replica failed."""
    return len(p.isr) == min_isr


def is_unavailable(p: PartitionMetadata, live: Collection[int]) -> bool:
    """Return whether there is no live leader."""
    return p.leader < 0 or p.leader not in live


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a cluster. *expected* are the live brokers and those that have replicas."""

    controller: int
    """-1: none."""
    expected: tuple[int, ...]
    down: tuple[int, ...]
    leaderless: tuple[TopicPartition, ...] = ()
    under_replicated: tuple[TopicPartition, ...] = ()
    under_min_isr: tuple[TopicPartition, ...] = ()
    offline_log_dirs: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Failed log directories, by broker."""
    silent: tuple[int, ...] = ()
    """Registered brokers that did not answer."""
    leaderless_isr: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    """The replicas that may lead each leaderless partition without data loss: it waits for one of them."""

    unchecked: tuple[str, ...] = ()
    """What could not be asked for, each with its error."""

    def waits_for(self, tp: TopicPartition) -> str:
        """Return which brokers the leaderless *tp* waits for.

        A live one is not eligible, because its log lacks records; the controller's log has the reason.
        """
        isr = self.leaderless_isr.get(tp, ())
        back = [broker for broker in isr if broker not in self.down]
        if back:
            return f"ISR {_listed(isr)}: {_listed(back)} live, but not eligible: see the controller's log"
        return f"waits for broker {' or '.join(map(str, isr))}" if isr else "has no ISR"

    @property
    def reasons(self) -> list[str]:
        """The problems of the cluster, the worst first, then what is unknown; empty if it is healthy."""
        found = []
        if self.controller < 0:
            found.append("no controller")
        if self.down:
            found.append(f"{_many(len(self.down), 'broker')} down: {_listed(self.down)}")
        for broker in self.silent:
            role = " (the controller)" if broker == self.controller else ""
            found.append(f"broker {broker}{role} does not answer")
        for broker, paths in sorted(self.offline_log_dirs.items()):
            found.append(f"broker {broker} lost {_listed(paths)}")
        for name, partitions in (
            ("leaderless", self.leaderless),
            ("under min ISR", self.under_min_isr),
            ("under-replicated", self.under_replicated),
        ):
            if partitions:
                found.append(f"{_many(len(partitions), 'partition')} {name}")
        return [*found, *self.unchecked]

    @property
    def is_healthy(self) -> bool:
        """Whether there are no problems, and nothing is unknown."""
        return not self.reasons


def health_of(
    metadata: ClusterMetadata,
    min_isr: Mapping[str, int],
    *,
    adding: Mapping[TopicPartition, Collection[int]] | None = None,
    offline_log_dirs: Mapping[int, tuple[str, ...]] | None = None,
    silent: Iterable[int] = (),
    unchecked: Iterable[str] = (),
) -> Health:
    """Compute the health of all topics of *metadata*; *adding* are the replicas that reassignments are adding.

    A topic that is missing in *min_isr* has 1.
    """
    live = metadata.brokers.keys()
    partitions = list(_partitions(metadata.topics.values()))
    expected = set(live).union(*(p.replicas for _, p in partitions))
    adding = adding or {}
    return Health(
        controller=metadata.controller_id if metadata.controller_id in live else -1,
        expected=tuple(sorted(expected)),
        down=tuple(sorted(expected - set(live))),
        leaderless=tuple(tp for tp, p in partitions if is_unavailable(p, live)),
        under_replicated=tuple(
            tp for tp, p in partitions if is_under_replicated(p, adding.get(tp, ()))
        ),
        under_min_isr=tuple(
            tp for tp, p in partitions if is_under_min_isr(p, min_isr.get(tp.topic, 1))
        ),
        offline_log_dirs=offline_log_dirs or {},
        silent=tuple(sorted(silent)),
        unchecked=tuple(unchecked),
        leaderless_isr={tp: tuple(p.isr) for tp, p in partitions if is_unavailable(p, live)},
    )


def _partitions(
    topics: Iterable[TopicMetadata],
) -> Iterable[tuple[TopicPartition, PartitionMetadata]]:
    for topic in sorted(topics, key=lambda t: t.name):
        for number, partition in sorted(topic.partitions.items()):
            yield TopicPartition(topic.name, number), partition


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _listed(things: Iterable[object]) -> str:
    return ", ".join(map(str, things))
