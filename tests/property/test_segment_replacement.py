"""Replacements of segments, with the end of the process or of the machine at any call to the disk.

Recovery opens the log with the old segments or with the new one: the old ones until the replacement is published, the
new one from then on, also where truncations, appends and retention come in between. Nothing else of the log is lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.config.log import LogConfig
from kbroker.log.core.partition_metadata_file import PartitionMetadata
from kbroker.log.segment_replacement import SegmentReplacement
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import iterate, parse
from tests.kit.crashing_disk import Crashed, CrashingDisk
from tests.kit.logs import IGNORED, batch_of, held_batches
from tests.kit.property_tests import examples

DIRECTORY = "/data/t-0"

Batch = tuple[int, bytes]
"""Base offset, and the batch behind its stamp."""


class World:
    """A log, what it should hold, and what may be found after the end."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.disk = CrashingDisk.with_log(DIRECTORY)
        self.config = LogConfig(
            segment_bytes=400,
            index_interval_bytes=100,
            cleanup_policy=rng.choice([("delete",), ("compact",)]),
            retention_ms=-1,
        )
        self.number = self.epoch = 0
        self.start = 0
        self.batches: list[Batch] = []
        """What the log holds, whatever is replaced."""
        self.histories: list[list[Batch]] = [[]]
        """What it may hold after a power loss."""
        self.synced: set[Batch] = set()
        self.removed: set[Batch] = set()
        """What the replacement under way leaves out."""
        self.may_be_old, self.may_be_new = True, False
        self.new_may_come_back = False
        self.recovery_point = 0
        self.replacement: SegmentReplacement | None = None
        self.steps: list[Callable[[], None]] = []
        self.log = UnifiedLog.create(
            DIRECTORY,
            self.config,
            PartitionMetadata(UUID(int=1), 0, "made-here"),
            IGNORED,
            now_ms=0,
            disk=self.disk,
        )

    def opened(self) -> UnifiedLog:
        return UnifiedLog.open(
            DIRECTORY,
            self.config,
            IGNORED,
            now_ms=0,
            disk=self.disk,
            recovery_point=self.recovery_point,
        )

    # Changes

    def append(self) -> None:
        self.number += 1
        batch = batch_of(*[0] * self.rng.randint(1, 3), value=b"%d" % self.number)
        base = self.log.log_end_offset
        self.histories.append([*self.batches, (base, batch[16:])])
        self.log.append_as_leader(batch, parse(batch), self.epoch, 0)
        self.batches.append((base, batch[16:]))

    def roll(self) -> None:
        if self.log.segments.active.size:
            self.log.roll(0)

    def flush(self) -> None:
        self.log.flush()
        self.synced = set(self.batches)
        self.histories = [list(self.batches)]
        self.recovery_point = self.rng.choice([self.recovery_point, self.log.recovery_point])

    def truncate(self) -> None:
        # The replacement is cancelled, or completed first.
        if self.log.log_end_offset <= self.start:
            return
        offset = self.rng.randint(self.start, self.log.log_end_offset)
        if self.rng.random() < 0.3:
            offset = self.rng.choice([each.base_offset for each in self.log.segments])
        offset = max(offset, self.start)
        here = self.log.segments
        kept = [each for each in self.batches if self.ends[each] <= offset]
        self.histories.append(list(kept))
        self.synced &= set(kept)
        self.recovery_point = min(self.recovery_point, offset)
        running = self.replacement
        cancels = (
            running is not None
            and not running.is_replaced
            and (running.reaches(offset) or offset <= here.first_offset)
        )
        if cancels:
            self.may_be_old = True
        if offset <= here.first_offset:
            self.log.truncate_fully_and_start_at(offset)
        else:
            self.log.truncate_to(offset)
        self.batches = kept
        self.epoch += 1
        self.recovery_point = min(self.recovery_point, self.log.recovery_point)
        if cancels:
            # Names are removed without a sync.
            self.new_may_come_back |= self.may_be_new
            self.may_be_new = False
            self.end_replacement()

    @property
    def ends(self) -> dict[Batch, int]:
        """The end offset of every batch."""
        return {
            (base, rest): parse(
                bytes(8) + (4 + len(rest)).to_bytes(4) + bytes(4) + rest
            ).last_offset_delta
            + base
            + 1
            for base, rest in self.batches
        }

    def drop(self) -> None:
        """Delete the oldest segments."""
        segments = self.log.segments
        if len(segments) < 3:
            return
        offset = segments[self.rng.randint(1, len(segments) - 2)].base_offset
        running = self.replacement
        cancels = running is not None and not running.is_replaced
        self.start = offset
        if cancels:
            self.may_be_old = True
        self.log.advance_log_start(offset)
        paths = self.log.delete_old_segments(0, up_to_offset=self.log.log_end_offset)
        if self.rng.random() < 0.5:
            for path in paths:
                self.disk.unlink(path)
        if cancels and running is not None and running.is_cancelled:
            self.new_may_come_back |= self.may_be_new
            self.may_be_new = False
            self.end_replacement()

    # The replacement, step by step

    def replace(self) -> None:
        """Do the next step of the replacement under way, or begin one."""
        if self.steps:
            self.steps.pop(0)()
            return
        sealed = [
            n
            for n, following in enumerate(self.log.segments[1:])
            if following.base_offset <= self.log.recovery_point
        ]
        if not sealed:
            return
        first = self.rng.choice(sealed)
        count = self.rng.randint(1, sealed[-1] - first + 1)
        replacement = self.replacement = self.log.start_replacement(first, count)
        low, high = replacement.old[0].base_offset, replacement.following.base_offset
        data = b"".join(each.file.pread(each.size, 0) for each in replacement.old)
        share = self.rng.choice([0.0, 0.5, 0.9])
        kept = []
        for info in iterate(data):
            if self.rng.random() < share:
                kept.append(data[info.position : info.end])
        held = {each[16:] for each in kept}
        self.removed = {b for b in self.batches if low <= b[0] < high and b[1] not in held}
        self.steps = [
            lambda: replacement.write(kept),
            self.publish,
            self.put_in_place,
            replacement.sync,
            lambda: self.log.complete_replacement(replacement),
            replacement.sync,
            self.over,
        ]

    def publish(self) -> None:
        assert self.replacement is not None
        self.may_be_new = True
        self.replacement.publish()
        self.may_be_old = False

    def put_in_place(self) -> None:
        assert self.replacement is not None
        paths = self.log.replace_segments(self.replacement)
        if self.rng.random() < 0.5:
            for path in paths:
                self.disk.unlink(path)

    def over(self) -> None:
        assert self.replacement is not None
        assert self.replacement.is_over
        self.leave_out()

    def leave_out(self) -> None:
        self.batches = self.without(self.batches)
        self.histories = [self.without(each) for each in self.histories]
        self.synced -= self.removed
        self.may_be_old, self.may_be_new = True, False
        self.removed = set()
        self.replacement = None

    def end_replacement(self) -> None:
        """Handle a replacement that was cancelled: the pool ends it with a sync."""
        running = self.replacement
        assert running is not None
        self.steps = [self.cancelled]

    def cancelled(self) -> None:
        assert self.replacement is not None
        if self.rng.random() < 0.5:  # the pool was at work
            self.replacement.write([])
            assert not self.replacement.publish()
        self.replacement.sync()
        assert self.replacement.is_over
        self.removed = set()
        self.new_may_come_back = False
        self.replacement = None

    def without(self, batches: list[Batch]) -> list[Batch]:
        return [each for each in batches if each not in self.removed]

    # Judgement

    def step(self) -> None:
        choices = [
            self.append, self.append, self.append, self.roll, self.flush, self.replace, self.replace,
            self.replace, self.replace, self.truncate, self.drop,
        ]  # fmt: skip
        self.rng.choice(choices)()
        self.check_present()

    def check_present(self) -> None:
        running = self.replacement
        new = running is not None and running.is_replaced
        expected = self.without(self.batches) if new else self.batches
        assert self.shown(held(self.log)) == self.shown(expected)

    def shown(self, batches: list[Batch]) -> list[Batch]:
        return [each for each in batches if each[0] >= self.start]

    def check_found(self, *, power_lost: bool) -> None:
        """Judge what is found after the end."""
        self.log = self.opened()
        found = self.shown(held(self.log))
        names = self.disk.listdir(DIRECTORY)
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
        histories = self.histories if power_lost else [self.batches, *self.histories]
        variants = []
        if self.may_be_old:
            variants += [(self.shown(each), self.synced) for each in histories]
        if self.may_be_new or (self.new_may_come_back and power_lost):
            variants += [
                (self.shown(self.without(each)), self.synced - self.removed) for each in histories
            ]
        assert any(
            each[: len(found)] == found
            and {batch for batch in synced if batch[0] >= self.start} <= set(found)
            for each, synced in variants
        ), (found, variants)
        self.log.close()
        again = UnifiedLog.open(
            DIRECTORY, self.config, IGNORED, now_ms=0, disk=self.disk, clean=True
        )
        assert self.shown(held(again)) == found
        assert again.log_end_offset == self.log.log_end_offset


