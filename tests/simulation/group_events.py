"""Events drawn for consumer groups: members that join and leave, and faults of their coordinator.

The first draw of a seed stays as it is; what is here is added by a generator of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

TimedEvent = tuple[float, str, tuple[str, ...]]
"""A time, a verb and its words."""
Drawn = list[TimedEvent]

ENDS = (
    "diskworks", "fast", "rejoin", "resume", "start", "thaw", "txnthaw", "unblock", "unmute", "unstall",
    "zkcatchup", "zkheal", "zkup",
)  # fmt: skip
"""Verbs that end a fault."""

ASKS = ("again", "offsets", "resync")
"""Verbs of clients that may name a broker to ask."""

GROUP = "g"
"""The group that has members."""
COMMITTERS = "s"
"""The group that offsets are committed to without members."""
OF_DELETED_TOPIC = "e"
"""The group that offsets of `DELETED_TOPIC` are committed to, without members; its coordinator is that of `GROUP`."""
DELETED_TOPIC = "c"
"""The topic that is deleted and created again."""
COORDINATOR = "coordinator"
"""In place of a broker: the coordinator of `GROUP` when the fault began."""
CLIENTS = 50
"""The clients' node on the network."""
SHARE = 0.25
"""The part of all seeds that has groups."""
DELETIONS = 0.12
"""The part of all seeds that has a topic with committed offsets deleted."""

BEGIN = 2.5
"""Seconds that the cluster has to itself before anything happens to it."""


def _committing(rng: Random) -> Drawn:
    """Commit offsets, one after the other and at the same time."""
    member = (GROUP, f"m{rng.randint(1, 2)}")
    return [(0.0, "commit", (*member, "3")), (0.0, "solo", (COMMITTERS, "2"))] + [
        (at, "solo", (COMMITTERS, "1")) for at in (0.5, 1.0, 1.8)
    ]


def _troubled_coordinator(rng: Random) -> Drawn:
    """Draw one fault of the coordinator or of its connections, perhaps with a server of ZooKeeper that is behind."""
    words = (COORDINATOR,)
    lasts = rng.uniform(0.5, 9.0)
    clients = str(CLIENTS)
    faults: Sequence[Drawn] = (
        [(0.0, "kill", words), (lasts, "start", words)],
        [(0.0, "stop", words), (lasts, "start", words)],
        [(0.0, "zkcut", words), (lasts, "zkheal", words)],
        [(0.0, "isolate", words), (lasts, "rejoin", words)],
        [(0.0, "zkexpire", words)],
        [(0.0, "zkdrop", words)],
        [(0.0, "zklose", words), *_committing(rng)],
        [(0.0, "block", (COORDINATOR, clients)), (lasts, "unblock", (COORDINATOR, clients))],
        [(0.0, "oneway", (COORDINATOR, clients)), (lasts, "unblock", (COORDINATOR, clients))],
        [(0.0, "depute", (GROUP,))],
    )
    drawn = rng.choice(faults)
    if rng.random() < 0.5:  # the next coordinator may read from a server that is behind
        behind = rng.choice(((0.0, "zktrail", ("0.3",)), (0.0, "zklag", (rng.choice("12"),))))
        end = "zktrail" if behind[1] == "zktrail" else "zkcatchup"
        drawn = [behind, *drawn, (lasts + 1.0, end, () if end == "zktrail" else behind[2])]
    return drawn


def _asked(rng: Random, begin: float, end: float) -> Drawn:
    """Send requests to the coordinator of before, when its successor may have another generation already."""
    drawn: Drawn = []
    for _ in range(3):
        at = rng.uniform(begin, end)
        drawn += [
            (at, "offsets", (GROUP, COORDINATOR)),
            (at, "offsets", (COMMITTERS, COORDINATOR)),
            (at, rng.choice(("again", "resync")), (GROUP, f"m{rng.randint(1, 3)}", COORDINATOR)),
        ]
    if rng.random() < 0.6:
        drawn.append((begin, "member", (GROUP, "m9")))
    return drawn


def _paused_coordinator(rng: Random) -> Drawn:
    """Pause the coordinator until another one is elected; requests wait for it when it goes on."""
    lasts = rng.uniform(4.5, 9.0)
    pause: Drawn = [(0.0, "pause", (COORDINATOR,)), (lasts, "resume", (COORDINATOR,))]
    return pause + _asked(rng, max(lasts - 2.5, 4.2), lasts)


def _unaware_coordinator(rng: Random) -> Drawn:
    """Elect another coordinator while the LeaderAndIsr does not reach its predecessor, which keeps its session."""
    elected = rng.uniform(0.1, 1.0)
    end = elected + rng.uniform(3.0, 9.0)
    drawn: Drawn = [
        (0.0, "mute", ("controller", COORDINATOR)),
        (elected, "depute", (GROUP,)),
        (end, "unmute", ()),
    ]
    return drawn + _asked(rng, elected + 0.2, end)


def _static_member_away(rng: Random) -> Drawn:
    """Let a static member miss a rebalance, and come back as a member of the generation before."""
    back = rng.uniform(3.0, 5.5)
    return [
        (0.0, "member", (GROUP, "m8", "i8")),
        (2.0, "freeze", (GROUP, "m8")),
        (2.0 + rng.uniform(0.0, 0.3), "member", (GROUP, "m9")),
        (2.0 + back, "thaw", (GROUP, "m8")),
    ]


