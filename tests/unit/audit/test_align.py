"""Every class of difference, alone and next to others, named exactly."""

from __future__ import annotations

from spark_jobs.align import Alignment, align
from spark_jobs.findings import FindingClass, RecordDigest


def record(
    offset: int, *, key: int | None = None, value: int | None = None, timestamp: int = 0
) -> RecordDigest:
    key = offset if key is None else key
    value = offset * 7 if value is None else value
    return RecordDigest(offset, hash((key, value, timestamp)), key, value, 0, timestamp)


def log(count: int) -> list[RecordDigest]:
    return [record(offset) for offset in range(count)]


def renumber(records: list[RecordDigest]) -> list[RecordDigest]:
    return [
        RecordDigest(place, r.content, r.key, r.value, r.headers, r.timestamp)
        for place, r in enumerate(records)
    ]


def brief(alignment: Alignment) -> list[tuple[str, int | None, int | None]]:
    return [(f.finding_class.value, f.source_offset, f.target_offset) for f in alignment.findings]


def test_equal_logs_have_no_findings() -> None:
    assert align("t", 0, log(100), log(100)).findings == []


def test_two_empty_logs_are_equal() -> None:
    assert align("t", 0, [], []).findings == []


def test_a_lost_record_in_the_middle_is_missing_and_nothing_behind_it_is_blamed() -> None:
    target = log(10)
    del target[4]
    assert brief(align("t", 0, log(10), renumber(target))) == [("missing", 4, None)]


def test_a_lost_record_that_left_a_gap_in_offsets_is_missing() -> None:
    target = log(10)
    del target[4]
    assert brief(align("t", 0, log(10), target)) == [("missing", 4, None)]


def test_the_last_record_lost_is_missing() -> None:
    assert brief(align("t", 0, log(10), log(9))) == [("missing", 9, None)]


def test_all_records_lost_are_missing() -> None:
    assert brief(align("t", 0, log(3), [])) == [("missing", i, None) for i in range(3)]


def test_a_doubled_record_is_a_duplicate_with_its_first_copy() -> None:
    target = log(10)
    target.insert(7, target[2])
    (finding,) = align("t", 0, log(10), renumber(target)).findings
    assert finding.finding_class is FindingClass.DUPLICATE
    assert (finding.target_offset, finding.first_target_offset) == (7, 2)


def test_the_same_record_added_twice_is_two_duplicates() -> None:
    target = log(6)
    target[4:4] = [target[1], target[1]]
    assert brief(align("t", 0, log(6), renumber(target))) == [
        ("duplicate", None, 4),
        ("duplicate", None, 5),
    ]


def test_a_changed_value_is_corrupt_in_value() -> None:
    target = log(10)
    target[5] = record(5, value=99)
    (finding,) = align("t", 0, log(10), target).findings
    assert (finding.finding_class, finding.source_offset, finding.field) == (
        FindingClass.CORRUPT,
        5,
        "value",
    )


def test_key_and_value_swapped_is_corrupt_in_both() -> None:
    target = log(10)
    target[5] = RecordDigest(5, 12345, target[5].value, target[5].key, 0, 0)
    (finding,) = align("t", 0, log(10), target).findings
    assert finding.field == "key,value"


def test_a_changed_timestamp_is_corrupt_in_timestamp() -> None:
    target = log(10)
    target[0] = record(0, timestamp=5)
    (finding,) = align("t", 0, log(10), target).findings
    assert finding.field == "timestamp"


def test_a_moved_record_is_reordered_by_its_distance() -> None:
    target = log(10)
    target.insert(6, target.pop(2))
    (finding,) = align("t", 0, log(10), renumber(target)).findings
    assert (finding.finding_class, finding.source_offset, finding.target_offset) == (
        FindingClass.REORDERED,
        2,
        6,
    )
    assert finding.distance == 4


def test_two_far_records_swapped_are_both_reordered() -> None:
    target = log(10)
    target[1], target[8] = target[8], target[1]
    assert brief(align("t", 0, log(10), renumber(target))) == [
        ("reordered", 8, 1),
        ("reordered", 1, 8),
    ]


def test_loss_and_duplicate_that_balance_in_count_are_both_found() -> None:
    target = log(10)
    target[5] = target[2]
    assert brief(align("t", 0, log(10), renumber(target))) == [
        ("duplicate", None, 5),
        ("missing", 5, None),
    ]


def test_a_foreign_record_is_extra() -> None:
    target = log(10)
    target.insert(3, record(1000, timestamp=77))
    assert brief(align("t", 0, log(10), renumber(target))) == [("extra", None, 3)]


def test_records_that_are_equal_in_the_source_are_no_duplicates() -> None:
    source = [record(i, key=1, value=1) for i in range(5)]
    assert align("t", 0, source, source).findings == []
    assert brief(align("t", 0, source, renumber(source[:4]))) == [("missing", 4, None)]
