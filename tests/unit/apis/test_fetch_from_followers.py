"""Consumers that read from followers (KIP-392): the replica that a leader names, the records that a follower sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbroker.replica import follower_log
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartition, FetchPartitionResponse
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from tests.kit.logs import batch_of
from tests.unit.apis.kit import ApiBroker, broker_in

SELECTOR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


@pytest.fixture
def near(tmp_path: Path) -> Iterator[ApiBroker]:
    """Broker 1 in the east, with a selector; brokers 2 in the west and 3 in the east are alive."""
    with broker_in(tmp_path / "near", SELECTOR) as broker:
        known = broker.cache.brokers
        for broker_id, rack in ((2, "west"), (3, "east"), (1, "east")):
            known[broker_id] = replace(known[1], broker_id=broker_id, rack=rack)
        yield broker


def take(broker: ApiBroker, leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1, 2)) -> None:
    state = LeaderAndIsrPartitionState(0, 1, leader, epoch, list(isr), 0, sorted({1, 2, *isr}))
    broker.become_leader_or_follower(
        LeaderAndIsrRequest(
            controller_epoch=1, topic_states=[LeaderAndIsrTopicState("r", None, [state])]
        )
    )


def consume(broker: ApiBroker, offset: int, rack: str = "west", **more: Any) -> Any:
    asked = FetchPartition(0, offset, 1 << 20, more.pop("epoch", -1))
    return broker.fetch(asked, topic="r", rack_id=rack, **more)


def follow(broker: ApiBroker, offset: int, start: int = 0, **session: int) -> Any:
    asked = FetchPartition(0, offset, 1 << 20, 0, log_start_offset=start)
    return broker.fetch(asked, topic="r", **{"replica_id": 2, "session_epoch": -1, **session})


def only(answer: Any) -> Any:
    return answer.topics[0].partitions[0]


def led(broker: ApiBroker, records: int = 3) -> None:
    """Broker 1 leads; broker 2 has all, and broker 1 knows."""
    take(broker)
    for _ in range(records):
        broker.produce(batch_of(1000), topic="r")
    follow(broker, records)


# --- at the leader


def test_the_leader_names_the_follower_in_the_consumers_rack(near: ApiBroker) -> None:
    led(near)
    found = only(consume(near, 1, max_wait_ms=5000))
    assert (found.preferred_read_replica, found.records_size, found.error_code) == (2, 0, 0)
    assert (found.high_watermark, found.log_start_offset) == (3, 0)


@pytest.mark.parametrize("rack", ["", "east", "mars"])
def test_a_leader_serves_all_other_consumers_itself(near: ApiBroker, rack: str) -> None:
    led(near)
    found = only(consume(near, 1, rack))
    assert found.preferred_read_replica == -1
    assert found.records_size > 0


def test_old_consumers_and_brokers_without_a_selector_know_nothing_of_it(
    near: ApiBroker, broker: ApiBroker
) -> None:
    led(near)
    assert only(consume(near, 0, version=10)).records_size > 0
    led(broker)
    assert only(consume(broker, 0)).records_size > 0


def test_a_follower_that_lacks_the_offset_or_is_out_of_sync_is_not_named(near: ApiBroker) -> None:
    led(near)
    near.produce(batch_of(1000), topic="r")
    assert only(consume(near, 3)).preferred_read_replica == 2
    assert only(consume(near, 4)).preferred_read_replica == -1
    follow(near, 4, start=2)
    assert only(consume(near, 1)).preferred_read_replica == -1
    assert only(consume(near, 2)).preferred_read_replica == 2
    take(near, epoch=1, isr=(1,))
    assert only(consume(near, 2)).preferred_read_replica == -1


def test_a_follower_that_is_not_alive_is_not_named(near: ApiBroker) -> None:
    led(near)
    del near.cache.brokers[2]
    assert only(consume(near, 1)).records_size > 0


def test_what_the_leader_would_refuse_it_refuses(near: ApiBroker) -> None:
    led(near)
    assert only(consume(near, 9)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert only(consume(near, 1, epoch=7)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_consumer_that_waits_is_sent_on_when_the_follower_is_in_sync(near: ApiBroker) -> None:
    led(near)
    take(near, epoch=1, isr=(1,))
    waiting = consume(near, 3, max_wait_ms=5000)
    take(near, epoch=2, isr=(1, 2))
    near.clock.advance(0)
    assert only(waiting.result).preferred_read_replica == 2


# --- at a follower


@pytest.fixture
def follower(near: ApiBroker) -> ApiBroker:
    """Broker 1 follows broker 2 in epoch 1: it has three records, of which two are committed."""
    led(near)
    take(near, leader=2, epoch=1)
    partition = near.replica_manager.partition("r", 0)
    assert partition.follower_state is not None
    partition.follower_state.high_watermark = 2
    return near


def advance(broker: ApiBroker, high_watermark: int) -> None:
    """Have the follower receive *high_watermark* from its leader."""
    partition = broker.replica_manager.partition("r", 0)
    answer = FetchPartitionResponse(0, high_watermark=high_watermark, log_start_offset=0)
    follower_log.process_partition_data(partition, answer, 0)


def test_a_follower_hands_out_what_it_knows_to_be_committed(follower: ApiBroker) -> None:
    found = only(consume(follower, 0))
    assert (found.high_watermark, found.preferred_read_replica) == (2, -1)
    assert found.records_size == 2 * len(batch_of(1000))


def test_above_the_high_watermark_a_consumer_waits_until_it_advances(follower: ApiBroker) -> None:
    waiting, beyond = consume(follower, 2, max_wait_ms=5000), consume(follower, 3, max_wait_ms=900)
    follower.clock.advance(0)
    assert not waiting.called
    advance(follower, 3)
    follower.clock.advance(0)
    assert only(waiting.result).records_size == len(batch_of(1000))
    follower.clock.advance(1)
    assert (only(beyond.result).error_code, only(beyond.result).records_size) == (0, 0)


def test_what_is_not_in_its_log_is_out_of_range(follower: ApiBroker) -> None:
    assert only(consume(follower, 4)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    log = follower.replica_manager.partition("r", 0).log
    assert log is not None
    log.advance_log_start(1)
    assert only(consume(follower, 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_follower_answers_in_its_epoch_only(follower: ApiBroker) -> None:
    assert only(consume(follower, 0, epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert only(consume(follower, 0, epoch=2)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert only(consume(follower, 0, epoch=1)).error_code == 0


@pytest.mark.parametrize(("rack", "version"), [("", 12), ("west", 10)])
def test_a_consumer_without_a_rack_is_sent_to_the_leader(
    follower: ApiBroker, rack: str, version: int
) -> None:
    found = only(consume(follower, 0, rack, version=version))
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_tool_that_compares_replicas_reads_what_is_committed_from_each(
    follower: ApiBroker,
) -> None:
    found = only(consume(follower, 0, "", replica_id=-2))
    assert (found.error_code, found.high_watermark) == (0, 2)
    assert found.records_size == 2 * len(batch_of(1000))
    ordinary = only(consume(follower, 0, ""))
    assert ordinary.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- when followers receive the high watermark


def test_followers_receive_a_new_high_watermark_at_once_where_consumers_read_there(
    near: ApiBroker,
) -> None:
    led(near, 1)
    opened = follow(near, 1, session_epoch=0)
    assert opened.session_id
    near.produce(batch_of(1000), topic="r")
    known = {"session_id": opened.session_id, "max_wait_ms": 5000}
    fetched = follow(near, 1, session_epoch=1, **known)
    assert (only(fetched).records_size > 0, only(fetched).high_watermark) == (True, 1)
    response = follow(near, 2, session_epoch=2, **known)
    assert (only(response).records_size, only(response).high_watermark) == (0, 2)
    idle = near.fetch(topic="r", replica_id=2, topics=[], session_epoch=3, **known)
    near.clock.advance(0)
    assert not idle.called


def test_a_follower_that_waits_is_woken_when_the_last_of_the_others_has_it_too(
    near: ApiBroker,
) -> None:
    take(near, isr=(1, 2, 3))
    near.produce(batch_of(1000), topic="r")
    opened = follow(near, 0, session_epoch=0)
    assert only(opened).records_size > 0
    waiting = follow(near, 1, session_id=opened.session_id, session_epoch=1, max_wait_ms=5000)
    near.clock.advance(0)
    assert not waiting.called
    follow(near, 1, replica_id=3)
    near.clock.advance(0)
    assert (only(waiting.result).records_size, only(waiting.result).high_watermark) == (0, 1)
