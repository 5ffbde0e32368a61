"""What happens to two clusters and the mirror between them, drawn from a seed (`mirror.py` plays it).

Brokers 1, 2, 3 are the source, 4 and 5 the target, 8 and 9 the machines of mirror processes. The verbs are those of
`script.py`; kill, start, pause, resume and stall take a mirror's number, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.simulation.script import BROKERS, KINDS, TOPICS, Drawn, Event, Script

SOURCES = tuple(range(1, BROKERS + 1))
TARGETS = (4, 5)
MIRRORS = (8, 9)
BEGIN = 5.0
"""Seconds until the mirror has begun to copy."""


def _some_broker(rng: Random) -> int:
    return rng.choice((*SOURCES, *TARGETS, *TARGETS))


def _outage(rng: Random, host: int, verb: str, end: str, longest: float) -> Drawn:
    return [(0.0, verb, (str(host),)), (rng.uniform(0.05, longest), end, (str(host),))]


def _kill(rng: Random) -> Drawn:
    return _outage(rng, _some_broker(rng), "kill", "start", rng.choice((0.4, 6.0)))


def _pause(rng: Random) -> Drawn:
    return _outage(rng, _some_broker(rng), "pause", "resume", 9.0)


def _stop(rng: Random) -> Drawn:
    return _outage(rng, _some_broker(rng), "stop", "start", 5.0)


def _power(rng: Random) -> Drawn:
    """Take the power of one broker of the target, or of both."""
    lost = rng.choice((TARGETS[:1], TARGETS[1:], TARGETS, TARGETS))
    drawn: Drawn = [(0.0, "power", tuple(map(str, lost)))]
    return drawn + [(rng.uniform(0.2, 6.0), "start", (str(broker),)) for broker in lost]


def _mirror_killed(rng: Random) -> Drawn:
    return _outage(rng, rng.choice(MIRRORS), "kill", "start", 3.0)


def _mirror_paused(rng: Random) -> Drawn:
    """Pause a mirror; often another one copies meanwhile."""
    drawn = _outage(rng, MIRRORS[0], "pause", "resume", 8.0)
    if rng.random() < 0.6:
        drawn.append((rng.uniform(0.0, 1.0), "start", (str(MIRRORS[1]),)))
    return drawn


def _second_mirror(rng: Random) -> Drawn:
    return _outage(rng, MIRRORS[1], "start", "kill", 9.0)


def _between(rng: Random) -> tuple[str, str]:
    """Draw a mirror and a broker, or two brokers of one cluster."""
    mirror = str(rng.choice(MIRRORS[:1] * 3 + MIRRORS))
    pairs = [(mirror, str(_some_broker(rng))), tuple(map(str, TARGETS))]
    one, other = rng.choice((pairs[0], pairs[0], pairs[1]))
    return (one, other) if rng.random() < 0.5 else (other, one)


def _blocked(rng: Random) -> Drawn:
    words = _between(rng)
    verb = rng.choice(("block", "oneway", "oneway"))
    return [(0.0, verb, words), (rng.uniform(0.3, 8.0), "unblock", words)]


def _slow(rng: Random) -> Drawn:
    words = _between(rng)
    return [(0.0, "slow", words), (rng.uniform(1.0, 8.0), "fast", words)]


def _answers_lost(rng: Random) -> Drawn:
    """Let what a target broker answers to a mirror be lost: the mirror's requests arrive."""
    words = (str(rng.choice(TARGETS)), str(MIRRORS[0]))
    after = rng.uniform(0.02, 1.0)
    return [(0.0, "oneway", words), (after, "cut", words), (after, "unblock", words)]


def _late_appends(rng: Random) -> Drawn:
    """Let what a mirror has sent arrive late; often that mirror is killed, and another one runs meanwhile."""
    mirror = (str(MIRRORS[0]),)
    drawn: Drawn = [(0.0, "stall", mirror), (rng.uniform(0.3, 6.0), "unstall", ())]
    if rng.random() < 0.6:
        drawn += [(rng.uniform(0.0, 0.3), "kill", mirror), (rng.uniform(0.3, 2.0), "start", mirror)]
    elif rng.random() < 0.5:
        drawn.append((rng.uniform(0.0, 0.3), "start", (str(MIRRORS[1]),)))
    return drawn


