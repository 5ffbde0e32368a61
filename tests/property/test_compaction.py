"""Rounds of compaction over a log, compared with a model that remembers every record that was appended.

The model is the content of a compacted topic as its documentation has it: the newest record of each key, tombstones for
delete.retention.ms, and every record that no round has reached. Some rounds end with their process or their machine.
"""

from __future__ import annotations

import random
from contextlib import suppress
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.config.log import LogConfig
from kbroker.log.cleaner import Cleaner, CleanerSizes, RoundLimits, SourceSegment
from kbroker.log.cleaning_round import CleaningRound, state_of
from kbroker.log.core.log_to_clean import log_to_clean
from kbroker.log.core.partition_metadata_file import PartitionMetadata
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import BatchInfo, check_crc, iterate, parse
from kclient.wire.records import Record, decode_batch, encode_batch
from tests.kit.crashing_disk import Crashed, CrashingDisk
from tests.kit.logs import IGNORED, read_bytes
from tests.kit.property_tests import examples

DIRECTORY = "/data/t-0"
RETENTION_MS = 50


class World:
    """A compacted log, every record that was appended to it, and the time."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.disk = CrashingDisk.with_log(DIRECTORY)
        self.config = LogConfig(
            cleanup_policy=("compact",),
            segment_bytes=rng.choice([700, 1500]),
            index_interval_bytes=100,
            delete_retention_ms=RETENTION_MS,
            min_cleanable_dirty_ratio=0,
            message_timestamp_type=rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
        )
        self.now_ms = 1_000
        self.number = self.epoch = 0
        self.sequences = dict.fromkeys((7, 8), 0)
        self.last_offsets: dict[int, int] = {}
        self.appended: dict[int, Record] = {}
        self.batch_of: dict[int, int] = {}
        """The base offset of the batch of each record."""
        self.kept_since: dict[int, int] = {}
        """When a round first kept a tombstone of a batch, by its base offset."""
        self.attempted: dict[int, int] = {}
        """When a round may have done so first."""
        self.checkpoint: int | None = None
        self.has_crashed = False
        self.log = UnifiedLog.create(
            DIRECTORY,
            self.config,
            PartitionMetadata(UUID(int=1), 0, "made-here"),
            IGNORED,
            now_ms=0,
            disk=self.disk,
        )

    def append(self) -> None:
        rng = self.rng
        producer = rng.choice([-1, -1, 7, 8])
        records = []
        for offset in range(rng.choice([1, 1, 2, 5])):
            self.number += 1
            records.append(
                Record(
                    offset,
                    self.now_ms + rng.randint(-900, 100),
                    rng.choice([None, b"", b"a", b"b", b"key-c", b"d" * 20, b"%d" % self.number]),
                    rng.choice([None, b"", b"%d" % self.number, b"v" * 60]),
                    rng.choice([(), (("h", b"1"), ("h", None))]),
                )
            )
        batch = encode_batch(
            records,
            codec=rng.choice([0, 0, 1, 2, 3, 4]),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=self.sequences.get(producer, -1),
        )
        base = self.log.log_end_offset
        self.epoch += rng.random() < 0.3
        self.log.append_as_leader(batch, parse(batch), self.epoch, self.now_ms)
        if producer >= 0:
            self.sequences[producer] += len(records)
            self.last_offsets[producer] = self.log.log_end_offset - 1
        for record in records:
            at = self.now_ms if self.config.log_append_time else record.timestamp
            self.appended[base + record.offset] = record._replace(
                offset=base + record.offset, timestamp=at
            )
            self.batch_of[base + record.offset] = base

    def fill(self) -> None:
        for _ in range(self.rng.randint(1, 12)):
            self.append()
            if self.rng.random() < 0.15:
                self.log.roll(self.now_ms)
        self.log.flush()

    def batches(self) -> list[tuple[BatchInfo, bytes]]:
        found = []
        offset = self.log.log_start_offset
        while data := read_bytes(self.log, offset):
            for info in iterate(data):
                check_crc(data, info)
                whole = data[info.position : info.end]
                times = [record.timestamp for record in decode_batch(whole, parse(whole))]
                assert info.max_timestamp == max(times, default=info.max_timestamp)
                found.append((parse(whole), whole))
                offset = info.next_offset
        return found

    def held(self) -> dict[int, Record]:
        return {
            record.offset: record._replace(headers=tuple(record.headers))
            for info, whole in self.batches()
            for record in decode_batch(whole, info)
        }

    def make_cleaner(self, segments: list[SourceSegment], limits: RoundLimits) -> Cleaner:
        return Cleaner(
            self.disk,
            segments,
            limits,
            CleanerSizes(self.map_bytes, 0.9, self.rng.choice([100, 1 << 20])),
            throttle=lambda _bytes: None,
        )

    map_bytes = 24 * 100

    def clean(self, high_watermark: int) -> int | None:
        """Play a round; return the end of its map, None if there is nothing to clean."""
        state = state_of(self.log, high_watermark, self.checkpoint)
        to_clean = log_to_clean(state, self.config, self.now_ms)
        if not to_clean.is_due(self.config):
            return None
        for base_offset in self.bases_of_tombstones():
            self.attempted.setdefault(base_offset, self.now_ms)
        ends = {info.next_offset for info, _ in self.batches()}
        cleaning = CleaningRound(self.log, to_clean, self.make_cleaner, self.now_ms)
        for work in cleaning.steps():
            work()
        assert cleaning.clean_below is not None
        assert cleaning.clean_below <= to_clean.first_uncleanable_offset <= high_watermark
        assert ends & {to_clean.first_uncleanable_offset} <= {
            info.next_offset for info, _ in self.batches()
        }
        self.checkpoint = cleaning.clean_below
        for path in cleaning.files:
            self.disk.unlink(path)
        for base_offset in self.bases_of_tombstones():
            if base_offset < cleaning.clean_below:
                self.kept_since.setdefault(base_offset, self.now_ms)
        return cleaning.clean_below

    def bases_of_tombstones(self) -> list[int]:
        return [
            info.base_offset
            for info, whole in self.batches()
            if any(record.value is None for record in decode_batch(whole, info))
        ]

    def check(self, end: int, *, is_whole: bool) -> None:
        """Compare the log with the model: a round reached *end*, and *is_whole* unless it ended early."""
        held = self.held()
        ends = {(info.producer_id, info.last_offset) for info, _ in self.batches()}
        assert self.last_offsets.items() <= ends
        latest = {
            record.key: offset
            for offset, record in self.appended.items()
            if offset < end and record.key is not None
        }
        assert all(self.appended[offset] == record for offset, record in held.items())
        assert {at for at in held if at >= end} == {at for at in self.appended if at >= end}
        expected = set()
        may_be_gone = set()
        for offset in latest.values():
            kept_since = self.attempted if self.has_crashed else self.kept_since
            since = kept_since.get(self.batch_of[offset], self.now_ms)
            if self.appended[offset].value is not None or self.now_ms < since + RETENTION_MS:
                expected.add(offset)
            else:
                may_be_gone.add(offset)
        below = {at for at in held if at < end}
        assert expected <= below
        if is_whole:
            assert below <= expected | (may_be_gone if self.has_crashed else set())

    def check_readers(self) -> None:
        """Fetch from offsets within holes, and open the log again from its files alone."""
        held = sorted(self.held())
        for offset in range(self.log.log_start_offset, self.log.log_end_offset):
            data = read_bytes(self.log, offset)
            info = parse(data)
            assert info.last_offset >= offset
            found = [one.offset for one in decode_batch(data, info) if one.offset >= offset]
            if found:
                assert found[0] == min(at for at in held if at >= offset)
        again = UnifiedLog.open(
            DIRECTORY,
            self.config,
            IGNORED,
            now_ms=0,
            disk=self.disk,
            recovery_point=self.log.recovery_point,
        )
        assert not again.notes
        assert again.log_end_offset == self.log.log_end_offset
        assert again.leader_epochs.entries == self.log.leader_epochs.entries
        ours, theirs = self.log.producers.states.entries, again.producers.states.entries
        assert {key: entry.last_sequence for key, entry in ours.items()} == {
            key: entry.last_sequence for key, entry in theirs.items()
        }
        again.close(clean=False)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(80), deadline=None)
def test_rounds_keep_the_newest_record_of_each_key_and_invent_nothing(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    for _ in range(rng.randint(1, 5)):
        world.fill()
        world.now_ms += rng.choice([1, RETENTION_MS - 1, RETENTION_MS, 3 * RETENTION_MS])
        world.map_bytes = 24 * rng.choice([5, 20, 100])
        before = world.checkpoint
        mark = rng.choice([world.log.log_end_offset, rng.randint(0, world.log.log_end_offset)])
        end = world.clean(mark)
        if end is None:
            continue
        world.check(end, is_whole=True)
        once = world.batches()
        world.checkpoint = before  # as after a crash before the checkpoint
        again = world.clean(mark)
        if again == end:
            assert world.batches() == once
        # The map may have room for more now.
        world.check(end if again is None else again, is_whole=True)
    world.check_readers()


@given(seed=st.integers(0, 2**32), at=st.floats(0, 1), power_lost=st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_a_round_that_ends_anywhere_loses_no_newest_record(
    seed: int, at: float, power_lost: bool
) -> None:
    world = filled(seed)
    calls = changes_of(seed)
    world.disk.calls_left = int(at * calls)
    with suppress(Crashed):
        world.clean(world.log.log_end_offset)
        return
    world.disk.calls_left = -1
    end = world.log.segments.active.base_offset
    if power_lost:
        world.disk.lose_power(random.Random(seed + 1))
    else:
        world.disk.kill()
    world.has_crashed = True
    world.checkpoint = None
    world.log = UnifiedLog.open(
        DIRECTORY,
        world.config,
        IGNORED,
        now_ms=0,
        disk=world.disk,
        recovery_point=world.log.recovery_point,
    )
    world.check(end, is_whole=False)
    world.now_ms += random.Random(seed).choice([0, RETENTION_MS])
    reached = world.clean(world.log.log_end_offset)
    assert reached is not None
    world.check(reached, is_whole=True)
    world.check_readers()


def filled(seed: int) -> World:
    world = World(random.Random(seed))
    for _ in range(3):
        world.fill()
    world.log.roll(world.now_ms)
    world.append()
    world.log.flush()
    return world


def changes_of(seed: int) -> int:
    """Count the changes to the disk of a round that comes to its end."""
    world = filled(seed)
    world.disk.calls_left = 10**6
    world.clean(world.log.log_end_offset)
    return 10**6 - world.disk.calls_left
