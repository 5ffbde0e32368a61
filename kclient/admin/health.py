"""What is wrong with a cluster, as far as its metadata tell. Pure.

Kafka's terms, as `kafka-topics --describe` uses them: a partition is *under-replicated* when its ISR lacks a
replica (those that a reassignment is only adding do not count), *under min ISR* when the ISR is smaller than
min.insync.replicas or nobody leads, *at min ISR* when the loss of one more replica would stop acks=all, and
*unavailable* when nobody alive leads it.

In: a metadata snapshot, min.insync.replicas by topic   Out: `Health`
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kclient.net.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from kclient.types import TopicPartition


def is_under_replicated(p: PartitionMetadata, adding: Collection[int] = ()) -> bool:
    """Say whether a replica is missing from the ISR; those in *adding* may be."""
    return len(p.isr) < len(set(p.replicas) - set(adding))


def is_under_min_isr(p: PartitionMetadata, min_isr: int) -> bool:
    """Say whether acks=all is refused."""
    return p.leader < 0 or len(p.isr) < min_isr


def is_at_min_isr(p: PartitionMetadata, min_isr: int) -> bool:
    """Say whether acks=all would be refused if one more replica failed."""
    return len(p.isr) == min_isr


def is_unavailable(p: PartitionMetadata, live: Collection[int]) -> bool:
    """Say whether no live broker leads."""
    return p.leader < 0 or p.leader not in live


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a cluster. *expected* are the brokers alive and those that replicas are assigned to."""

    controller: int
    """-1: none."""
    expected: tuple[int, ...]
    down: tuple[int, ...]
    leaderless: tuple[TopicPartition, ...] = ()
    under_replicated: tuple[TopicPartition, ...] = ()
    under_min_isr: tuple[TopicPartition, ...] = ()
    offline_log_dirs: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Log directories that failed, by broker."""
    silent: tuple[int, ...] = ()
    """Brokers that are registered, but did not answer."""
    leaderless_isr: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    """Who may lead each leaderless partition without loss: it waits for one of them."""

    def hope_of(self, tp: TopicPartition) -> str:
        """Say of leaderless *tp* whom it waits for; one that is alive is not trusted, and the controller says why."""
        isr = self.leaderless_isr.get(tp, ())
        back = [broker for broker in isr if broker not in self.down]
        if back:
            return f"ISR {_listed(isr)}: {_listed(back)} alive, but not elected: see the controller's log"
        return f"waits for broker {' or '.join(map(str, isr))}" if isr else "has no ISR"

    @property
    def reasons(self) -> list[str]:
        """Why the cluster is not healthy, the worst first; empty if it is."""
        found = []
        if self.controller < 0:
            found.append("no controller")
        if self.down:
            found.append(f"{_many(len(self.down), 'broker')} down: {_listed(self.down)}")
        found += [f"broker {broker} does not answer" for broker in self.silent]
        for broker, paths in sorted(self.offline_log_dirs.items()):
            found.append(f"broker {broker} lost {_listed(paths)}")
        for name, partitions in (
            ("leaderless", self.leaderless),
            ("under min ISR", self.under_min_isr),
            ("under-replicated", self.under_replicated),
        ):
            if partitions:
                found.append(f"{_many(len(partitions), 'partition')} {name}")
        return found

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.reasons


def health_of(
    metadata: ClusterMetadata,
    min_isr: Mapping[str, int],
    *,
    adding: Mapping[TopicPartition, Collection[int]] | None = None,
    offline_log_dirs: Mapping[int, tuple[str, ...]] | None = None,
    silent: Iterable[int] = (),
) -> Health:
    """Judge all topics of *metadata*; *adding* are the replicas that reassignments are adding.

    A topic that *min_isr* does not name has 1.
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
