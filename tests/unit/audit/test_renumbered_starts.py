"""Renumbered targets of which a log has deleted its start: what has aged out, and what is damaged or lost."""

from __future__ import annotations

import pytest

from spark_jobs.in_step import Sizes
from spark_jobs.verdict import Verdict
from tests.kit.audit_logs import Rec, classes, log_of
from tests.unit.audit.test_renumbered_tail import every_way, found, full, of_one_value, run


@every_way
def test_a_mirror_that_retention_has_overtaken_has_no_damaged_records(sizes: Sizes | None) -> None:
    """All its records are from before the source's start, and have the value of each other record."""
    source = log_of(*map(of_one_value, range(200)))
    target = log_of(*map(of_one_value, range(51)))
    source.delete_below(100)
    audited = run(source, target, sizes)
    assert (audited.outcome.verdict, found(audited)) == (Verdict.INCOMPLETE, ({}, 100))
    assert classes(audited) == {"aged out": 51, "lagging": 100}


@every_way
def test_a_mirror_that_changes_all_records_is_diverged_also_behind_a_deleted_start(
    sizes: Sizes | None,
) -> None:
    """For example their timestamps: a topic with LogAppendTime."""
    source = full(60)
    target = log_of(*(each._replace(timestamp=9_000) for each in source.records.values()))
    source.delete_below(10)
    audited = run(source, target, sizes)
    assert (audited.outcome.verdict, found(audited)) == (Verdict.DIVERGED, ({"corrupt": 50}, 0))


A, B, LAST = (Rec(key, key, 1_000 + n) for n, key in enumerate([b"a", b"b", b"c"]))


@every_way
@pytest.mark.parametrize("side", ["source", "target"])
def test_what_retention_deletes_of_records_that_take_turns_has_aged_out(
    sizes: Sizes | None, side: str
) -> None:
    """The records behind it are those that the other log ends with, and not the first ones."""
    source, target = (log_of(A, B, A, B, A, B, LAST) for _ in range(2))
    (source if side == "source" else target).delete_below(2)
    audited = run(source, target, sizes)
    assert (audited.outcome.verdict, found(audited)) == (Verdict.INCOMPLETE, ({}, 0))
    assert classes(audited) == {"verified": 5, "aged out": 2}


@every_way
def test_no_more_records_that_take_turns_age_out_than_were_deleted(sizes: Sizes | None) -> None:
    target = log_of(A, A, B, LAST)
    target.delete_below(1)
    audited = run(log_of(A, B, A, B, A, B, LAST), target, sizes)
    assert (audited.outcome.verdict, found(audited)) == (Verdict.DIVERGED, ({"missing": 4}, 0))
