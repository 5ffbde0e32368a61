"""What `kmirror verify` reads, and that its words and its exit code claim no more than that."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.wire.records import Record, encode_batch
from mirrormaker.divergence import Batch, read_batches
from mirrormaker.sampling import ExitCode, Result, conclusion, exit_code, sampled_offsets
from tests.kit.property_tests import examples


def batch(base: int, *values: bytes, damaged: bool = False) -> Batch:
    data = bytearray(encode_batch([Record(n, 1, None, v) for n, v in enumerate(values)]))
    data[:8] = base.to_bytes(8, "big")
    if damaged:
        data[-1] ^= 1
    return read_batches(bytes(data))[0]


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 12), st.integers(0, 5))
def test_the_samples_are_offsets_of_the_range_with_both_ends(
    start: int, end: int, count: int, seed: int
) -> None:
    found = sampled_offsets(start, end, count, Random(seed).randrange)
    assert len(found) == len(set(found)) == (min(count, end - start) if start < end else 0)
    assert all(start <= each < end for each in found)
    if start < end and count:
        assert end - 1 in found
    if start < end and count > 1:
        assert start in found


def result(source: tuple[int, int], target: tuple[int, int], max_lag: int = 0) -> Result:
    return Result(*source, *target, max_lag)


def test_a_batch_of_several_samples_is_counted_once() -> None:
    found = result((0, 3), (0, 3))
    for at in range(3):
        found.compare(at, batch(0, b"1", b"2", b"3"), batch(0, b"1", b"2", b"3"))
    assert (found.batches, found.records, found.code()) == (1, 3, ExitCode.NO_DIFFERENCE)
    line = conclusion([found, result((0, 100), (0, 100))])
    assert "1 batches with 3 records, of 103 offsets that both have" in line
    assert "were not compared" in line
    assert "CONSISTENT" not in line


@pytest.mark.parametrize(
    "target",
    [
        batch(0, b"2"),
        batch(1, b"1"),
        batch(0, b"1", b"1"),
        batch(0, b"1", damaged=True),
        None,
    ],
)
def test_another_batch_a_damaged_one_and_none_are_differences(target: Batch | None) -> None:
    found = result((0, 5), (0, 5))
    found.compare(0, batch(0, b"1"), target)
    assert found.code() is ExitCode.DIFFERENT
    assert "offset 0: source offsets 0-0" in str(found)
    assert "1 partitions differ" in conclusion([found])


def test_the_last_line_states_when_nothing_was_compared() -> None:
    unreadable = result((0, 0), (0, 0))
    unreadable.unreadable = "no connection"
    line = conclusion([unreadable, result((0, 9), (0, 9))])
    assert (
        line == "nothing was compared, of 9 offsets that both have, 1 partitions could not be read"
    )

    found = result((0, 3), (0, 3))
    found.compare(0, batch(0, b"1"), batch(0, b"1"))
    line = conclusion([unreadable, found])
    assert line.startswith("no difference was found in what was compared: 1 batches")
    assert ", 1 partitions could not be read. Records outside" in line

    line = conclusion([], failed_flows=["east->west"])
    assert line == (
        "nothing was compared, of 0 offsets that both have, nothing is known of east->west"
    )


def test_a_batch_that_is_damaged_at_both_sides_is_not_equal() -> None:
    found = result((0, 1), (0, 1))
    found.compare(0, batch(0, b"1", damaged=True), batch(0, b"1", damaged=True))
    assert found.code() is ExitCode.DIFFERENT


@pytest.mark.parametrize(
    ("source", "target", "compared", "code"),
    [
        ((0, 0), (0, 0), False, ExitCode.NO_DIFFERENCE),
        ((7, 7), (0, 0), False, ExitCode.NO_DIFFERENCE),
        ((0, 5), (0, 5), False, ExitCode.NOT_COMPARED),
        ((0, 5), (0, 5), True, ExitCode.NO_DIFFERENCE),
        ((0, 5), (0, 6), True, ExitCode.DIFFERENT),
        ((0, 5), (0, 0), False, ExitCode.LAGGING),
        ((0, 6), (0, 5), True, ExitCode.LAGGING),
        ((5, 9), (0, 5), False, ExitCode.NOT_COMPARED),
        ((5, 9), (5, 5), False, ExitCode.LAGGING),
        ((5, 9), (0, 0), False, ExitCode.LAGGING),
        # Deleted at one side: what the other one has, or had to copy, was not compared.
        ((0, 100), (100, 100), False, ExitCode.NOT_COMPARED),
        ((0, 100), (50, 50), False, ExitCode.NOT_COMPARED),
        ((100, 100), (0, 100), False, ExitCode.NOT_COMPARED),
        ((50, 100), (0, 50), False, ExitCode.NOT_COMPARED),
        ((100, 100), (50, 50), False, ExitCode.NOT_COMPARED),
        # Neither has a record, and the target has ended where the source has.
        ((100, 100), (100, 100), False, ExitCode.NO_DIFFERENCE),
    ],
)
def test_what_was_not_compared_is_never_exit_code_0(
    source: tuple[int, int], target: tuple[int, int], compared: bool, code: ExitCode
) -> None:
    found = result(source, target)
    if compared:
        found.compare(source[0], batch(source[0], b"1"), batch(source[0], b"1"))
    assert found.code() is code


def test_lag_within_the_limit_is_accepted_only_if_something_was_compared() -> None:
    found = result((0, 6), (0, 5), max_lag=1)
    found.compare(0, batch(0, b"1"), batch(0, b"1"))
    assert found.code() is ExitCode.NO_DIFFERENCE
    assert result((0, 1), (0, 0), max_lag=1).code() is ExitCode.LAGGING


def test_a_comparison_of_no_partition_is_not_compared() -> None:
    """Else a mistyped name of a topic would be exit code 0."""
    assert exit_code([]) is ExitCode.NOT_COMPARED
    assert exit_code([], missing=1) is ExitCode.LAGGING
    assert exit_code([result((0, 0), (0, 0))]) is ExitCode.NO_DIFFERENCE


def test_the_worst_partition_decides() -> None:
    lagging, different = result((0, 1), (0, 0)), result((0, 1), (0, 2))
    unread = Result(0, 0, 0, 0, unreadable="no leader")
    conflict = Result(0, 0, 0, 0, not_mirrored="it is a mirror of another cluster")
    assert exit_code([lagging, conflict]) is ExitCode.NOT_COMPARED
    assert exit_code([lagging], missing=1) is ExitCode.LAGGING
    assert exit_code([lagging, different], missing=1) is ExitCode.DIFFERENT
    assert exit_code([different], failed_flows=["east->west"]) is ExitCode.UNREADABLE
    assert exit_code([lagging, different]) is ExitCode.DIFFERENT
    assert exit_code([lagging, different, unread]) is ExitCode.UNREADABLE
