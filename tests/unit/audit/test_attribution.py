"""Which log has changed since the copy: what three digests show, and that nothing else is an accusation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kclient.mirror_evidence import Copied, Extent, encode
from kclient.types import TopicPartition
from spark_jobs.attribution import (
    MOST_DIFFERING,
    Batch,
    EvidenceRead,
    Judged,
    Reason,
    Where,
    judge,
)
from spark_jobs.comparison import Options
from spark_jobs.engine import FailureKind
from tests.kit.audit_batches import Layout, encoded
from tests.kit.audit_evidence import TOPIC, audited, evidence_of, where
from tests.kit.audit_logs import Fault, Log, Rec, audit, log_of

TP = TopicPartition("t", 0)


def batch(base: int, hashed: int, size: int = 10) -> Batch:
    return Batch(base, base + size, hashed)


A, B, C = batch(0, 11), batch(10, 22), batch(20, 44)
A2, B2, C2 = batch(0, 1000), batch(10, 2000), batch(20, 4000)
A3, B3 = batch(0, 70_000), batch(10, 80_000)


def extent(*batches: Batch) -> Extent:
    total = sum(each.hash for each in batches)
    return Extent(0, 30, len(batches), total, total)


@pytest.mark.parametrize(
    ("mirror", "source", "target", "expected"),
    [
        ((A, B, C), (A, B, C), (A, B, C), {}),
        ((A, B, C), (A, B2, C), (A, B, C), {B2: "source", B: "source"}),
        ((A, B, C), (A, B, C), (A, B2, C), {B2: "target", B: "target"}),
        ((A, B, C), (A, B, C), (A, C), {B: "target"}),
        ((A, B, C), (A, C), (A, B, C), {B: "source"}),
        ((A, C), (A, C), (A, B, C), {B: "target"}),
        ((A, C), (A, B, C), (A, C), {B: "source"}),
        ((A, B, C), (A2, B, C), (A, B, C2), {A2: "source", A: "source", C: "target", C2: "target"}),
        ((A, B, C), (A, B2, C), (A, B3, C), {B2: "neither", B3: "neither"}),
        ((A, B, C), (), (A, B, C), {A: "source", B: "source", C: "source"}),
        ((A, B, C), (A3, B3), (A2, B2, C2), dict.fromkeys((A3, B3, A2, B2, C2), "neither")),
    ],
)
def test_a_difference_is_of_the_log_that_does_not_have_what_was_copied(
    mirror: tuple[Batch, ...],
    source: tuple[Batch, ...],
    target: tuple[Batch, ...],
    expected: dict[Batch, str],
) -> None:
    found = judge(extent(*mirror), source, target)
    assert isinstance(found, list)
    assert sorted(found) == sorted(
        Judged(each.base_offset, each.next_offset, Where(name)) for each, name in expected.items()
    )


def test_a_mirror_that_wrote_other_bytes_than_it_read_is_named() -> None:
    copied = replace(extent(A, B, C), written=extent(A, B2, C).read)
    found = judge(copied, (A, B, C), (A, B2, C))
    assert isinstance(found, list)
    assert {each.where for each in found} == {Where.MIRROR}


def test_two_batches_with_one_offset_in_common_were_not_both_copied() -> None:
    """The sum of the extent is that of batches which no log can hold together."""
    found = judge(extent(A, A2), (A,), (A2,))
    assert isinstance(found, list)
    assert {each.where for each in found} == {Where.NEITHER}


def test_two_sets_of_batches_with_the_sum_of_the_extent_accuse_no_log() -> None:
    same = A2._replace(hash=A.hash, next_offset=9)
    assert judge(extent(A), (A,), (same,)) is Reason.AMBIGUOUS


def test_of_many_batches_only_a_whole_log_is_what_was_copied() -> None:
    count = MOST_DIFFERING
    here = [batch(10 * n, 1 << n) for n in range(count)]
    there = [batch(10 * n, 3 << 40 + n) for n in range(count)]
    found = judge(extent(*here), here, there)
    assert isinstance(found, list)
    assert {each.where for each in found} == {Where.TARGET}
    mixed = [*here[:3], *there[3:]]
    assert judge(extent(*mixed), here, there) is Reason.MANY


ORIGINAL = log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(100)))


def other(log: Log, *offsets: int) -> Log:
    """Return *log* with other values at *offsets*."""
    found = log.copy()
    for offset in offsets:
        found.records[offset] = Rec(b"k", b"changed", offset)
    return found


def test_each_finding_names_the_log_that_changed() -> None:
    run = audited(
        {TP: other(ORIGINAL, 15)}, {TP: other(ORIGINAL, 51, 80)}, evidence_of(TP, ORIGINAL)
    )
    assert where(run) == [
        ("corrupt", 15, "source"),
        ("corrupt", 51, "target"),
        ("corrupt", 80, "target"),
    ]
    assert run.attributed is not None
    assert run.attributed.where == {Where.SOURCE: 1, Where.TARGET: 2}


def test_lost_and_foreign_records_are_attributed_too() -> None:
    source, target = ORIGINAL.copy(), ORIGINAL.copy()
    del source.records[15], target.records[70]
    run = audited({TP: source}, {TP: target}, evidence_of(TP, ORIGINAL))
    assert where(run) == [("extra", 15, "source"), ("missing", 70, "target")]


def test_the_lost_end_of_a_log_is_a_change_of_that_log() -> None:
    short = Log({at: each for at, each in ORIGINAL.records.items() if at < 90}, 0, 90)
    evidence = evidence_of(TP, ORIGINAL)
    run = audited({TP: short}, {TP: ORIGINAL}, evidence)
    assert {each.where for each in run.findings} == {"source"}
    run = audited({TP: ORIGINAL}, {TP: short}, evidence, options=Options(10, complete=True))
    assert where(run) == [("truncated", 90, "target")]


def test_a_batch_with_a_wrong_crc_is_not_what_was_copied() -> None:
    damaged = next(
        each for each in encoded(ORIGINAL, Layout()) if each.base > 30 and each.base % 3 == 0
    )
    target = ORIGINAL.copy()
    target.faults.append(Fault(damaged.base, damaged.end, FailureKind.UNDECODABLE))
    run = audited({TP: ORIGINAL}, {TP: target}, evidence_of(TP, ORIGINAL))
    assert where(run) == [("undecodable", damaged.base, "target")]


@pytest.mark.parametrize("kind", [FailureKind.UNREADABLE, FailureKind.DELETED])
def test_an_extent_that_was_not_read_accuses_no_log(kind: FailureKind) -> None:
    target = other(ORIGINAL, 51)
    evidence = evidence_of(TP, ORIGINAL)
    run = audit({TP: ORIGINAL}, {TP: target})
    target.faults.append(Fault(40, 50, kind))
    from spark_jobs.attribute import attributed
    from spark_jobs.digest import WindowShape
    from tests.kit.audit_batches import BatchEngine

    engine = BatchEngine({TP: ORIGINAL}, {TP: target}, WindowShape(10))
    run = attributed(run, evidence, engine)
    assert where(run) == [("corrupt", 51, "unknown")]
    assert run.attributed is not None
    assert run.attributed.reasons == {Reason.NOT_READ: 1}


def test_retention_inside_an_extent_accuses_no_log() -> None:
    source = other(ORIGINAL, 21)
    source.delete_below(20)
    evidence = evidence_of(TP, ORIGINAL, window=50)
    run = audited({TP: source}, {TP: ORIGINAL}, evidence)
    assert ("corrupt", 21, "unknown") in where(run)
    assert run.attributed is not None
    assert run.attributed.where[Where.UNKNOWN] == sum(each.records for each in run.findings)
    assert set(run.attributed.reasons) == {Reason.SHORTENED}


def test_compaction_accuses_no_log() -> None:
    target = other(ORIGINAL, 51)
    evidence = evidence_of(TP, ORIGINAL)
    run = audited({TP: ORIGINAL}, {TP: target}, evidence, compacted=frozenset(["t"]))
    assert where(run) == [("corrupt", 51, "unknown")]
    assert run.attributed is not None
    assert run.attributed.reasons == {Reason.COMPACTED: 1}


def test_a_missing_digest_changes_no_class_and_no_verdict() -> None:
    logs = {TP: other(ORIGINAL, 15)}, {TP: other(ORIGINAL, 51)}
    plain = audit(*logs)
    without = audited(*logs, EvidenceRead())
    with_it = audited(*logs, evidence_of(TP, ORIGINAL))
    for run in (without, with_it):
        assert [replace(each, where="unknown") for each in run.findings] == list(plain.findings)
        assert (run.outcome, run.counts) == (plain.outcome, plain.counts)
    assert {each.where for each in without.findings} == {"unknown"}
    assert without.attributed is not None
    assert without.attributed.reasons == {Reason.NO_DIGEST: 2}


def test_evidence_of_an_earlier_topic_is_not_used() -> None:
    first = evidence_of(TP, ORIGINAL).copied.extents(TP, TOPIC)
    copied = Copied()
    copied.add([encode(TP, replace(TOPIC, target_topic_id="another"), each) for each in first])
    run = audited({TP: ORIGINAL}, {TP: other(ORIGINAL, 51)}, EvidenceRead(("e",), copied))
    assert where(run) == [("corrupt", 51, "unknown")]
    assert run.attributed is not None
    assert run.attributed.reasons == {Reason.NO_DIGEST: 1}