def _comes_and_goes(rng: Random, number: int, until: float) -> Drawn:
    """Let one member join, and perhaps leave, crash or pause, and come back."""
    static = rng.random() < 0.35
    words = (GROUP, f"m{number}")
    start = (*words, f"i{number}") if static else words
    at = rng.choice((1.5, 1.6, rng.uniform(1.5, until)))
    drawn: Drawn = [(at, "member", start)]
    while at < until and rng.random() < 0.6:
        at += rng.uniform(0.5, 6.0)
        away = rng.choice((0.2, 1.5, 4.0, 7.0))
        verb, end = rng.choice(
            (("leave", "member"), ("crash", "member"), ("crash", "member"), ("freeze", "thaw"))
        )
        if static and rng.random() < 0.2:  # another process takes its instance id
            drawn.append((at, "member", (GROUP, f"m{number}b", f"i{number}")))
            continue
        drawn.append((at, verb, words))
        if verb != "leave" or rng.random() < 0.7:
            drawn.append((at + away, end, start if end == "member" else words))
        at += away
    return drawn


PLOTS = (
    _troubled_coordinator, _troubled_coordinator, _paused_coordinator, _unaware_coordinator,
    _static_member_away,
)  # fmt: skip


def draw_events(seed: int, until: float) -> Iterator[TimedEvent]:
    """Draw what consumer groups do, in a part of all seeds."""
    rng = Random(seed ^ 0x6720757073)
    if rng.random() >= SHARE:
        return
    until = max(until, BEGIN + 4.0)
    members = rng.choice((1, 2, 2, 3))
    drawn: Drawn = [(1.1, "groups", ())]
    for number in range(1, members + 1):
        drawn += _comes_and_goes(rng, number, until)
    for _ in range(rng.randint(8, 24)):
        at = rng.uniform(BEGIN, until + 3.0)
        member = (GROUP, f"m{rng.randint(1, members)}")
        count = str(rng.choice((1, 1, 3)))
        drawn.append(
            rng.choice(
                (
                    (at, "commit", (*member, count)),
                    (at, "commit", (*member, count)),
                    (at, "commit", (*member, count)),
                    (at, "solo", (COMMITTERS, count)),
                    (at, "again", member),
                    (at, "offsets", (rng.choice((GROUP, COMMITTERS)),)),
                    (at, "offsets", (rng.choice((GROUP, COMMITTERS)),)),
                )
            )
        )
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.uniform(BEGIN + 1.0, until)
        plot = rng.choice(PLOTS)
        drawn += ((at + after, verb, words) for after, verb, words in plot(rng))
    yield from drawn


def _fault_of_a_deletion(rng: Random) -> Drawn:
    """Draw what may go wrong while a topic is deleted, or nothing."""
    after, lasts = rng.uniform(-0.1, 0.4), rng.uniform(0.2, 5.0)
    coordinator = (COORDINATOR,)
    faults: Sequence[Drawn] = (
        [],
        [],
        [(after, "depute", (OF_DELETED_TOPIC,))],
        [(after, "kill", coordinator), (after + lasts, "start", coordinator)],
        [(after, "pause", coordinator), (after + lasts, "resume", coordinator)],
        [(after, "zkcut", coordinator), (after + lasts, "zkheal", coordinator)],
        [(after, "zkdrop", coordinator)],
        [(after, "zklose", coordinator)],
        [(after, "zktrail", ("0.3",)), (after + lasts, "zktrail", ())],
        [(after, "mute", ("controller", COORDINATOR)), (after + lasts, "unmute", ())],
        [(after, "unseat", ())],
    )
    return rng.choice(faults)


def draw_deletions(seed: int, until: float) -> Iterator[TimedEvent]:
    """Draw commits of offsets for a topic that is deleted and created again, in a part of all seeds.

    They come after other troubles: rule 12 proves little about a coordinator that is replaced.
    """
    rng = Random(seed ^ 0x64656C6574)
    if rng.random() >= DELETIONS:
        return
    create: TimedEvent = (0.0, "create", (DELETED_TOPIC, "2"))
    commit: TimedEvent = (0.0, "solo", (OF_DELETED_TOPIC, "1"))
    ask: TimedEvent = (0.0, "offsets", (OF_DELETED_TOPIC,))
    drawn: Drawn = [(1.1, "groups", ()), (1.2, *create[1:]), (BEGIN, *commit[1:])]
    at = max(until, BEGIN) + 1.5
    for _ in range(rng.choice((1, 1, 2, 3))):
        deleted = at + rng.uniform(0.2, 1.5)
        created = deleted + rng.choice((0.0, 0.05, 0.3, rng.uniform(0.3, 8.0)))
        committed = [rng.uniform(at, deleted) for _ in range(3)] + [deleted]
        if rng.random() < 0.5:
            committed += (rng.uniform(deleted, created + 1.0) for _ in range(rng.randint(1, 3)))
        drawn.append((deleted, "delete", (DELETED_TOPIC,)))
        if rng.random() < 0.85:
            drawn.append((created, *create[1:]))
        drawn += ((when, *commit[1:]) for when in committed)
        drawn += ((rng.uniform(at, created + 1.0), *ask[1:]) for _ in range(2))
        fault = _fault_of_a_deletion(rng)
        drawn += ((deleted + after, verb, words) for after, verb, words in fault)
        at = created + rng.uniform(0.1, 3.0)
    yield from drawn
