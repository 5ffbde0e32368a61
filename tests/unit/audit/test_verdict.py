"""One word and one exit code for every combination that matters."""

from __future__ import annotations

from spark_jobs.findings import FindingClass
from spark_jobs.verdict import Counts, ExitCode, Limits, Verdict, decide


def test_all_verified_and_nothing_found_is_consistent() -> None:
    outcome = decide(Counts(in_scope=10, verified=10))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.CONSISTENT, ExitCode.CONSISTENT)


def test_one_finding_is_diverged() -> None:
    outcome = decide(Counts(10, 10, findings={FindingClass.MISSING: 1}))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.DIVERGED, ExitCode.DIVERGED)


def test_a_class_that_is_not_in_fail_on_does_not_diverge() -> None:
    limits = Limits(fail_on=frozenset({FindingClass.MISSING}))
    outcome = decide(Counts(10, 10, findings={FindingClass.REORDERED: 4}), limits)
    assert outcome.verdict is Verdict.CONSISTENT


def test_lag_over_the_limit_is_no_verdict_yet() -> None:
    outcome = decide(Counts(10, 10, lagging=5), Limits(max_lag=4))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.LAGGING, ExitCode.NO_VERDICT_YET)
    assert decide(Counts(10, 10, lagging=4), Limits(max_lag=4)).verdict is Verdict.CONSISTENT


def test_aged_out_offsets_are_incomplete_with_their_own_exit_code() -> None:
    outcome = decide(Counts(10, 8, aged_out=2))
    assert (outcome.verdict, outcome.exit_code) == (Verdict.INCOMPLETE, ExitCode.AGED_OUT)


def test_an_unreadable_side_beats_a_finding_in_the_exit_code_and_both_are_listed() -> None:
    outcome = decide(
        Counts(10, 5, findings={FindingClass.EXTRA: 1}, unreadable=("broker 2 is down",))
    )
    assert (outcome.verdict, outcome.exit_code) == (Verdict.ERROR, ExitCode.UNREADABLE)
    assert ExitCode.DIVERGED in outcome.applicable


def test_a_failed_self_test_comes_first() -> None:
    outcome = decide(Counts(10, 10, unreadable=("x",)), self_test_failed=True)
    assert outcome.exit_code is ExitCode.INTERNAL


def test_an_empty_topic_is_consistent() -> None:
    assert decide(Counts(0, 0)).verdict is Verdict.CONSISTENT
