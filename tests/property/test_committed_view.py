"""A CONSISTENT verdict means that read_committed consumers get the same; a finding of visibility, that they do not.

Random histories of transactions, of which brokers misjudge some, or overlook their ends.
"""

from __future__ import annotations

import random
from pathlib import Path

from spark_jobs.findings import FindingClass
from spark_jobs.verdict import Verdict
from spark_jobs.visibility import ABORTED_AT_SOURCE, OPEN_AT_SOURCE, OPEN_AT_TARGET
from tests.kit.audit_histories import History
from tests.kit.audit_logs import Log, Rec
from tests.kit.property_tests import at_least


def committed(log: Log, low: int) -> tuple[dict[int, Rec], int]:
    """Return what a consumer with read_committed gets of *log* from offset *low* on, and how far it comes."""
    end = log.end if log.stable is None else log.stable
    records = {
        at: record
        for at, record in log.records.items()
        if low <= at < end and not (record.aborted or record.control)
    }
    return records, max(low, end)


def change(history: History) -> None:
    """Write in transactions and without, and mirror some or all of it."""
    rng = history.rng
    for _ in range(rng.randrange(4)):
        history.begin_transactions()
        history.write(rng.randrange(12), holes=0.2)
        history.end_transactions()
    history.mirror(behind=rng.choice([0, 0, rng.randrange(6)]))
    if rng.random() < 0.2:
        for tp in history.tps:
            log = rng.choice([history.source, history.target]).logs[tp]
            log.delete_below(min(log.end, log.start + rng.randrange(8)))


def test_the_verdict_is_true_of_what_read_committed_consumers_get(tmp_path: Path) -> None:
    verdicts = set()
    for seed in range(at_least(150)):
        rng = random.Random(f"view {seed}")
        history = History(tmp_path / str(seed), rng, window=rng.choice([3, 10]), complete=True)
        for _ in range(rng.randrange(1, 4)):
            change(history)
        run = history.audit()
        for tp in history.tps:
            source, target = history.source.logs[tp], history.target.logs[tp]
            low = max(source.start, target.start)
            same = committed(source, low) == committed(target, low)
            kinds = {f.finding_class for f in run.findings if f.topic_partition == tp}
            hidden = FindingClass.VISIBILITY in kinds
            if run.outcome.verdict is Verdict.CONSISTENT or not kinds:
                assert same, (seed, tp)
            if hidden:
                assert not same, (seed, tp)
            if kinds == {FindingClass.VISIBILITY}:
                assert source.records == {
                    at: record._replace(aborted=source.records[at].aborted)
                    for at, record in target.records.items()
                    if at in source.records
                } or (source.start != target.start)
        verdicts |= {run.outcome.verdict, *(f.field for f in run.findings)}
    assert {Verdict.CONSISTENT, ABORTED_AT_SOURCE, OPEN_AT_SOURCE, OPEN_AT_TARGET} <= verdicts
