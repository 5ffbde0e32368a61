"""Events drawn for transactions: producers under one or two transactional ids, faults of coordinators and leaders.

The first draw of a seed stays as it is; what is here is added by a generator of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

TimedEvent = tuple[float, str, tuple[str, ...]]
"""A time, a verb and its words."""
Drawn = list[TimedEvent]

SHARE = 0.2
"""The part of all seeds that has transactions."""

TXN_COORDINATOR = "txncoordinator"
"""In place of a broker: the coordinator of `IDS[0]` when the fault began."""
TXN_LEADER = "txnleader"
"""In place of a broker: the leader of the first partition with transactions when the fault began."""

IDS = ("x", "y")
"""The transactional ids."""
PARTITIONS = 2
"""Of the topic that transactions write to."""

BEGIN = 2.5
"""Seconds that the cluster has to itself before anything happens to it."""

ENDINGS = ("commit", "commit", "commit", "commit", "abort", "hasty", "late")
"""How a transaction ends.

`late`: the producer waits in the midst of it, perhaps beyond its timeout, and commits. `hasty`: it aborts without
waiting for its last batch, which may arrive behind the marker.
"""


def _transacts(rng: Random) -> tuple[str, ...]:
    """Return the words of one transaction: partitions, batches for each, whether it commits offsets, its end."""
    partitions = rng.choice(("0", "1", "0,1", "0,1", "1,0"))
    return (partitions, rng.choice("1123"), rng.choice(("offsets", "none")), rng.choice(ENDINGS))


def _fault(rng: Random) -> Drawn:
    """Draw one fault of the coordinator, of a leader, or of what is between them."""
    one, other = rng.sample((TXN_COORDINATOR, TXN_LEADER), 2)
    lasts = rng.uniform(0.4, 8.0)
    words = (one,)
    faults: Sequence[Drawn] = (
        [(0.0, "kill", words), (lasts, "start", words)],
        [(0.0, "kill", words), (min(lasts, 0.4), "start", words)],
        [(0.0, "stop", words), (lasts, "start", words)],
        [(0.0, "power", words), (lasts, "start", words)],
        [(0.0, "pause", words), (lasts, "resume", words)],
        [(0.0, "isolate", words), (lasts, "rejoin", words)],
        [(0.0, "zkcut", words), (lasts, "zkheal", words)],
        [(0.0, "zkexpire", words)],
        [(0.0, "zkdrop", words)],
        [(at, "zklose", words) for at in (0.0, 0.4, 0.9)],
        [(0.0, "txndepute", (rng.choice(("id", "group")),))],
        [(0.0, "block", (one, other)), (lasts, "unblock", (one, other))],
        [(0.0, "oneway", (one, other)), (lasts, "unblock", (one, other))],
        [(0.0, "cut", (one, other))],
        [(0.0, "slow", (one, other)), (lasts, "fast", (one, other))],
    )
    drawn = rng.choice(faults)
    if rng.random() < 0.25:
        behind = ("zktrail", ("0.3",)) if rng.random() < 0.5 else ("zklag", (rng.choice("12"),))
        end = "zktrail" if behind[0] == "zktrail" else "zkcatchup"
        drawn = [
            (0.0, *behind),
            *drawn,
            (lasts + 1.0, end, () if end == "zktrail" else behind[1]),
        ]
    return drawn


def _busy(rng: Random, name: str) -> Drawn:
    """Let transactions follow each other closely while something fails."""
    drawn: Drawn = [(at, "transact", (name, *_transacts(rng))) for at in (0.0, 0.1, 0.2)]
    at = rng.uniform(0.0, 0.6)
    return drawn + [(at + after, verb, words) for after, verb, words in _fault(rng)]


def _late_marker(rng: Random, name: str) -> Drawn:
    """Let a marker arrive when the transaction is over and the next one is open."""
    whole = (name, "0,1", "1", "none", "commit")
    return [
        (0.0, "transact", whole),
        (rng.uniform(0.0, 0.05), "stallcalls", (TXN_COORDINATOR, TXN_LEADER)),
        (0.1, "transact", (name, "0", "2", "none", "late")),
        (rng.uniform(4.2, 6.0), "unstall", ()),
    ]


def _late_answer(rng: Random, name: str) -> Drawn:
    """Let the answer to a leader arrive when the transaction is over."""
    return [
        (0.0, "stallanswers", (TXN_COORDINATOR, TXN_LEADER)),
        (0.01, "transact", (name, "0", "0", "none", "hasty")),
        (rng.uniform(0.2, 4.0), "unstall", ()),
    ]


def _replaced(rng: Random, name: str) -> Drawn:
    """Crash or pause a producer in the midst of a transaction, and begin another one under its id."""
    at = rng.uniform(0.02, 0.6)
    ends: Sequence[Drawn] = (
        [(at, "txndie", (name,)), (at + rng.uniform(0.0, 3.0), "txnbegin", (name,))],
        [(at, "txndie", (name,))],
        [(at, "txnbegin", (name,))],
        [(at, "txnfreeze", (name,)), (at + rng.uniform(0.3, 9.0), "txnthaw", (name,))],
        [
            (at, "txnfreeze", (name,)),
            (at + 0.1, "txnbegin", (name,)),
            (at + rng.uniform(0.5, 4.0), "txnthaw", (name,)),
        ],
    )
    end = rng.choice(ends)
    return [
        (0.0, "transact", (name, *_transacts(rng))),
        *end,
        (at + 0.2, "transact", (name, *_transacts(rng))),
    ]


PLOTS = (_busy, _busy, _busy, _replaced, _replaced, _late_marker, _late_answer)


def draw_events(seed: int, until: float) -> Iterator[TimedEvent]:
    """Draw what transactional producers do, in a part of all seeds."""
    rng = Random(f"transactions {seed}")
    if rng.random() >= SHARE:
        return
    until = max(until, BEGIN + 6.0)
    names = IDS[: rng.choice((1, 1, 2))]
    yield 1.1, "transactions", ()
    for name in names:
        yield 1.5, "txnbegin", (name,)
    for _ in range(rng.randint(4, 12)):
        at = rng.uniform(BEGIN, until + 3.0)
        yield at, "transact", (rng.choice(names), *_transacts(rng))
        if rng.random() < 0.5:
            asked = at + rng.uniform(0.0, 1.0)
            if rng.random() < 0.5:
                yield asked, "txnread", (str(rng.randrange(PARTITIONS)),)
            else:
                yield asked, "txnoffsets", ()
    for _ in range(rng.randint(1, 4)):
        at = rng.uniform(BEGIN, until)
        for after, verb, words in rng.choice(PLOTS)(rng, rng.choice(names)):
            yield at + after, verb, words
        for partition in range(PARTITIONS):
            yield at + rng.uniform(0.3, 3.0), "txnread", (str(partition),)
        yield at + rng.uniform(0.1, 2.0), "txnoffsets", ()
