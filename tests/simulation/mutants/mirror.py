"""Known bugs of the mirror and of the conditional append; `tests/simulation/mirror.py` finds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kbroker.apis import api00_produce
from kbroker.replica.conditional_append import append_copied
from kbroker.replica.partition import Partition
from mirrormaker.link import UNKNOWN, PartitionLink
from mirrormaker.link_state import Append, LogEnds
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

    def append(partition: Partition, buf: Any, _follows: Any, acks: int, now_ms: int) -> Any:
        log, _ = partition.require_leader_for_append(acks)
        return append_copied(partition, buf, end_of(partition, log), acks, now_ms)

    return [(api00_produce, "append_copied", append)]


@mutant
def previous_crc_unchecked() -> list[Change]:
    """A conditional append compares the log end, and not the batch that ends there."""

    def append(partition: Partition, buf: Any, follows: Any, acks: int, now_ms: int) -> Any:
        log, _ = partition.require_leader_for_append(acks)
        crc = end_of(partition, log)[1]
        return append_copied(partition, buf, (follows[0], crc), acks, now_ms)

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
