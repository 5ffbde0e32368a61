"""DeleteRecords: one request per leader, all at the same time; a partition has its own result."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.admin.records import delete_records
from kclient.config import CommonConfig
from kclient.errors import KafkaError, KafkaTimeoutError
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema import delete_records as messages
from kclient.wire.versions import ApiKey
from tests.kit.scripted_cluster import PendingRequest, ScriptedCluster

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


class Deleting:
    """A deletion below 5 of two partitions, with leaders of their own."""

    def __init__(self) -> None:
        self.scripted = ScriptedCluster({"t": 2}, brokers=2)
        cluster = self.scripted.cluster(CommonConfig.load({"bootstrap.servers": "a:1"}))
        self.results: list[Any] = []
        running = Deferred.fromCoroutine(delete_records(cluster, {ZERO: 5, ONE: 5}, timeout=3.0))
        running.addBoth(self.results.append)
        self.scripted.turn()

    def waiting(self) -> dict[int, PendingRequest]:
        return {asked.message.topics[0].partitions[0].partition_index: asked
                for asked in self.scripted.waiting(ApiKey.DELETE_RECORDS)}  # fmt: skip

    def answer(self, partition: int, error: ErrorCode = ErrorCode.NONE) -> None:
        result = messages.DeleteRecordsPartitionResult(
            partition_index=partition, low_watermark=5, error_code=int(error)
        )
        topic = messages.DeleteRecordsTopicResult(name="t", partitions=[result])
        self.waiting()[partition].answer(messages.DeleteRecordsResponse(topics=[topic]))


@pytest.fixture
def deleting() -> Deleting:
    return Deleting()


def test_every_leader_gets_its_request_at_the_same_time(deleting: Deleting) -> None:
    assert sorted(deleting.waiting()) == [0, 1]
    deleting.answer(1)
    deleting.answer(0)
    assert deleting.results == [{ZERO: 5, ONE: 5}]


def test_an_error_of_one_partition_leaves_the_result_of_the_other(deleting: Deleting) -> None:
    deleting.answer(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    deleting.answer(1)
    (results,) = deleting.results
    assert isinstance(results[ZERO], KafkaError)
    assert results[ONE] == 5


def test_a_lost_connection_to_one_leader_repeats_only_its_partitions(deleting: Deleting) -> None:
    deleting.waiting()[0].fail()
    deleting.answer(1)
    deleting.scripted.pass_time(1.0)
    assert list(deleting.waiting()) == [0]
    deleting.answer(0)
    assert deleting.results == [{ZERO: 5, ONE: 5}]


def test_a_partition_without_an_answer_in_time_has_the_error_as_its_result(
    deleting: Deleting,
) -> None:
    deleting.answer(1)
    deleting.answer(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for _ in range(50):
        deleting.scripted.pass_time(0.1)
        if 0 in deleting.waiting():
            deleting.answer(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    (results,) = deleting.results
    assert results[ZERO].code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert results[ONE] == 5


def test_a_leader_that_does_not_answer_hides_no_result_of_another(deleting: Deleting) -> None:
    """The records are gone: an error would state that they are not."""
    deleting.answer(1)
    deleting.scripted.pass_time(5.0)
    (results,) = deleting.results
    assert isinstance(results[ZERO], KafkaTimeoutError)
    assert results[ONE] == 5
