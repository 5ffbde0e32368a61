"""Known bugs of replication: the ISR, the high watermark, and truncation."""

from __future__ import annotations

from typing import Any

from kbroker.apis import api00_produce
from kbroker.replication.leading import Leading
from kbroker.runtime.partition import Partition
from kbroker.zk.session import ZooKeeperSession
from tests.simulation.mutants.registry import Change, frequent_mutant, mutant


@mutant
def watermark_by_committed_isr() -> list[Change]:
    """The watermark counts the ISR that was answered, not the one that may have been written (KIP-497)."""

    original = Leading.advance

    def advance(self: Leading) -> bool:
        maximal, joining = self.maximal_isr, self._joining
        self.maximal_isr, self._joining = self.isr, set()
        try:
            return original(self)
        finally:
            self.maximal_isr, self._joining = maximal, joining

    return [(Leading, "advance", advance)]


@frequent_mutant
def truncation_to_the_watermark() -> list[Change]:
    """A new follower cuts its log at the watermark it knows, as before KIP-101."""
    original = Partition.take_role

    def take_role(self: Partition, *args: Any) -> None:
        original(self, *args)
        if self.following is not None and self.log is not None:
            self.log.truncate_to(self.following.high_watermark)

    return [(Partition, "take_role", take_role)]


@mutant
def state_written_unconditionally() -> list[Change]:
    """The ISR is written whatever the version of the znode is (KAFKA-2729 cured too well)."""
    original = ZooKeeperSession.set

    def set_any(self: ZooKeeperSession, path: str, data: bytes, version: int, **tag: Any) -> Any:
        return original(self, path, data, -1 if path.endswith("/state") else version, **tag)

    return [(ZooKeeperSession, "set", set_any)]


@frequent_mutant
def joining_the_isr_early() -> list[Change]:
    """Whoever fetches joins the ISR, wherever its log ends."""
    original = Leading.follower_fetched

    def fetched(self: Leading, replica: int, offset: int, *rest: Any, **named: Any) -> Any:
        mark, start = self.high_watermark, self.epoch_start_offset
        self.high_watermark = self.epoch_start_offset = min(offset, mark)
        try:
            effects = original(self, replica, offset, *rest, **named)
        finally:
            self.high_watermark = max(mark, self.high_watermark)
            self.epoch_start_offset = start
        return effects

    return [(Leading, "follower_fetched", fetched)]


@mutant
def joining_before_the_epoch_start() -> list[Change]:
    """A follower joins the ISR at the watermark that a new leader happens to know (KAFKA-7128)."""
    original = Leading.follower_fetched

    def fetched(self: Leading, *given: Any, **named: Any) -> Any:
        start, self.epoch_start_offset = self.epoch_start_offset, 0
        try:
            return original(self, *given, **named)
        finally:
            self.epoch_start_offset = start

    return [(Leading, "follower_fetched", fetched)]


@frequent_mutant
def answer_before_the_watermark() -> list[Change]:
    """acks=all is answered when the leader has it."""
    return [(api00_produce, "ALL_IN_SYNC", 77)]


@mutant
def no_divergence() -> list[Change]:
    """A leader never tells a follower that its log is another one."""
    return [(Partition, "diverges", lambda *_args, **_more: None)]


@mutant
def lost_answer_taken_for_a_refusal() -> list[Change]:
    """An ISR write whose answer was lost counts as not done (S5)."""

    def found(self: Leading, *_found: Any) -> Any:
        self.pending = None
        self._settle()
        return []

    return [(Leading, "isr_found", found)]
