"""Rules over samples of running brokers: what leaders report as committed is on every member of the ISR.

Theory of operation
===================
A sample of a partition is taken in this order: its state znode, from every broker that thinks it leads the high
watermark, from every broker the log end, the state znode again (after a ``sync``, so that it is the last one there is).
Watermarks and log ends only grow without an unclean election, so a log end that is read later than a watermark
and lies below it was never there. If the znode's version is the same before and after, the ISR is known for all of that
time, and only then it is judged. A broker that did not answer proves nothing; one that lost its disk or a part of it (a
fault did that) is excused until the ISR was seen without it.

Invariants that are judged (the model's names; those of tests.simulation.predicates):
1. StrongIsr: no watermark of a broker that considers itself leader is above the log end of a member of the ISR.
2. LeaderInIsr: the leader is in the ISR, or there is none; the ISR is never empty.
3. ValidHighWatermark: a leader's is not above its own log end, and does not fall in its leader epoch.
4. OneLeader: a leader epoch is led by one broker.

In: samples in the order of time, losses, the states that ZooKeeper held   Out: problems, and how much was compared
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.audits.problem import Problem

SHOWN = 3
"""Problems of one rule and partition that are listed one by one."""


class Known(NamedTuple):
    """A state znode, as it was read."""

    version: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]


class Mark(NamedTuple):
    """What a broker that thinks it leads calls committed."""

    leader_epoch: int
    high_watermark: int


class Sample(NamedTuple):
    """One partition at about one time (monotonic ns). By broker: those that answered."""

    began: int
    ended: int
    key: str
    before: Known
    marks: dict[int, Mark]
    ends: dict[int, int]
    after: Known


class Loss(NamedTuple):
    """A broker lost records: of one partition, or (None) of all."""

    at: int
    broker: int
    key: str | None


class IsrAt(NamedTuple):
    """An ISR that ZooKeeper held from a time (monotonic ns) on."""

    at: int
    key: str
    isr: frozenset[int]


@dataclass
class SampleAudit:
    """What came out."""

    samples: int = 0
    unsettled: int = 0
    """Samples in which the state changed: of those only the state itself is judged."""
    compared: int = 0
    """Watermarks that were held against the log end of another broker in the ISR."""
    problems: list[Problem] = field(default_factory=list)

    def to_text(self) -> str:
        """Give what a person reads."""
        return (
            f"samples: {self.samples}, {self.unsettled} unsettled; {self.compared} times"
            " a leader's high watermark against another log end of the ISR"
        )


def judge(
    samples: Sequence[Sample],
    losses: Iterable[Loss] = (),
    isrs: Iterable[IsrAt] = (),
    *,
    unclean_election: bool = False,
) -> SampleAudit:
    """Judge *samples*. After an *unclean_election* the high watermark of former leaders does not count."""
    return _Judge(losses, isrs, unclean_election).judge(samples)


class _Judge:
    def __init__(
        self, losses: Iterable[Loss], isrs: Iterable[IsrAt], unclean_election: bool
    ) -> None:
        self._unclean_election = unclean_election
        self.audit = SampleAudit()
        self._losses = list(losses)
        self._outside: dict[tuple[str, int], list[int]] = defaultdict(list)
        """Per partition and broker the times at which ZooKeeper held an ISR without it."""
        history = sorted(isrs, key=lambda one: one.at)
        members = {n for one in history for n in one.isr}
        for one in history:
            for n in members - one.isr:
                self._outside[one.key, n].append(one.at)
        self._last_mark: dict[tuple[str, int], tuple[int, Mark]] = {}
        self._leader_of: dict[tuple[str, int], int] = {}
        self._reported: Counter[tuple[str, str]] = Counter()

    def judge(self, samples: Sequence[Sample]) -> SampleAudit:
        for sample in samples:
            self.audit.samples += 1
            for known in {sample.before, sample.after}:
                self._leader_in_isr(sample, known)
            self._watermarks(sample)
            if sample.before.version == sample.after.version:
                self._strong_isr(sample)
            else:
                self.audit.unsettled += 1
        return self.audit

    def _leader_in_isr(self, sample: Sample, known: Known) -> None:
        if not known.isr or known.leader not in (-1, *known.isr):
            self._report("leader-in-isr", sample, f"{known}")

    def _watermarks(self, sample: Sample) -> None:
        for broker, mark in sample.marks.items():
            first = self._leader_of.setdefault((sample.key, mark.leader_epoch), broker)
            if first != broker:
                self._report(
                    "one-leader",
                    sample,
                    f"brokers {first} and {broker} both lead in epoch {mark.leader_epoch}",
                )
            end = sample.ends.get(broker)
            if end is not None and end < mark.high_watermark:
                self._report(
                    "valid-high-watermark",
                    sample,
                    f"broker {broker} ends at {end}, its watermark was {mark.high_watermark}",
                )
            last = self._last_mark.get((sample.key, broker))
            self._last_mark[sample.key, broker] = (sample.began, mark)
            if last is None or last[1].leader_epoch != mark.leader_epoch:
                continue
            if mark.high_watermark < last[1].high_watermark and not self._lost(
                broker, sample, since=last[0]
            ):
                self._report(
                    "valid-high-watermark",
                    sample,
                    f"the watermark of broker {broker} fell from {last[1].high_watermark} to"
                    f" {mark.high_watermark} in epoch {mark.leader_epoch}",
                )

    def _strong_isr(self, sample: Sample) -> None:
        for leader, mark in sample.marks.items():
            if self._unclean_election and mark.leader_epoch < sample.before.leader_epoch:
                continue
            for member in sample.before.isr:
                end = sample.ends.get(member)
                if member == leader or end is None:
                    continue
                self.audit.compared += 1
                if end < mark.high_watermark and not self._lost(member, sample):
                    self._report(
                        "strong-isr",
                        sample,
                        f"broker {member}, in the ISR {list(sample.before.isr)} of version"
                        f" {sample.before.version}, ends at {end}; broker {leader} leads in epoch"
                        f" {mark.leader_epoch} and called {mark.high_watermark} committed before",
                    )

    def _lost(self, broker: int, sample: Sample, since: int | None = None) -> bool:
        """Return whether a fault took records of *broker*, and the ISR was not without it since then."""
        for loss in self._losses:
            if loss.broker != broker or loss.key not in (None, sample.key):
                continue
            if loss.at > sample.ended or (since is not None and loss.at < since):
                continue
            outside = self._outside[sample.key, broker]
            at = bisect_right(outside, loss.at)
            if at == len(outside) or outside[at] >= sample.began:
                return True
        return False

    def _report(self, rule: str, sample: Sample, text: str) -> None:
        self._reported[rule, sample.key] += 1
        if self._reported[rule, sample.key] <= SHOWN:
            self.audit.problems.append(
                Problem(rule, sample.key, f"at {sample.began / 1e9:.3f} s: {text}")
            )
