"""S16: full disks under load, until there is space again; nothing is repaired.

A broker without a writable log directory exits, as Kafka's does (S15: nothing is accepted after a failed
append); now and then one is killed with its disk full. What starts it again is what does so on any machine, an init
system that restarts what has ended once a second, room or not. Room is all that is ever given.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress

from tests.audits.problem import Problem
from tests.chaos.client import Ended
from tests.chaos.raw_client import RawClient
from tests.chaos.scenario import progress
from tests.chaos.world import PATIENCE, World

RECORD_BYTES = 16_000
SPARE = (100_000, 2_000_000)
"""Bytes that are left to a broker, so that they do not all stop at once."""
KILLED = 0.15
"""How likely one is, every second."""
STARTS = 5
ENDED = 1
"""The exit code of a broker that had to end."""


def full_disk(world: World, chance: random.Random) -> None:
    """Fill one, two or all disks by produce; restart brokers that exit; free space."""
    disks = world.disks
    assert disks is not None
    chosen = chance.sample(world.ids, chance.randint(1, len(world.ids)))
    world.recorder.nemesis(full_disk=chosen)
    progress(world, f"the disks of brokers {chosen} get full")
    for n in chosen:
        disks.fill(n, chance.randint(*SPARE))
    filler = _Filler(world, chance)
    until = time.monotonic() + chance.uniform(8, 16)
    restarted = time.monotonic()
    ended: set[int] = set()
    while time.monotonic() < until:
        filler.send()
        ended |= _note_ended(world)
        if time.monotonic() - restarted > 1.0:
            restarted = time.monotonic()
            if chance.random() < KILLED and (alive := set(chosen) & set(world.alive)):
                world.kill(chance.choice(sorted(alive)))
            world.start(*world.dead, wait=False)
    filler.close()
    if not ended:
        left = {n: disks.free(n) for n in chosen}
        world.problems.append(Problem("never-full", str(chosen), f"bytes left: {left}"))
    progress(world, f"there is room again; brokers {sorted(ended)} had ended")
    for n in world.ids:  # the records that fill these disks are replicated to the others, too
        disks.give_room(n)
    world.recorder.nemesis(room=chosen)
    _all_up(world)
    _wait_in_sync(world)
    time.sleep(2)


def _note_ended(world: World) -> set[int]:
    ended = world.note_ended()
    for n, code in ended.items():
        if code != ENDED:
            world.problems.append(Problem("ended-with", f"broker-{n}", f"exit code {code}"))
    return set(ended)


def _all_up(world: World) -> None:
    """Start what has ended, as often as it takes within reason: one may still die of the disk as it was."""
    for _ in range(STARTS):
        _note_ended(world)
        world.start(*world.dead, wait=False)
        with suppress(AssertionError):
            world.wait_ready(*world.ids)
            if not _note_ended(world):
                return
    deadline = time.monotonic() + PATIENCE
    world.start(*world.dead, wait=False)
    world.wait_ready(*world.ids)
    assert time.monotonic() < deadline


def _wait_in_sync(world: World) -> None:
    """Wait until every ISR is full; a broker that failed just before there was room takes seconds to end."""
    deadline = time.monotonic() + PATIENCE
    while world.not_in_sync() and time.monotonic() < deadline:
        if _note_ended(world):
            world.start(*world.dead, wait=False)
        time.sleep(0.1)


class _Filler:
    """A client that writes large records, one after another, each in the history as of any client."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._recorder = world.recorder
        self._keys = world.keys
        self._chance = chance
        acks = chance.choice(("all", "1"))
        self._client = RawClient(world.entrances, acks=acks, chance=chance, size=RECORD_BYTES)
        self._p = self._recorder.new_process()

    def send(self) -> None:
        """Send one record to a partition, any, and wait for the answer."""
        key, value = self._chance.choice(self._keys), self._recorder.new_value()
        invoked = self._recorder.event(
            self._p, "invoke", "send", [["send", key, [None, value]]], **self._client.send_meta
        )

        def sent(ended: Ended) -> None:
            what = [["send", key, [ended.offset, value]]]
            self._recorder.event(
                self._p, ended.outcome.value, "send", what, err=ended.err, op=invoked.i
            )

        self._client.send(key, [value], sent)

    def close(self) -> None:
        """Let go of its connections."""
        self._client.close()
        self._recorder.event(self._p, "info", "crash")
