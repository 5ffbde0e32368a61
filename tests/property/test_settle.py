"""Later looks, on clusters that change between and during all reads, against a join of what the reads saw."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kclient.types import TopicPartition
from spark_jobs.findings import FindingClass
from spark_jobs.ranges import intersect, subtract
from spark_jobs.reconcile import Reconciliation
from spark_jobs.verdict import Verdict
from tests.kit.audit_live import TPS, UNREAD, Live, RenumberedLive, clean
from tests.kit.audit_logs import Rec
from tests.kit.property_tests import at_least


def live(seed: int, **options: object) -> Live:
    """Return clusters of a seed, the mirror with damage in some."""
    rng = random.Random(f"settle {seed}")
    pair = Live(rng, window=rng.choice([4, 10, 25]), **options)  # type: ignore[arg-type]
    for tp in TPS:
        pair.produce(tp, rng.randrange(60))
        pair.mirror(tp, damage=rng.choice([0.0, 0.0, 0.1]), behind=rng.choice([0, 0, 7]))
    return pair


def places(run: Reconciliation, tp: TopicPartition) -> set[tuple[object, ...]]:
    """Return what identifies each finding of *tp*."""
    found = [f for f in run.findings if f.topic_partition == tp]
    return {(f.finding_class, f.source_offset, f.target_offset) for f in found}


def owned(
    run: Reconciliation, without: FindingClass | None = None
) -> Iterator[tuple[TopicPartition, int]]:
    """Yield every offset that a finding names, except those of the class *without*."""
    for each in run.findings:
        if each.finding_class is without:
            continue
        for offset in {each.source_offset, each.target_offset} - {None}:
            last = max(offset or 0, each.last_offset or 0)
            yield from ((each.topic_partition, at) for at in range(offset or 0, last + 1))


def check_against_the_reads(pair: Live, run: Reconciliation) -> None:
    """No offset counts as equal unless the last reads of both sides were; every finding is one of the reads."""
    standing = {(each.topic, each.partition) for each in run.settled.standing}
    for cut in run.cuts:
        tp = cut.topic_partition
        counts = run.account.partitions[tp]
        if tp in standing:
            assert counts.findings or counts.not_read or counts.unreadable
            continue
        equal = 0
        for at in range(cut.low, max(cut.high, cut.target_end)):
            there = pair.seen.get(("target", tp, at), UNREAD)
            # Behind its end a log has nothing to read.
            here = pair.seen.get(("source", tp, at), UNREAD) if at < cut.source_end else None
            equal += here == there and there is not UNREAD
        assert counts.verified + counts.empty <= equal, (tp, counts, equal, run.settled)
        for each in run.findings:
            if each.topic_partition != tp or each.finding_class is not FindingClass.CORRUPT:
                continue
            at = each.source_offset or 0
            assert pair.seen["source", tp, at] != pair.seen["target", tp, at]


def check_what_vanished(pair: Live, first: Reconciliation, run: Reconciliation) -> int:
    """Every offset of a finding that is no longer one was read again, on both sides; return how many there are."""
    cuts = {cut.topic_partition: cut for cut in run.cuts}
    gone = set(owned(first, FindingClass.GAP)) - set(owned(run))
    for tp, at in gone:
        assert cuts[tp].low <= at < cuts[tp].high, (tp, at, cuts[tp])
        for side in ("source", "target"):
            assert pair.seen[side, tp, at] is not UNREAD
    return len(gone)


@pytest.mark.long
def test_no_verdict_rests_on_an_offset_that_the_last_look_did_not_compare() -> None:
    looks, standing, vanished, verdicts = 0, 0, 0, set()
    for seed in range(at_least(50)):
        changes = random.Random(seed).choice([1, 2, 9])
        pair, twin = (live(seed, kinds=KINDS, looks_with_changes=changes) for _ in range(2))
        run = pair.audit(rounds=random.Random(seed).choice([0, 1, 2, 3]))
        check_against_the_reads(pair, run)
        # The clusters of one seed change alike up to the end of the first look.
        vanished += check_what_vanished(pair, twin.audit(rounds=0), run)
        found = set(owned(run))
        cuts = {cut.topic_partition: (cut.low, cut.high) for cut in run.cuts}
        lost = {
            (tp, at)
            for tp, at in (pair.differing or set()) - found
            if subtract(intersect([cuts[tp]], at, at + 1), run.account.failed[tp])
        }
        assert not lost, (seed, lost, run.settled)
        looks += run.settled.rounds
        standing += len(run.settled.standing)
        verdicts.add(run.outcome.verdict)
    assert looks
    assert standing
    assert vanished
    assert verdicts >= {Verdict.CONSISTENT, Verdict.DIVERGED, Verdict.INCOMPLETE}


KINDS = ("produce", "mirror", "retention", "repair", "unreadable", "truncate", "leader")


@pytest.mark.long
def test_what_differs_after_the_logs_are_quiet_is_found_and_nothing_else() -> None:
    vanished = 0
    for seed in range(at_least(50)):
        pair = live(seed, kinds=KINDS, looks_with_changes=1, chance=0.7)
        first = live(seed, kinds=KINDS, looks_with_changes=1, chance=0.7).audit(rounds=0)
        run = pair.audit(rounds=2)
        stood = {(each.topic, each.partition) for each in run.settled.standing}
        for tp in TPS:
            before, after = (places(each, tp) for each in (first, run))
            if tp in stood or not (before or first.account.partitions[tp].unreadable):
                assert before == after, (seed, tp)
                continue
            source, target = (side.logs[tp] for side in (pair.source, pair.target))
            true = {at for each, at in pair.differences() if each == tp}
            true |= {at for at in target.records if at >= source.end}
            named = {at for each, at in owned(run, FindingClass.GAP) if each == tp}
            assert named == true, (seed, tp)
            vanished += len(before - after)
    assert vanished


WRITTEN_AND_COMPACTED = ("produce", "mirror", "compact", "compact")


def compacted_while_written(seed: int, *, renumbered: bool, lost: TopicPartition | None) -> Live:
    """Return clusters with an honest mirror, but for one record that it *lost*: the only one with its key."""
    rng = random.Random(f"compacted {seed}")
    new = RenumberedLive if renumbered else Live
    pair = new(
        rng, window=rng.choice([4, 10, 25]), kinds=WRITTEN_AND_COMPACTED, chance=0.9, damage=[0.0]
    )
    for tp in TPS:
        pair.produce(tp, rng.randrange(20, 60))
        pair.source.append(tp, Rec(b"once", b"v%d" % tp.partition))
        pair.produce(tp, rng.randrange(1, 10))
        pair.mirror(tp)
        if tp == lost:
            copies = pair.target.logs[tp].records
            del copies[next(at for at, record in copies.items() if record.key == b"once")]
        for side in rng.sample([pair.source, pair.target], rng.randrange(3)):
            clean(side.logs[tp], rng.randrange(30), set())
    return pair


@pytest.mark.parametrize("renumbered", [False, True])
def test_compaction_of_logs_that_are_written_meanwhile_is_no_difference(
    *, renumbered: bool
) -> None:
    explained = 0
    for seed in range(at_least(20, of=100)):
        pair = compacted_while_written(seed, renumbered=renumbered, lost=None)
        run = pair.audit(rounds=seed % 3)
        assert list(run.findings) == [], seed
        explained += run.counts.explained
    assert explained


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.long
def test_compaction_does_not_explain_a_record_with_the_last_value_of_its_key(
    *, renumbered: bool
) -> None:
    found = 0
    for seed in range(at_least(20, of=50)):
        lost = TPS[seed % 2]
        run = compacted_while_written(seed, renumbered=renumbered, lost=lost).audit(seed % 3)
        assert run.outcome.verdict is not Verdict.CONSISTENT
        if run.findings or not renumbered:
            (finding,) = run.findings
            assert finding.finding_class is FindingClass.MISSING, seed
            assert finding.topic_partition == lost
            found += 1
    assert found > at_least(20, of=50) / 2, "without a common record before it, it has aged out"
