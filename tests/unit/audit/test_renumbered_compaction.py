"""What compaction explains of a renumbered target, and what it does not: each log keeps the last records of a key.

docs/design/audit.md has the rules. Each case is compared in one alignment, and in step, with runs of findings.
"""

from __future__ import annotations

import pytest

from spark_jobs.align import Common, align
from spark_jobs.compaction import KeySpans
from spark_jobs.engine import KeySpan
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.in_step import Sizes
from spark_jobs.verdict import Verdict
from tests.kit.audit_logs import Log, Rec, classes, digest, log_of
from tests.unit.audit.test_renumbered_tail import MARKER, every_way, found, run

BOTH = (True, True)


def keyed(key: str, value: str = "v", timestamp: int = 1_000) -> Rec:
    return Rec(key.encode(), value.encode(), timestamp)


def without(log: Log, *offsets: int) -> Log:
    """Return *log* without the records at *offsets*, as a cleaner leaves it."""
    for offset in offsets:
        del log.records[offset]
    return log


FIRST, BETWEEN, LAST = (keyed(key, key, 1_000 + n) for n, key in enumerate("zyw"))


def version(number: int) -> Rec:
    return keyed("k", f"version {number}", 2_000 + number)


VERSIONS = [version(number) for number in range(1, 4)]


@every_way
@pytest.mark.parametrize("at_target", [True, False])
@pytest.mark.parametrize("keep", [0, 1_000])
def test_a_lost_version_is_not_explained_beside_an_older_one(
    sizes: Sizes | None, at_target: bool, keep: int
) -> None:
    """A cleaner removes the older one first."""
    logs = [
        log_of(FIRST, *VERSIONS, LAST),
        log_of(MARKER, FIRST, VERSIONS[0], VERSIONS[2], LAST),
    ]
    source, target = logs if at_target else reversed(logs)
    audited = run(source, target, sizes, keep=keep, compacted=BOTH)
    different = {"missing" if at_target else "extra": 1}
    assert (audited.outcome.verdict, found(audited)) == (Verdict.DIVERGED, (different, 0))


@every_way
@pytest.mark.parametrize("gone", [1, 2])
def test_older_versions_that_a_cleaner_has_removed_are_explained(
    sizes: Sizes | None, gone: int
) -> None:
    source = log_of(FIRST, *VERSIONS, LAST)
    target = without(log_of(FIRST, *VERSIONS, LAST), *range(1, 1 + gone))
    for logs in ((source, target), (target, source)):
        audited = run(*logs, sizes, compacted=BOTH)
        assert (audited.outcome.verdict, found(audited)) == (Verdict.CONSISTENT, ({}, 0))
        assert classes(audited)["explained"] == gone


@every_way
def test_a_version_that_was_written_again_shows_no_order(sizes: Sizes | None) -> None:
    """Which of the equal records the target still has, nothing shows."""
    source = log_of(FIRST, VERSIONS[0], VERSIONS[1], VERSIONS[0], VERSIONS[2], LAST)
    target = without(source.copy(), 1, 2)
    audited = run(source, target, sizes, compacted=BOTH)
    assert (audited.outcome.verdict, found(audited)) == (Verdict.CONSISTENT, ({}, 0))
    assert classes(audited) == {"verified": 4, "explained": 2}


TURNS = [keyed("a", "a", 3_000), keyed("b", "b", 3_001)]
NEWER_TURNS = [keyed("a", "newer", 3_002), keyed("b", "newer", 3_003)]


@every_way
def test_damage_among_records_that_take_turns_is_not_explained(sizes: Sizes | None) -> None:
    """Each log lacks a record of the key that the other one has. A cleaner leaves one of them at least."""
    changed = [each._replace(value=b"changed") for each in TURNS]
    source = log_of(FIRST, *TURNS, *TURNS, BETWEEN, *NEWER_TURNS, LAST)
    target = log_of(MARKER, FIRST, *changed, *TURNS, BETWEEN, *NEWER_TURNS)
    audited = run(source, target, sizes, compacted=BOTH)
    assert (audited.outcome.verdict, found(audited)) == (
        Verdict.DIVERGED,
        ({"missing": 2, "extra": 2}, 1),
    )


@every_way
@pytest.mark.parametrize("at_target", [True, False])
def test_an_older_record_of_the_same_time_that_one_log_has_cleaned_is_explained(
    sizes: Sizes | None, at_target: bool
) -> None:
    older, newer = (keyed("k", value, 2_000) for value in ("older", "newer"))
    logs = [log_of(older, FIRST, newer, BETWEEN), log_of(older, FIRST, newer, BETWEEN)]
    without(logs[at_target], 0)
    audited = run(*logs, sizes, compacted=BOTH)
    assert (audited.outcome.verdict, found(audited)) == (Verdict.CONSISTENT, ({}, 0))
    assert classes(audited) == {"verified": 3, "explained": 1}


