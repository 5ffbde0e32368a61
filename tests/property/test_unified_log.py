"""A log against a list of batches: whatever is done to it, it holds what the list holds.

The model is a list of (base offset, epoch, values). A crash keeps what was written (the process was
killed, not the machine) and may tear a write that was on its way; a clean restart keeps everything.
"""

from __future__ import annotations

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kbroker.config.log import LogConfig
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import iterate, parse
from kclient.wire.errors import OffsetOutOfRange
from kclient.wire.records import Record, decode_batch, encode_batch
from tests.kit.log_timestamps import offset_for_timestamp
from tests.kit.logs import IGNORED
from tests.kit.property_tests import examples


class Batch(NamedTuple):
    """A batch of the model."""

    base: int
    epoch: int
    values: tuple[bytes, ...]
    timestamps: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.base + len(self.values)


VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=4)


class LogMachine(RuleBasedStateMachine):
    """Append, read, roll, flush, truncate, crash, restart, delete."""

    @initialize(
        segment_bytes=st.sampled_from([300, 1000, 100_000]),
        interval=st.sampled_from([0, 100, 4096]),
        index_bytes=st.sampled_from([48, 10_000_000]),
        segment_ms=st.sampled_from([50, 10**9]),
    )
    def open(self, segment_bytes: int, interval: int, index_bytes: int, segment_ms: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="log-model-"))
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=index_bytes,
            segment_ms=segment_ms,
            retention_ms=100,
            retention_bytes=-1,
        )
        self.batches: list[Batch] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.now = 1000
        self.synced = 0
        self.log = self.reopen(clean=False)

    def reopen(self, *, clean: bool) -> UnifiedLog:
        return UnifiedLog.open(
            str(self.directory),
            self.config,
            IGNORED,
            now_ms=self.now,
            clean=clean,
            recovery_point=self.synced,
            log_start_offset=self.start,
        )

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.log.close(clean=False)
            shutil.rmtree(self.directory)

    # What is done to it

    @rule(values=VALUES, jitter=st.lists(st.integers(-20, 20), min_size=4, max_size=4))
    def append(self, values: list[bytes], jitter: list[int]) -> None:
        timestamps = tuple(self.now + jitter[n] for n in range(len(values)))
        data = encode_batch(
            [
                Record(n, timestamp, None, value, ())
                for n, (value, timestamp) in enumerate(zip(values, timestamps, strict=True))
            ]
        )
        result = self.log.append_as_leader(data, parse(data), self.epoch, self.now)
        assert result[:2] == (self.end, self.end + len(values) - 1)
        self.batches.append(Batch(self.end, self.epoch, tuple(values), timestamps))
        self.end += len(values)

    @rule(
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=5),
        gaps=st.lists(st.sampled_from([0, 0, 0, 1, 7]), min_size=5, max_size=5),
        new_epoch=st.booleans(),
        copied=st.booleans(),
    )
    def replicate(self, sizes: list[int], gaps: list[int], new_epoch: bool, copied: bool) -> None:
        self.epoch += new_epoch
        if copied and self.start == self.end:
            gaps[0] = 0  # a copy into an empty log starts where the copied batches do
        data = b""
        for size, gap in zip(sizes, gaps, strict=False):
            self.end += gap
            batch = Batch(self.end, self.epoch, (b"r",) * size, (self.now,) * size)
            data += encode_batch(
                [Record(self.end + n, self.now, None, b"r", ()) for n in range(size)],
                base_offset=self.end,
                leader_epoch=self.epoch,
            )
            self.batches.append(batch)
            self.end += size
        if copied:
            checked = list(iterate(data))
            result = self.log.append_copied(
                data, checked, self.epoch, self.now, start_offset=checked[0].base_offset
            )
            assert result.last_offset == self.end - 1
        else:
            assert self.log.append_as_follower(data + data[:30], self.now) == len(data)

    @rule()
    def elect(self) -> None:
        self.epoch += 1

    @rule(ms=st.integers(1, 60))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now)

    @rule(sealed_only=st.booleans())
    def flush(self, sealed_only: bool) -> None:
        work = self.log.start_flush(sealed_only=sealed_only)
        if work is not None:
            work.run()
            self.log.finish_flush(work)
        if not sealed_only:
            assert self.log.recovery_point == self.end

    @rule()
    def checkpoint(self) -> None:
        self.synced = self.log.recovery_point

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end + 1))
        kept = self.log.truncate_to(offset)
        if offset < self.end:
            self.batches = [one for one in self.batches if one.end <= offset]
            if kept != offset:  # never less than what is left, or where the first segment begins
                last = self.batches[-1].end if self.batches else 0
                assert last <= kept < offset
            self.end = kept
            self.start = min(self.start, kept)
        assert kept == self.end
        self.synced = min(self.synced, self.log.recovery_point)  # as the checkpoint is taken back

    @rule(ahead=st.integers(0, 50))
    def truncate_fully(self, ahead: int) -> None:
        self.start = self.end = self.end + ahead
        self.batches.clear()
        self.log.truncate_fully_and_start_at(self.start, self.now)
        self.synced = min(self.synced, self.log.recovery_point)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        self.log.advance_log_start(self.start)

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        high_watermark = data.draw(st.integers(self.start, self.end))
        before = self.log.log_start_offset
        for path in self.log.delete_old_segments(self.now, up_to_offset=high_watermark):
            Path(path).unlink()
        self.start = self.log.log_start_offset
        assert before <= self.start <= max(high_watermark, before)
        for one in self.batches:
            if before <= one.base and one.end <= self.start:
                assert self.now - max(one.timestamps) > 100

    @rule()
    def restart(self) -> None:
        assert self.log.close(clean=True)
        self.synced = self.log.recovery_point
        self.log = self.reopen(clean=True)

    @rule(torn=st.binary(max_size=100), zeros=st.booleans())
    def crash(self, torn: bytes, zeros: bool) -> None:
        path = self.log.segments[-1].path
        self.log.close(clean=False)
        with open(path, "ab") as file:
            file.write(bytes(len(torn)) if zeros else torn)
        self.log = self.reopen(clean=False)
        assert self.log.missing_below is None

    @rule()
    def crash_twice(self) -> None:
        self.log.close(clean=False)
        self.reopen(clean=False).close(clean=False)
        self.log = self.reopen(clean=False)

    # What it must hold

    @rule(data=st.data(), max_bytes=st.sampled_from([0, 1, 150, 1000, 1 << 20]))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.start - 1, self.end + 1))
        up_to = data.draw(st.integers(self.start, self.end))
        if not self.start <= offset <= self.end:
            with pytest.raises(OffsetOutOfRange):
                self.log.read(offset, max_bytes)
            return
        found = self.log.read(offset, max_bytes, up_to_offset=up_to)
        raw = b"".join(part.read() for part in found.slices)
        assert len(raw) == found.size
        expected = [one for one in self.batches if one.end > offset and one.end <= up_to]
        got = list(iterate(raw))
        if offset >= up_to or not expected:
            assert not found.size
            return
        assert got
        assert found.size <= max(max_bytes, got[0].size)
        for info, one in zip(got, expected, strict=False):
            assert (info.base_offset, info.leader_epoch) == (one.base, one.epoch)
            assert tuple(record.value for record in decode_batch(raw, info)) == one.values

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        timestamp = data.draw(st.integers(self.now - 200, self.now + 25))
        found = offset_for_timestamp(self.log, timestamp)
        expected = next(
            (
                (at, one.base + n)
                for one in self.batches
                for n, at in enumerate(one.timestamps)
                if at >= timestamp and one.base + n >= self.start
            ),
            None,
        )
        assert (found and found[:2]) == expected

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def ends_agree(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert self.synced <= log.recovery_point <= log.log_end_offset
        assert log.failure is None

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def epochs_agree(self) -> None:
        entries = self.log.leader_epochs.entries
        for one in self.batches:
            if one.base >= self.start:
                assert self.log.leader_epochs.epoch_at(one.base) == one.epoch
        for earlier, later in pairwise(entries):
            assert earlier.epoch < later.epoch
            assert earlier.start_offset < later.start_offset


LogMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestUnifiedLog = LogMachine.TestCase
