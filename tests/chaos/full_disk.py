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
from tests.chaos.cluster import PATIENCE, ChaosCluster
from tests.chaos.raw_client import RawClient
from tests.chaos.scenario import progress

RECORD_BYTES = 16_000
SPARE = (100_000, 2_000_000)
"""Bytes that are left to a broker, so that they do not all stop at once."""
KILLED = 0.15
"""How likely one is, every second."""
STARTS = 5
ENDED = 1
"""The exit code of a broker that had to end."""


def full_disk(cluster: ChaosCluster, chance: random.Random) -> None:
    """Fill one, two or all disks by produce; restart brokers that exit; free space."""
    disks = cluster.disks
    assert disks is not None
    chosen = chance.sample(cluster.ids, chance.randint(1, len(cluster.ids)))
    cluster.recorder.nemesis(full_disk=chosen)
    progress(cluster, f"the disks of brokers {chosen} get full")
    for n in chosen:
        disks.fill(n, chance.randint(*SPARE))
    filler = _Filler(cluster, chance)
    until = time.monotonic() + chance.uniform(8, 16)
    restarted = time.monotonic()
    ended: set[int] = set()
    while time.monotonic() < until:
        filler.send()
        ended |= _note_ended(cluster)
        if time.monotonic() - restarted > 1.0:
            restarted = time.monotonic()
            if chance.random() < KILLED and (alive := set(chosen) & set(cluster.alive)):
                cluster.kill(chance.choice(sorted(alive)))
            cluster.start(*cluster.dead, wait=False)
    filler.close()
    if not ended:
        left = {n: disks.free(n) for n in chosen}
        cluster.problems.append(Problem("never-full", str(chosen), f"bytes left: {left}"))
    progress(cluster, f"there is room again; brokers {sorted(ended)} had ended")
    for n in cluster.ids:  # the records that fill these disks are replicated to the others, too
        disks.give_room(n)
    cluster.recorder.nemesis(room=chosen)
    _all_up(cluster)
    _wait_in_sync(cluster)
    time.sleep(2)


def _note_ended(cluster: ChaosCluster) -> set[int]:
    ended = cluster.note_ended()
    for n, code in ended.items():
        if code != ENDED:
            cluster.problems.append(Problem("ended-with", f"broker-{n}", f"exit code {code}"))
    return set(ended)


def _all_up(cluster: ChaosCluster) -> None:
    """Start what has ended, as often as it takes within reason: one may still die of the disk as it was."""
    for _ in range(STARTS):
        _note_ended(cluster)
        cluster.start(*cluster.dead, wait=False)
        with suppress(AssertionError):
            cluster.wait_ready(*cluster.ids)
            if not _note_ended(cluster):
                return
    deadline = time.monotonic() + PATIENCE
    cluster.start(*cluster.dead, wait=False)
    cluster.wait_ready(*cluster.ids)
    assert time.monotonic() < deadline


def _wait_in_sync(cluster: ChaosCluster) -> None:
    """Wait until every ISR is full; a broker that failed just before there was room takes seconds to end."""
    deadline = time.monotonic() + PATIENCE
    while cluster.not_in_sync() and time.monotonic() < deadline:
        if _note_ended(cluster):
            cluster.start(*cluster.dead, wait=False)
        time.sleep(0.1)


class _Filler:
    """A client that writes large records, one after another, each in the history as of any client."""

    def __init__(self, cluster: ChaosCluster, chance: random.Random) -> None:
        self._recorder = cluster.recorder
        self._keys = cluster.keys
        self._chance = chance
        acks = chance.choice(("all", "1"))
        self._client = RawClient(cluster.entrances, acks=acks, chance=chance, size=RECORD_BYTES)
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
