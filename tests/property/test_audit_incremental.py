"""Runs that build on each other, against full runs and against the records themselves, on random histories.

A history appends, in transactions and without, mirrors with and without damage, deletes by retention, truncates,
creates topics again, loses leaders for a while, and damages stored bytes and indexes of aborted transactions.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kclient.types import TopicPartition
from spark_jobs.kept import compared
from spark_jobs.ranges import intersect, merged, subtract, total
from spark_jobs.reconcile import Reconciliation
from spark_jobs.report.digests import EQUAL, digest_rows, rows_of
from spark_jobs.windows import Digest
from tests.kit.audit_histories import History
from tests.kit.audit_logs import Log, Rec, classes, digest, named, placed
from tests.kit.property_tests import at_least, examples

STEPS = 6


def damage(rng: random.Random, offset: int, record: Rec) -> Rec | None:
    chance = rng.random()
    if chance < 0.05:
        return None
    return record._replace(value=b"damaged %d" % offset) if chance < 0.1 else record


def change(history: History, *, retention: bool) -> None:
    """Change the logs as clusters change between two audits."""
    rng = history.rng
    if rng.random() < 0.5:
        history.begin_transactions()
    history.write(rng.randrange(25), holes=0.0 if retention else 0.2)
    if rng.random() < 0.5:
        history.end_transactions()
    damages = rng.random() < 0.3
    history.mirror(
        behind=rng.randrange(4) if rng.random() < 0.5 else 0,
        change=(lambda offset, record: damage(rng, offset, record)) if damages else None,
    )
    if rng.random() < 0.15:
        end = rng.randrange(40)
        for each in rng.choice(
            [[history.source, history.target], [history.target], [history.source]]
        ):
            for tp in history.tps:
                each.truncate(tp, max(each.logs[tp].start, each.logs[tp].end - end))
        history.write(5)
        history.mirror()
    if rng.random() < 0.08:
        for each in (history.source, history.target):
            each.topic_id, each.epoch, each.epochs = str(rng.random()), 0, {}
            each.logs.update({tp: Log() for tp in history.tps})
        history.write(30)
        history.mirror()
    if retention and rng.random() < 0.5:
        sides = rng.choice([[history.source, history.target], [history.target], [history.source]])
        for tp in history.tps:
            deleted = rng.randrange(25)
            for each in sides:
                log = each.logs[tp]
                log.delete_below(min(log.end, log.start + deleted))


def lose_leaders(history: History) -> None:
    """Let partitions of either cluster, or of both, have no leader during the next run; mostly none.

    Sometimes a cluster does not describe the topic at all.
    """
    rng = history.rng
    history.unreadable, history.unreadable_source = (
        frozenset(tp for tp in history.tps if rng.random() < chance)
        for chance in rng.choice([(0, 0), (0, 0), (0, 0), (0.5, 0), (0, 0.5), (0.7, 0.7)])
    )
    history.undescribed = rng.choice([*[""] * 6, "source", "target"])


def spans(run: Reconciliation) -> dict[TopicPartition, list[tuple[int, int]]]:
    return {tp: run.carried.spans(tp) for tp in run.account.partitions}


def check_ranges(run: Reconciliation) -> None:
    """Each offset of the scope was compared now, earlier, earlier and is gone, or never."""
    for cut in run.cuts:
        tp = cut.topic_partition
        lagging = run.account.partitions[tp].lagging > 0
        found = compared(cut, run.carried, run.account.failed[tp], lagging=lagging)
        each = [
            *found.now,
            *found.never,
            *(span[:2] for span in (*found.earlier, *found.gone)),
        ]
        assert total(each) == total(merged(each)) == cut.scope, (cut, found)
        assert not intersect(found.now, 0, cut.low)
        assert all(cut.low <= span.low and span.high <= cut.high for span in found.earlier)
        above = [(max(low, cut.low), high) for low, high, _ in found.gone if high > cut.low]
        assert not subtract(above, run.account.failed[tp])


def check_rows(history: History, run: Reconciliation, content: bytes) -> None:
    """Rows of this run are the sums of the records that both logs have there; the file returns what was written."""
    rows, about = rows_of(content)
    assert rows == digest_rows(run)
    assert about["window"] == str(history.window)
    for row in rows:
        if row.class_ != EQUAL or row.run_id is not None:
            continue
        for logs in (history.source.logs, history.target.logs):
            records = logs[TopicPartition(row.topic, row.partition)].records
            inside = [
                digest(at, records[at])
                for at in records
                if row.first_offset <= at <= row.last_offset
            ]
            sums = Digest()
            for each in inside:
                place = placed(each) & (1 << 64) - 1
                sums += Digest(1, each.size, each.content, place, each.timestamp)
            assert row[5:9] == (sums.records, sums.bytes, sums.content, sums.placed)
            assert row.max_timestamp == max((each.timestamp for each in inside), default=None)


@pytest.mark.parametrize("retention", [False, True])
def test_any_split_into_runs_gives_the_findings_and_classes_of_one_full_run(
    tmp_path: Path, retention: bool
) -> None:
    saved = 0
    for seed in range(at_least(5, of=12)):
        rng = random.Random(f"{seed} {retention}")
        history = History(tmp_path / str(seed), rng, window=rng.choice([3, 7, 10, 25]))
        change(history, retention=retention)
        history.start()
        for step in range(STEPS):
            change(history, retention=retention)
            lose_leaders(history)
            full = history.audit()
            read = history.engine.digested
            run = history.go_on(rng.choice([0.0, 0.3, 1.0]))
            assert named(run) == named(full), (seed, step)
            assert classes(run) == classes(full), (seed, step)
            assert run.outcome == full.outcome, (seed, step)
            assert history.engine.digested <= read
            saved += read - history.engine.digested
            check_ranges(run)
            check_rows(history, run, (history.out / "digests.parquet").read_bytes())
    assert saved > 0


def test_bytes_that_rot_below_the_proof_are_found_when_their_window_is_read_again(
    tmp_path: Path,
) -> None:
    hidden = 0
    for seed in range(examples(12)):
        rng = random.Random(f"rot {seed}")
        history = History(tmp_path / str(seed), rng, window=rng.choice([5, 10]))
        history.write(60)
        history.mirror()
        history.start()
        tp = rng.choice(history.tps)
        side = rng.choice([history.source, history.target])
        at = rng.choice(sorted(side.logs[tp].records))
        side.logs[tp].records[at] = Rec(b"k", b"rotten", 1)
        full = history.audit()
        assert len(named(full)) == 1
        for step in range(20):
            history.write(3)
            history.mirror()
            run = history.go_on(0.1)
            carried = any(low <= at < high for low, high in spans(run)[tp])
            hidden += carried
            # A carried window is the only place in which a difference stays unseen.
            assert (named(run) == named(full)) is not carried, (seed, step)
            if not carried:
                refused = run.carried.refused
                assert [each.partition for each in refused] in ([tp.partition], [])
                break
        else:
            pytest.fail(f"seed {seed}: not found in 20 runs with --recheck 10%")
    assert hidden > 0


@pytest.mark.long
def test_every_window_is_read_again_within_the_runs_that_the_share_implies(
    tmp_path: Path,
) -> None:
    history = History(tmp_path, random.Random(1))
    history.write(400)
    history.mirror()
    history.start()
    oldest = 0
    for _ in range(25):
        history.write(5)
        history.mirror()
        run = history.go_on(0.1)
        rows, _ = rows_of((tmp_path / "digests.parquet").read_bytes())
        numbers = [int(row.run_id.removeprefix("run-")) for row in rows if row.run_id is not None]
        oldest = max(oldest, history.runs - min(numbers, default=history.runs))
        assert run.counts.verified == run.counts.in_scope
    assert 1 < oldest <= 11
