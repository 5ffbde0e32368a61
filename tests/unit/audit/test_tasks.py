"""How offset ranges become Spark tasks."""

from spark_jobs.cut import OffsetRange
from spark_jobs.tasks import MOST_RANGES, RANGE_COST, pack, split


def small(count: int) -> list[OffsetRange]:
    return [OffsetRange("t", number, 0, 1) for number in range(count)]


def test_two_thousand_small_partitions_are_a_task_for_each_core() -> None:
    tasks = pack(small(2000), 250_000, 2)
    assert [len(task) for task in tasks] == [1000, 1000]
    assert sorted(each for task in tasks for each in task) == small(2000)


def test_a_large_partition_is_cut_and_every_offset_is_read_once() -> None:
    ranges = [OffsetRange("t", 0, 7, 1_000_000), OffsetRange("t", 1, 0, 10)]
    tasks = pack(ranges, 250_000, 2)
    assert max(sum(each.high - each.low for each in task) for task in tasks) <= 250_010
    pieces = sorted(each for task in tasks for each in task)
    assert pieces[-1] == ranges[1]
    assert [pieces[0].low, *[each.high for each in pieces[:-1]]] == [
        *[each.low for each in pieces[:-1]],
        1_000_000,
    ]


def test_a_skewed_topic_is_spread_evenly() -> None:
    ranges = [
        OffsetRange("t", 0, 0, 100_000),
        *(OffsetRange("t", n, 0, 500) for n in range(1, 200)),
    ]
    tasks = pack(ranges, 250_000, 4)
    costs = [sum(each.high - each.low + RANGE_COST for each in task) for task in tasks]
    assert len(tasks) == 4
    assert max(costs) - min(costs) <= 700


def test_no_task_has_more_ranges_than_it_should_and_none_is_empty() -> None:
    assert max(map(len, pack(small(5001), 250_000, 2))) <= MOST_RANGES
    assert [len(task) for task in pack(small(3), 250_000, 8)] == [1, 1, 1]
    assert pack([], 10, 4) == []


def test_pieces_take_turns_over_the_partitions() -> None:
    pieces = split([OffsetRange("t", 0, 0, 30), OffsetRange("t", 1, 0, 10)], 10)
    assert [each.partition for each in pieces] == [0, 1, 0, 0]


def test_one_partition_is_read_by_all_cores_but_not_in_tiny_pieces() -> None:
    assert len(pack([OffsetRange("t", 0, 0, 1_900_000)], 2_000_000, 4)) == 4
    assert len(pack([OffsetRange("t", 0, 0, 120_000)], 2_000_000, 4)) == 3
    assert len(pack([OffsetRange("t", 0, 0, 49_000)], 2_000_000, 4)) == 1
