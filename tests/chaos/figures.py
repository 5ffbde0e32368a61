"""Figures of a run: how much was done, how long no client was served, how soon the next leader served.

Times of elections and ISRs come from ZooKeeper's journal (to its millisecond), those of acknowledgements from the
history. They are reported, never judged: a slow machine is no defect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.audits.zookeeper_rules import StateChange
from tests.chaos.leaderless import LONGEST, leaderless
from tests.chaos.recorder import Recorder
from tests.checker.history import Event

GAP = 1.0
"""Seconds without an acknowledgement of a key that count as a window of unavailability."""


@dataclass
class Figures:
    """All in seconds."""

    seconds: float = 0.0
    acknowledged: int = 0
    first_acks: list[float] = field(default_factory=list)
    """From each kill of a leader, per key, to the first acknowledgement by its successor, where all others lived."""
    first_acks_of_few: list[float] = field(default_factory=list)
    """The same where another broker was dead, too: acks=all may have to wait for one that returns."""
    leaderless: list[float] = field(default_factory=list)
    """From the kill, pause or cut of a leader, per key, to the next election, where all other brokers were up."""
    full_isrs: list[float] = field(default_factory=list)
    """From each return of a broker to the moment when all ISRs were full, where nothing else happened before."""
    windows: dict[str, list[float]] = field(default_factory=dict)
    """Per key the gaps longer than GAP between acknowledgements."""

    @property
    def elects_in_time(self) -> bool:
        """Whether no fault of a leader left its partitions without one for longer than `LONGEST`."""
        return max(self.leaderless, default=0.0) <= LONGEST

    def to_text(self) -> str:
        """Give what a person reads."""
        gaps = [gap for of_key in self.windows.values() for gap in of_key]
        return "\n".join(
            [
                f"acknowledged sends: {self.acknowledged} in {self.seconds:.0f} s",
                f"kill of a leader -> first acknowledgement by the next: {_spread(self.first_acks)}",
                f"the same while another is dead: {_spread(self.first_acks_of_few)}",
                f"fault of a leader -> election of the next: {_spread(self.leaderless)}"
                f"{'' if self.elects_in_time else f', ABOVE {LONGEST:g} s'}",
                f"return of a broker -> every ISR full: {_spread(self.full_isrs)}",
                f"unavailable (> {GAP:g} s without an acknowledgement of a key): {_spread(gaps)}",
            ]
        )


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "none"
    ranked = sorted(values)
    middle, late = ranked[len(ranked) // 2], ranked[int(len(ranked) * 0.95)]
    return f"{len(ranked)} × median {middle:.2f} s, 95 % {late:.2f} s, longest {ranked[-1]:.2f} s"


def figures(
    recorder: Recorder, states: Sequence[StateChange], keys: Sequence[str], replicas: int
) -> Figures:
    """Work them out."""
    result = Figures()
    acks: dict[str, list[int]] = defaultdict(list)
    for event in recorder.events:
        if event.f == "send" and event.type == "ok":
            acks[event.v[0][1]].append(event.t)
            result.acknowledged += 1
    if not acks:
        return result
    first = min(times[0] for times in acks.values())
    last = max(times[-1] for times in acks.values())
    result.seconds = (last - first) / 1e9
    for key, times in acks.items():
        gaps = [(b - a) / 1e9 for a, b in pairwise(times) if b - a > GAP * 1e9]
        result.windows[key] = gaps
    ours = [(recorder.monotonic_ns(one.time_ms), one) for one in states if one.key in keys]
    nemesis = [event for event in recorder.events if event.f == "nemesis"]
    for event in nemesis:
        if "kill" in event.v:
            found = _first_acks(event.t, event.v["kill"], ours, acks)
            alone = _others_live(nemesis, event)
            (result.first_acks if alone else result.first_acks_of_few).extend(found)
    result.leaderless = leaderless(nemesis, ours)
    result.full_isrs = _full_isrs(nemesis, ours, keys, replicas)
    return result


def _others_live(nemesis: Sequence[Event], kill: Event) -> bool:
    """Return whether no other broker was dead at *kill*, or died in the second after."""
    dead: set[int] = set()
    for event in nemesis:
        if event.t > kill.t + 1e9:
            break
        dead |= {event.v[word] for word in ("kill", "terminate") if word in event.v}
        if event.t <= kill.t and "ready" in event.v:
            dead.discard(event.v["ready"])
    return dead <= {kill.v["kill"]}


def _first_acks(
    killed_at: int, broker: int, states: Sequence[tuple[int, StateChange]], acks: dict[str, list[int]]
) -> list[float]:  # fmt: skip
    """Return, per key that *broker* led, the seconds to the first acknowledgement after the next election."""
    led: dict[str, int] = {}
    elected: dict[str, int] = {}
    for at, change in states:
        if at <= killed_at:
            led[change.key] = change.state.leader
        elif change.elected and led.get(change.key) == broker:
            elected.setdefault(change.key, at)
    found = []
    for key, at in elected.items():
        after = next((t for t in acks[key] if t > at), None)
        if after is not None:
            found.append((after - killed_at) / 1e9)
    return found


def _full_isrs(
    nemesis: Sequence[Event],
    states: Sequence[tuple[int, StateChange]],
    keys: Sequence[str],
    replicas: int,
) -> list[float]:
    """Return the seconds from ready lines to full ISRs; not where the next fault came first."""
    hurts = [e.t for e in nemesis if not {"ready", "start", "resume", "heal"} & set(e.v)]
    found = []
    for event in nemesis:
        if "ready" not in event.v:
            continue
        until = min((t for t in hurts if t > event.t), default=2**63)
        isr: dict[str, int] = dict.fromkeys(keys, 0)
        for at, change in states:
            if at > until:
                break
            isr[change.key] = len(change.state.isr)
            if at >= event.t and all(size == replicas for size in isr.values()):
                found.append((at - event.t) / 1e9)
                break
            if at < event.t:
                continue
        else:
            continue
    return found
