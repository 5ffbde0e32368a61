"""Snapshots of the cluster: newer leader epochs win, deleted topics do not haunt."""

from __future__ import annotations

from uuid import UUID

from kclient.net.metadata import ClusterMetadata
from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode
from kclient.wire.schema.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

A = TopicPartition("t", 0)
ID, OTHER_ID = UUID(int=1), UUID(int=2)


def answer(leader: int, epoch: int, topic_id: UUID = ID, error: int = 0) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(n, f"host{n}", 9092) for n in (1, 2)],
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name="t",
                topic_id=topic_id,
                error_code=error,
                partitions=[
                    MetadataResponsePartition(
                        partition_index=0, leader_id=leader, leader_epoch=epoch
                    )
                ]
                if not error
                else [],
            )
        ],
    )


def known(leader: int = 1, epoch: int = 5) -> ClusterMetadata:
    return ClusterMetadata().updated(answer(leader, epoch), now=0.0, complete=False)


def test_a_broker_that_lags_behind_does_not_bring_the_old_leader_back() -> None:
    assert known(1, 5).updated(answer(2, 4), now=1.0, complete=False).leader(A) == 1
    assert known(1, 5).updated(answer(2, 6), now=1.0, complete=False).leader(A) == 2


def test_a_topic_created_again_starts_with_its_own_epochs() -> None:
    after = known(1, 5).updated(answer(2, 0, OTHER_ID), now=1.0, complete=False)
    assert after.leader(A) == 2
    assert after.leader_epoch(A) == 0


def test_a_partition_without_leader_has_none() -> None:
    assert known(-1, 6).leader(A) is None


def test_a_topic_that_is_gone_has_no_partitions() -> None:
    gone = known().updated(
        answer(0, 0, UUID(int=0), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)),
        now=1.0,
        complete=False,
    )
    assert gone.partitions("t") is None
    assert gone.leader(A) is None


def test_an_answer_about_all_topics_forgets_the_others() -> None:
    response = answer(1, 5)
    response.topics = []
    assert known().updated(response, now=1.0, complete=True).topics == {}
    assert "t" in known().updated(response, now=1.0, complete=False).topics


def test_the_leader_named_by_an_error_is_taken_if_it_is_newer_and_known() -> None:
    assert known(1, 5).with_leader(A, 2, 6).leader(A) == 2
    assert known(1, 5).with_leader(A, 2, 5).leader(A) == 1
    assert known(1, 5).with_leader(A, 9, 6).leader(A) == 1


def test_an_equal_answer_about_all_topics_is_not_taken_apart_again() -> None:
    same = answer(1, 5)
    first = ClusterMetadata().updated(same, now=0.0, complete=True)
    again = first.updated(same, now=9.0, complete=True)
    assert again.topics is first.topics
    assert (again.updated_at, again.version) == (9.0, first.version + 1)
    for changed in (first.with_leader(A, 2, 6), first.without(["t"])):
        after = changed.updated(same, now=9.0, complete=True)
        assert after.leader(A) == (2 if changed.topics else 1), "the newer leader, or the topic"
        assert after.updated(same, now=10.0, complete=True).topics is after.topics
