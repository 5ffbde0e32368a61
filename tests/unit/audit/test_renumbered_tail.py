"""What is behind the last common record of a renumbered target: lag, loss, or what compaction removed.

docs/design/audit.md has the rule. Each case is compared in one alignment, and in step, with runs of findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap
from spark_jobs.comparison import Options
from spark_jobs.digest import WindowShape
from spark_jobs.findings import FindingClass
from spark_jobs.in_step import Sizes
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.verdict import ExitCode, Limits, Verdict
from tests.kit.audit_batches import BatchEngine, Layout
from tests.kit.audit_logs import Log, MemoryEngine, Rec, classes, log_of, snapshot

TP = TopicPartition("t", 0)
WINDOW = 50
MARKER = Rec(b"", b"", 1, control=True)
SIZES = [None, Sizes(), Sizes(part=20, sample=4, step=10, reach=100), Sizes(part=50, reach=100)]
"""None: one alignment without runs of findings."""

ALL_BUT_DUPLICATES = Limits(
    max_lag=1_000, fail_on=frozenset(FindingClass) - {FindingClass.DUPLICATE}
)

every_way = pytest.mark.parametrize("sizes", SIZES, ids=["align", "step", "parts20", "parts50"])


def run(
    source: Log,
    target: Log,
    sizes: Sizes | None = None,
    *,
    keep: int = 1_000,
    compacted: tuple[bool, bool] = (False, False),
    **options: Any,
) -> Reconciliation:
    return run_all({TP: source}, {TP: target}, sizes, keep=keep, compacted=compacted, **options)


def run_all(
    sources: Mapping[TopicPartition, Log],
    targets: Mapping[TopicPartition, Log],
    sizes: Sizes | None = None,
    *,
    keep: int = 1_000,
    compacted: tuple[bool, bool] = (False, False),
    **options: Any,
) -> Reconciliation:
    logs = dict(sources), dict(targets)
    engine = (
        MemoryEngine(*logs, WINDOW)
        if sizes is None
        else BatchEngine(
            *logs,
            WindowShape(WINDOW, 0, 1_000, 4),
            (Layout(), Layout()),
            keep=keep,
            keep_compacted=keep,
            sizes=sizes,
        )
    )
    sides = [
        snapshot(name, each, frozenset(["t"] if is_compacted else []))
        for name, each, is_compacted in zip(("source", "target"), logs, compacted, strict=True)
    ]
    return reconcile(
        engine,
        sides[0],
        sides[1],
        Options(WINDOW, renumbered=True, **options),
        buckets=TimeBuckets(0, 1_000),
    )


def found(run: Reconciliation) -> tuple[dict[str, int], int]:
    """Return the records of the findings by class, and the lag."""
    counts: Counter[str] = Counter()
    for each in run.findings:
        counts[each.finding_class.value] += each.records
    return dict(counts), run.counts.lagging


def keyed(key: int, version: int) -> Rec:
    return Rec(b"k%d" % key, b"v%d of %d" % (version, key), 1_000 + version)


def full(count: int, keys: int = 1 << 30) -> Log:
    return log_of(*(keyed(n % keys, n) for n in range(count)))


def first_of(log: Log, count: int) -> list[Rec]:
    return [log.records[at] for at in sorted(log.records)[:count]]


@every_way
@pytest.mark.parametrize("keep", [20, 1_000])
def test_compaction_explains_all_of_a_large_topic_that_the_target_has_cleaned(
    sizes: Sizes | None, keep: int
) -> None:
    """Whole parts of the source have no record that the target still has."""
    source = full(400, keys=10)
    target = source.copy()
    target.records = {at: each for at, each in target.records.items() if at >= 390}
    target.append(MARKER)
    audited = run(source, target, sizes, keep=keep, compacted=(False, True))
    assert (audited.outcome.verdict, found(audited)) == (Verdict.CONSISTENT, ({}, 0))
    assert classes(audited) == {"verified": 10, "explained": 390}


@every_way
@pytest.mark.parametrize("keep", [0, 5, 1_000])
def test_true_lag_of_a_compacted_topic_is_not_explained(sizes: Sizes | None, keep: int) -> None:
    """Each record that lags is superseded by a later one that lags, too."""
    source = full(400, keys=10)
    target = log_of(*first_of(source, 100), *[MARKER] * 300)
    audited = run(source, target, sizes, keep=keep, compacted=(False, True))
    assert (audited.outcome.verdict, found(audited)) == (Verdict.LAGGING, ({}, 300))


@every_way
@pytest.mark.parametrize("ending", [0, 1])
def test_a_source_that_has_rewritten_all_copied_records_makes_none_missing(
    sizes: Sizes | None, ending: int
) -> None:
    """The first version of each key is gone. No record is in both logs, and the source begins at 0."""
    source = log_of(*(keyed(n, version) for version in range(2) for n in range(5)))
    target = log_of(*first_of(source, 5), *[MARKER] * ending)
    for at in range(5):
        del source.records[at]
    audited = run(source, target, sizes, compacted=(True, False))
    assert (audited.outcome.verdict, found(audited)) == (Verdict.LAGGING, ({}, 5))


@every_way
def test_a_copy_that_the_source_has_compacted_proves_which_offsets_were_passed(
    sizes: Sizes | None,
) -> None:
    source = log_of(keyed(0, 0), keyed(1, 1), keyed(2, 2), keyed(2, 3))
    target = log_of(source.records[0], source.records[2], MARKER)
    del source.records[2]
    audited = run(source, target, sizes, compacted=(True, False))
    assert found(audited) == ({"missing": 1}, 1)


@every_way
@pytest.mark.parametrize("complete", [True, False])
def test_a_record_and_its_tombstone_that_the_target_has_cleaned_are_no_lag(
    sizes: Sizes | None, complete: bool
) -> None:
    source = full(10)
    source.append(keyed(99, 1))
    source.append(Rec(b"k99", None, 1_100))
    target = log_of(*source.records.values(), MARKER)
    del target.records[10], target.records[11]
    audited = run(source, target, sizes, compacted=(False, True), complete=complete)
    assert (audited.outcome.verdict, found(audited)) == (Verdict.CONSISTENT, ({}, 0))
    assert classes(audited) == {"verified": 10, "explained": 2}


@every_way
@pytest.mark.parametrize("complete", [True, False])
def test_a_tombstone_that_is_not_the_last_record_of_its_key_explains_nothing(
    sizes: Sizes | None, complete: bool
) -> None:
    source = full(10)
    source.append(Rec(b"k99", None, 1_100))
    source.append(keyed(99, 1))
    target = log_of(*first_of(source, 10), MARKER, MARKER)
    audited = run(source, target, sizes, compacted=(False, True), complete=complete)
    assert found(audited) == (({"truncated": 2}, 0) if complete else ({}, 2))


@every_way
def test_a_tombstone_behind_all_that_the_target_has_room_for_lags(sizes: Sizes | None) -> None:
    source = full(10)
    source.append(Rec(b"k99", None, 1_100))
    target = log_of(*first_of(source, 10))
    audited = run(source, target, sizes, compacted=(False, True))
    assert (audited.outcome.verdict, found(audited)) == (Verdict.LAGGING, ({}, 1))


def test_records_that_the_target_cleans_during_the_run_are_explained() -> None:
    """It receives newer records of their keys behind the cut."""
    source = full(30, keys=10)
    target = log_of(*first_of(source, 30), MARKER)
    for at in range(20, 30):
        del target.records[at]
    for log in (source, target):
        for key in range(10):
            log.append(keyed(key, 100 + key))
    logs = {TP: source}, {TP: target}
    sides = [
        snapshot(name, each, frozenset(["t"]))
        for name, each in zip(("source", "target"), logs, strict=True)
    ]
    for number, end in enumerate((30, 31)):
        ranges = {TP: sides[number].ranges[TP]}
        ranges[TP] = type(ranges[TP])(0, end)
        sides[number].ranges.update(ranges)  # type: ignore[attr-defined]
    audited = reconcile(
        MemoryEngine(*logs, WINDOW),
        sides[0],
        sides[1],
        Options(WINDOW, renumbered=True),
        buckets=TimeBuckets(0, 1_000),
    )
    assert (audited.outcome.verdict, found(audited)) == (Verdict.CONSISTENT, ({}, 0))
    assert classes(audited) == {"verified": 20, "explained": 10}


@every_way
@pytest.mark.parametrize("again", [5, 60])
def test_records_that_a_killed_mirror_has_copied_again_are_no_sign_of_loss(
    sizes: Sizes | None, again: int
) -> None:
    source = full(300)
    target = log_of(*first_of(source, 100), *first_of(source, 100)[-again:])
    audited = run(source, target, sizes, limits=ALL_BUT_DUPLICATES)
    assert found(audited) == ({"duplicate": again}, 200)
    assert audited.outcome.exit_code is not ExitCode.DIVERGED


@every_way
@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("keep", [2, 100, 1_000])
def test_strangers_at_the_end_stand_for_as_many_offsets_in_parts_of_any_size(
    sizes: Sizes | None, keep: int, complete: bool
) -> None:
    source = full(2_000)
    strangers = [Rec(b"other", b"stranger %d" % n, 7) for n in range(10)]
    target = log_of(*first_of(source, 1_500), *strangers, MARKER)
    audited = run(source, target, sizes, keep=keep, complete=complete)
    left = {"truncated": 490} if complete else {}
    assert found(audited) == ({"missing": 10, "extra": 10, **left}, 0 if complete else 490)


@pytest.mark.parametrize("sizes", SIZES[:3])
@pytest.mark.parametrize("keep", [0, 1_000])
def test_an_earlier_record_of_the_key_does_not_explain_a_lost_one(
    sizes: Sizes | None, keep: int
) -> None:
    """Whole parts without a common record lie between the lost record and the pairs around it."""
    source = full(400)
    source.records[200] = source.records[200]._replace(key=b"k5")
    target = log_of(*(each for at, each in source.records.items() if not 150 <= at < 250))
    audited = run(source, target, sizes, keep=keep, compacted=(False, True))
    assert found(audited) == ({"missing": 100}, 0)


@every_way
def test_an_older_copy_that_the_source_has_cleaned_does_not_explain_the_last_record(
    sizes: Sizes | None,
) -> None:
    source = full(10)
    source.append(keyed(99, 1))
    source.append(keyed(99, 2))
    target = log_of(*first_of(source, 11), MARKER)
    del source.records[10]
    audited = run(source, target, sizes, compacted=(True, True))
    assert (audited.outcome.verdict, found(audited)) == (Verdict.LAGGING, ({}, 1))
    audited = run(source, target, sizes, compacted=(True, True), complete=True)
    assert found(audited) == ({"truncated": 1}, 0)


@pytest.mark.parametrize("newer", [False, True])
def test_an_older_copy_explains_nothing_if_the_source_receives_a_newer_record_during_the_run(
    newer: bool,
) -> None:
    """The mirror is stuck: the target has version 1, which the source has cleaned, and never received version 2."""
    source = log_of(keyed(7, 0), keyed(99, 1), keyed(99, 2))
    target = log_of(*first_of(source, 2), MARKER)
    del source.records[1]
    of_source = snapshot("source", {TP: source}, frozenset(["t"]))
    of_target = snapshot("target", {TP: target}, frozenset(["t"]))
    if newer:
        source.append(keyed(99, 3))
    audited = reconcile(
        MemoryEngine({TP: source}, {TP: target}, WINDOW),
        of_source,
        of_target,
        Options(WINDOW, renumbered=True),
        buckets=TimeBuckets(0, 1_000),
    )
    assert (audited.outcome.verdict, found(audited)) == (Verdict.LAGGING, ({}, 1))


@every_way
@pytest.mark.parametrize("keep", [0, 5, 1_000])
def test_older_copies_that_the_source_has_cleaned_explain_no_true_lag(
    sizes: Sizes | None, keep: int
) -> None:
    source = log_of(keyed(99, 0), *full(400, keys=10).records.values())
    target = log_of(*first_of(source, 101), *[MARKER] * 300)
    for at in range(1, 101):
        del source.records[at]
    audited = run(source, target, sizes, keep=keep, compacted=(True, True))
    assert (audited.outcome.verdict, found(audited)) == (Verdict.LAGGING, ({}, 300))


@every_way
@pytest.mark.parametrize("keep", [0, 1_000])
def test_a_passed_tombstone_that_the_target_has_cleaned_is_not_missing(
    sizes: Sizes | None, keep: int
) -> None:
    """A copy that the source has cleaned shows that it was passed. A new record of its key lags."""
    source = full(10)
    for each in (Rec(b"k99", None, 1_100), keyed(98, 1), keyed(98, 2), keyed(99, 2)):
        source.append(each)
    target = log_of(*first_of(source, 12), MARKER)
    del target.records[10], source.records[11]
    audited = run(source, target, sizes, keep=keep, compacted=(True, True))
    assert (audited.outcome.verdict, found(audited)) == (Verdict.LAGGING, ({}, 2))


def at_once(number: int) -> Rec:
    """A record without a key, of a batch in which all have one timestamp."""
    return Rec(None, b"v%d" % number, 5_000)


def of_one_device(number: int) -> Rec:
    return Rec(b"device", b"v%d" % number, 5_000)


def of_one_value(number: int) -> Rec:
    return Rec(None, b"beat", 1_000 + number)


@every_way
@pytest.mark.parametrize("made", [at_once, of_one_device, of_one_value])
@pytest.mark.parametrize("behind", [0, 1, 20])
@pytest.mark.parametrize("again", [1, 10, 15])
def test_repeated_records_that_are_like_those_that_lag_are_no_damaged_ones(
    sizes: Sizes | None, made: Any, behind: int, again: int
) -> None:
    source = log_of(*(made(n) for n in range(300 + behind)))
    copied = first_of(source, 300)
    audited = run(source, log_of(*copied, *copied[-again:]), sizes)
    assert found(audited) == ({"duplicate": again}, behind)


@every_way
@pytest.mark.parametrize("made", [at_once, of_one_device, of_one_value, lambda n: keyed(n, n)])
@pytest.mark.parametrize("behind", [0, 1, 20])
@pytest.mark.parametrize("complete", [True, False])
def test_the_last_copy_is_named_as_damaged_if_no_copy_was_repeated(
    sizes: Sizes | None, made: Any, behind: int, complete: bool
) -> None:
    source = log_of(*(made(n) for n in range(300 + behind)))
    copied = first_of(source, 300)
    part = "timestamp" if made is of_one_value else "value"
    changed: dict[str, Any] = {part: 77 if part == "timestamp" else b"changed"}
    target = log_of(*copied[:-1], copied[-1]._replace(**changed))
    audited = run(source, target, sizes, complete=complete)
    truncated = {"truncated": behind} if complete and behind else {}
    assert found(audited) == ({"corrupt": 1, **truncated}, 0 if complete else behind)
    (corrupt,) = (each for each in audited.findings if each.finding_class is FindingClass.CORRUPT)
    assert (corrupt.source_offset, corrupt.target_offset, corrupt.field) == (299, 299, part)
    assert None not in (corrupt.source_hash, corrupt.target_hash)


@every_way
def test_a_damaged_record_beside_repeated_ones_is_missing_and_extra(sizes: Sizes | None) -> None:
    """Nothing shows which record of the source the damaged one was."""
    source = log_of(*map(at_once, range(320)))
    copied = first_of(source, 300)
    damaged = source.records[300]._replace(value=b"changed")
    audited = run(source, log_of(*copied, *copied[-3:], damaged), sizes)
    assert found(audited) == ({"duplicate": 3, "extra": 1, "missing": 1}, 19)


@every_way
def test_a_lost_record_before_the_damaged_last_copy_is_missing(sizes: Sizes | None) -> None:
    source = full(320)
    copied = first_of(source, 300)
    audited = run(source, log_of(*copied[:-2], copied[-1]._replace(value=b"changed")), sizes)
    assert found(audited) == ({"missing": 1, "corrupt": 1}, 20)


@every_way
@pytest.mark.parametrize(("copied", "again"), [(1, 0), (1, 1), (5, 0), (5, 3), (15, 0), (15, 3)])
def test_a_mirror_that_stands_still_at_its_first_records_lags(
    sizes: Sizes | None, copied: int, again: int
) -> None:
    """More records lag than wait for a common run, and the copied ones are too few for one."""
    source = full(180)
    target = log_of(*first_of(source, copied), *first_of(source, copied)[copied - again :])
    audited = run(source, target, sizes, limits=ALL_BUT_DUPLICATES)
    repeated = {"duplicate": again} if again else {}
    assert found(audited) == (repeated, 180 - copied)
    assert classes(audited)["verified"] == copied
    assert audited.outcome.exit_code is not ExitCode.DIVERGED


def in_bursts(number: int) -> Rec:
    return Rec(None, b"beat", 1_000 + number // 4)


def in_pairs(number: int) -> Rec:
    """A producer without idempotence has sent each record twice."""
    return keyed(number // 2, number // 2)


@every_way
@pytest.mark.parametrize("made", [in_bursts, in_pairs])
@pytest.mark.parametrize("again", [3, 10])
@pytest.mark.parametrize("new", [4, 5, 6, 8])
def test_a_mirror_that_stands_still_behind_repeated_records_lags_if_its_records_are_alike(
    sizes: Sizes | None, made: Any, again: int, new: int
) -> None:
    source = log_of(*map(made, range(400)))
    records = first_of(source, 100 + new)
    target = log_of(*records[:100], *records[100 - again :])
    audited = run(source, target, sizes, limits=ALL_BUT_DUPLICATES)
    assert found(audited) == ({"duplicate": again}, 300 - new)
    assert audited.outcome.exit_code is not ExitCode.DIVERGED


@every_way
@pytest.mark.parametrize("copied", [1, 5, 15])
def test_a_mirror_that_stands_still_behind_a_lost_record_has_lost_that_one(
    sizes: Sizes | None, copied: int
) -> None:
    source = full(300)
    records = first_of(source, 101 + copied)
    audited = run(source, log_of(*records[:100], *records[101:]), sizes)
    assert found(audited) == ({"missing": 1}, 300 - 101 - copied)


@every_way
@pytest.mark.parametrize("keep", [0, 10, 1_000])
def test_a_destroyed_range_of_many_parts_is_corrupt(sizes: Sizes | None, keep: int) -> None:
    source = full(620)
    copied = first_of(source, 600)
    changed = [each._replace(value=b"changed %d" % n) for n, each in enumerate(copied[100:500])]
    audited = run(source, log_of(*copied[:100], *changed, *copied[500:]), sizes, keep=keep)
    assert found(audited) == ({"corrupt": 400}, 20)


@every_way
@pytest.mark.parametrize("keep", [0, 10, 1_000])
@pytest.mark.parametrize("complete", [True, False])
def test_more_damaged_last_copies_than_stay_single_are_corrupt(
    sizes: Sizes | None, keep: int, complete: bool
) -> None:
    source = full(320)
    copied = first_of(source, 300)
    changed = [each._replace(value=b"changed %d" % n) for n, each in enumerate(copied[-12:])]
    audited = run(source, log_of(*copied[:-12], *changed), sizes, keep=keep, complete=complete)
    truncated = {"truncated": 20} if complete else {}
    assert found(audited) == ({"corrupt": 12, **truncated}, 0 if complete else 20)
    assert all(
        each.field == "value"
        for each in audited.findings
        if each.finding_class is FindingClass.CORRUPT
    )


@every_way
@pytest.mark.parametrize("low", [280, 297, 299])
@pytest.mark.parametrize("keep", [0, 2, 1_000])
def test_an_accepted_gap_does_not_explain_a_damaged_last_copy(
    sizes: Sizes | None, low: int, keep: int
) -> None:
    """As inside the log: the target has a record there."""
    source = full(320)
    copied = first_of(source, 300)
    changed = [each._replace(value=b"changed %d" % n) for n, each in enumerate(copied[-3:])]
    audited = run(
        source,
        log_of(*copied[:-3], *changed),
        sizes,
        keep=keep,
        accepted=(AcceptedGap("t", 0, low, 300, "a cause"),),
    )
    assert found(audited) == ({"corrupt": 3}, 20)
    assert "explained" not in classes(audited)


@every_way
@pytest.mark.parametrize("behind", [0, 20, 150])
def test_a_stranger_that_was_repeated_is_extra_once(sizes: Sizes | None, behind: int) -> None:
    """Without it --fail-on could leave out all that shows it."""
    source = full(100 + behind)
    stranger = Rec(b"other", b"stranger", 7)
    target = log_of(*first_of(source, 90), stranger, stranger, *first_of(source, 100)[90:])
    assert found(run(source, target, sizes)) == ({"extra": 1, "duplicate": 1}, behind)


@every_way
@pytest.mark.parametrize("keep", [0, 10, 1_000])
@pytest.mark.parametrize("times", [2, 13])
def test_a_stranger_that_is_there_more_often_than_stays_single_is_never_duplicate_only(
    sizes: Sizes | None, keep: int, times: int
) -> None:
    """A run of DUPLICATEs has no content that shows which of them are copies of the stranger."""
    records = first_of(full(120), 120)
    strangers = [Rec(b"other", b"stranger", 7)] * times
    target = log_of(*records[:60], *strangers, *records[60:])
    audited = run(full(120), target, sizes, keep=keep, limits=ALL_BUT_DUPLICATES)
    assert found(audited)[0].get("extra", 0) >= 1
    assert audited.outcome.exit_code is ExitCode.DIVERGED


@every_way
@pytest.mark.parametrize("keep", [10, 1_000])
def test_last_copies_that_are_damaged_alike_are_never_duplicate_only(
    sizes: Sizes | None, keep: int
) -> None:
    source = log_of(*map(at_once, range(340)))
    copied = first_of(source, 300)
    target = log_of(*copied[:-13], *[each._replace(value=b"") for each in copied[-13:]])
    audited = run(source, target, sizes, keep=keep, limits=ALL_BUT_DUPLICATES)
    assert found(audited)[0].get("extra", 0) >= 1
    assert audited.outcome.exit_code is ExitCode.DIVERGED


@every_way
def test_copies_of_other_records_that_are_in_runs_make_no_copy_extra(sizes: Sizes | None) -> None:
    """The runs are elsewhere in the log."""
    source = full(300)
    records = first_of(source, 300)
    early = records[240:250]
    target = log_of(*records[:100], *[records[99]] * 23, *records[100:170], *early, *records[170:])
    audited = run(source, target, sizes, keep=12, limits=ALL_BUT_DUPLICATES)
    assert found(audited) == ({"duplicate": 33}, 0)


@every_way
@pytest.mark.parametrize("made", [at_once, of_one_value, lambda n: keyed(n, n)])
def test_records_of_all_partitions_that_were_repeated_are_not_misrouted(
    sizes: Sizes | None, made: Any
) -> None:
    """A producer writes its markers to each partition. What one repeats lags in the other."""
    source = log_of(*map(made, range(120)))
    targets = {}
    for number, copied in enumerate((100, 106)):
        records = first_of(source, copied)
        targets[TopicPartition("t", number)] = log_of(*records, *records[-8:])
    audited = run_all(dict.fromkeys(targets, source), targets, sizes, limits=ALL_BUT_DUPLICATES)
    assert found(audited) == ({"duplicate": 16}, 34)
    assert audited.outcome.exit_code is not ExitCode.DIVERGED


@every_way
@pytest.mark.parametrize("times", [1, 2])
def test_a_record_of_another_partition_is_misrouted_once(sizes: Sizes | None, times: int) -> None:
    source = full(240)
    records = first_of(source, 240)
    tp = [TopicPartition("t", number) for number in range(2)]
    target = log_of(*records[120:180], *[records[30]] * times, *records[180:])
    audited = run_all(
        dict(zip(tp, (log_of(*records[:120]), log_of(*records[120:])), strict=True)),
        dict(zip(tp, (log_of(*records[:30], *records[31:120]), target), strict=True)),
        sizes,
    )
    repeated = {"duplicate": times - 1} if times > 1 else {}
    assert found(audited) == ({"misrouted": 1, **repeated}, 0)


@every_way
@pytest.mark.parametrize("far", [70, 140])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_record_at_the_end_is_not_paired_with_a_far_one_that_lags_and_is_a_little_alike(
    sizes: Sizes | None, far: int, damaged: bool
) -> None:
    """Two tombstones have one value."""
    source = full(150)
    source.records[far] = source.records[far]._replace(value=None)
    copied = first_of(source, 60)
    target = log_of(*copied[: 60 - damaged], Rec(b"other", None, 7))
    assert found(run(source, target, sizes)) == ({"extra": 1, "missing": 1}, 90 - (not damaged))


@every_way
def test_the_last_copy_is_named_as_damaged_beside_a_far_record_that_is_more_alike(
    sizes: Sizes | None,
) -> None:
    source = full(150)
    source.records[140] = source.records[140]._replace(value=None)
    copied = first_of(source, 60)
    target = log_of(*copied[:-1], copied[-1]._replace(value=None))
    assert found(run(source, target, sizes)) == ({"corrupt": 1}, 90)


@every_way
def test_a_damaged_copy_behind_a_lost_range_is_that_record(sizes: Sizes | None) -> None:
    source = full(150)
    copied = first_of(source, 100)
    target = log_of(*copied[:60], copied[99]._replace(value=b"changed"))
    assert found(run(source, target, sizes)) == ({"missing": 39, "corrupt": 1}, 50)


@every_way
@pytest.mark.parametrize("made", [at_once, of_one_device, of_one_value])
def test_lag_beside_first_copies_that_are_all_damaged_is_not_missing(
    sizes: Sizes | None, made: Any
) -> None:
    """More records lag than wait. So parts do not show which of them the damaged ones were."""
    source = log_of(*map(made, range(300)))
    is_time = made is of_one_value
    target = log_of(
        *(
            each._replace(timestamp=n) if is_time else each._replace(value=b"changed %d" % n)
            for n, each in enumerate(first_of(source, 5))
        )
    )
    audited = run(source, target, sizes)
    records, lagging = found(audited)
    assert lagging == 295
    assert records.get("corrupt", 0) + records.get("missing", 0) == 5


@every_way
def test_behind_a_record_that_moved_only_as_many_as_the_strangers_were_passed(
    sizes: Sizes | None,
) -> None:
    """The record that moved is behind the damaged one in the source, and before it in the target."""
    records = first_of(full(120), 120)
    damaged = records[92]._replace(value=b"changed")
    strangers = [Rec(b"other", b"%d" % n, 7) for n in range(3)]
    target = log_of(*records[:90], records[95], *records[90:92], damaged, *strangers)
    different = {"reordered": 1, "corrupt": 1, "missing": 5, "extra": 3}
    assert found(run(full(120), target, sizes)) == (different, 21)


@every_way
@pytest.mark.parametrize("made", [in_bursts, lambda n: Rec(None, b"beat", 1_000)])
def test_a_marker_among_equal_records_that_were_copied_makes_none_missing(
    sizes: Sizes | None, made: Any
) -> None:
    """It moves the offsets of the target, and so one offset of the source has no record opposite."""
    source = log_of(*map(made, range(20)))
    records = first_of(source, 15)
    audited = run(source, log_of(*records[:13], MARKER, *records[13:]), sizes)
    assert (audited.outcome.verdict, found(audited)) == (Verdict.LAGGING, ({}, 5))


@every_way
def test_a_mirror_that_stands_still_in_the_last_burst_lags(sizes: Sizes | None) -> None:
    """The ends of both logs are equal records, and not one place."""
    source = log_of(*map(in_bursts, range(8)))
    records = first_of(source, 5)
    target = log_of(*records[:3], *records[1:])
    audited = run(source, target, sizes, limits=ALL_BUT_DUPLICATES)
    assert found(audited) == ({"duplicate": 2}, 3)


@pytest.mark.parametrize(("part", "shortest"), [(10, 3), (20, 5), (50, 8)])
@pytest.mark.parametrize(
    ("copied", "at", "again"), [(23, 10, 1), (35, 10, 2), (38, 14, 3), (60, 36, 8), (66, 36, 8)]
)
def test_repeated_records_of_long_bursts_move_no_others(
    part: int, shortest: int, copied: int, at: int, again: int
) -> None:
    """Equal records are opposite each other at many shifts. Few changes show the right one."""
    source = log_of(*(Rec(None, b"beat", 1_000 + n // 20) for n in range(80)))
    records = first_of(source, copied)
    target = log_of(*records[: at + again], *records[at:])
    sizes = Sizes(part=part, sample=4, step=10, shortest=shortest, reach=200)
    audited = run(source, target, sizes, limits=ALL_BUT_DUPLICATES)
    assert found(audited) == ({"duplicate": again}, 80 - copied)


@every_way
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("markers", [0, 7])
@pytest.mark.parametrize(("count", "copied"), [(20, 20), (20, 14), (100, 90)])
def test_what_retention_deletes_of_a_burst_of_equal_records_has_aged_out(
    sizes: Sizes | None, side: str, markers: int, count: int, copied: int
) -> None:
    """The rest of the burst is the end of it in the other log."""
    source = log_of(*map(in_bursts, range(count)))
    target = log_of(*[MARKER] * markers, *first_of(source, copied))
    if side == "source":
        source.delete_below(2)
    else:
        target.delete_below(markers + 2)
    audited = run(source, target, sizes)
    assert found(audited) == ({}, count - copied)
    assert classes(audited)["aged out"] == 2


def test_a_mirror_that_stands_still_at_a_record_that_the_source_has_twice_lags() -> None:
    """Nothing shows which of the two it is, and both are among the first that no longer wait."""
    source = log_of(*map(in_pairs, range(300)))
    target = log_of(first_of(source, 5)[4])
    sizes = Sizes(part=20, sample=4, step=10, shortest=5, reach=200)
    audited = run(source, target, sizes, accepted=(AcceptedGap("t", 0, 0, 4, "a cause"),))
    assert found(audited) == ({}, 295)


def test_records_that_were_repeated_later_show_that_one_before_was_repeated() -> None:
    """Each change between bursts behind the first copy is twice in the target. One copy is the next of its burst."""
    source = log_of(*map(in_bursts, range(300)))
    records = first_of(source, 103)
    target = log_of(*records[:92], records[91], *records[92:], *records[91:])
    sizes = Sizes(part=10, sample=4, step=5, shortest=3, reach=200)
    audited = run(source, target, sizes, limits=ALL_BUT_DUPLICATES)
    assert found(audited) == ({"duplicate": 12}, 196)


COMPACTED = [(False, False), (True, True)]
SHORT_RUNS = Sizes(part=20, sample=4, step=10, shortest=3, reach=100)

in_short_runs = pytest.mark.parametrize(
    "sizes", [*SIZES, SHORT_RUNS], ids=["align", "step", "parts20", "parts50", "runs3"]
)
each_cleanup = pytest.mark.parametrize("compacted", COMPACTED, ids=["kept", "compacted"])

A, B = (Rec(b"k", b"a", 1_000), Rec(b"b", b"b", 1_001))
NEWER, LAST = Rec(b"k", b"new", 2_000), Rec(b"z", b"z", 2_001)


def damaged(record: Rec, number: int = 0) -> Rec:
    return record._replace(value=b"damaged %d" % number)


@in_short_runs
@each_cleanup
@pytest.mark.parametrize("markers", [0, 1])
@pytest.mark.parametrize("at", [[0], [1], [3], [0, 2], [0, 1, 2, 3]])
def test_a_damaged_record_of_a_burst_is_corrupt(
    sizes: Sizes | None, compacted: tuple[bool, bool], markers: int, at: list[int]
) -> None:
    """In a compacted topic MISSING and EXTRA would be explained: the key has a newer record."""
    source = log_of(A, A, A, A, B, NEWER, LAST)
    copies = [damaged(A, n) if n in at else A for n in range(4)]
    target = log_of(*[MARKER] * markers, *copies, B, NEWER, LAST)
    audited = run(source, target, sizes, compacted=compacted)
    assert (audited.outcome.verdict, found(audited)) == (
        Verdict.DIVERGED,
        ({"corrupt": len(at)}, 0),
    )


@in_short_runs
@each_cleanup
@pytest.mark.parametrize("behind", [[], [NEWER, LAST]])
@pytest.mark.parametrize("at", [[0], [0, 1, 2], [0, 30], [5, 6, 7], [10, 20, 35], [38]])
def test_damaged_records_of_a_long_burst_are_corrupt_also_if_it_lags(
    sizes: Sizes | None, compacted: tuple[bool, bool], behind: list[Rec], at: list[int]
) -> None:
    others = first_of(full(20), 20)
    source = log_of(*others, *[A] * 40, *behind)
    copies = [damaged(A, n) if n in at else A for n in range(40)]
    lag = 0 if behind else 1
    target = log_of(*others, *copies[: 40 - lag], *behind)
    audited = run(source, target, sizes, compacted=compacted)
    assert found(audited) == ({"corrupt": len(at)}, lag)


@in_short_runs
@each_cleanup
@pytest.mark.parametrize("behind", [3, 20])
def test_damaged_records_of_a_burst_that_ends_in_a_later_piece_are_corrupt(
    sizes: Sizes | None, compacted: tuple[bool, bool], behind: int
) -> None:
    """What has arrived of a burst of equal records fits at any shift."""
    records = [
        Rec(b"k0", b"v0", 1_000),
        Rec(b"k1", b"v1", 1_001),
        *(Rec(b"k%d" % n, b"end", 3_000 + n) for n in range(behind)),
    ]
    written = [*[records[0]] * 11, *[records[1]] * 6, *records[2:]]
    copies = [damaged(each, n) if n < 3 else each for n, each in enumerate(written)]
    audited = run(log_of(*written), log_of(*copies), sizes, compacted=compacted)
    assert found(audited) == ({"corrupt": 3}, 0)


@in_short_runs
@each_cleanup
def test_damaged_records_among_records_that_take_turns_are_corrupt(
    sizes: Sizes | None, compacted: tuple[bool, bool]
) -> None:
    """Such a topic fits at many shifts, too."""
    turns, changed = [A, B] * 12, [damaged(A), damaged(B)]
    ends = [NEWER, B._replace(value=b"new", timestamp=2_000), LAST]
    audited = run(
        log_of(*turns, *ends),
        log_of(*changed, *turns[2:], *ends),
        sizes,
        compacted=compacted,
    )
    assert audited.outcome.verdict is Verdict.DIVERGED
    if any(compacted):
        assert found(audited) == ({"corrupt": 2}, 0)


@in_short_runs
def test_a_stranger_in_a_burst_stands_for_none_of_its_records(sizes: Sizes | None) -> None:
    source = log_of(LAST, A, A, A, A)
    stranger = Rec(b"other", b"stranger", 7)
    for at in range(2, 5):
        copies = [LAST, A, A, A]
        copies.insert(at, stranger)
        behind = {"missing": 1} if at == 4 else {}  # It stands for the offset behind the pair.
        audited = run(source, log_of(*copies), sizes)
        assert found(audited) == ({"extra": 1, **behind}, 1 - len(behind))
    audited = run(source, log_of(LAST, damaged(A), A, stranger, A), sizes)
    assert found(audited) == ({"corrupt": 1, "extra": 1}, 1)


@in_short_runs
@pytest.mark.parametrize("again", [1, 3])
@pytest.mark.parametrize("behind", [0, 3, 15])
def test_copies_in_a_burst_that_are_like_its_records_are_no_damaged_ones(
    sizes: Sizes | None, again: int, behind: int
) -> None:
    """Common runs leave out the first ones of the copies, and records of the burst lag."""
    records = [of_one_value(n) for n in range(30)]
    burst = [of_one_value(99)] * 40
    target = log_of(*records, *burst[:10], *records[-again:], *burst[: 30 - behind])
    audited = run(log_of(*records, *burst), target, sizes, limits=ALL_BUT_DUPLICATES)
    assert found(audited) == ({"duplicate": again}, behind)


@in_short_runs
@pytest.mark.parametrize("behind", [0, 5, 40])
def test_a_run_of_a_burst_stays_behind_copies_of_records_before_it(
    sizes: Sizes | None, behind: int
) -> None:
    one, other = (Rec(None, b"beat", 1_000 + n) for n in range(2))
    target = log_of(*[one] * 30, *[other] * 20, one, *[other] * 10, one, *[other] * 40)
    source = log_of(*[one] * 30, *[other] * (70 + behind))
    audited = run(source, target, sizes, limits=ALL_BUT_DUPLICATES)
    assert found(audited) == ({"duplicate": 2}, behind)


@every_way
@pytest.mark.parametrize("left", [1, 2])
def test_no_more_records_of_a_burst_age_out_than_were_deleted(
    sizes: Sizes | None, left: int
) -> None:
    source = log_of(B, A, A, A, NEWER, LAST)
    target = log_of(B, *[A] * left, NEWER, LAST)
    target.delete_below(1)
    audited = run(source, target, sizes, limits=Limits(min_coverage=0.3))
    assert found(audited) == ({"missing": 3 - left}, 0)
    assert classes(audited)["aged out"] == 1


@every_way
def test_a_copy_at_a_start_that_retention_has_left_is_no_rest_of_a_burst(
    sizes: Sizes | None,
) -> None:
    late, end = Rec(b"d", b"d", 1_002), Rec(b"e", b"e", 1_003)
    source = log_of(A, B, LAST, late, late, end)
    target = log_of(A, B, LAST, late, LAST, late, late, end)
    target.delete_below(3)
    assert found(run(source, target, sizes, limits=ALL_BUT_DUPLICATES)) == ({"duplicate": 1}, 0)
