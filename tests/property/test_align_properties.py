"""Invariants 1 to 3 of spark_jobs.align, on random sequences and random damage."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.align import align
from spark_jobs.findings import FindingClass, RecordDigest

ALIGNED = (
    FindingClass.MISSING,
    FindingClass.EXTRA,
    FindingClass.DUPLICATE,
    FindingClass.CORRUPT,
    FindingClass.REORDERED,
)

contents = st.lists(st.integers(0, 6), max_size=30)


def as_log(values: list[int]) -> list[RecordDigest]:
    return [RecordDigest(i, v, v % 3, v, 0, 0) for i, v in enumerate(values)]


@given(contents)
def test_equal_sequences_give_no_findings(values: list[int]) -> None:
    assert align("t", 0, as_log(values), as_log(values)).findings == []


@given(contents, contents)
def test_the_findings_account_for_every_difference_of_the_multisets(
    before: list[int], after: list[int]
) -> None:
    source, target = as_log(before), as_log(after)
    result = Counter(before)
    for finding in align("t", 0, source, target).findings:
        match finding.finding_class:
            case FindingClass.MISSING:
                result[finding.source_hash] -= 1
            case FindingClass.EXTRA | FindingClass.DUPLICATE:
                result[finding.target_hash] += 1
            case FindingClass.CORRUPT:
                result[finding.source_hash] -= 1
                result[finding.target_hash] += 1
    assert +result == Counter(after)
    assert all(count >= 0 for count in result.values())


@given(st.data())
def test_faults_apart_from_each_other_are_named_one_by_one(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(ALIGNED), max_size=8))
    size = 10 * (len(kinds) + 1)
    source = [RecordDigest(i, 1000 + i, i % 4, 5000 + i, 0, 9000 + i) for i in range(size)]
    target: list[RecordDigest] = []
    expected: Counter[tuple[FindingClass, int]] = Counter()
    for number in range(len(kinds) + 1):
        block = source[10 * number : 10 * number + 10]
        if number < len(kinds):
            place = data.draw(st.integers(0, 5))
            hit = block[place]
            match kinds[number]:
                case FindingClass.MISSING:
                    del block[place]
                case FindingClass.EXTRA:
                    block.insert(place, RecordDigest(0, 10**6 + number, 99, 10**6 + number, 0, 3))
                case FindingClass.DUPLICATE:
                    block.insert(place + 3, hit)
                case FindingClass.CORRUPT:
                    block[place] = RecordDigest(
                        hit.offset, 2 * 10**6 + number, hit.key, 7, 0, hit.timestamp
                    )
                case FindingClass.REORDERED:
                    block.insert(place + 3, block.pop(place))
            expected[(kinds[number], number)] += 1
        target.extend(block)
    renumbered = [
        RecordDigest(i, r.content, r.key, r.value, r.headers, r.timestamp)
        for i, r in enumerate(target)
    ]
    found: Counter[tuple[FindingClass, int]] = Counter()
    for finding in align("t", 0, source, renumbered).findings:
        assert finding.finding_class in FindingClass
        found[(finding.finding_class, 0)] += 1
    assert Counter(kind for kind, _ in found.elements()) == Counter(
        kind for kind, _ in expected.elements()
    )