def held(log: UnifiedLog) -> list[Batch]:
    """What a reader gets from the log."""
    return [(base_offset, rest) for base_offset, _, rest in held_batches(log)]


def begin(seed: int, *, calls: int) -> tuple[random.Random, World]:
    """Begin a schedule: some records are synced, and the process has *calls* changes of the disk left."""
    rng = random.Random(seed)
    world = World(rng)
    for _ in range(rng.randint(3, 8)):
        world.append()
    world.flush()
    world.disk.calls_left = calls
    return rng, world


def go_on(rng: random.Random, world: World) -> None:
    """Play the schedule up to its end, or that of the process."""
    with suppress(Crashed):
        for _ in range(rng.randint(5, 40)):
            world.step()


def changes_of(seed: int) -> int:
    """Count the changes of a schedule that comes to its end."""
    rng, world = begin(seed, calls=10**6)
    go_on(rng, world)
    return 10**6 - world.disk.calls_left


@given(
    seed=st.integers(0, 2**32),
    at=st.floats(0, 1),
    power_lost=st.booleans(),
    again=st.none() | st.integers(0, 12),
)
@settings(max_examples=examples(150), deadline=None)
def test_recovery_finds_the_old_segments_or_the_new_one(
    seed: int, at: float, power_lost: bool, again: int | None
) -> None:
    """The end comes *at* a part of the schedule, and a second one after *again* changes of the recovery."""
    rng, world = begin(seed, calls=int(at * changes_of(seed)))
    go_on(rng, world)
    chance = random.Random(seed + 1)

    def end() -> None:
        world.disk.calls_left = -1
        if power_lost:
            world.disk.lose_power(chance)
        else:
            world.disk.kill()

    end()
    if again is not None:
        world.disk.calls_left = again
        with suppress(Crashed):
            world.opened()
        end()
    world.check_found(power_lost=power_lost)
