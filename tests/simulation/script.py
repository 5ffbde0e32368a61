"""What happens to the cluster, and when: a short text, drawn from a seed or written by hand.

    # seed 17, brokers 3, disks 1
    1.250 create a 2
    3.010 produce a 0 idempotent 3
    4.733 kill 2

A line is a time in seconds, a verb and its words. Everything else, how long each message takes for instance,
follows from the seed in the first line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from tests.simulation import (
    disk_damage,
    group_events,
    log_faults,
    replication_faults,
    transaction_events,
)

BROKERS = 3
DIRECTORIES = ("/data", "/more")
"""Log directories: a broker has the first, or both."""
TOPICS = ("a", "b")
KINDS = ("idempotent", "idempotent", "idempotent", "all", "one")
BEGIN = 2.5
"""Seconds that the cluster has to itself before anything happens to it."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line."""

    time: float
    verb: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((f"{self.time:.3f}", self.verb, *self.words))


@dataclass(frozen=True)
class Script:
    """A whole schedule."""

    seed: int
    events: tuple[Event, ...]
    brokers: int = BROKERS
    disks: int = 1
    """Log directories of each."""
    mirror: int = 0
    """1: a mirror copies all topics to a second cluster (`mirror.py`); 2: workers share the partitions."""

    def __str__(self) -> str:
        head = f"# seed {self.seed}, brokers {self.brokers}, disks {self.disks}"
        if self.mirror:
            head += f", mirror {self.mirror}"
        return "\n".join((head, *map(str, self.events))) + "\n"

    def without(self, dropped: Sequence[int]) -> Script:
        gone = set(dropped)
        return replace(self, events=tuple(e for n, e in enumerate(self.events) if n not in gone))


def parse(text: str) -> Script:
    """Read a script; ValueError with the line that is none."""
    given = {"seed": 0, "brokers": BROKERS, "disks": 1, "mirror": 0}
    events = []
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "#":
            for name, value in pairwise(words):
                if name in given:
                    given[name] = int(value.rstrip(","))
            continue
        try:
            events.append(Event(float(words[0]), words[1], tuple(words[2:])))
        except (ValueError, IndexError) as error:
            raise ValueError(f"{line!r} is no event") from error
    return Script(events=tuple(sorted(events, key=lambda event: event.time)), **given)


Drawn = list[tuple[float, str, tuple[str, ...]]]
"""What happens how many seconds later, in no order."""

Fault = Callable[[Random, int, int], Drawn]
"""Draws one fault among so many brokers with so many disks each."""


def _outage(verb: str, end: str, low: float, high: float) -> Fault:
    def draw(rng: Random, brokers: int, _disks: int) -> Drawn:
        broker = (str(rng.randint(1, brokers)),)
        return [(0.0, verb, broker), (rng.uniform(low, high), end, broker)]

    return draw


def _once(verb: str) -> Fault:
    return lambda rng, brokers, _disks: [(0.0, verb, (str(rng.randint(1, brokers)),))]


def _between(verb: str, end: str | None, low: float = 0.0, high: float = 0.0) -> Fault:
    def draw(rng: Random, brokers: int, _disks: int) -> Drawn:
        one, other = rng.sample(range(1, brokers + 1), 2)
        words = (str(one), str(other))
        drawn: Drawn = [(0.0, verb, words)]
        if end is not None:
            drawn.append((rng.uniform(low, high), end, words))
        return drawn

    return draw


def _everywhere(verb: str, end: str, low: float, high: float) -> Fault:
    return lambda rng, _brokers, _disks: [(0.0, verb, ()), (rng.uniform(low, high), end, ())]


def _wipe(rng: Random, brokers: int, disks: int) -> Drawn:
    """Take a broker's disk, one of them, or all."""
    broker = (str(rng.randint(1, brokers)),)
    which = () if disks == 1 or rng.random() < 0.4 else (rng.choice(DIRECTORIES),)
    return [(0.0, "wipe", broker + which), (rng.choice((0.1, 1.0, 6.0)), "start", broker)]


