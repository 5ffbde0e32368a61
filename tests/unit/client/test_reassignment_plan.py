"""Kafka's reassignment files, what is refused before anything is written, and what a throttle needs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.admin.reassignment_plan import (
    Copied,
    PlanError,
    Progress,
    Reassignment,
    check_plan,
    copied_of,
    plan_as_json,
    progress_of,
    propose,
    read_log_dirs,
    read_plan,
    read_topics,
    throttles_of,
)
from kclient.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def plan_of(*partitions: dict[str, Any], **more: Any) -> str:
    return json.dumps({"version": 1, "partitions": partitions, **more})


def entry(
    topic: Any = "t", partition: Any = 0, replicas: Any = (1, 2), **more: Any
) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "replicas": replicas, **more}


def test_a_plan_is_written_as_kafka_writes_it():
    assert plan_as_json({T1: (2, 3), T0: (1, 2)}) == (
        '{"version":1,"partitions":['
        '{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","any"]},'
        '{"topic":"t","partition":1,"replicas":[2,3],"log_dirs":["any","any"]}]}'
    )


@given(
    st.dictionaries(
        st.tuples(st.text(min_size=1, max_size=20), st.integers(0, 99)),
        st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_written_is_read_again(content):
    plan = {TopicPartition(*tp): tuple(replicas) for tp, replicas in content.items()}
    assert read_plan(plan_as_json(plan)) == plan


def test_what_may_be_left_out_is():
    assert read_plan('{"partitions":[{"topic":"t","partition":0,"replicas":[1]}]}') == {T0: (1,)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "invalid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "partitions is missing"),
        ('{"partitions":[]}', "no partitions to reassign"),
        ('{"partitions":{}}', "partitions: expected a list"),
        ('{"partitions":[3]}', r"partitions\[0\]: expected an object"),
        (plan_of(entry(), version=2), "version 2"),
        (plan_of(entry(), version="1"), "version '1'"),
        (plan_of(entry(replicas=[])), "the replica list of t-0 is empty"),
        (plan_of(entry(replicas=[1, "2"])), r'partitions\[0\].replicas\[1\]: expected a number, found a string: "2"'),
        (plan_of(entry(replicas=[1, True])), r"replicas\[1\]: expected a number, found something else: true"),
        (plan_of(entry(replicas="1,2")), "replicas: expected a list"),
        (plan_of(entry(partition="0")), "partition: expected a number"),
        (plan_of(entry(partition=1.0)), "partition: expected a number"),
        (plan_of(entry(topic=7)), "topic: expected a string"),
        (plan_of({"topic": "t", "partition": 0}), "replicas is missing"),
        (plan_of(entry(replicas=[1, 2, 1])), "the replicas of t-0: 1 more than once"),
        (plan_of(entry(), entry(replicas=[3])), "partitions: t-0 more than once"),
        (plan_of(entry(log_dirs=["any"])), "2 replicas, but 1 log"),
        (plan_of(entry(log_dirs=["any", "data"])), "'data' of t-0 is neither an absolute path nor"),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_refused_by_place(text, words):
    with pytest.raises(PlanError, match=words):
        read_plan(text)


def test_log_directories_are_read_by_broker():
    text = plan_of(
        entry(log_dirs=["/a", "any"]), entry(partition=1, log_dirs=["/b", "/c"]), entry("u")
    )
    assert read_plan(text).keys() == {T0, T1, TopicPartition("u", 0)}
    assert read_log_dirs(text) == {1: {T0: "/a", T1: "/b"}, 2: {T1: "/c"}}


def test_topics_to_move_are_read():
    assert read_topics('{"version":1,"topics":[{"topic":"a"},{"topic":"b"}]}') == ["a", "b"]
    for text, words in {
        '{"topics":[]}': "no topics",
        '{"topics":["a"]}': "expected an object",
        '{"topics":[{"topic":"a"},{"topic":"a"}]}': "a more than once",
    }.items():
        with pytest.raises(PlanError, match=words):
            read_topics(text)


def test_unknown_partitions_and_brokers_are_refused():
    check_plan({T0: (1, 2)}, {T0: (3,)}, {1, 2, 3})
    with pytest.raises(PlanError, match="no partition t-1"):
        check_plan({T1: (1,)}, {T0: (1,)}, {1})
    with pytest.raises(PlanError, match="no live broker 8, 9; the live brokers are 1"):
        check_plan({T0: (1, 9, 8)}, {T0: (1,)}, {1})


def test_a_proposal_spreads_each_topic_with_as_many_replicas_as_it_has():
    current = {TopicPartition("a", n): (1, 2) for n in range(6)} | {TopicPartition("b", 0): (1,)}
    racks = {1: "x", 2: "x", 3: "y"}
    proposed = propose(current, [1, 2, 3], racks, start_index=1)
    assert proposed.keys() == current.keys()
    assert {tp: len(replicas) for tp, replicas in proposed.items()} == {
        tp: len(replicas) for tp, replicas in current.items()
    }
    for tp, replicas in proposed.items():
        if tp.topic == "a":
            assert len({racks[n] for n in replicas}) == 2
    wider = propose(current, [1, 2, 3], {}, start_index=0, replication_factor=3)
    assert {len(replicas) for replicas in wider.values()} == {3}


def test_a_throttle_names_sources_as_leaders_and_what_is_added_as_followers():
    current = {T0: (1, 2), T1: (2, 3)}
    found = throttles_of({T0: (2, 4), T1: (3, 2)}, current, {})
    assert found.topics == {
        "t": {
            "leader.replication.throttled.replicas": "0:1,0:2,1:2,1:3",
            "follower.replication.throttled.replicas": "0:4",
        }
    }
    assert found.brokers == {1, 2, 3, 4}


def test_a_throttle_keeps_what_is_under_way():
    other = TopicPartition("other", 5)
    found = throttles_of(
        {T0: (3,)},
        {T0: (1, 2, 4)},
        {other: Reassignment((7, 8), (8,), (7,)), T0: Reassignment((1, 2, 4), (2,), (4,))},
    )
    assert found.topics["other"] == {
        "leader.replication.throttled.replicas": "5:7",
        "follower.replication.throttled.replicas": "5:8",
    }
    assert found.topics["t"] == {
        "leader.replication.throttled.replicas": "0:1,0:4",
        "follower.replication.throttled.replicas": "0:3",
    }


def test_progress_has_the_lines_of_kafkas_tool():
    states = progress_of(
        {T0: (1, 2), T1: (2, 3), TopicPartition("t", 2): (3,)},
        {T0: (1, 2), T1: (2, 3, 1), TopicPartition("t", 2): (1,)},
        {T1: Reassignment((2, 3, 1), (3,), (1,))},
    )
    assert [str(state) for state in states] == [
        "Reassignment of partition t-0 is completed.",
        "Reassignment of partition t-1 is still in progress.",
        "There is no active reassignment of partition t-2, but replica set is 1 rather than 3.",
    ]
    assert [state.is_done for state in states] == [True, False, False]
    assert not Progress(T0, (1,), (), False).is_done, "a topic that is gone"


def test_copied_bytes_are_compared_with_the_largest_complete_replica():
    moving = Reassignment((1, 2, 3, 4), (3, 4), (1,))
    assert copied_of(moving, {1: 1000, 2: 900, 3: 250, 4: 1200}) == Copied(1250, 2000)
    assert copied_of(moving, {3: 250}) == Copied(0, 0), "no broker with a complete replica answered"
