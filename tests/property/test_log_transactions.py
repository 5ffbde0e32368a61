"""The transactions of a log, against a model that decodes all its batches.

Producers of this cluster, a leader and a mirror append transactional batches and markers in any order. The log is
rolled, flushed, truncated, shortened by retention, and its segments are replaced. The process or the machine ends at
any call to the disk. After every step the last stable offset, the transaction indexes and what a consumer with
read_committed finds are those of the model. Invariants 1-3 of `kbroker.log.core.log_transactions`.
"""

from __future__ import annotations

import random
import struct
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.config.log import LogConfig
from kbroker.log.core.partition_metadata_file import PartitionMetadata
from kbroker.log.unified_log import UnifiedLog
from kclient.wire import fetch
from kclient.wire.batches import iterate, parse
from kclient.wire.records import ABORT, COMMIT
from tests.kit.crashing_disk import Crashed, CrashingDisk
from tests.kit.logs import IGNORED, batch_of
from tests.kit.property_tests import examples
from tests.kit.transactional_logs import (
    Decoded,
    decoded,
    marker,
    other_control,
    transactional,
    visible,
)

DIRECTORY = "/data/t-0"
PRODUCERS = (7, 8, 9)


class World:
    """A log on a disk that ends the process, and every batch that it ever had."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.disk = CrashingDisk.with_log(DIRECTORY)
        self.config = LogConfig(
            segment_bytes=rng.choice([300, 700, 10**6]),
            index_interval_bytes=rng.choice([1, 150, 400]),
            retention_ms=-1,
        )
        self.number = self.epoch = 0
        self.batches: dict[int, bytes] = {}
        self.high_watermark = self.log_start = self.recovery_point = 0
        self.opened_at = 0
        self.log = UnifiedLog.create(
            DIRECTORY, self.config, PartitionMetadata(None), IGNORED, now_ms=0, disk=self.disk
        )

    # Appends

    def batch(self, base_offset: int) -> bytes:
        self.number += 1
        value = b"%d" % self.number
        pid = self.rng.choice(PRODUCERS)
        kind = self.rng.choice(["in", "in", "in", "out", "none", "end", "end", "odd"])
        if kind == "end":
            return marker(
                pid, self.rng.choice([ABORT, COMMIT]),
                base_offset=base_offset, leader_epoch=self.epoch,
            )  # fmt: skip
        if kind == "odd":
            return other_control(pid, b"\0\0\0\7", base_offset=base_offset)
        if kind == "none":
            return batch_of(1, value=value, base_offset=base_offset, leader_epoch=self.epoch)
        return transactional(
            pid, value, self.rng.randint(1, 3),
            base_offset=base_offset, sequence=self.number,
            leader_epoch=self.epoch, is_transactional=kind == "in",
        )  # fmt: skip

    def append(self) -> None:
        batch = self.batch(0)
        self.log.append_as_leader(batch, parse(batch), self.epoch, 0)

    def several(self, gap: int = 0) -> bytes:
        data = b""
        end = self.log.log_end_offset
        for _ in range(self.rng.randint(1, 5)):
            end += self.rng.randint(0, gap)
            batch = self.batch(end)
            data += batch
            end = parse(batch).next_offset
        return data

    def replicate(self) -> None:
        self.log.append_as_follower(self.several(), 0)

    def copy(self) -> None:
        data = self.several(gap=2)
        self.log.append_copied(
            data, list(iterate(data)), self.epoch, 0, start_offset=self.log.log_end_offset
        )

    # Other changes

    def roll(self) -> None:
        self.log.roll(0)

    def flush(self) -> None:
        self.log.flush()
        self.recovery_point = self.rng.choice([self.recovery_point, self.log.recovery_point])

    def replicated(self) -> None:
        """All replicas have the batches up to a later one."""
        bases = [base for base in self.held() if base >= self.high_watermark]
        self.high_watermark = self.rng.choice([*bases, self.log.log_end_offset])
        self.log.producers.transactions.replicated(self.high_watermark)

    def held(self) -> dict[int, bytes]:
        """The batches that the files hold, by base offset."""
        found = {}
        for segment in self.log.segments:
            data = segment.file.pread(segment.size, 0)
            for info in iterate(data):
                found[info.base_offset] = data[info.position : info.end]
        return found

    def truncate(self) -> None:
        offset = self.rng.randint(self.log_start, self.log.log_end_offset)
        if self.rng.random() < 0.5:
            offset = max(offset, self.log.log_end_offset - 3)
        self.recovery_point = min(self.recovery_point, offset)
        self.log.truncate_to(offset)
        self.log_start = self.log.log_start_offset
        self.epoch += 1
        self.fit()
        # A truncation may forget what ended below the high watermark.
        self.opened_at = max(self.opened_at, self.high_watermark)

    def fit(self) -> None:
        end = self.log.log_end_offset
        self.recovery_point = min(self.recovery_point, self.log.recovery_point)
        held = self.held()
        self.high_watermark = min(self.high_watermark, end)
        if self.high_watermark not in (*held, end):  # it is where a batch begins, or at the end
            self.high_watermark = max((b for b in held if b < self.high_watermark), default=end)
        self.opened_at = min(self.opened_at, end)

    def retain(self) -> None:
        self.log_start = self.rng.randint(self.log_start, max(self.high_watermark, self.log_start))
        self.log.advance_log_start(self.log_start)
        for path in self.log.delete_old_segments(0, up_to_offset=self.high_watermark):
            self.disk.unlink(path)
        self.log_start = self.log.log_start_offset

    def replace(self) -> None:
        """Replace sealed segments by one with the same batches."""
        segments = self.log.segments
        sealed = sum(each.base_offset <= self.log.recovery_point for each in segments[1:])
        sealed = min(sealed, len(segments) - 1)
        if not sealed:
            return
        first = self.rng.randrange(sealed)
        count = self.rng.randint(1, sealed - first)
        replacement = self.log.start_replacement(first, count)
        replacement.write([each.file.pread(each.size, 0) for each in replacement.old])
        replacement.publish()
        for path in self.log.replace_segments(replacement):
            self.disk.unlink(path)
        replacement.sync()
        self.log.complete_replacement(replacement)
        replacement.sync()

    def restart(self) -> None:
        assert self.log.close()
        self.recovery_point = self.log.recovery_point
        self.open(clean=True)

    def open(self, *, clean: bool = False) -> None:
        self.log = UnifiedLog.open(
            DIRECTORY,
            self.config,
            IGNORED,
            now_ms=0,
            disk=self.disk,
            clean=clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.log_start,
        )

    def reopened(self) -> None:
        self.opened_at = self.log.log_end_offset
        self.fit()
        self.log_start = self.log.log_start_offset
        self.high_watermark = max(self.high_watermark, self.log_start)
        self.log.producers.transactions.replicated(self.high_watermark)

    # Judgement

    def check(self) -> None:
        log = self.log
        first = log.segments[0].base_offset
        deleted = {
            base: data
            for base, data in self.batches.items()
            if base + parse(data).last_offset_delta < first
        }
        self.batches = deleted | self.held()
        truth = decoded(self.batches)
        retained = decoded({b: data for b, data in self.batches.items() if b >= first})
        self.check_transactions(truth.ongoing, retained.ongoing)
        marks = [each.last_offset for each in truth.ended[-3:]]
        for high_watermark in {self.high_watermark, log.log_end_offset, *marks}:
            found = log.last_stable_offset(high_watermark)
            if high_watermark < self.log_start:
                continue
            low = max(truth.last_stable_offset(high_watermark), self.log_start)
            # What ended before the log was opened or truncated, or begins in a deleted segment, may be forgotten.
            high = max(retained.last_stable_offset(high_watermark, self.opened_at), self.log_start)
            assert low <= found <= high, (low, found, high)
        self.check_indexes(truth, first)
        offset = self.rng.randint(self.log_start, log.log_end_offset)
        self.check_consumer(offset, truth)

    def check_transactions(self, truth: dict[int, int], retained: dict[int, int]) -> None:
        """The open ones are those of the model, but a deleted beginning may be forgotten."""
        first = self.log.segments[0].base_offset
        ongoing = self.log.producers.transactions.ongoing
        found = {pid: each.first_offset for pid, each in ongoing.items()}
        assert list(found.values()) == sorted(found.values())
        for pid in PRODUCERS:
            true = truth.get(pid)
            if true is None or true >= first:
                assert found.get(pid) == true, (pid, found, truth)
            else:
                latest = retained.get(pid, first)
                assert true <= found.get(pid, latest if pid not in retained else -1) <= latest

    def check_indexes(self, truth: Decoded, first: int) -> None:
        begins = [*(each.first_offset for each in truth.ended), *truth.ongoing.values()]
        for segment in self.log.segments:
            segment.transaction_index.write_out()
        ends = [each.base_offset for each in self.log.segments[1:]] + [2**62]
        files = self.disk.contents(DIRECTORY)
        for segment, end in zip(self.log.segments, ends, strict=True):
            name = segment.transaction_index.path.rpartition("/")[2]
            rows = list(struct.iter_unpack(">hqqqq", files.get(name, b"")))
            wanted = [
                each for each in truth.ended
                if each.is_aborted and segment.base_offset <= each.last_offset < end
            ]  # fmt: skip
            if all(each >= first for each in begins):
                assert rows == [(0, *each[:3], each.last_stable_offset) for each in wanted]
            else:  # the beginnings of some were deleted
                kept = [each.last_offset for each in wanted if each.first_offset >= first]
                assert set(kept) <= {row[3] for row in rows} <= {e.last_offset for e in wanted}

    def check_consumer(self, offset: int, truth: Decoded) -> None:
        log = self.log
        start, stable = offset, log.last_stable_offset(self.high_watermark)
        got: list[tuple[int, bytes | None]] = []
        while offset < stable:
            found = log.read(offset, self.rng.choice([1, 150, 10**6]), up_to_offset=stable)
            aborted = log.aborted_transactions(offset, found, stable)
            data = b"".join(part.read() for part in found.slices)
            if not data:
                break
            assert all(each.last_offset >= offset for each in aborted)
            listed = [fetch.AbortedTransaction(e.producer_id, e.first_offset) for e in aborted]
            records, offset = visible(data, listed, offset)
            got += records
        assert got == truth.committed(start, stable)

    def step(self) -> None:
        choices = [
            self.append, self.append, self.append, self.replicate, self.copy, self.copy, self.roll, self.flush,
            self.replicated, self.replicated, self.truncate, self.retain, self.restart, self.replace,
        ]  # fmt: skip
        step = self.rng.choice(choices)
        step()
        if step == self.restart:
            self.reopened()


@given(seed=st.integers(0, 2**32), ends=st.lists(st.integers(0, 25), max_size=3))
@settings(max_examples=examples(120), deadline=None)
def test_the_transactions_of_a_log_are_those_of_its_batches(seed: int, ends: list[int]) -> None:
    """The process ends after each number of changes in *ends*, or the machine does."""
    rng = random.Random(seed)
    world = World(rng)
    for calls in [*ends, None]:
        for _ in range(rng.randint(1, 25)):
            world.step()
            world.check()
        if calls is None:
            break
        world.disk.calls_left = calls
        with suppress(Crashed):
            for _ in range(40):
                world.step()
        world.disk.calls_left = -1
        if rng.random() < 0.5:
            world.disk.lose_power(rng)
        else:
            world.disk.kill()
        if rng.random() < 0.3:  # ... and within the recovery
            world.disk.calls_left = rng.randint(0, 8)
            with suppress(Crashed):
                world.open()
            world.disk.calls_left = -1
            world.disk.lose_power(rng)
        world.open()
        world.reopened()
        world.check()
