"""Followers' fetches: they see the log to its end, and are woken by what is appended, not by what is committed."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.wire import messages
from kclient.wire.fetch import FetchPartition
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kclient.wire.versions import ApiKey
from tests.kit.logs import batch_of
from tests.unit.apis.kit import ApiBroker


@pytest.fixture
def leader(broker: ApiBroker) -> ApiBroker:
    """Broker 1 leads r-0 in epoch 0, broker 2 follows and is alive."""
    take(broker, 0)
    broker.cache.brokers[2] = broker.cache.brokers[1]
    return broker


def take(broker: ApiBroker, epoch: int, leader: int = 1) -> None:
    state = LeaderAndIsrPartitionState(0, 1, leader, epoch, [1, 2], 0, [1, 2])
    broker.become_leader_or_follower(
        LeaderAndIsrRequest(
            controller_epoch=1, topic_states=[LeaderAndIsrTopicState("r", None, [state])]
        )
    )


def follow(
    broker: ApiBroker, offset: int, epoch: int = 0, last_epoch: int = -1, start: int = -1
) -> Any:
    asked = FetchPartition(0, offset, 1 << 20, epoch, last_epoch, start)
    return broker.fetch(asked, topic="r", replica_id=2, max_wait_ms=500)


def consume(broker: ApiBroker, offset: int) -> Any:
    return broker.fetch(FetchPartition(0, offset, 1 << 20), topic="r", max_wait_ms=500)


def delete_records(broker: ApiBroker, before: int, timeout_ms: int = 5000) -> list[Any]:
    """Ask for a deletion; the result appears in the list."""
    topic = DeleteRecordsTopic("r", [DeleteRecordsPartition(0, before)])
    header = RequestHeader(ApiKey.DELETE_RECORDS, 2, 7, "c")
    request = DeleteRecordsRequest([topic], timeout_ms)
    answer = broker.ask_raw(messages.encode_request(header, request))
    results: list[Any] = []

    def decode(parts: Any) -> None:
        _, response = messages.decode_response(ApiKey.DELETE_RECORDS, 2, b"".join(parts))
        results.append(response.topics[0].partitions[0])

    answer.addCallback(decode)
    return results


@pytest.fixture
def committed(leader: ApiBroker) -> ApiBroker:
    """Broker 2 has the one record that broker 1 has; it is committed."""
    leader.produce(batch_of(1), topic="r")
    follow(leader, 1, last_epoch=0, start=0)
    leader.clock.advance(0.5)
    return leader


def test_records_are_deleted_when_every_live_replica_has_deleted_them(committed: ApiBroker) -> None:
    results = delete_records(committed, 1)
    committed.clock.advance(0.5)
    assert not results, "a successor would show the record again"
    follow(committed, 1, last_epoch=0, start=1)
    committed.clock.advance(0)
    assert (results[0].error_code, results[0].low_watermark) == (0, 1)


def test_a_replica_on_a_dead_broker_does_not_delay_a_deletion(committed: ApiBroker) -> None:
    del committed.cache.brokers[2]
    results = delete_records(committed, 1)
    assert (results[0].error_code, results[0].low_watermark) == (0, 1)


def test_a_deletion_that_a_replica_does_not_follow_in_time_is_timed_out(
    committed: ApiBroker,
) -> None:
    results = delete_records(committed, 1, timeout_ms=1000)
    committed.clock.advance(1)
    assert (results[0].error_code, results[0].low_watermark) == (7, 0)  # REQUEST_TIMED_OUT
    assert len(committed.replica_manager.purgatory.high_watermarks) == 0


def test_a_deletion_that_waits_for_a_replica_ends_with_the_leadership(
    committed: ApiBroker,
) -> None:
    results = delete_records(committed, 1)
    take(committed, 1, leader=2)
    committed.clock.advance(0)
    assert results[0].error_code == 6  # NOT_LEADER_OR_FOLLOWER


def error_of(answer: Any) -> int:
    error: int = answer.topics[0].partitions[0].error_code
    return error


def test_a_follower_is_woken_by_an_append_and_a_consumer_by_the_watermark(
    leader: ApiBroker,
) -> None:
    follower, consumer = follow(leader, 0), consume(leader, 0)
    leader.produce(batch_of(1), topic="r")
    leader.clock.advance(0)
    assert follower.result.topics[0].partitions[0].records_size
    assert not consumer.called
    again = follow(leader, 1)
    leader.clock.advance(0)
    assert consumer.result.topics[0].partitions[0].high_watermark == 1
    assert not again.called
    leader.clock.advance(0.5)
    assert again.result.topics[0].partitions[0].high_watermark == 1


def test_a_waiting_fetch_of_a_follower_ends_when_the_leader_epoch_changes(
    leader: ApiBroker,
) -> None:
    waiting = follow(leader, 0)
    take(leader, 1)
    leader.clock.advance(0)
    assert waiting.result.topics[0].partitions[0].error_code == 74  # FENCED_LEADER_EPOCH


def test_a_follower_with_a_later_epoch_gets_unknown_leader_epoch(leader: ApiBroker) -> None:
    answer = follow(leader, 0, epoch=5)
    assert answer.topics[0].partitions[0].error_code == 75  # UNKNOWN_LEADER_EPOCH


def test_nothing_waits_once_all_is_answered(leader: ApiBroker) -> None:
    follow(leader, 0)
    assert len(leader.replica_manager.purgatory.log_ends) == 1
    leader.clock.advance(0.5)
    assert len(leader.replica_manager.purgatory.log_ends) == 0


def test_s11_a_follower_that_was_silent_may_follow_a_leader_that_is_cut_off_again(
    leader: ApiBroker,
) -> None:
    leader.produce(batch_of(1), topic="r")
    follow(leader, 1, last_epoch=0)
    leader.replica_manager.cut_off()
    assert error_of(consume(leader, 0)) == 0
    leader.clock.advance(10)  # broker 2 is silent: another leader may have been elected
    assert error_of(consume(leader, 0)) == 6  # NOT_LEADER_OR_FOLLOWER
    again = follow(leader, 1, last_epoch=0)  # over a new connection, in the same epoch
    assert error_of(consume(leader, 0)) == 0
    leader.clock.advance(0.5)
    assert error_of(again.result) == 0