def _session(rng: Random) -> Drawn:
    return [(0.0, rng.choice(("zkexpire", "zklose", "zkdrop")), (str(_some_broker(rng)),))]


def _zkcut(rng: Random) -> Drawn:
    return _outage(rng, _some_broker(rng), "zkcut", "zkheal", 8.0)


TROUBLES = (
    _kill, _kill, _kill, _pause, _stop, _mirror_killed, _mirror_killed, _mirror_paused, _second_mirror, _blocked,
    _blocked, _slow, _answers_lost, _answers_lost, _late_appends, _late_appends, _session, _zkcut, _power, _power,
)  # fmt: skip


def _worker_session(rng: Random) -> Drawn:
    """Take the session of a worker, its connection, or an answer of ZooKeeper."""
    return [(0.0, rng.choice(("zkexpire", "zklose", "zkdrop")), (str(rng.choice(MIRRORS)),))]


def _worker_cut(rng: Random) -> Drawn:
    return _outage(rng, rng.choice(MIRRORS), "zkcut", "zkheal", 9.0)


def _worker_paused(rng: Random) -> Drawn:
    return _outage(rng, rng.choice(MIRRORS), "pause", "resume", 9.0)


def _zookeeper_down(rng: Random) -> Drawn:
    return [(0.0, "targetdown", ()), (rng.uniform(0.5, 9.0), "targetup", ())]


def _late_watches(rng: Random) -> Drawn:
    """Let the followers of the target's ZooKeeper be behind: workers see the list of workers late."""
    return [(0.0, "targettrail", ("2",)), (rng.uniform(2.0, 8.0), "targettrail", ("0",))]


WORKER_TROUBLES = (
    *TROUBLES, _mirror_killed, _worker_session, _worker_session, _worker_session, _worker_cut, _worker_cut,
    _worker_paused, _worker_paused, _zookeeper_down, _zookeeper_down, _late_watches,
)  # fmt: skip


def draw_mirror(seed: int) -> Script:
    """Return the schedule of *seed*: one mirror, or another one beside it for a while."""
    rng = Random(seed)
    partitions = rng.choice((1, 1, 2))
    return _draw(rng, seed, partitions, [(1.5, MIRRORS[0])], TROUBLES, mirror=1)


def draw_workers(seed: int) -> Script:
    """Return the schedule of *seed*: two workers that share the partitions."""
    rng = Random(seed)
    starts = [(1.5, MIRRORS[0]), (rng.uniform(1.5, 8.0), MIRRORS[1])]
    return _draw(rng, seed, rng.choice((2, 3, 4)), starts, WORKER_TROUBLES, mirror=2)


def _draw(
    rng: Random,
    seed: int,
    partitions: int,
    starts: list[tuple[float, int]],
    troubles: tuple[Callable[[Random], Drawn], ...],
    *,
    mirror: int,
) -> Script:
    topic = TOPICS[0]
    events = [Event(1.0, "create", (topic, str(partitions)))]
    events += [Event(at, "start", (str(number),)) for at, number in starts]
    time = BEGIN
    pause = rng.choice((0.1, 0.3, 0.8))
    calm = rng.choice((0.5, 1.5, 3.0))
    for _ in range(rng.randint(2, 7)):
        for _ in range(rng.randint(1, 6)):
            time += rng.expovariate(1 / pause)
            kind, count = rng.choice(KINDS), str(rng.choice((1, 2, 4, 8)))
            words = (topic, str(rng.randrange(partitions)), kind, count)
            events.append(Event(time, "produce", words))
        time += rng.expovariate(1 / calm)
        for after, verb, names in rng.choice(troubles)(rng):
            events.append(Event(time + after, verb, names))
    rounded = [replace(event, time=round(event.time, 3)) for event in events]
    ordered = tuple(sorted(rounded, key=lambda event: event.time))
    return Script(seed, ordered, BROKERS, 1, mirror=mirror)
