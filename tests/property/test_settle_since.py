"""Later looks of runs that build on an earlier one (`--since`), on clusters that change between and during all reads.

The oracle is a join of what all reads saw: those of the run, and those of the run before where windows are carried.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from kclient.types import TopicPartition
from spark_jobs.cut import PartitionCut
from spark_jobs.later_looks import Moment
from spark_jobs.ranges import intersect, subtract
from spark_jobs.reconcile import Reconciliation
from spark_jobs.report.digests import digest_rows, rows_of
from spark_jobs.report.kept_files import load_kept
from spark_jobs.verdict import Verdict
from tests.kit.audit_histories import write_kept
from tests.kit.audit_live import TPS, Live
from tests.kit.property_tests import at_least
from tests.property.test_audit_incremental import check_ranges
from tests.property.test_settle import KINDS, check_against_the_reads, owned, places

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RUNS = 4


def start(seed: int, **options: object) -> Live:
    """Return clusters of a seed that are equal and have windows to carry; *options* are those of `Live`."""
    rng = random.Random(f"settle since {seed}")
    every = (*KINDS, "offline")
    kinds = tuple(kind for kind in every if rng.random() < 0.4) or every
    deep = rng.choice([20, 80])
    pair = Live(rng, window=rng.choice([4, 10]), kinds=kinds, most_truncated=deep, **options)  # type: ignore[arg-type]
    for tp in TPS:
        pair.produce(tp, rng.randrange(30, 90))
        pair.mirror(tp)
    return pair


def run_on(pair: Live, out: Path, number: int, rounds: int) -> Reconciliation:
    """Audit *pair*, on the run before in *out* if there is one, and keep the run there."""
    kept = load_kept(out) if number > 1 else None
    run = pair.audit(rounds, kept=kept, recheck=pair.rng.choice([0.0, 0.2, 1.0]))
    report = write_kept(out, run, number)
    assert rows_of(report.digests)[0] == digest_rows(run)
    return run


def between_runs(pair: Live) -> None:
    """Let time pass: most of it appends, some of it with damage."""
    for tp in TPS:
        pair.produce(tp, pair.rng.randrange(25))
        pair.mirror(tp, damage=pair.rng.choice([0.0, 0.1, 0.2]), behind=pair.rng.choice([0, 0, 5]))
    pair.look = 1
    for _ in range(pair.rng.randrange(2)):
        pair.change()


def missed(pair: Live, run: Reconciliation) -> set[tuple[TopicPartition, int]]:
    """Return the offsets that differed all the time, and are neither a finding nor unread."""
    cuts = {cut.topic_partition: (cut.low, cut.high) for cut in run.cuts}
    return {
        (tp, at)
        for tp, at in (pair.differing or set()) - set(owned(run))
        if subtract(intersect([cuts[tp]], at, at + 1), run.account.failed[tp])
    }


def test_no_verdict_of_later_looks_rests_on_what_neither_this_run_nor_an_earlier_one_compared(
    tmp_path: Path,
) -> None:
    looks, standing, carried, vanished, verdicts = 0, 0, 0, 0, set()
    for seed in range(at_least(32)):
        rng = random.Random(seed)
        pair = start(seed, looks_with_changes=rng.choice([1, 2, 9]), chance=0.5)
        for number in range(1, RUNS + 1):
            run = run_on(pair, tmp_path / str(seed), number, rng.choice([0, 1, 2, 3]))
            check_against_the_reads(pair, run)
            check_ranges(run)
            assert not missed(pair, run), (seed, number, run.settled)
            between_runs(pair)
            looks += run.settled.rounds
            standing += len(run.settled.standing)
            vanished += sum(run.settled.vanished.values())
            carried += sum(map(len, run.carried.carried.values())) * (run.settled.rounds > 0)
            verdicts.add(run.outcome.verdict)
    assert looks
    assert standing
    assert vanished
    assert carried
    assert verdicts >= {Verdict.CONSISTENT, Verdict.DIVERGED, Verdict.INCOMPLETE}


def test_later_looks_on_quiet_logs_find_what_a_full_audit_finds(tmp_path: Path) -> None:
    """The logs change until the end of the first look of the last run; then nothing does."""
    replaced = 0
    for seed in range(at_least(12, of=32)):
        pair = start(seed, looks_with_changes=1, chance=0.5)
        out = tmp_path / str(seed)
        for number in range(1, RUNS):
            run_on(pair, out, number, 2)
            between_runs(pair)
        run = run_on(pair, out, RUNS, 2)
        looked_at = pair.looked_at
        standing = {TopicPartition(each.topic, each.partition) for each in run.settled.standing}
        pair.looks_with_changes = 0
        full = pair.audit(0)
        for each in looked_at - standing:
            replaced += 1
            assert places(run, each) == places(full, each), (seed, each)
            now, then = (audit.account.partitions[each] for audit in (run, full))
            cut = next(cut for cut in run.cuts if cut.topic_partition == each)
            ends = {each: cut.high} if cut.high > cut.low else {}
            proof = run.options.lineage.proof_of(cut)
            for log, epoch in zip((pair.source, pair.target), proof[1:], strict=True):
                assert log.epochs_before(ends).get(each) == epoch, (seed, each)
            assert (now.verified, now.empty) == (then.verified, then.empty), (seed, each)
    assert replaced


class WrittenAgain(Live):
    """The source's logs are truncated below what was carried, and written again, between two looks."""

    again = False

    def moment(self, cuts: Sequence[PartitionCut]) -> Moment:
        """Return both clusters at a later cut."""
        for tp in TPS if self.again else ():
            self.source.truncate(tp, 10)
            self.produce(tp, 100)
        self.again = False
        return super().moment(cuts)


def test_windows_that_were_carried_are_read_when_a_log_was_written_again_between_two_looks(
    tmp_path: Path,
) -> None:
    pair = WrittenAgain(random.Random(1), looks_with_changes=0)
    for tp in TPS:
        pair.produce(tp, 60)
        pair.mirror(tp)
    run_on(pair, tmp_path, 1, 2)
    for tp in TPS:
        pair.produce(tp, 10)
        pair.mirror(tp, damage=1.0)
    pair.again = True
    run = pair.audit(2, kept=load_kept(tmp_path))
    assert run.settled.rounds == 2
    assert {each.reason for each in run.carried.refused} == {
        "a log may have been written again during the run"
    }
    full = pair.audit(0)
    for tp in TPS:
        assert places(run, tp) == places(full, tp)
        assert len(places(run, tp)) > 50
