"""The assignors on the examples that documentation gives."""

from __future__ import annotations

from kclient.consumer.assignors import (
    Subscription,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from kclient.types import TopicPartition


def numbers(places: list[TopicPartition]) -> list[int]:
    return [tp.partition for tp in places]


BOTH = {"a": Subscription(frozenset("t")), "b": Subscription(frozenset("t"))}


def test_range_gives_the_first_member_one_more() -> None:
    assignment = assign_range({"t": 5}, BOTH)
    assert numbers(assignment["a"]) == [0, 1, 2]
    assert numbers(assignment["b"]) == [3, 4]


def test_round_robin_deals_in_turn() -> None:
    assignment = assign_round_robin({"t": 5}, BOTH)
    assert numbers(assignment["a"]) == [0, 2, 4]
    assert numbers(assignment["b"]) == [1, 3]


def test_a_new_member_takes_only_what_evens_out() -> None:
    owned = frozenset(TopicPartition("t", n) for n in range(4))
    members = {"a": Subscription(frozenset("t"), owned, 1), "b": Subscription(frozenset("t"))}
    wanted = assign_sticky({"t": 4}, members)
    assert numbers(wanted["a"]) == [0, 1]
    assert numbers(wanted["b"]) == [2, 3]
    first_round = assign_cooperative_sticky({"t": 4}, members)
    assert numbers(first_round["a"]) == [0, 1]
    assert first_round["b"] == [], "what a gives up is given to b only in the next round"


def test_a_claim_of_an_older_generation_loses() -> None:
    tp = frozenset([TopicPartition("t", 0)])
    members = {
        "a": Subscription(frozenset("t"), tp, 1),
        "b": Subscription(frozenset("t"), tp, 2),
    }
    assert assign_cooperative_sticky({"t": 1}, members) == {"a": [], "b": [TopicPartition("t", 0)]}


def test_a_partition_that_no_longer_exists_is_not_kept() -> None:
    owned = frozenset([TopicPartition("t", 0), TopicPartition("t", 9), TopicPartition("gone", 0)])
    members = {"a": Subscription(frozenset("t"), owned, 1)}
    assert assign_sticky({"t": 1}, members) == {"a": [TopicPartition("t", 0)]}
