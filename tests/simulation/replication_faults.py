"""Sequences of faults that replication must survive, and that random single faults rarely produce.

Each plays among three brokers in drawn roles, on partition 0 of the first topic, after what else happens to a seed.
"""

from __future__ import annotations

from random import Random

Timed = tuple[float, str, tuple[str, ...]]
"""Seconds from the beginning, a verb and its words."""

TOPIC = "a"
SHARE = 0.3
"""Of the seeds in `FAULT_MIXES` that have such a sequence."""
FAULT_MIXES = ("crashes", "zookeeper", "stale", "network", "zombies", "everything")


def _produce(at: float, kind: str, count: int) -> Timed:
    return (at, "produce", (TOPIC, "0", kind, str(count)))


def _fast_elections(rng: Random, roles: list[str]) -> list[Timed]:
    """Let two replicas lead in turn without a fetch between them (S7, KIP-279)."""
    one, other, third = roles
    drawn: list[Timed] = [(0.0, "stop", (third,)), (2.0, "block", (one, other))]
    at = 2.1
    for turn in range(rng.randint(2, 5)):
        drawn.append(_produce(at, "one", rng.choice((1, 2))))
        drawn.append((at + 0.4, "zkexpire", ((one, other)[turn % 2],)))
        at += 2.4
    drawn.append(_produce(at, rng.choice(("one", "idempotent")), 1))
    return [*drawn, (at + 1.0, "unblock", (one, other)), (at + 2.0, "start", (third,))]


def _old_fetch(rng: Random, roles: list[str]) -> list[Timed]:
    """Let a fetch arrive two leader epochs late, when its follower has truncated its log and is paused."""
    leader, successor, follower = roles
    return [
        (0.0, "stall", (follower,)),
        (0.0, "oneway", (leader, successor)),
        _produce(0.05, "one", 1),
        (0.5, "zkexpire", (leader,)),
        (1.5, "unblock", (leader, successor)),
        (4.0, "pause", (follower,)),
        (4.01, "zkexpire", (successor,)),
        _produce(4.5, rng.choice(("one", "idempotent")), 1),
        (5.0, "unstall", ()),
        (6.0, "resume", (follower,)),
    ]


def _former_broker_epoch(rng: Random, roles: list[str]) -> list[Timed]:
    """Let a fetch arrive when its sender has been restarted (KIP-903)."""
    leader, follower, _ = roles
    end = rng.choice(("kill", "power"))
    return [
        (0.0, "oneway", (follower, leader)),
        _produce(0.1, "one", 1),
        (7.5, end, (follower,)),
        (8.0, "start", (follower,)),
        (rng.uniform(8.4, 10.0), "unblock", (follower, leader)),
        _produce(11.0, "idempotent", 1),
    ]


def _cut_off(_rng: Random, roles: list[str]) -> list[Timed]:
    """Cut a broker off for so long that it must serve no client, and send it requests (S11)."""
    cut = roles[0]
    asked: list[Timed] = [(at, "read", (TOPIC, "0", cut)) for at in (7.0, 8.0, 9.5)]
    return [
        (0.0, "isolate", (cut,)),
        *asked,
        _produce(8.5, "one", 1),
        _produce(9.0, "all", 1),
        (10.5, "rejoin", (cut,)),
    ]


def _late_stop(rng: Random, roles: list[str]) -> list[Timed]:
    """Move a replica away and back, and let what the controller sent it first arrive last (KIP-570)."""
    gone = roles[2]
    return [
        (0.0, "move", (TOPIC, "0", ",".join(roles[:2]))),
        (rng.uniform(0.005, 0.04), "stall", ("controller", gone)),
        (6.0, "move", (TOPIC, "0", ",".join(roles))),
        _produce(7.0, "idempotent", 2),
        (rng.uniform(7.5, 10.0), "unstall", ()),
    ]


def _late_to_a_restarted_broker(rng: Random, roles: list[str]) -> list[Timed]:
    """Let what a controller sent to one session of a broker arrive in the next (KIP-380)."""
    other = roles[0]
    return [
        (rng.uniform(0.0, 0.05), "stall", ("controller", other)),
        (0.0, "zkexpire", (roles[1],)),
        (rng.uniform(0.1, 0.5), "zkexpire", (other,)),
        _produce(4.0, "idempotent", 1),
        (rng.uniform(3.5, 8.0), "unstall", ()),
    ]


SEQUENCES = (
    _fast_elections, _fast_elections, _old_fetch, _former_broker_epoch, _cut_off, _late_stop,
    _late_to_a_restarted_broker,
)  # fmt: skip


def sequence(seed: int, fault_mix: str, begin: float, brokers: int) -> list[Timed]:
    """Draw a sequence for *seed*, which begins at *begin* seconds; none for most seeds."""
    rng = Random(f"replication {seed}")
    if fault_mix not in FAULT_MIXES or rng.random() >= SHARE:
        return []
    roles = [str(number) for number in rng.sample(range(1, brokers + 1), 3)]
    drawn = rng.choice(SEQUENCES)(rng, roles)
    return [(begin + at, verb, words) for at, verb, words in drawn]
