"""Rounds of compaction over a log with transactions, compared with a model that remembers every batch.

The model decodes all batches that were ever appended, and knows nothing of indexes, offset maps or horizons. Producers,
some of them transactional, write the same keys; or a mirror copies such a log. The high watermark follows. Appends go
on within a round. After each step a consumer with read_committed reads from some offset: the last committed record of
each key is there, nothing that was aborted or is open appears, and nothing is invented. Some rounds end with their
process or their machine.
"""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.config.log import LogConfig
from kbroker.log.cleaner import Cleaner, CleanerSizes, RoundLimits, SourceSegment
from kbroker.log.cleaning_round import CleaningRound, state_of
from kbroker.log.core.log_to_clean import log_to_clean
from kbroker.log.core.partition_metadata_file import PartitionMetadata
from kbroker.log.unified_log import UnifiedLog
from kclient.wire import fetch
from kclient.wire.batches import TRANSACTIONAL, BatchInfo, check_crc, iterate, parse
from kclient.wire.records import ABORT, COMMIT, Record, decode_batch, encode_batch
from tests.kit.crashing_disk import Crashed, CrashingDisk
from tests.kit.logs import IGNORED
from tests.kit.property_tests import examples
from tests.kit.transactional_logs import Decoded, decoded, marker, other_control, visible

DIRECTORY = "/data/t-0"
RETENTION_MS = 50
PRODUCERS = (7, 8, 9)

Found = list[tuple[int, bytes | None]]


class Stored(NamedTuple):
    """A record of an application, and when it came."""

    record: Record
    base_offset: int
    """Of its batch."""
    producer_id: int
    is_transactional: bool