@every_way
@pytest.mark.parametrize("at_target", [True, False])
def test_a_record_that_was_written_again_is_not_reordered_if_the_first_one_is_cleaned(
    sizes: Sizes | None, at_target: bool
) -> None:
    again = keyed("again", "a", 3_000)
    written = log_of(again, FIRST, TURNS[0], again, TURNS[1], BETWEEN, *NEWER_TURNS, LAST)
    cleaned = log_of(*[MARKER] * at_target, *list(written.records.values())[:8])
    without(cleaned, *(at + at_target for at in (0, 2, 4)))
    if at_target:
        audited = run(written, cleaned, sizes, compacted=BOTH)
        assert (audited.outcome.verdict, found(audited)) == (Verdict.LAGGING, ({}, 1))
    else:
        del written.records[8]
        audited = run(cleaned, written, sizes, compacted=BOTH)
        assert (audited.outcome.verdict, found(audited)) == (Verdict.CONSISTENT, ({}, 0))
    assert classes(audited)["explained"] == 3
    assert classes(audited)["verified"] == 5


@every_way
@pytest.mark.parametrize("compacted", [BOTH, (True, False), (False, True)])
@pytest.mark.parametrize("cleaned", [True, False])
def test_a_last_copy_that_the_source_has_cleaned_is_not_a_damaged_one(
    sizes: Sizes | None, compacted: tuple[bool, bool], cleaned: bool
) -> None:
    """The next record of the key lags, and has the same timestamp. Without an offset in between nothing was cleaned."""
    older, newer = (keyed("k", value, 2_000) for value in ("older", "newer"))
    source = without(log_of(FIRST, older, newer), 1) if cleaned else log_of(FIRST, newer)
    audited = run(source, log_of(FIRST, older), sizes, compacted=compacted)
    if not cleaned:
        assert found(audited) == ({"corrupt": 1}, 0)
    elif compacted[0]:
        assert (audited.outcome.verdict, found(audited)) == (Verdict.LAGGING, ({}, 1))
        assert classes(audited) == {"verified": 1, "explained": 1, "lagging": 1}
    else:
        assert audited.outcome.verdict is Verdict.DIVERGED


@every_way
@pytest.mark.parametrize("keep", [0, 1_000])
@pytest.mark.parametrize("cleaned", [True, False])
def test_a_stranger_is_explained_only_where_the_source_may_have_cleaned_one(
    sizes: Sizes | None, keep: int, cleaned: bool
) -> None:
    """A cleaner leaves an offset without a record."""
    one, newer = keyed("k", "one", 2_000), keyed("k", "newer", 2_002)
    older = keyed("k", "older", 1_999)
    source = log_of(FIRST, one, BETWEEN, newer, LAST)
    if cleaned:
        source = without(log_of(FIRST, older, one, BETWEEN, newer, LAST), 1)
    target = log_of(MARKER, FIRST, older, one, BETWEEN, newer, LAST)
    audited = run(source, target, sizes, keep=keep, compacted=BOTH)
    different = {} if cleaned else {"extra": 1}
    verdict = Verdict.CONSISTENT if cleaned else Verdict.DIVERGED
    assert (audited.outcome.verdict, found(audited)) == (verdict, (different, 0))


@every_way
def test_a_version_that_a_repeating_mirror_has_twice_is_explained(sizes: Sizes | None) -> None:
    """The mirror died, and repeated a record. The target cleaned the first copy, and the source the older version."""
    older, newer = (keyed("k", value, time) for value, time in (("older", 2_000), ("newer", 2_001)))
    source = without(log_of(FIRST, BETWEEN, older, LAST, newer), 2)
    target = without(log_of(FIRST, BETWEEN, older, BETWEEN, LAST, newer), 1)
    audited = run(source, target, sizes, compacted=BOTH)
    assert (audited.outcome.verdict, found(audited)) == (Verdict.CONSISTENT, ({}, 0))


def test_a_damaged_record_at_the_end_of_a_part_is_one_whatever_the_source_has_cleaned() -> None:
    """The rest of the log is behind the part: no copy there is the last one."""
    older, newer = (keyed("k", value, 2_000) for value in ("older", "newer"))
    for is_last, corrupt in ((True, 0), (False, 1)):
        source = without(log_of(FIRST, older, newer), 1)
        target = log_of(FIRST, older)
        aligned = align(
            "t",
            0,
            *(
                [digest(at, each) for at, each in sorted(log.records.items())]
                for log in (source, target)
            ),
            compacted=True,
            renumbered=True,
            common=Common(is_at_end=is_last),
        )
        classes_found = [each.finding_class for each in aligned.findings]
        assert classes_found.count(FindingClass.CORRUPT) == corrupt


@pytest.mark.parametrize("kind", [FindingClass.EXTRA, FindingClass.DUPLICATE])
def test_a_repeated_record_is_explained_whatever_the_target_has_cleaned_since(
    kind: FindingClass,
) -> None:
    """The keys are looked up later: the other copy was gone by then, and the source had an older record."""
    place = ("t", 0, 7)
    spans = KeySpans({place: KeySpan(0, 20)}, {place: KeySpan(12, 30)})
    finding = Finding(kind, "t", 0, None, 12, follows=5, key_hash=7)
    assert spans.explain(finding, renumbered=True) is (kind is FindingClass.DUPLICATE)
