"""How long partitions had no leader after a single fault: from the kill, pause or cut of a leader to the next election.

A fault counts if everything else was up at that moment and in the second after it: then ZooKeeper's session timeout and
the controller's work are all that the partition waits for. One ZooKeeper server may be dead, if it died longer than a
session timeout before: the others are a majority, and sessions have moved to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tests.audits.zookeeper_rules import StateChange
from tests.chaos.routed_brokers import SESSION_TIMEOUT
from tests.checker.history import Event

MOMENT: Final = 1_000_000_000
SETTLED: Final = int(SESSION_TIMEOUT * 1e9) + MOMENT
"""Nanoseconds in which ZooKeeper may elect a leader after the death of a server. It begins all sessions again."""
LONGEST: Final = SESSION_TIMEOUT + 1.0
"""Seconds without a leader that a fault may cause."""
HURTS: Final = {
    "kill": "process",
    "terminate": "process",
    "ended": "process",
    "pause": "pause",
    "kill_zookeeper": "zookeeper",
    "pause_zookeeper": "zookeeper",
    "cut": "network",
    "hold": "network",
    "cut_zookeeper": "network",
    "full_disk": "disk",
}
MENDS: Final = {
    "ready": "process",
    "resume": "pause",
    "start_zookeeper": "zookeeper",
    "resume_zookeeper": "zookeeper",
    "heal": "network",
    "room": "disk",
}
PER_BROKER: Final = ("process", "pause")


def leaderless(nemesis: Sequence[Event], states: Sequence[tuple[int, StateChange]]) -> list[float]:
    """Return, per fault and per key that the broker led, the seconds to the next election.

    *states* are the changes of partition states, each with its time in ns. A fault that is repaired before ZooKeeper
    expires the session causes no election and gives no figure.
    """
    found = []
    for number, fault in enumerate(nemesis):
        broker = taken(fault)
        if broker is None or _else_hurt(nemesis, number, broker):
            continue
        until = _repaired_at(nemesis, number)
        led: dict[str, int] = {}
        elected: dict[str, int] = {}
        for at, change in states:
            if at <= fault.t:
                led[change.key] = change.state.leader
            elif change.elected and led.get(change.key) == broker and at <= until:
                elected.setdefault(change.key, at)
        found += [(at - fault.t) / 1e9 for at in elected.values()]
    return found


def taken(fault: Event) -> int | None:
    """Return the broker that a fault takes from ZooKeeper, if it takes one."""
    for word in ("kill", "pause"):
        if word in fault.v:
            return int(fault.v[word])
    cut = fault.v.get("cut", ())
    return int(cut[0].removeprefix("broker-")) if "zk" in cut else None


def _repaired_at(nemesis: Sequence[Event], number: int) -> int:
    """Return when the repair of a cut or pause began; for a kill, when the next fault began."""
    ends = HURTS if "kill" in nemesis[number].v else {"resume": "", "heal": ""}
    later = nemesis[number + 1 :]
    return min((event.t for event in later if ends.keys() & set(event.v)), default=2**63)


def _else_hurt(nemesis: Sequence[Event], number: int, broker: int) -> bool:
    """Return whether anything but this fault of *broker* was on at its moment, or began in the second after it."""
    fault = nemesis[number]
    hurt: set[tuple[str, Any]] = set()
    dead_servers: set[int] = set()
    for event in nemesis:
        if event.t > fault.t + MOMENT:
            break
        if event is fault:
            continue
        for word, value in event.v.items():
            if word in HURTS:
                if word == "kill_zookeeper" and len(value) == 1 and fault.t - event.t > SETTLED:
                    dead_servers.update(value)
                    continue
                kind = HURTS[word]
                hurt.add((kind, value if kind in PER_BROKER else None))
            elif word in MENDS and event.t <= fault.t:
                kind = MENDS[word]
                hurt.discard((kind, value if kind in PER_BROKER else None))
                if word == "start_zookeeper":
                    dead_servers.difference_update(value)
    return bool(hurt) or len(dead_servers) > 1