def _outage_of_many(rng: Random, brokers: int, disks: int) -> Drawn:
    """Take the power of several machines, at once or nearly so; they are back one by one."""
    lost = [(str(n),) for n in rng.sample(range(1, brokers + 1), rng.randint(2, brokers))]
    apart = rng.choice((0.0, 0.0, 0.3, 3.0))
    events = []
    if not apart:
        events.append((0.0, "power", tuple(word for (word,) in lost)))
    for broker in lost:
        gone = rng.uniform(0, apart)
        if apart:
            events.append((gone, "power", broker))
        events.append((gone + rng.uniform(0.2, 8.0), "start", broker))
    return events


def _disk_fault(verb: str, low: float, high: float) -> Fault:
    """Let a disk refuse whatever is written, for a while; often its broker is restarted meanwhile or afterwards."""

    def draw(rng: Random, brokers: int, disks: int) -> Drawn:
        broker = str(rng.randint(1, brokers))
        where = (broker, rng.choice(DIRECTORIES[:disks]))
        lasts = rng.uniform(low, high)
        drawn: Drawn = [(0.0, verb, where), (lasts, "diskworks", where)]
        if rng.random() < 0.6:
            begins = rng.uniform(0.0, 1.5 * lasts)
            drawn += [
                (begins, "kill", (broker,)),
                (begins + rng.uniform(0.1, 3.0), "start", (broker,)),
            ]
        return drawn

    return draw


def _mute(rng: Random, brokers: int, _disks: int) -> Drawn:
    """Depose a controller; its requests arrive when there is another one."""
    listener = rng.choice(((), (str(rng.randint(1, brokers)),)))
    knows = rng.choice(((), ("knowing",)))
    drawn: Drawn = [
        (0.0, "mute", ("controller", *listener)),
        (rng.uniform(0.3, 3.0), "depose", knows),
    ]
    if rng.random() < 0.7:  # it has something to send
        broker = (str(rng.randint(1, brokers)),)
        verb, end = rng.choice((("kill", "start"), ("zkexpire", "start"), ("stop", "start")))
        drawn += [(rng.uniform(0.05, 0.5), verb, broker), (rng.uniform(1.0, 6.0), end, broker)]
    return [*drawn, (rng.uniform(6.0, 12.0), "unmute", ())]


def _late_requests(rng: Random) -> Drawn:
    """Have a topic deleted and created again, and requests of a deposed controller arrive afterwards."""
    topic = TOPICS[1]
    stalled = rng.uniform(0.01, 0.045)  # some get the metadata, and others StopReplica
    made = rng.uniform(2.0, 6.0)
    produce = (topic, "0", "idempotent", str(rng.choice((1, 2, 4))))
    return [
        (0.0, "create", (topic, "1")),
        (1.0, "produce", produce),
        (1.5, "delete", (topic,)),
        (1.5 + stalled, "stall", ("controller",)),
        (1.5 + stalled + rng.uniform(0.05, 1.0), "depose", rng.choice(((), ("knowing",)))),
        (made, "create", (topic, "1")),
        (made + 0.5, "produce", produce),
        (made + rng.uniform(0.2, 6.0), "unstall", ()),
    ]


def _one_disk_fails(rng: Random, brokers: int) -> Drawn:
    """Let one of two disks fail for good while its broker runs, with faults on the way of the notification."""
    broker = str(rng.randint(1, brokers))
    drawn: Drawn = [(0.0, "diskfail", (broker, rng.choice(DIRECTORIES)))]
    drawn.append((rng.uniform(0.0, 0.05), "produce", (TOPICS[0], "0", "one", "1")))  # notices it
    lasts = rng.uniform(0.5, 3.0)
    at = rng.uniform(-0.05, 0.05)
    drawn += rng.choice(
        (
            [],
            [(at, "zklose", (broker,))],
            [(at, "zkdrop", (broker,))],
            [(at, "zkexpire", (broker,))],
            [(at, "zkcut", (broker,)), (lasts, "zkheal", (broker,))],
            [(at, "zkdown", ()), (lasts, "zkup", ())],
            [(at, "zktrail", ("0.3",)), (lasts, "zktrail", ())],
        )
    )
    drawn += rng.choice(
        (
            [],
            [(rng.uniform(0.0, 0.1), "kill", ("controller",))],
            [(rng.uniform(0.0, 0.1), "unseat", ())],
            [(at, "mute", ("controller", broker)), (lasts, "unmute", ())],
        )
    )
    return drawn


