"""Power loss at any moment (S17): what was synced is there, the rest is a prefix of what was.

Every log opens again; none has lost a record below its recovery point; leader epochs and what is known
of producers agree with the batches; nothing that was never written is read.
"""

from __future__ import annotations

import random
from concurrent.futures import Executor, Future
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.config.log import LogConfig
from kbroker.log.claimed_log_dirs import ClaimedLogDirs
from kbroker.log.log_manager import LogManager
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import parse
from tests.kit.logs import held_batches
from tests.kit.producer_batches import numbered_batch
from tests.kit.property_tests import examples
from tests.kit.simulated_disk import SimulatedDisk

Batch = tuple[int, int, bytes]
"""Base offset, leader epoch, and the batch behind its stamp."""


class AtOnce(Executor):
    """An executor without threads."""

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*args, **kwargs))
        return future


class PowerLoss(RuleBasedStateMachine):
    """A broker's directory on a disk that forgets."""

    @initialize(segment_bytes=st.sampled_from([1100, 3000, 10**6]))
    def begin(self, segment_bytes: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=200, file_delete_delay_ms=0
        )
        self.disk = SimulatedDisk()
        self.epoch = 0
        self.written: dict[int, list[Batch]] = {}  # what each partition's log holds
        self.before: dict[int, list[list[Batch]]] = {}  # ... and held before unsynced truncations
        self.synced: dict[int, int] = {}  # how many of its batches no power loss may take
        self.number = 0
        self.dirs = self.start()

    def start(self) -> LogManager:
        log_dirs = ClaimedLogDirs(("/data",), disk=self.disk)
        dirs = LogManager(
            log_dirs,
            config_of=lambda topic: self.config,
            executor=AtOnce(),
            call_owner=lambda call: call(),
            now_ms=lambda: 0,
            on_failure=lambda *what: self.fail(what),
            on_flush=lambda _partition: None,
            on_move=lambda _partition, _path, _error: None,
            recovery_threads=1,
        )
        log_dirs.take_identity(1, "east")
        dirs.load()
        return dirs

    def fail(self, what: object) -> None:
        raise AssertionError(what)

    def log(self, partition: int) -> UnifiedLog:
        log = self.dirs.get("t", partition)
        if log is None:
            log = self.dirs.create("t", partition, None)
            self.written[partition] = []
            self.before[partition] = []
            self.synced[partition] = 0
        return log

    @rule(partition=st.integers(0, 1), size=st.integers(0, 900))
    def append(self, partition: int, size: int) -> None:
        log = self.log(partition)
        self.number += 1
        value = b"%d " % self.number + bytes(size)
        batch = numbered_batch(self.number % 3, self.number, timestamp=self.number, value=value)
        result = log.append_as_leader(batch, parse(batch), self.epoch, 0)
        self.written[partition].append((result.base_offset, self.epoch, batch[16:]))

    @rule(partition=st.integers(0, 1))
    def flush(self, partition: int) -> None:
        self.log(partition).flush()
        self.synced[partition] = len(self.written[partition])
        self.before[partition].clear()

    @rule()
    def checkpoint(self) -> None:
        self.dirs.checkpoint({})

    @rule(partition=st.integers(0, 1))
    def roll(self, partition: int) -> None:
        self.log(partition).roll(0)

    @rule(partition=st.integers(0, 1), data=st.data())
    def truncate(self, partition: int, data: st.DataObject) -> None:
        log = self.log(partition)
        self.epoch += 1
        offset = data.draw(st.integers(0, log.log_end_offset))
        self.before[partition].append(list(self.written[partition]))
        log.truncate_to(offset)
        del self.written[partition][offset:]
        self.synced[partition] = min(self.synced[partition], offset)

    @rule(partition=st.integers(0, 1))
    def delete(self, partition: int) -> None:
        if self.dirs.get("t", partition) is not None:
            self.dirs.checkpoint({})
            self.dirs.delete("t", partition)
            self.dirs.remove_due()
            self.disk.sync_dir("/data")  # else the old log may come back, which is in order
            del self.written[partition]

    @rule()
    def restart(self) -> None:
        assert self.dirs.close()
        self.dirs = self.start()
        assert self.dirs.clean
        for partition, batches in self.written.items():
            self.synced[partition] = len(batches)
            self.before[partition].clear()

    @rule()
    def kill(self) -> None:
        self.disk.kill()
        self.dirs = self.start()

    @rule(seed=st.integers(0, 2**32), twice=st.booleans())
    def lose_power(self, seed: int, twice: bool) -> None:
        rng = random.Random(seed)
        self.disk.lose_power(rng)
        if twice:
            self.start()
            self.disk.lose_power(rng)
        self.dirs = self.start()
        assert not self.dirs.clean
        for partition in list(self.written):
            log = self.dirs.get("t", partition)
            if log is None:
                assert not self.synced[partition]
                del self.written[partition]
                continue
            assert log.missing_below is None
            found = held_batches(log)
            histories = [self.written[partition], *self.before[partition]]
            assert any(history[: len(found)] == found for history in histories)
            assert len(found) >= self.synced[partition]
            self.written[partition] = found
            self.before[partition].clear()
            # What survived once is not synced by that: another loss may take it.
            self.before[partition].append(found)

    @precondition(lambda self: hasattr(self, "dirs"))
    @invariant()
    def every_log_is_served_with_its_leader_epochs(self) -> None:
        assert self.dirs.failed == {}
        assert sorted(self.dirs) == [("t", partition) for partition in sorted(self.written)]
        for partition, batches in self.written.items():
            log = self.log(partition)
            assert log.log_end_offset == len(batches)
            assert held_batches(log) == batches
            for base, epoch, _ in batches:
                assert log.leader_epochs.epoch_at(base) == epoch

    @precondition(lambda self: hasattr(self, "dirs"))
    @invariant()
    def producer_state_is_that_of_the_batches(self) -> None:
        for partition, batches in self.written.items():
            newest = {}
            for base, _, rest in batches:
                info = parse(bytes(8) + (4 + len(rest)).to_bytes(4) + bytes(4) + rest)
                newest[info.producer_id] = (info.producer_epoch, info.last_sequence, base)
            states = self.log(partition).producers.states
            assert newest == {
                producer_id: (entry.epoch, entry.last_sequence, entry.last_offset)
                for producer_id, entry in states.entries.items()
            }


PowerLoss.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
TestPowerLoss = PowerLoss.TestCase
