"""Invariants 1 to 3 of kclient.consumer.assignors, over random topics, members and former owners."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.consumer.assignors import (
    RANGE,
    ROUND_ROBIN,
    Strategy,
    Subscription,
    assign_cooperative_sticky,
    assign_sticky,
)
from kclient.types import TopicPartition

wanted_topics = st.frozensets(st.sampled_from("abcd"))
owned_partitions = st.frozensets(
    st.builds(TopicPartition, st.sampled_from("abcd"), st.integers(0, 8)), max_size=6
)
generations = st.integers(-1, 3)
topics = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 7), max_size=4)
names = st.sets(st.sampled_from(["m1", "m2", "m3", "m4", "m5"]), min_size=1)


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, Subscription]]:
    partitions = draw(topics)
    members = {}
    for name in sorted(draw(names)):
        wanted, owned = draw(wanted_topics), draw(owned_partitions)
        members[name] = Subscription(wanted, owned, draw(generations))
    return partitions, members


def wanted_places(
    partitions: dict[str, int], members: dict[str, Subscription]
) -> set[TopicPartition]:
    return {
        TopicPartition(topic, number)
        for topic, count in partitions.items()
        for number in range(count)
        if any(topic in member.topics for member in members.values())
    }


@pytest.mark.parametrize("strategy", [RANGE, ROUND_ROBIN, Strategy("sticky", assign_sticky)])
@given(group=groups())
def test_every_wanted_partition_goes_to_exactly_one_subscriber(
    strategy: Strategy, group: tuple[dict[str, int], dict[str, Subscription]]
) -> None:
    partitions, members = group
    assignment = strategy.assign(partitions, members)
    dealt = Counter(place for places in assignment.values() for place in places)
    assert set(dealt) == wanted_places(partitions, members)
    assert set(dealt.values()) <= {1}
    assert all(p.topic in members[m].topics for m, places in assignment.items() for p in places)


@given(groups())
def test_nothing_is_given_to_a_member_while_another_owns_it(
    group: tuple[dict[str, int], dict[str, Subscription]],
) -> None:
    partitions, members = group
    for member, places in assign_cooperative_sticky(partitions, members).items():
        for place in places:
            rivals = [
                m
                for m, s in members.items()
                if m != member and place in s.owned and place.topic in s.topics
            ]
            mine = members[member]
            if place not in mine.owned and rivals:
                # Only where the rivals' claims contradict each other may it be given at once.
                top = max(members[m].generation for m in rivals)
                assert sum(members[m].generation == top for m in rivals) > 1


@given(topics, names)
def test_members_that_subscribe_alike_end_up_even_and_stay_as_they_are(
    partitions: dict[str, int], members: set[str]
) -> None:
    wanted = frozenset(partitions)
    group = {name: Subscription(wanted) for name in members}
    first = assign_cooperative_sticky(partitions, group)
    loads = [len(places) for places in first.values()]
    assert max(loads) - min(loads) <= 1
    again = {name: Subscription(wanted, frozenset(places), 1) for name, places in first.items()}
    assert assign_cooperative_sticky(partitions, again) == first


@given(topics, names, names)
def test_two_rounds_settle_any_change_of_membership(
    partitions: dict[str, int], before: set[str], after: set[str]
) -> None:
    wanted = frozenset(partitions)
    held = assign_sticky(partitions, {name: Subscription(wanted) for name in before})
    for generation in (1, 2):
        held = assign_cooperative_sticky(
            partitions,
            {
                name: Subscription(wanted, frozenset(held.get(name, [])), generation)
                for name in after
            },
        )
    assert sum(map(len, held.values())) == sum(partitions.values())
    loads = [len(places) for places in held.values()]
    assert max(loads) - min(loads) <= 1