def _replace_controller(rng: Random) -> Drawn:
    """Have a running controller replaced, perhaps while it has work to do and is notified late."""
    drawn: Drawn = []
    for at in (0.0, 3.0, 6.0, 9.0):
        behind = rng.choice(((), ("0.3",), ("0.3",)))
        busy = (str(rng.randint(1, BROKERS)),)
        drawn += [
            (at, "zktrail", behind),
            (at + 0.1, "zkexpire", busy),
            (at + 0.1 + rng.uniform(0.0, 0.01), "unseat", ()),
            (at + 2.0, "zktrail", ()),
        ]
    return drawn


def _lag(rng: Random, brokers: int, _disks: int) -> Drawn:
    """Let a server of ZooKeeper fall behind, and some broker's session perhaps move there."""
    follower = (str(rng.randint(1, 2)),)
    drawn: Drawn = [(0.0, "zklag", follower), (rng.uniform(0.5, 9.0), "zkcatchup", follower)]
    for _ in range(rng.choice((0, 1, 2))):
        moved = (str(rng.randint(1, brokers)),)
        drawn.append((rng.uniform(0.0, 2.0), rng.choice(("zkdrop", "zklose")), moved))
    return drawn


def _trail(rng: Random, _brokers: int, _disks: int) -> Drawn:
    behind = (str(rng.choice((0.05, 0.3, 2.0))),)
    return [(0.0, "zktrail", behind), (rng.uniform(1.0, 9.0), "zktrail", ())]


FAULTS: dict[str, Fault] = {
    "kill": _outage("kill", "start", 0.2, 9.0),
    "bounce": _outage("kill", "start", 0.0, 0.4),
    "power": _outage("power", "start", 0.2, 9.0),
    "powers": _outage_of_many,
    "wipe": _wipe,
    "diskfail": _disk_fault("diskfail", 1.0, 15.0),
    "diskfull": _disk_fault("diskfull", 0.3, 8.0),
    "stop": _outage("stop", "start", 1.0, 9.0),
    "pause": _outage("pause", "resume", 0.3, 9.0),
    "block": _between("block", "unblock", 0.5, 9.0),
    "oneway": _between("oneway", "unblock", 0.5, 9.0),
    "cut": _between("cut", None),
    "slow": _between("slow", "fast", 1.0, 8.0),
    "mute": _mute,
    "isolate": _outage("isolate", "rejoin", 0.5, 9.0),
    "zkcut": _outage("zkcut", "zkheal", 0.3, 9.0),
    "zkdrop": _once("zkdrop"),
    "zkexpire": _once("zkexpire"),
    "zklose": _once("zklose"),
    "zkdown": _everywhere("zkdown", "zkup", 0.3, 7.0),
    "zklag": _lag,
    "zktrail": _trail,
}

FAULT_MIXES: dict[str, tuple[str, ...]] = {
    "crashes": ("kill", "kill", "bounce", "stop"),
    "power": ("power", "power", "powers", "kill", "bounce", "stop"),
    "bad disks": ("diskfail", "diskfail", "diskfull", "kill", "stop", "power", "wipe"),
    "disks": ("wipe", "wipe", "kill", "bounce", "stop", "power"),
    "zookeeper": ("zkcut", "zkdrop", "zkexpire", "zklose", "zklose", "zkdown", "zklag"),
    "stale": ("zklag", "zklag", "zktrail", "zkdrop", "zkexpire", "kill", "pause", "zklose"),
    "network": ("block", "oneway", "cut", "slow", "isolate"),
    "zombies": ("pause", "pause", "isolate", "zkcut", "zkexpire", "mute", "mute"),
    "storm": tuple(name for name in FAULTS if name not in ("power", "powers", "wipe")),
    "everything": tuple(FAULTS),
}
"""Which kinds of faults come together in one seed."""


def _kinds(rng: Random) -> tuple[str, ...]:
    """Draw what kind of topic it is."""
    return rng.choice(((),) * 7 + (("short",), ("short",), ("unclean",), ("short", "unclean")))


