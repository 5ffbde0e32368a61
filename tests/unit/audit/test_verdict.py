"""One word and one exit code for every combination that matters."""

from __future__ import annotations

import pytest

from spark_jobs.findings import FindingClass
from spark_jobs.verdict import Counts, ExitCode, Limits, Verdict, decide


def diverged(finding_class: FindingClass, count: int = 1) -> Counts:
    found = {finding_class: count}
    return Counts(verified=10, different=found, findings=found)


def test_all_verified_and_nothing_found_is_consistent() -> None:
    outcome = decide(Counts(verified=10))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.CONSISTENT, ExitCode.CONSISTENT)


@pytest.mark.parametrize("finding_class", FindingClass)
def test_one_finding_of_any_class_is_diverged(finding_class: FindingClass) -> None:
    outcome = decide(diverged(finding_class))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.DIVERGED, ExitCode.DIVERGED)


def test_fail_on_decides_the_exit_code_and_never_the_verdict() -> None:
    limits = Limits(fail_on=frozenset({FindingClass.MISSING}))
    outcome = decide(diverged(FindingClass.CORRUPT, 4), limits)
    assert (outcome.verdict, outcome.exit_code) == (Verdict.DIVERGED, ExitCode.CONSISTENT)
    assert outcome.not_failed_on == {FindingClass.CORRUPT: 4}
    assert decide(diverged(FindingClass.MISSING), limits).exit_code is ExitCode.DIVERGED


def test_lag_over_the_limit_is_no_verdict_yet() -> None:
    outcome = decide(Counts(verified=10, lagging=5), Limits(max_lag=4))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.LAGGING, ExitCode.NO_VERDICT_YET)
    within = decide(Counts(verified=10, lagging=4), Limits(max_lag=4))
    assert within.verdict is Verdict.CONSISTENT


def test_only_lag_proves_nothing() -> None:
    outcome = decide(Counts(lagging=5), Limits(max_lag=10))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.LAGGING, ExitCode.NO_VERDICT_YET)


def test_aged_out_offsets_are_incomplete_with_their_own_exit_code() -> None:
    counts = Counts(verified=8, aged_out=2)
    outcome = decide(counts)
    assert (outcome.verdict, outcome.exit_code) == (Verdict.INCOMPLETE, ExitCode.AGED_OUT)
    assert counts.coverage == 0.8


def test_an_accepted_coverage_changes_the_exit_code_and_not_the_verdict() -> None:
    outcome = decide(Counts(verified=8, aged_out=2), Limits(min_coverage=0.8))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.INCOMPLETE, ExitCode.CONSISTENT)


def test_gaps_and_undecodable_batches_are_not_covered() -> None:
    assert diverged(FindingClass.GAP, 10).coverage == 0.5
    assert diverged(FindingClass.UNDECODABLE, 10).coverage == 0.5
    assert diverged(FindingClass.CORRUPT, 10).coverage == 1.0


def test_an_unreadable_side_beats_a_finding_in_the_exit_code_and_both_are_listed() -> None:
    found = {FindingClass.EXTRA: 1}
    outcome = decide(Counts(5, findings=found, unreadable=("broker 2 is down",)))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.ERROR, ExitCode.UNREADABLE)
    assert ExitCode.DIVERGED in outcome.applicable


def test_a_failed_self_test_comes_first() -> None:
    outcome = decide(Counts(10, unreadable=("x",)), self_test_failed=True)
    assert outcome.exit_code is ExitCode.INTERNAL


def test_empty_topics_with_the_same_ends_are_consistent() -> None:
    """No offset is missing, and the gates of kmirror promote such topics. The reports name them."""
    assert decide(Counts()).verdict is Verdict.CONSISTENT
    assert Counts().coverage is None


@pytest.mark.parametrize("nothing", [Counts(unequal_ends=1), Counts(explained=5)])
def test_nothing_compared_is_never_consistent(nothing: Counts) -> None:
    outcome = decide(nothing, Limits(max_lag=10))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.LAGGING, ExitCode.NO_VERDICT_YET)


def test_an_empty_partition_with_unequal_ends_beside_others_does_not_change_their_verdict() -> None:
    assert decide(Counts(verified=1, unequal_ends=1)).exit_code is ExitCode.CONSISTENT


def test_what_is_explained_is_not_compared_and_no_reason_against_the_verdict() -> None:
    counts = Counts(verified=10, explained=10)
    assert (counts.compared, counts.in_scope, counts.coverage) == (10, 20, 0.5)
    outcome = decide(counts)
    assert (outcome.verdict, outcome.exit_code) == (Verdict.CONSISTENT, ExitCode.CONSISTENT)


def test_what_is_explained_counts_for_the_limit_of_coverage() -> None:
    counts = Counts(verified=5, explained=5, aged_out=10)
    assert counts.coverage == 0.25
    assert decide(counts, Limits(min_coverage=0.5)).exit_code is ExitCode.CONSISTENT
    assert decide(counts, Limits(min_coverage=0.51)).exit_code is ExitCode.AGED_OUT


def test_a_partition_of_unknown_size_leaves_no_share() -> None:
    counts = Counts(verified=10, unknown=1, unreadable=("no leader",))
    assert counts.coverage is None
    assert decide(counts).exit_code is ExitCode.UNREADABLE
