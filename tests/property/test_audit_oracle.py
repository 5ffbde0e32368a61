"""The audit against a brute-force join, on logs with seeded faults of every class, alone and in pairs.

Precision and recall are 1.0: the findings are exactly the seeded faults.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from spark_jobs.comparison import Options
from spark_jobs.engine import FailureKind
from spark_jobs.reconcile import Reconciliation
from spark_jobs.verdict import ExitCode, Verdict
from tests.kit.audit_faults import (
    END,
    EVERY,
    INSIDE,
    START,
    TOPIC,
    WHOLE,
    Case,
    case_with,
    clean_case,
    compact,
)
from tests.kit.audit_logs import Log, audit, classes
from tests.kit.property_tests import cases, examples

PAIRS = [
    pair
    for pair in itertools.combinations_with_replacement(EVERY, 2)
    # Two faults at one end of one log are a third kind of fault.
    if not (set(pair) <= set(START) or set(pair) <= set(END) or (pair[0] == pair[1]))
]


def run(case: Case, window: int) -> Reconciliation:
    both = frozenset({TOPIC}) if case.compacted else frozenset()
    options = Options(window=window, complete=case.complete)
    return audit(case.source, case.target, options, source_compacted=both, target_compacted=both)


def check(case: Case, window: int, name: str) -> None:
    result = run(case, window)
    found = Counter(
        (f.finding_class.value, f.partition, f.source_offset, f.target_offset, f.records)
        for f in result.findings
    )
    expected = Counter(map(tuple, case.findings))
    assert found == expected, (name, found - expected, expected - found)
    assert result.outcome.verdict is case.verdict, (name, result.outcome, case.exit_codes)
    codes = set(case.exit_codes)
    if result.counts.accounted < result.counts.in_scope and ExitCode.AGED_OUT not in codes:
        codes.add(ExitCode.NO_VERDICT_YET)
    assert set(result.outcome.applicable) - {ExitCode.CONSISTENT} == codes, name
    joined = brute_force(case)
    counts = classes(result)
    for each in ("verified", "aged out", "not read", "lagging"):
        assert counts.get(each, 0) == joined[each], (name, each, counts, joined)
    assert sum(counts.values()) == sum(joined.values()), (name, counts, joined)


def brute_force(case: Case) -> Counter[str]:
    """Return the class of every offset of either log, by comparing the two logs offset by offset."""
    joined: Counter[str] = Counter()
    for tp in case.source.keys() | case.target.keys():
        source, target = case.source.get(tp, Log()), case.target.get(tp, Log())
        for offset in range(max(source.end, target.end)):
            joined[class_of(source, target, offset, complete=case.complete)] += 1
    del joined["in neither log"]
    return joined


def class_of(source: Log, target: Log, offset: int, *, complete: bool) -> str:
    if offset < min(source.start, target.start if target.end else source.start):
        return "in neither log"
    faults = {f.kind for log in (source, target) for f in log.faults if f.low <= offset < f.high}
    if FailureKind.UNDECODABLE in faults:
        return "undecodable"
    if FailureKind.UNREADABLE in faults:
        return "not read"
    here, there = source.records.get(offset), target.records.get(offset)
    if offset < source.start:
        return "gap" if there is None else "aged out"
    if (offset < target.start) or faults:
        return "aged out"
    if offset >= target.end and offset < source.end:
        if not complete:
            return "lagging"
        return "truncated" if here else "empty"
    if here is None and there is None:
        return "empty"
    return "verified" if here == there else "different"


@pytest.mark.parametrize("kind", EVERY)
def test_a_fault_of_each_class_is_found_alone(kind: str) -> None:
    for seed in range(examples(1)):
        check(case_with(seed, kind), 7 + seed % 40, f"{kind}, seed {seed}")


@pytest.mark.parametrize("pair", cases(PAIRS), ids="+".join)
def test_faults_of_any_two_classes_are_both_found(pair: tuple[str, str]) -> None:
    for seed in range(examples(1)):
        check(case_with(seed, *pair), 7 + seed % 40, f"{pair}, seed {seed}")


def test_many_faults_at_once_are_all_found() -> None:
    for seed in range(examples(20)):
        rng = random.Random(f"faults {seed}")
        kinds = rng.choices(list(INSIDE), k=rng.randrange(1, 5))
        kinds += [rng.choice(list(each)) for each in (START, END, WHOLE) if rng.random() < 0.6]
        check(case_with(seed, *kinds), 7 + seed % 40, f"{kinds}, seed {seed}")


def test_equal_logs_are_consistent_and_wholly_verified() -> None:
    for seed in range(examples(10)):
        check(clean_case(random.Random(seed)), 1 + seed % 40, f"seed {seed}")


@pytest.mark.parametrize("at_source", [True, False])
def test_compaction_of_one_log_is_no_finding_and_hides_none(at_source: bool) -> None:
    for seed in range(examples(10)):
        case = clean_case(random.Random(seed))
        case.complete = True
        compact(case, at_source=at_source)
        result = run(case, 7 + seed % 40)
        assert (result.outcome.verdict, list(result.findings)) == (Verdict.CONSISTENT, []), seed
        assert result.counts.explained == case.explained
