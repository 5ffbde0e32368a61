"""The result of a run: anomalies, and which of them a client, a fault or the machine explains."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.audits.growth import Growth
from tests.audits.isr_samples import Loss, SampleAudit
from tests.audits.logs import LogAudit
from tests.audits.problem import Problem
from tests.chaos.figures import Figures
from tests.checker.anomaly import Anomaly
from tests.checker.history import Event
from tests.checker.verdict import Judgement, Verdict

OUT_OF_TIME = frozenset({"isr-not-full", "no-progress", "not-readable", "not-sampled"})
"""Problems that a machine may have that is too slow; nothing is wrong or lost by them."""


@dataclass
class Result:
    """What came out."""

    verdict: Verdict
    problems: list[Problem] = field(default_factory=list)
    figures: Figures = field(default_factory=Figures)
    logs: LogAudit = field(default_factory=LogAudit)
    samples: SampleAudit = field(default_factory=SampleAudit)
    growth: list[Growth] = field(default_factory=list)
    controllers: int = 0
    elections: int = 0

    @property
    def clean(self) -> bool:
        """Whether no promise was broken, as far as clients and audits saw."""
        return self.verdict.judgement is Judgement.CLEAN and not self.problems

    @property
    def broken(self) -> bool:
        """Whether a promise was broken for certain: not merely that something took too long."""
        wrong = [problem for problem in self.problems if problem.rule not in OUT_OF_TIME]
        return self.verdict.judgement is Judgement.BROKEN or bool(wrong)

    def to_text(self) -> str:
        """Give what a person reads."""
        lines = [self.verdict.to_text(), self.figures.to_text()]
        lines.append(
            f"audits: {self.logs.replicas} replicas of {self.logs.partitions} partitions,"
            f" {self.logs.batches} batches; {self.controllers} controllers, {self.elections} elections"
        )
        lines.append(self.samples.to_text())
        lines += [one.to_text() for one in self.growth]
        lines += [f"BAD: {problem}" for problem in self.problems[:20]]
        lines.append("CLEAN" if self.clean else "BROKEN")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Give all of it."""
        return {
            "clean": self.clean,
            **self.verdict.to_json(),
            "problems": [problem._asdict() for problem in self.problems],
            "samples": self.samples.samples,
            "watermarks_compared": self.samples.compared,
            "growth": [asdict(one) for one in self.growth],
            "first_acks": self.figures.first_acks,
            "leaderless": self.figures.leaderless,
            "full_isrs": self.figures.full_isrs,
            "windows": self.figures.windows,
        }


def excuse_renumbered(anomaly: Anomaly, logs: LogAudit) -> Anomaly:
    """Only report a duplicate with copies of different epochs of one producer.

    Its client raised its epoch by itself (KIP-360) and sent again, with new sequences, what it could not know the fate
    of; no broker can detect it. librdkafka does so after OUT_OF_ORDER_SEQUENCE_NUMBER, for all its partitions.
    """
    if anomaly.name != "duplicate":
        return anomaly
    producers = [logs.producers.get(anomaly.key, {}).get(at) for at in anomaly.offsets]
    known = {one for one in producers if one is not None}
    if len(known) < len(anomaly.offsets) or len({producer_id for producer_id, _ in known}) > 1:
        return anomaly
    return replace(anomaly, name="duplicate-renumbered-by-client", bad=False)


def losses(events: list[Event]) -> list[Loss]:
    """Return which brokers lost records to a fault, as the nemesis noted it."""
    found = []
    for event in events:
        if event.f != "nemesis":
            continue
        if "wipe" in event.v:
            found.append(Loss(event.t, event.v["wipe"], None))
        damaged = event.v.get("damage") or event.v.get("bit_rot")
        if damaged is not None:
            broker, _, key = damaged.partition("/")
            found.append(Loss(event.t, int(broker.removeprefix("broker-")), key))
    return found
