"""Runs of findings change no class of an offset, no verdict, and nothing that is proven.

A case is one of `tests.audit_search`, audited with all findings single, and again with few of them.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from spark_jobs.reconcile import Reconciliation
from spark_jobs.report.document import proven_up_to
from tests.audit_search.cases import KINDS, MEANWHILE, drawn, may_meet
from tests.audit_search.search import audited, storage
from tests.kit.property_tests import cases

_OF_ONE = ("missing", "extra", "duplicate", "misrouted", "corrupt")
"""A record in a run is not looked for elsewhere: it is missing here and extra there, or not known as a copy."""


def facts(run: Reconciliation) -> dict[str, object]:
    """Return what must not depend on runs."""
    records: Counter[str] = Counter()
    for each in run.findings:
        kind = each.finding_class.value
        if kind == "misrouted":
            records["record of one log"] += 2
        elif kind in _OF_ONE:
            records["record of one log"] += 1 + (kind == "corrupt") if each.records == 1 else 0
        else:
            records[kind] += each.records
    partitions = {}
    for cut in run.cuts:
        tp = cut.topic_partition
        counts = run.account.partitions[tp]
        findings = [each for each in run.findings if each.topic_partition == tp]
        misplaced = [
            each.target_offset or 0
            for each in run.findings
            if (each.topic, each.target_partition) == tp
        ]
        partitions[tp] = (
            counts.verified,
            counts.empty,
            counts.explained,
            counts.aged_out,
            counts.not_read,
            counts.lagging,
            sum(counts.different.values()),
            dict(run.account.explained[tp]),
            proven_up_to(cut, findings, misplaced, run.account.failed[tp]),
        )
    return {
        "verdict": run.outcome.verdict,
        "codes": run.outcome.applicable,
        "partitions": partitions,
        "others": {kind: n for kind, n in records.items() if kind != "record of one log"},
    }


@pytest.mark.parametrize("seed", cases(range(150)))
def test_runs_change_no_class_no_verdict_and_nothing_that_is_proven(seed: int) -> None:
    rng = random.Random(f"folding {seed}")
    kinds = rng.sample([each for each in KINDS if each not in MEANWHILE], 2)
    if not may_meet(*kinds):
        kinds = kinds[:1]
    case = drawn(seed, *kinds)
    stored = storage(rng)
    single = audited(case, stored)
    few = stored._replace(keep=rng.randrange(3), keep_compacted=rng.randrange(3))
    assert facts(audited(case, few)) == facts(single)


@pytest.mark.parametrize("seed", cases(range(40)))
@pytest.mark.parametrize("kind", ["compacted_source", "compacted_target"])
def test_what_compaction_explains_does_not_depend_on_where_keys_are_looked_up(
    seed: int, kind: str
) -> None:
    rng = random.Random(f"looked up {seed}")
    other = rng.choice([each for each in KINDS if may_meet(each, kind)])
    case = drawn(seed, kind, *([] if other in MEANWHILE else [other]))
    stored = storage(rng)
    single = audited(case, stored)
    few = stored._replace(keep_compacted=rng.randrange(3))
    assert facts(audited(case, few)) == facts(single)