class World:
    """A compacted log, every batch that was appended to it, and the time."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.disk = CrashingDisk.with_log(DIRECTORY)
        self.config = LogConfig(
            cleanup_policy=("compact",),
            segment_bytes=rng.choice([400, 900, 2000]),
            index_interval_bytes=rng.choice([1, 200]),
            delete_retention_ms=RETENTION_MS,
            min_cleanable_dirty_ratio=0,
            retention_ms=-1,
        )
        self.is_mirror = rng.random() < 0.3
        self.tidiness = rng.choice([0, 0.5, 1])
        """How often a marker ends the earliest open transaction, and not any."""
        self.now_ms = 1_000
        self.number = self.epoch = 0
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.producer_epochs = dict.fromkeys(PRODUCERS, 0)
        self.batches: dict[int, bytes] = {}
        """All that was appended and not cut, by base offset."""
        self.high_watermark = self.opened_at = 0
        self.map_bytes = 24 * 100
        self.expired: set[int] = set()
        """Producers that were forgotten once: an older snapshot, or none, may know more of them."""
        self.cut: set[int] = set()
        """Producers with a last batch that was truncated: the one before may be cleaned, and in snapshots only."""
        self.checkpoint: int | None = None
        self.cleaned_below = 0
        """Where the furthest round ended."""
        self.tried: list[tuple[int, int]] = []
        """The first uncleanable offset and the time of each round that began."""
        self.without_batches: dict[int, int] = {}
        """When a whole round first kept the marker of a transaction without batches, by offset."""
        self.log = UnifiedLog.create(
            DIRECTORY, self.config, PartitionMetadata(None), IGNORED, now_ms=0, disk=self.disk
        )

    # Appends

    def records(self) -> list[Record]:
        rng = self.rng
        found = []
        for offset in range(rng.choice([1, 1, 2, 4])):
            self.number += 1
            key = rng.choice([None, b"a", b"b", b"c", b"d", b"e", b"%d" % self.number])
            value = rng.choice([None, b"%d" % self.number, b"%d" % self.number, b"v" * 60])
            found.append(Record(offset, self.now_ms - rng.randint(0, 9), key, value, ()))
        return found

    def batch(self) -> bytes:
        rng = self.rng
        pid = rng.choice(PRODUCERS)
        kind = rng.choice(["in", "in", "in", "in", "plain", "plain", "end", "end", "end", "odd"])
        open_ = [*self.log.producers.transactions.ongoing]
        if kind == "end" and open_ and rng.random() < self.tidiness:
            pid = open_[0]  # its transaction holds the last stable offset back
        epoch = self.producer_epochs[pid]
        if kind == "end":
            if rng.random() < 0.1:  # a coordinator fenced the producer
                epoch = self.producer_epochs[pid] = epoch + 1
                self.sequences[pid] = 0
            return marker(pid, rng.choice([ABORT, COMMIT]), epoch=epoch)
        if kind == "odd":
            return other_control(pid, b"\0\0\0\7", epoch=epoch)
        records = self.records()
        if kind == "plain" and rng.random() < 0.5:
            return encode_batch(records, codec=rng.choice([0, 1]))
        base_sequence = self.sequences[pid]
        self.sequences[pid] += len(records)
        return encode_batch(
            records,
            codec=rng.choice([0, 0, 2, 4]),
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=base_sequence,
            attributes=TRANSACTIONAL if kind == "in" else 0,
        )

    def append(self) -> None:
        batch = bytearray(self.batch())
        base = self.log.log_end_offset
        if self.is_mirror:
            base += self.rng.choice([0, 0, 0, 3]) if base else 0
            struct.pack_into(">q", batch, 0, base)
            self.log.append_copied(
                batch, [parse(batch)], self.epoch, self.now_ms, start_offset=base
            )
        else:
            self.log.append_as_leader(bytes(batch), parse(batch), self.epoch, self.now_ms)
            struct.pack_into(">q", batch, 0, base)
        self.batches[base] = bytes(batch)

    def fill(self) -> None:
        for _ in range(self.rng.randint(1, 12)):
            self.append()
            self.epoch += self.rng.random() < 0.05
            if self.rng.random() < 0.15:
                self.log.roll(self.now_ms)
        self.log.flush()
        self.now_ms += self.rng.choice([1, RETENTION_MS - 1, RETENTION_MS, 3 * RETENTION_MS])

    # Other changes

    def replicated(self) -> None:
        """All replicas have the batches up to a later one."""
        end = self.log.log_end_offset
        bases = [base for base in self.batches if base >= self.high_watermark]
        self.high_watermark = self.rng.choice([*bases, end, end, end])
        self.log.producers.transactions.replicated(self.high_watermark)

    def truncate(self) -> None:
        """Cut what is not replicated, but no marker that counts since a restart: it shows a decision."""
        low = max(self.high_watermark, self.opened_at)
        offset = self.rng.randint(low, self.log.log_end_offset)
        entries = self.log.producers.states.entries
        self.cut |= {pid for pid, entry in entries.items() if entry.last_offset >= offset}
        self.log.truncate_to(offset)
        end = self.log.log_end_offset
        self.batches = {base: data for base, data in self.batches.items() if base < end}
        self.epoch += 1
        self.opened_at = min(self.opened_at, end)

    def expire(self) -> None:
        """Producers that wrote nothing lately are forgotten."""
        before = set(self.log.producers.states)
        self.log.producers.expire(self.now_ms - RETENTION_MS)
        self.expired |= before - set(self.log.producers.states)

    def restart(self) -> None:
        assert self.log.close()
        self.open(clean=True)

    def open(self, *, clean: bool = False) -> None:
        self.log = UnifiedLog.open(
            DIRECTORY,
            self.config,
            IGNORED,
            now_ms=self.now_ms,
            disk=self.disk,
            clean=clean,
            recovery_point=self.log.recovery_point,
        )
        self.log.producers.transactions.replicated(self.high_watermark)
        self.opened_at = self.log.log_end_offset

    # Rounds

    def make_cleaner(self, segments: list[SourceSegment], limits: RoundLimits) -> Cleaner:
        buffer_bytes = self.rng.choice([100, 1 << 20])
        sizes = CleanerSizes(self.map_bytes, 0.9, buffer_bytes)
        return Cleaner(self.disk, segments, limits, sizes, throttle=lambda _bytes: None)

    def clean(self, *, is_disturbed: bool = False) -> int | None:
        """Play a round; return the end of its map, None if there is nothing to clean."""
        state = state_of(self.log, self.high_watermark, self.checkpoint)
        to_clean = log_to_clean(state, self.config, self.now_ms)
        end = to_clean.first_uncleanable_offset
        assert end <= max(self.truth().last_stable_offset(self.high_watermark, self.opened_at), 0)
        if not to_clean.is_due(self.config):
            return None
        self.tried.append((end, self.now_ms))
        cleaning = CleaningRound(self.log, to_clean, self.make_cleaner, self.now_ms)
        for work in cleaning.steps():
            work()
            if is_disturbed and self.rng.random() < 0.4:
                self.append()
        assert cleaning.clean_below is not None
        assert to_clean.first_dirty_offset < cleaning.clean_below <= end
        self.checkpoint = cleaning.clean_below
        self.cleaned_below = max(self.cleaned_below, cleaning.clean_below)
        for path in cleaning.files:
            self.disk.unlink(path)
        return cleaning.clean_below

    # The model

    def truth(self) -> Decoded:
        return decoded(self.batches)

    def stored(self) -> dict[int, Stored]:
        """Every record of an application that was ever appended."""
        found = {}
        for base, data in self.batches.items():
            info = parse(data)._replace(base_offset=base)
            if not info.is_control:
                for record in decode_batch(data, info):
                    found[record.offset] = Stored(
                        record, base, info.producer_id, info.is_transactional
                    )
        return found

    def committed(self, truth: Decoded, end: int) -> dict[int, Record]:
        """Every record below *end* that was committed, or is in no transaction."""
        stored = self.stored()
        below = {offset for offset, _ in truth.committed(0, end)}
        return {offset: stored[offset].record for offset in sorted(below)}

    # Judgement

    def held(self) -> dict[int, tuple[BatchInfo, bytes]]:
        """The batches that the files hold, by base offset."""
        found = {}
        for segment in self.log.segments:
            data = segment.file.pread(segment.size, 0)
            for info in iterate(data):
                check_crc(data, info)
                whole = data[info.position : info.end]
                found[info.base_offset] = parse(whole), whole
        return found

    def check(self) -> None:
        truth = self.truth()
        held = self.held()
        self.check_batches(truth, held)
        self.check_markers(truth, held)
        self.check_stable_offset(truth)
        stable = self.log.last_stable_offset(self.high_watermark)
        start = self.rng.randint(0, self.log.log_end_offset)
        self.check_consumer(truth, start, stable)
        self.check_consumer(truth, 0, stable)
        # The batches alone give the same as the indexes.
        again = decoded({base: whole for base, (_, whole) in held.items()})
        assert again.ongoing.keys() == truth.ongoing.keys()
        assert [row[0] for row in self.consumed(0, stable)] == [
            offset for offset, _ in again.committed(0, stable)
        ]

    def check_batches(self, truth: Decoded, held: dict[int, tuple[BatchInfo, bytes]]) -> None:
        """Nothing is invented or changed, also for a consumer with read_uncommitted."""
        stored = self.stored()
        for base, (info, whole) in held.items():
            before = parse(self.batches[base])
            assert info.last_offset_delta == before.last_offset_delta
            assert (info.producer_id, info.producer_epoch, info.base_sequence) == (
                before.producer_id, before.producer_epoch, before.base_sequence
            )  # fmt: skip
            assert (info.is_transactional, info.is_control) == (
                before.is_transactional, before.is_control
            )  # fmt: skip
            for record in decode_batch(whole, info):
                if not info.is_control:
                    assert stored[record.offset].record == record
        for base in self.batches:
            assert base in held or base < self.cleaned_below or self.tried

    def check_markers(self, truth: Decoded, held: dict[int, tuple[BatchInfo, bytes]]) -> None:
        """Each batch has the marker of its transaction, and the entry in the index; each entry has its marker."""
        markers = {
            base for base, (info, _) in held.items() if info.is_control and info.record_count
        }
        entries = []
        for segment in self.log.segments:
            for entry in segment.transaction_index.entries():
                assert segment.base_offset <= entry.last_offset
                entries.append(entry)
        assert [each.last_offset for each in entries] == sorted(
            each.last_offset for each in entries
        )
        assert {each.last_offset for each in entries} <= markers
        wanted = {each.last_offset: each for each in truth.ended if each.is_aborted}
        for entry in entries:
            true = wanted[entry.last_offset]
            assert entry.producer_id == true.producer_id
            assert entry.first_offset >= true.first_offset
            assert entry.last_stable_offset >= true.last_stable_offset
        in_index = {each.last_offset for each in entries}
        for each in truth.ended:
            has_batches = any(
                each.first_offset <= base < each.last_offset
                and info.producer_id == each.producer_id
                and info.is_transactional
                and not info.is_control
                for base, (info, _) in held.items()
            )
            if has_batches or not self.was_tried_since(each.last_offset, RETENTION_MS):
                assert each.last_offset in markers, each
            if has_batches and each.is_aborted:
                assert each.last_offset in in_index, each

    def was_tried_since(self, offset: int, age_ms: int) -> bool:
        """Return whether a round over *offset* began at least *age_ms* ago."""
        return any(end > offset and at <= self.now_ms - age_ms for end, at in self.tried)

    def check_stable_offset(self, truth: Decoded) -> None:
        for high_watermark in {self.high_watermark, self.log.log_end_offset}:
            found = self.log.last_stable_offset(high_watermark)
            low = truth.last_stable_offset(high_watermark)
            high = truth.last_stable_offset(high_watermark, self.opened_at)
            assert low <= found <= high

    def consumed(self, offset: int, stable: int) -> Found:
        """What a consumer with read_committed gets from *offset* on."""
        got: Found = []
        while offset < stable:
            found = self.log.read(offset, self.rng.choice([1, 150, 10**6]), up_to_offset=stable)
            aborted = self.log.aborted_transactions(offset, found, stable)
            data = b"".join(part.read() for part in found.slices)
            if not data:
                break
            listed = [fetch.AbortedTransaction(e.producer_id, e.first_offset) for e in aborted]
            records, offset = visible(data, listed, offset)
            got += records
        return got

    def check_consumer(self, truth: Decoded, start: int, stable: int) -> None:
        got = self.consumed(start, stable)
        offsets = [offset for offset, _ in got]
        assert offsets == sorted(set(offsets))
        tried = max((end for end, _ in self.tried), default=0)
        committed = self.committed(truth, max(stable, tried))
        for offset, value in got:
            assert start <= offset < stable
            assert committed[offset].value == value
        latest = {record.key: offset for offset, record in committed.items()}
        for offset, record in committed.items():
            if not start <= offset < stable or (record.key is None and offset < tried):
                continue
            if offset < tried and latest[record.key] != offset:
                continue  # superseded
            if record.value is None and self.was_tried_since(offset, RETENTION_MS):
                continue
            assert offset in offsets, (offset, record)

    def check_whole(self, end: int) -> None:
        """Check what a whole round up to *end* has left."""
        truth = self.truth()
        committed = self.committed(truth, end)
        latest = {record.key: offset for offset, record in committed.items()}
        held = self.held()
        for info, whole in held.values():
            if info.is_control:
                continue
            for record in decode_batch(whole, info):
                assert record.offset >= end or (
                    record.key is not None and latest.get(record.key) == record.offset
                ), record
        entries = {
            entry.last_offset
            for segment in self.log.segments
            for entry in segment.transaction_index.entries()
        }
        for each in truth.ended:
            if each.last_offset >= end:
                continue
            has_batches = any(
                each.first_offset <= base < each.last_offset
                and info.producer_id == each.producer_id
                and info.is_transactional
                for base, (info, _) in held.items()
            )
            if has_batches:
                continue
            assert each.last_offset not in entries
            found = held.get(each.last_offset)
            if found is None or not found[0].record_count:
                continue
            since = self.without_batches.setdefault(each.last_offset, self.now_ms)
            assert self.now_ms < since + RETENTION_MS, each

    def check_restart(self) -> None:
        """Open the log again from its files alone, also without snapshots."""
        for is_whole in (True, False):
            disk = self.disk
            if not is_whole:
                for name in list(disk.contents(DIRECTORY)):
                    if name.endswith(".snapshot"):
                        disk.unlink(f"{DIRECTORY}/{name}")
            again = UnifiedLog.open(
                DIRECTORY,
                self.config,
                IGNORED,
                now_ms=self.now_ms,
                disk=disk,
                recovery_point=self.log.recovery_point,
            )
            assert not is_whole or not again.notes, again.notes
            assert again.log_end_offset == self.log.log_end_offset
            ongoing = again.producers.transactions.ongoing
            assert ongoing.keys() == self.log.producers.transactions.ongoing.keys()
            ours, theirs = self.log.producers.states.entries, again.producers.states.entries
            for pid, entry in ours.items():
                if not is_whole and pid in self.cut:
                    continue
                assert theirs[pid].epoch == entry.epoch
                if pid not in self.expired:
                    assert theirs[pid].last_sequence == entry.last_sequence
            self.log, former = again, self.log
            self.check_markers(self.truth(), self.held())
            stable = self.log.last_stable_offset(self.high_watermark)
            self.check_consumer(self.truth(), 0, stable)
            self.log = former
            again.close(clean=False)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(80), deadline=None)
def test_rounds_keep_the_last_committed_record_of_each_key_and_show_nothing_aborted(
    seed: int,
) -> None:
    rng = random.Random(seed)
    world = World(rng)
    for _ in range(rng.randint(1, 6)):
        world.fill()
        for step in (world.replicated, world.truncate, world.expire, world.restart):
            if rng.random() < 0.3:
                step()
                world.check()
        # Not flushed: their entries of the index are in memory.
        for _ in range(rng.choice([0, 0, 3])):
            world.append()
        world.replicated()
        world.map_bytes = 24 * rng.choice([5, 20, 100])
        before = world.checkpoint
        is_disturbed = rng.random() < 0.5
        end = world.clean(is_disturbed=is_disturbed)
        world.check()
        if end is None:
            continue
        world.check_whole(end)
        once = world.held()
        world.checkpoint = before  # as after a crash before the checkpoint
        again = world.clean()
        world.check()
        # Elsewhere another batch may be the last one of a producer.
        if again == end and not is_disturbed:
            assert world.held() == once
        if again is not None:
            world.check_whole(again)
    world.log.flush()
    world.check_restart()


@given(seed=st.integers(0, 2**32), at=st.floats(0, 1), power_lost=st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_a_round_that_ends_anywhere_loses_nothing_committed_and_shows_nothing_aborted(
    seed: int, at: float, power_lost: bool
) -> None:
    world = filled(seed)
    calls = changes_of(seed)
    world.disk.calls_left = int(at * calls)
    with suppress(Crashed):
        world.clean()
        return
    world.disk.calls_left = -1
    if power_lost:
        world.disk.lose_power(random.Random(seed + 1))
    else:
        world.disk.kill()
    world.checkpoint = None
    world.open()
    world.check()
    world.now_ms += random.Random(seed).choice([0, RETENTION_MS])
    end = world.clean()
    assert end is not None
    world.check()
    world.check_whole(end)
    world.check_restart()


def filled(seed: int) -> World:
    world = World(random.Random(seed))
    for _ in range(4):
        world.fill()
        world.replicated()
        if world.rng.random() < 0.5:
            world.clean()
    end_all(world)
    world.log.roll(world.now_ms)
    world.append()
    world.log.flush()
    world.high_watermark = world.log.log_end_offset
    world.log.producers.transactions.replicated(world.high_watermark)
    return world


def end_all(world: World) -> None:
    """Append a record, and a marker for each open transaction: there is something to clean."""
    for pid in [*world.truth().ongoing, None]:
        batch = encode_batch([Record(0, 1, b"a", b"last")]) if pid is None else marker(
            pid, world.rng.choice([ABORT, COMMIT]), epoch=world.producer_epochs[pid]
        )  # fmt: skip
        base = world.log.log_end_offset
        data = bytearray(batch)
        struct.pack_into(">q", data, 0, base)
        if world.is_mirror:
            world.log.append_copied(data, [parse(data)], world.epoch, 0, start_offset=base)
        else:
            world.log.append_as_leader(batch, parse(batch), world.epoch, world.now_ms)
        world.batches[base] = bytes(data)


def changes_of(seed: int) -> int:
    """Count the changes to the disk of a round that comes to its end."""
    world = filled(seed)
    world.disk.calls_left = 10**6
    world.clean()
    return 10**6 - world.disk.calls_left