def _added_later(
    seed: int, fault_mix: str, until: float, brokers: int, disks: int
) -> Iterator[Event]:
    """Draw what was added later, by generators of its own: what earlier versions drew from a seed stays the same."""
    rng = Random(~seed)
    begin = rng.uniform(BEGIN, until)
    drawn: Drawn = []
    if fault_mix == "zombies":
        drawn = rng.choice((_late_requests, _replace_controller))(rng)
    elif fault_mix == "bad disks" and disks > 1:
        drawn = _one_disk_fails(rng, brokers)
    yield from (Event(begin + after, verb, words) for after, verb, words in drawn)
    late = (
        *log_faults.drawn(seed, fault_mix, until, brokers),
        *disk_damage.damages(seed, fault_mix, until, brokers),
        *group_events.draw_events(seed, until),
        *group_events.draw_deletions(seed, until),
        *replication_faults.sequence(seed, fault_mix, until, brokers),
        *transaction_events.draw_events(seed, until),
    )
    yield from (Event(*each) for each in late)


def draw(seed: int) -> Script:
    """Return the schedule of *seed*."""
    rng = Random(seed)
    name = rng.choice(list(FAULT_MIXES))
    fault_mix = FAULT_MIXES[name]
    partitions = rng.choice((1, 1, 2))
    kinds = _kinds(rng)
    events = [Event(1.0, "create", (TOPICS[0], str(partitions), *kinds))]
    alive = {TOPICS[0]: partitions}
    faults = rng.randint(2, 9)
    pause = rng.choice((0.3, 0.8, 1.5))
    calm = rng.choice((1.0, 2.5, 5.0))
    time = BEGIN
    manages_topics = rng.random() < (0.7 if name == "zombies" else 0.35)
    brokers = rng.choice((BROKERS, BROKERS, BROKERS, BROKERS + 1))
    disks = rng.choice((1, 1, 2, 2))
    moves = brokers > BROKERS or rng.random() < 0.1
    words: tuple[str, ...]
    for _ in range(faults):
        for _ in range(rng.randint(0, 5)):
            time += rng.expovariate(1 / pause)
            topic = rng.choice(sorted(alive))
            partition = str(rng.randrange(alive[topic]))
            chance = rng.random()
            if chance < 0.03:
                events.append(Event(time, "trim", (topic, partition)))
            elif chance < 0.7:
                words = (topic, partition, rng.choice(KINDS), str(rng.choice((1, 1, 2, 4))))
                events.append(Event(time, "produce", words))
            else:
                words = (topic, partition, str(rng.randint(1, brokers)))
                events.append(Event(time, "read", words))
        if manages_topics and rng.random() < 0.4:
            time += rng.expovariate(1 / pause)
            other = TOPICS[1]
            if other in alive:
                del alive[other]
                events.append(Event(time, "delete", (other,)))
            else:
                alive[other] = 1
                events.append(Event(time, "create", (other, "1", *_kinds(rng))))
        if moves and rng.random() < 0.6:
            time += rng.expovariate(1 / pause)
            topic = rng.choice(sorted(alive))
            wanted = rng.sample(range(1, brokers + 1), rng.choice((2, 3, 3, 3)))
            words = (topic, str(rng.randrange(alive[topic])), ",".join(map(str, wanted)))
            events.append(Event(time, "move", words))
        time += rng.expovariate(1 / calm)
        for after, verb, words in FAULTS[rng.choice(fault_mix)](rng, brokers, disks):
            events.append(Event(time + after, verb, words))
    events += _added_later(seed, name, max(time, BEGIN), brokers, disks)
    verbs = {event.verb for event in events}
    events += [Event(*each) for each in disk_damage.late_identities(seed, verbs)]
    return Script(seed, _in_order(events, log_faults.words_of_topics(seed, name)), brokers, disks)


def _in_order(events: Sequence[Event], words_of_topics: tuple[str, ...]) -> tuple[Event, ...]:
    """Return *events* by their time in milliseconds, with the words of topics added to those that create one."""
    found = [
        Event(
            round(event.time, 3),
            event.verb,
            (*event.words, *(words_of_topics if event.verb == "create" else ())),
        )
        for event in events
    ]
    return tuple(sorted(found, key=lambda event: event.time))
