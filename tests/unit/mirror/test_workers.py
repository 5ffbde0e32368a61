"""Which partitions a worker copies: the assignment, and what a worker does without ZooKeeper."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from kclient.types import TopicPartition
from mirrormaker.settings import LinkSettings
from mirrormaker.workers import (
    YIELD,
    Workers,
    WorkerState,
    assign,
    group_of,
    members_of,
    znode_prefix,
)

MINE, OTHER, THIRD = (f"{n:016x}" for n in (1, 2, 3))
GROUP = group_of("east", "west", LinkSettings(topics="orders.*"))
TPS = [TopicPartition("orders", n) for n in range(12)]


def name(worker_id: str, sequence: int, group: str = GROUP) -> str:
    return f"{znode_prefix(group, worker_id)}{sequence:010d}"


def member(*others: str) -> Workers:
    """A worker that registered before *others*."""
    workers = Workers(MINE, GROUP)
    assert workers.listed([name(each, n) for n, each in enumerate((MINE, *others))])
    return workers


def share(workers: Workers, now: float = 0.0, unmarked: tuple[str, ...] = ()) -> set[int]:
    return {tp.partition for tp in workers.share(TPS, unmarked, now)}


# --- the assignment


def test_an_assignment_stays_the_same_in_every_version() -> None:
    """A change needs another ASSIGNMENT: else workers of two versions leave partitions without a worker."""
    assigned = assign([MINE, OTHER, THIRD], TPS)
    assert "".join(assigned[tp][-1] for tp in TPS) == "323221331211"


@pytest.mark.parametrize("seed", range(40))
def test_joins_and_leaves_move_few_partitions_and_leave_none_without_a_worker(seed: int) -> None:
    chance = random.Random(seed)
    partitions = [
        TopicPartition(f"topic-{topic}", n)
        for topic in range(chance.randint(1, 12))
        for n in range(chance.choice((1, 3, 12)))
    ]
    ids = [f"{chance.getrandbits(64):016x}" for _ in range(chance.randint(1, 6))]
    before = assign(ids, partitions)
    moved = least = 0
    for _ in range(6):
        if len(ids) > 1 and chance.random() < 0.5:
            ids.remove(chance.choice(ids))
        else:
            ids.append(f"{chance.getrandbits(64):016x}")
        chance.shuffle(ids)
        chance.shuffle(partitions)
        now = assign(ids, partitions)
        assert now.keys() == set(partitions)
        assert set(now.values()) <= set(ids)
        loads = Counter(now.values())
        assert max(loads.values()) <= math.ceil(len(partitions) / len(ids))
        assert now == assign(sorted(ids), sorted(partitions)), "the sets alone decide"
        moved += sum(before[tp] != now[tp] for tp in partitions)
        least += sum(before[tp] not in ids for tp in partitions)
        new = set(ids) - set(before.values())
        least += sum(min(loads[each], len(partitions) // len(ids)) for each in new)
        before = now
    assert moved <= 1.5 * least + 12, "a change moves little more than it has to"


def test_without_workers_nothing_is_assigned() -> None:
    assert assign([], TPS) == {}


# --- members


def test_a_worker_copies_nothing_before_it_is_registered() -> None:
    workers = Workers(MINE, GROUP)
    assert not workers.listed([name(OTHER, 0)])
    assert (share(workers), workers.is_elected) == (set(), False)
    assert str(workers) == "worker: waits for ZooKeeper"


def test_the_members_of_a_list_copy_every_partition_once() -> None:
    names = [name(MINE, 4), name(OTHER, 3), name(THIRD, 9)]
    found = [Workers(each, GROUP) for each in (MINE, OTHER, THIRD)]
    for each in found:
        assert each.listed(names)
    shares = [share(each) for each in found]
    assert sorted(n for each in shares for n in each) == list(range(12))
    assert [each.is_elected for each in found] == [False, True, False]
    assert [str(each) for each in found] == [
        "worker 2 of 3",
        "worker 1 of 3, elected",
        "worker 3 of 3",
    ]


def test_workers_with_other_settings_take_no_partitions() -> None:
    """Their topics may be others: a partition of ours could be assigned to a worker that never copies it."""
    workers = Workers(MINE, GROUP)
    other = name(OTHER, 0, group_of("east", "west", LinkSettings(topics="payments.*")))
    assert workers.listed([other, name(MINE, 1), "not-a-worker"])
    assert share(workers) == set(range(12))
    assert workers.is_elected
    assert [each.worker_id for each in workers.mismatched] == [OTHER]


def test_a_second_znode_of_a_worker_changes_nothing() -> None:
    """A registration with an unknown outcome is repeated."""
    once, twice = member(OTHER), Workers(MINE, GROUP)
    assert twice.listed([name(MINE, 0), name(OTHER, 1), name(MINE, 2)])
    assert share(once) == share(twice)
    assert str(once) == str(twice) == "worker 1 of 2, elected"


def test_only_the_elected_worker_copies_a_topic_without_the_mark_and_then_all_of_it() -> None:
    """Each partition of it has to pass the prefix check before one worker may mark it."""
    elected, other = member(OTHER), Workers(OTHER, GROUP)
    assert other.listed([name(MINE, 0), name(OTHER, 1)])
    assert share(elected, unmarked=("orders",)) == set(range(12))
    assert share(other, unmarked=("orders",)) == set()
    assert share(elected) | share(other) == set(range(12))
    assert not share(elected) & share(other)


# --- without ZooKeeper


def test_a_worker_without_a_session_keeps_its_partitions_and_takes_no_others() -> None:
    workers = member(OTHER)
    mine = share(workers)
    workers.cut_off()
    assert share(workers) == mine
    more = [*TPS, *(TopicPartition("new", n) for n in range(4))]
    assert {tp.topic for tp in workers.share(more, (), 0.0)} == {"orders"}
    assert (workers.is_elected, workers.state) == (False, WorkerState.CUT_OFF)


def test_a_worker_without_a_session_does_not_mark_topics() -> None:
    workers = member()
    assert share(workers) == set(range(12))
    workers.cut_off()
    assert share(workers, unmarked=("orders",)) == set()


def test_a_rejected_append_frees_one_partition_for_a_while_if_there_is_no_session() -> None:
    workers = member()
    assert not workers.rejected(TPS[3], 10.0), "a member waits for the next list"
    assert share(workers, 10.0) == set(range(12))
    workers.cut_off()
    assert workers.rejected(TPS[3], 10.0)
    assert share(workers, 11.0) == set(range(12)) - {3}
    assert share(workers, 10.0 + YIELD) == set(range(12)), "the other worker may have ended"


def test_a_worker_that_is_registered_again_takes_its_assignment() -> None:
    workers = member(OTHER)
    mine = share(workers)
    workers.cut_off()
    workers.rejected(TPS[min(mine)], 0.0)
    assert not workers.listed([name(OTHER, 1)])
    assert workers.listed([name(OTHER, 1), name(MINE, 2)])
    assert share(workers) == mine, "the id is the same, so its partitions are"
    assert not workers.is_elected


def test_a_worker_with_a_deleted_znode_is_cut_off_until_it_is_registered_again() -> None:
    workers = member(OTHER)
    assert not workers.listed([name(OTHER, 1)])
    assert workers.state is WorkerState.CUT_OFF


def test_names_of_znodes_are_read_by_age_and_other_names_left_out() -> None:
    names = [name(OTHER, 10), "x", name(MINE, 9), f"{name(MINE, 9)}0", ""]
    assert [(each.sequence, each.worker_id) for each in members_of(names)] == [
        (9, MINE),
        (10, OTHER),
    ]
