"""Later looks at a target with offsets of its own (`--renumbered`), on clusters that change between and during reads.

The oracle compares the contents that the last reads saw, in their order.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kclient.types import TopicPartition
from spark_jobs.cut import PartitionCut
from spark_jobs.reconcile import Reconciliation
from spark_jobs.verdict import Verdict
from tests.kit.audit_live import TPS, UNREAD, RenumberedLive
from tests.kit.audit_logs import Rec
from tests.kit.property_tests import at_least
from tests.property.test_settle import places

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KINDS = ("produce", "mirror", "retention", "unreadable", "truncate", "leader")


def live(seed: int, **options: object) -> RenumberedLive:
    """Return clusters of a seed, the mirror with damage in some."""
    rng = random.Random(f"settle renumbered {seed}")
    kinds = tuple(kind for kind in KINDS if rng.random() < 0.7) or KINDS
    pair = RenumberedLive(rng, window=rng.choice([4, 10, 25]), kinds=kinds, **options)  # type: ignore[arg-type]
    if rng.random() < 0.3:  # The offsets are those of the source, as long as nothing is lost.
        pair.first, pair.holes = 0, 0.0
    for tp in TPS:
        pair.target.logs[tp].start = pair.target.logs[tp].end = pair.first
        pair.produce(tp, rng.randrange(60))
        pair.mirror(tp, damage=rng.choice([0.0, 0.1, 0.3]), behind=rng.choice([0, 0, 7]))
    return pair


def last_seen(pair: RenumberedLive, cut: PartitionCut) -> tuple[list[Rec], list[Rec]]:
    """Return the records that the last reads of both sides saw inside of *cut*, in the order of their offsets."""
    spans = ("source", cut.low, cut.source_end), ("target", cut.target_low, cut.target_end)
    found = []
    for side, low, high in spans:
        contents = [pair.seen.get((side, cut.topic_partition, at)) for at in range(low, high)]
        found.append([each for each in contents if isinstance(each, Rec)])
    return found[0], found[1]


def check_against_the_reads(pair: RenumberedLive, run: Reconciliation) -> None:
    """No record counts as verified without a read of an equal one; CONSISTENT is the same records in the same order.

    If the target has the first records of the source, it lags: none of them is missing.
    """
    standing = {TopicPartition(each.topic, each.partition) for each in run.settled.standing}
    for cut in run.cuts:
        tp = cut.topic_partition
        counts = run.account.partitions[tp]
        if tp in standing:
            assert counts.findings or counts.not_read or counts.unreadable
            continue
        source, target = last_seen(pair, cut)
        common = Counter(source) & Counter(target)
        assert counts.verified <= sum(common.values()), (tp, counts, run.settled)
        if run.outcome.verdict is Verdict.CONSISTENT:
            assert target == source[: len(target)], (tp, counts, run.settled)
            assert len(source) - len(target) <= counts.lagging
        if target == source[: len(target)]:
            assert not counts.findings, (tp, counts, run.settled)


def check_what_vanished(pair: RenumberedLive, first: Reconciliation, run: Reconciliation) -> int:
    """Both records of a finding that is no longer one were read again; return how many findings there are."""
    vanished = 0
    for cut in run.cuts:
        tp = cut.topic_partition
        starts = {"source": cut.low, "target": cut.target_low}
        for _, *offsets in places(first, tp) - places(run, tp):
            vanished += 1
            for side, offset in zip(starts, offsets, strict=True):
                if isinstance(offset, int):
                    assert offset >= starts[side], (tp, side, offset)
                    assert pair.seen[side, tp, offset] is not UNREAD, (tp, side, offset)
    return vanished


def test_no_verdict_rests_on_a_record_that_the_last_look_did_not_compare() -> None:
    looks, standing, vanished, verdicts = 0, 0, 0, set()
    for seed in range(at_least(24)):
        changes = random.Random(seed).choice([1, 2, 9])
        pair, twin = (live(seed, looks_with_changes=changes) for _ in range(2))
        run = pair.audit(rounds=random.Random(seed).choice([0, 1, 2, 3]))
        check_against_the_reads(pair, run)
        # The clusters of one seed change alike up to the end of the first look.
        vanished += check_what_vanished(pair, twin.audit(rounds=0), run)
        looks += run.settled.rounds
        standing += len(run.settled.standing)
        verdicts.add(run.outcome.verdict)
    assert looks
    assert standing
    assert vanished
    assert verdicts >= {Verdict.CONSISTENT, Verdict.DIVERGED, Verdict.INCOMPLETE}


def test_later_looks_on_quiet_logs_find_what_a_full_audit_finds() -> None:
    replaced, vanished = 0, 0
    for seed in range(at_least(10, of=24)):
        pair = live(seed, looks_with_changes=1, chance=0.7)
        run = pair.audit(rounds=2)
        standing = {TopicPartition(each.topic, each.partition) for each in run.settled.standing}
        replaced_now = pair.looked_at - standing
        pair.looks_with_changes = 0
        full = pair.audit(rounds=0)
        for tp in replaced_now:
            assert places(run, tp) == places(full, tp), (seed, tp)
            assert run.account.partitions[tp] == full.account.partitions[tp], (seed, tp)
        replaced += len(replaced_now)
        vanished += sum(run.settled.vanished.values())
    assert replaced
    assert vanished
