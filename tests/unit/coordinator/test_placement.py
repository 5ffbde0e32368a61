"""Groups are placed as Kafka places them, so that every broker and tool agrees."""

import pytest

from kbroker.coordinator.placement import java_hash, partition_for


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("é", 233),
        ("😀", 1772899),
    ],
)
def test_hashes_are_those_of_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_every_group_has_a_partition() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("my-group", 50) == abs(java_hash("my-group")) % 50
    assert {partition_for(f"g{n}", 4) for n in range(100)} == {0, 1, 2, 3}
