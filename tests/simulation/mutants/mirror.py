"""Known bugs of the mirror and of the conditional append; `tests/simulation/mirror.py` finds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kbroker.apis import api00_produce
from kbroker.replica.conditional_append import append_copied
from kbroker.replica.partition import Partition
from mirrormaker.link import UNKNOWN, PartitionLink
from mirrormaker.link_state import Append, LogEnds
from mirrormaker.worker_registry import WorkerRegistry
from mirrormaker.workers import Workers, WorkerState
from tests.simulation.mirror import end_of
from tests.simulation.mutants.registry import Change, Planting, mutant

MIRROR_MUTANTS: list[str] = []
"""Known bugs that the first seeds of the mirror find (`draw_mirror`)."""


def mirror_mutant(plant: Planting) -> Planting:
    """Add a bug by its name; `test_mirror.py` checks that some of the first seeds find it."""
    MIRROR_MUTANTS.append(plant.__name__)
    return mutant(plant)


@mirror_mutant
def position_from_a_counter() -> list[Change]:
    """After a failure the link goes on where its own counter is, not where the target's log ends."""
    original = PartitionLink.located

    def located(self: PartitionLink, generation: int, ends: LogEnds) -> Any:
        counter = self._fetched_end
        if counter != UNKNOWN:
            ends = replace(ends, target_end=min(counter, ends.source_end), source_last_batch=None)
        return original(self, generation, ends)

    return [(PartitionLink, "located", located)]


@mirror_mutant
def condition_unchecked() -> list[Change]:
    """A leader appends copied batches wherever its log ends."""

    def append(
        partition: Partition, buf: Any, _follows: Any, acks: int, now_ms: int, topics: Any
    ) -> Any:
        log, _ = partition.require_leader_for_append(acks)
        return append_copied(partition, buf, end_of(partition, log), acks, now_ms, topics)

    return [(api00_produce, "append_copied", append)]


@mutant
def previous_crc_unchecked() -> list[Change]:
    """A conditional append compares the log end, and not the batch that ends there."""

    def append(
        partition: Partition, buf: Any, follows: Any, acks: int, now_ms: int, topics: Any
    ) -> Any:
        log, _ = partition.require_leader_for_append(acks)
        crc = end_of(partition, log)[1]
        return append_copied(partition, buf, (follows[0], crc), acks, now_ms, topics)

    return [(api00_produce, "append_copied", append)]


@mirror_mutant
def lost_append_sent_again_unconditionally() -> list[Change]:
    """An append without an answer is taken for a refusal, and is sent again as an ordinary produce."""
    append_failed, next_append = PartitionLink.append_failed, PartitionLink.next_append
    again: dict[int, list[Append]] = {}

    def taken(self: PartitionLink, generation: int, problem: Any) -> Any:
        if generation == self.generation:
            again[id(self)] = list(self._in_flight)[:1]
        return append_failed(self, generation, problem)

    def sent(self: PartitionLink) -> Append:
        append = next_append(self)
        for before in again.pop(id(self), []):
            if before.run.batch_count == 1:
                self._in_flight[-1] = append = replace(before, expected_log_end=-1)
        return append

    return [(PartitionLink, "append_failed", taken), (PartitionLink, "next_append", sent)]


@mutant
def workers_stop_without_zookeeper() -> list[Change]:
    """A worker without a session removes all its links."""
    share = Workers.share

    def nothing(self: Workers, *given: Any) -> Any:
        return frozenset() if self.state is WorkerState.CUT_OFF else share(self, *given)

    return [(Workers, "share", nothing)]


@mutant
def workers_keep_their_first_list() -> list[Change]:
    """A worker does not see the end of another one."""
    listed = Workers.listed

    def first(self: Workers, names: Any) -> bool:
        known = [each.name for each in (*self.members, *self.mismatched)]
        return listed(self, {*known, *names})

    return [(Workers, "listed", first)]


@mutant
def workers_register_once() -> list[Change]:
    """A worker does not register again after its session has expired."""
    register = WorkerRegistry._register_soon

    def once(self: WorkerRegistry) -> None:
        if self._workers.state is WorkerState.WAITING:
            register(self)

    return [(WorkerRegistry, "_register_soon", once)]


@mutant
def workers_assign_by_themselves_first() -> list[Change]:
    """Each worker begins the assignment with itself, so two workers compute different ones."""

    def turns(self: Workers, partitions: tuple[Any, ...]) -> None:
        ids = sorted({each.worker_id for each in self.members} - {self.worker_id})
        self._mine = frozenset(partitions[:: len(ids) + 1])

    return [(Workers, "_assign", turns)]
