"""Moves of a log to another log directory, with the end of the process or of the machine at any call to the disk.

Whatever the moment, the next start finds one log of the partition, with every record after a kill, and with every
synced record after a power loss. The move then goes on to its end.
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.log.log_manager import LogManager
from kbroker.log.unified_log import UnifiedLog
from tests.kit.crashing_disk import Crashed, CrashingDisk
from tests.kit.log_managers import ID, Broker, Pool
from tests.kit.logs import append, records
from tests.kit.property_tests import examples

KEY = ("t", 0)
PATHS = ("/a", "/b")


class World:
    """A broker with two log directories, a log, and what it has to hold."""

    def __init__(self, seed: int, *, loses_power: bool = False, **settings: Any) -> None:
        self.loses_power = loses_power
        self.rng = random.Random(seed)
        self.disk = CrashingDisk()
        for path in PATHS:
            self.disk.mkdir(path)
        self.disk.sync_dir("/")
        self.settings = {"segment_bytes": 400, "index_interval_bytes": 100, **settings}
        self.epoch = 0
        self.values: list[bytes] = []
        """By offset."""
        self.log_start = 0
        self.synced_below = 0
        self.start()
        self.topic_id = ID
        log = self.dirs.create(*KEY, self.topic_id)
        self.append()
        self.source = self.where()
        log.flush()
        self.synced_below = log.recovery_point

    def start(self) -> None:
        self.copies = Pool(holds=True)  # as in a broker, moves have an executor of their own
        self.broker = Broker(
            *map(Path, PATHS),
            disk=self.disk,
            holds=True,
            new_manager=partial(LogManager, move_executor=self.copies),
            **self.settings,
        )
        self.dirs: LogManager = self.broker.start()
        self.dirs.moves.chunk_bytes = 200

    @property
    def log(self) -> UnifiedLog:
        found = self.dirs.get(*KEY)
        assert found is not None, self.dirs.notes
        return found

    def where(self) -> str:
        found = self.dirs.directory_of(*KEY)
        assert found is not None
        return found

    @property
    def mark(self) -> int:
        """The high watermark. A power loss takes no committed records, as other replicas have them."""
        return self.synced_below if self.loses_power else self.log.log_end_offset

    # What happens

    def append(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            value = b"%d in %d" % (len(self.values), self.epoch)
            append(self.log, *[0] * self.rng.randint(1, 3), value=value, epoch=self.epoch)
            self.values += [value] * (self.log.log_end_offset - len(self.values))

    def flush(self) -> None:
        self.log.flush()
        self.synced_below = self.log.recovery_point

    def truncate(self) -> None:
        if self.log_start < self.log.log_end_offset:
            offset = self.rng.randint(self.log_start + 1, self.log.log_end_offset)
            del self.values[self.log.truncate_to(offset) :]
            self.log_start = min(self.log_start, len(self.values))  # batches are not split
            self.epoch += 1
            self.synced_below = min(self.synced_below, len(self.values))
            self.append()

    def recreate(self) -> None:
        """Delete the topic, and create it again."""
        self.dirs.delete(*KEY)
        self.topic_id = UUID(int=self.rng.getrandbits(100))
        self.dirs.create(*KEY, self.topic_id)
        self.values, self.log_start, self.synced_below = [], 0, 0
        self.append()

    def delete_records(self) -> None:
        self.log_start = self.rng.randint(self.log_start, self.log.log_end_offset)
        self.log.advance_log_start(self.log_start)
        self.checkpoint()
        self.broker.pool.run()  # only then the client has its answer

    def move(self) -> None:
        target = self.rng.choice(PATHS)
        self.dirs.prefer(*KEY, target)
        self.dirs.move(*KEY, target)

    def go_on(self) -> None:
        self.broker.now_ms += 100
        self.dirs.moves.go_on(lambda _key: self.mark)

    def work(self) -> None:
        pools = [pool for pool in (self.broker.pool, self.copies) if pool.waiting]
        if pools:
            self.rng.choice(pools).waiting.pop(0)()

    def sweep(self) -> None:
        self.broker.now_ms += 30_000
        self.dirs.sweep(lambda _key: 0, lambda _key: None)

    def checkpoint(self) -> None:
        self.dirs.checkpoint({KEY: self.mark})

    def run(self, steps: int, *, truncates: bool) -> None:
        doings = [
            self.append,
            self.flush,
            self.delete_records,
            self.move,
            self.checkpoint,
            self.sweep,
        ]
        if self.rng.random() < 0.3:
            doings.append(self.recreate)
        doings += [self.go_on, self.work, self.work, self.work] * 3
        if truncates:
            doings.append(self.truncate)
        for _ in range(steps):
            self.rng.choice(doings)()

    # What is found

    def check(self, *, after_power_loss: bool) -> None:
        log = self.log
        assert not self.dirs.failed
        assert log.missing_below is None
        if after_power_loss:
            assert self.synced_below <= log.log_end_offset <= len(self.values)
            del self.values[log.log_end_offset :]
        assert log.log_start_offset == self.log_start
        expected = list(enumerate(self.values))[log.log_start_offset :]
        assert records(log) == expected
        epochs = [int(value.split()[-1]) for value in self.values]
        assert [log.leader_epochs.epoch_at(n) for n, _ in expected] == epochs[self.log_start :]

    def complete(self, target: str) -> None:
        """Move the log to *target*, whatever was under way."""
        self.dirs.prefer(*KEY, target)
        self.dirs.move(*KEY, target)
        for _ in range(30):
            self.go_on()
            for _ in range(self.rng.randint(1, 12)):
                self.work()
        for _ in range(30):
            self.go_on()
            self.copies.run()
            self.broker.pool.run()
        assert self.where() == target, [each.path for each in self.dirs.moves]


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**48), st.integers(1, 60), st.integers(0, 150), st.booleans())
def test_the_end_at_any_call_loses_nothing(
    seed: int, steps: int, calls: int, loses_power: bool
) -> None:
    flushes = {"flush_messages": 1} if seed % 2 else {}
    world = World(seed, loses_power=loses_power, **flushes)
    world.run(steps, truncates=not loses_power)
    world.disk.calls_left = calls
    with suppress(Crashed):
        world.complete(world.rng.choice(PATHS))
    world.disk.calls_left = -1
    if flushes and world.log.held_at is not None:  # what producers have answers for
        world.synced_below = max(world.synced_below, world.log.held_at)
    elif flushes:
        world.synced_below = world.log.log_end_offset
    if loses_power:
        world.disk.lose_power(world.rng)
    else:
        world.disk.kill()
    world.start()
    world.epoch += 1  # the controller elects again after a restart
    found = world.dirs.get(*KEY)
    if loses_power and (found is None or found.topic_id != world.topic_id):
        assert world.topic_id != ID
        return  # the log of the deleted topic is back, or the new one was never synced (S27)
    world.check(after_power_loss=loses_power)
    for target in world.rng.choice([PATHS, PATHS[::-1]]):
        world.append()
        world.complete(target)
        world.check(after_power_loss=False)
    assert (
        not [each for path in PATHS for each in world.disk.listdir(path) if "-stray" in each]
        or loses_power
    )
