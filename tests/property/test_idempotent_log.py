"""The answers of a log to producers, against a list of every batch that it appended.

The model knows nothing but the list: a batch is a duplicate if one of the producer's last five is the same, in order if
it follows the last one, else refused. Rolls, crashes, restarts, truncations, retention, a mirror's copies and damaged
snapshots change nothing but the list. Invariants 1-3 of `kbroker.log.core.producer_state`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.config.log import LogConfig
from kbroker.log.core.producer_state import LAST_SEQUENCE, RECOGNISED
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import iterate, parse
from kclient.wire.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from tests.kit.logs import IGNORED, append
from tests.kit.producer_batches import numbered_batch
from tests.kit.property_tests import examples


class Batch(NamedTuple):
    """A batch of a producer."""

    epoch: int
    sequence: int
    count: int
    offset: int

    @property
    def next(self) -> int:
        return (self.sequence + self.count) & LAST_SEQUENCE

    @property
    def end(self) -> int:
        return self.offset + self.count


PRODUCERS = st.integers(0, 1)
COUNTS = st.integers(1, 3)
FIRST = st.sampled_from([0, 1, 40, LAST_SEQUENCE - 1, LAST_SEQUENCE])
KINDS = st.sampled_from(["next"] * 5 + ["again"] * 3 + ["gap", "epoch", "late epoch", "old epoch"])
SENDING = st.tuples(KINDS, COUNTS, st.integers(1, 7))


class IdempotentLog(RuleBasedStateMachine):
    """Producers send; the log goes through every fault."""

    @initialize(segment_bytes=st.sampled_from([400, 1000, 10**6]))
    def open(self, segment_bytes: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="idempotent-"))
        self.config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=150, retention_ms=5
        )
        self.taken: dict[int, list[Batch]] = {0: [], 1: []}
        self.in_flight: dict[int, list[Batch]] = {0: [], 1: []}
        self.synced = self.now = 0
        self.retained = False
        self.log = self.reopen(clean=False)

    def reopen(self, *, clean: bool) -> UnifiedLog:
        return UnifiedLog.open(
            str(self.directory),
            self.config,
            IGNORED,
            now_ms=self.now,
            clean=clean,
            recovery_point=self.synced,
        )

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.log.close(clean=False)
            shutil.rmtree(self.directory)

    # Producers

    def expected(self, producer: int, one: Batch) -> object:
        """Return what a leader does: an offset, "append", an error; a set where either is in order."""
        taken = self.taken[producer]
        if not taken:
            return "append"
        last = taken[-1]
        if one.epoch != last.epoch:
            if one.epoch < last.epoch:
                return InvalidProducerEpoch
            return OutOfOrderSequenceNumber if one.sequence else "append"
        for known in taken[-RECOGNISED:]:
            if known[:3] == one[:3]:
                # After a cut, what cannot be in flight any more may be recognised or refused.
                sure = known in self.in_flight[producer]
                return known.offset if sure else {known.offset, OutOfOrderSequenceNumber}
        return "append" if one.sequence == last.next else OutOfOrderSequenceNumber

    def outcome(self, producer: int, one: Batch) -> object:
        """Do as a leader does."""
        data = numbered_batch(producer, one.sequence, one.count, epoch=one.epoch)
        info = parse(data)
        try:
            duplicate = self.log.producers.states.check(info)
        except (OutOfOrderSequenceNumber, InvalidProducerEpoch) as error:
            return type(error)
        if duplicate is not None:
            return duplicate.base_offset
        at = self.log.append_as_leader(data, info, 0, self.now).base_offset
        self.took(producer, one._replace(offset=at))
        return "append"

    def took(self, producer: int, one: Batch) -> None:
        self.taken[producer].append(one)
        last_five = self.taken[producer][-RECOGNISED:]
        # What once left the window was acknowledged: a cut that shortens the log does not bring it back.
        maybe = (*self.in_flight[producer], self.taken[producer][-1])
        self.in_flight[producer] = [b for b in maybe if b in last_five and b.epoch == one.epoch]

    @rule(producer=PRODUCERS, first=FIRST, kinds=st.lists(SENDING, min_size=1, max_size=9))
    def send(self, producer: int, first: int, kinds: list[tuple[str, int, int]]) -> None:
        for kind, count, back in kinds:
            self.send_one(producer, kind, count, back, first)

    def send_one(self, producer: int, kind: str, count: int, back: int, first: int) -> None:
        taken = self.taken[producer]
        if not taken:
            one = Batch(1, first, count, -1)
        elif kind == "again":
            one = taken[-min(back, len(taken))]
        else:
            last = taken[-1]
            one = {
                "next": Batch(last.epoch, last.next, count, -1),
                "gap": Batch(last.epoch, (last.next + back) & LAST_SEQUENCE, count, -1),
                "epoch": Batch(last.epoch + 1, 0, count, -1),
                "late epoch": Batch(last.epoch + 1, back, count, -1),
                "old epoch": Batch(last.epoch - 1, last.next, count, -1),
            }[kind]
        expected = self.expected(producer, one)
        outcome = self.outcome(producer, one)
        assert outcome in expected if isinstance(expected, set) else outcome == expected

    @rule()
    def send_without_id(self) -> None:
        append(self.log, self.now)

    @rule(items=st.lists(st.tuples(PRODUCERS, COUNTS, st.booleans()), min_size=1, max_size=4))
    def replicate(self, items: list[tuple[int, int, bool]]) -> None:
        """Another broker leads for a while."""
        data = b""
        end = self.log.log_end_offset
        for producer, count, new_epoch in items:
            taken = self.taken[producer]
            last = taken[-1] if taken else Batch(1, 0, 0, -1)
            one = Batch(last.epoch + new_epoch, 0 if new_epoch else last.next, count, end)
            data += numbered_batch(producer, one.sequence, count, epoch=one.epoch, base_offset=end)
            end += count
            self.took(producer, one)
        self.log.append_as_follower(data, self.now)

    @rule(producer=PRODUCERS, sequence=st.integers(0, 50), count=COUNTS)
    def copy(self, producer: int, sequence: int, count: int) -> None:
        """A mirror copies a batch of another cluster's producer with the same id."""
        data = numbered_batch(producer, sequence, count, base_offset=self.log.log_end_offset)
        self.log.append_copied(data, list(iterate(data)), 0, self.now, start_offset=0)

    # The log

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.synced = self.log.recovery_point

    @rule(clean=st.booleans(), damage=st.sampled_from([None, None, b"", b"\0" * 99]))
    def restart(self, clean: bool, damage: bytes | None) -> None:
        self.log.close(clean=clean)
        snapshots = sorted(self.directory.glob("*.snapshot"))
        if damage is not None and snapshots and not self.retained:
            snapshots[-1].write_bytes(damage)
        if clean:
            self.synced = self.log.recovery_point
        self.log = self.reopen(clean=clean)

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        offset = max(self.log.log_start_offset, self.log.log_end_offset - back)
        empties = offset < self.log.log_end_offset and offset <= self.log.segments[0].base_offset
        kept = self.log.truncate_to(offset)
        self.synced = min(self.synced, kept)
        for lists in (self.taken, self.in_flight):
            for producer, batches in lists.items():
                lists[producer] = [] if empties else [one for one in batches if one.end <= kept]

    @rule()
    def retain(self) -> None:
        """Producers outlive their records."""
        self.now += 3
        for path in self.log.delete_old_segments(self.now):
            Path(path).unlink()
            self.retained = True

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def snapshots_are_of_the_log(self) -> None:
        offsets = self.log.producers.snapshots.offsets
        on_disk = sorted(int(path.stem) for path in self.directory.glob("*.snapshot"))
        assert offsets == on_disk
        assert all(offset <= self.log.log_end_offset for offset in offsets)
        bases = {segment.base_offset for segment in self.log.segments}
        assert len([offset for offset in offsets if offset not in bases]) <= 1


IdempotentLog.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestIdempotentLog = IdempotentLog.TestCase
