"""A slice of the search for wrong verdicts: each kind of fault alone, some pairs, and audits that are wrong.

`python -m tests.audit_search` has all pairs and any number of seeds.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kclient.wire.compression import Codec
from spark_jobs.findings import Finding
from spark_jobs.report.contents import build_report
from spark_jobs.report.files import write_report
from tests.audit_search.cases import KINDS, MEANWHILE, PLAIN, drawn, is_renumbered, may_meet
from tests.audit_search.judge import judge, problems
from tests.audit_search.search import PAIRS, audited, compared, disagreements, storage, with_codecs
from tests.kit.audit_reports import META

SOME_PAIRS = random.Random("some pairs").sample(PAIRS, 96)


@pytest.mark.parametrize(("number", "kind"), list(enumerate(KINDS)))
def test_the_audit_of_a_fault_of_each_kind_is_what_the_judge_expects(
    number: int, kind: str
) -> None:
    assert disagreements(0, [kind], number) == []


def test_the_slice_has_every_codec_beside_every_other() -> None:
    rng = random.Random(0)
    layouts = [with_codecs(storage(rng), number).layouts for number in range(len(KINDS))]
    assert {(source.codec, target.codec) for source, target in layouts} == set(
        itertools.product(map(int, Codec), repeat=2)
    )


@pytest.mark.parametrize("part", range(8))
def test_the_audit_of_two_faults_is_what_the_judge_expects(part: int) -> None:
    for seed, pair in enumerate(SOME_PAIRS[part::8]):
        assert disagreements(seed, pair, 8 * seed + part) == [], (seed, pair)


def test_kinds_in_one_place_do_not_meet() -> None:
    assert not may_meet("single_record_lost", "single_record_lost_at_source")
    assert not may_meet("first_missing", "skipped_gap")
    assert not may_meet("missing", "renumbered_missing")
    assert may_meet("first_missing", "last_missing")


def test_the_report_of_every_kind_of_fault_is_written(tmp_path: Path) -> None:
    """Offsets near 2^62 and a topic of one cluster have kept it from being written."""
    for seed, kind in enumerate(PLAIN):
        run = audited(drawn(seed, kind), storage(random.Random(seed)))
        page = write_report(tmp_path / kind, build_report(run, META, 100))
        assert page.stat().st_size


HARMLESS = (
    *("empty_partitions", "accepted_loss", "first_accepted_loss", "last_accepted_loss"),
    *("compacted_source", "compacted_target", "open_on_both"),
    *("renumbered_equal", "renumbered_open_at_source"),
)


@pytest.mark.parametrize("kind", [each for each in KINDS if each not in (*HARMLESS, *MEANWHILE)])
def test_the_judge_finds_what_an_audit_overlooks(kind: str) -> None:
    """The audit here is that of equal logs, so that it reports no fault."""
    same = "renumbered_equal" if is_renumbered(kind) else "empty_partitions"
    case, equal = drawn(0, kind), drawn(0, same)
    case.complete = equal.complete = True
    assert compared(case, audited(equal, storage(random.Random(0)))) != []


def _farther(each: Finding) -> Finding:
    return replace(each, distance=(each.distance or 0) + 1)


def _longer(each: Finding) -> Finding:
    return replace(each, records=each.records + 1)


def _of_another_batch(each: Finding) -> Finding:
    return replace(each, field=(each.field or "").replace("batch at offset ", "batch at offset 1"))


def _at_the_other_side(each: Finding) -> Finding:
    return replace(each, field=(each.field or "").replace("source", "target"))


@pytest.mark.parametrize(
    ("kind", "mistake"),
    [
        ("moved_far", _farther),
        ("exchanged", _farther),
        ("shifted", _farther),
        ("shifted", _longer),
        ("skipped_gap", _longer),
        ("deleted_before_copied", _longer),
        ("undecodable", _longer),
        ("undecodable_where_aged", _of_another_batch),
        ("open_at_target", _longer),
        ("open_at_source", _at_the_other_side),
    ],
)
def test_the_judge_finds_a_wrong_distance_extent_or_cause(
    kind: str, mistake: Callable[[Finding], Finding]
) -> None:
    case = drawn(0, kind)
    findings = list(audited(case, storage(random.Random(0))).findings)
    assert list(problems(case, judge(case), findings)) == []
    assert list(problems(case, judge(case), [mistake(each) for each in findings])) != []
