"""Throttled replication at the leader (KIP-73): a follower that catches up waits for the rate; one in sync does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kclient.wire.fetch import FetchPartition
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from tests.kit.logs import batch_of
from tests.unit.apis.kit import ApiBroker

RATE = 100


def lead(broker: ApiBroker, *listed: str, isr: tuple[int, ...] = (1,)) -> None:
    """Have broker 1 lead r-0 and r-1, with 690 bytes in each; brokers 2 and 3 are replicas, too."""
    config = replace(broker.config.log_defaults, leader_replication_throttled_replicas=listed)
    broker.topic_configs["r"] = config
    states = [LeaderAndIsrPartitionState(p, 1, 1, 0, list(isr), 0, [1, 2, 3]) for p in (0, 1)]
    broker.become_leader_or_follower(
        LeaderAndIsrRequest(
            controller_epoch=1, topic_states=[LeaderAndIsrTopicState("r", None, states)]
        )
    )
    for broker_id in (2, 3):
        broker.cache.brokers[broker_id] = broker.cache.brokers[1]
    for index in (0, 1):
        for _ in range(10):
            broker.replica_manager.partition("r", index).append(batch_of(1000), 1, 1000)
    broker.replica_manager.quotas.limit(leader=RATE, follower=RATE)


def sizes(broker: ApiBroker, *offsets: int, replica: int = 2, **fields: Any) -> list[int]:
    """Follow r-0, r-1, ... from *offsets* on; the bytes of records of each."""
    asked = [FetchPartition(p, offset, 1 << 20, 0) for p, offset in enumerate(offsets)]
    answer = broker.fetch(*asked, topic="r", replica_id=replica, **fields)
    return [each.records_size for each in answer.topics[0].partitions]


@pytest.fixture
def named(broker: ApiBroker) -> ApiBroker:
    """Partition 0 of r is throttled on its leader, broker 1."""
    lead(broker, "0:1", "1:2")
    return broker


def test_a_follower_that_catches_up_gets_nothing_until_the_rate_is_below_the_limit(
    named: ApiBroker,
) -> None:
    first = sizes(named, 0)[0]
    assert first > 5 * RATE
    assert sizes(named, 5) == [0]
    named.clock.advance(first / RATE - 0.1)
    assert sizes(named, 5) == [0]
    named.clock.advance(0.2)
    assert sizes(named, 5)[0] > 0


def test_partitions_that_are_not_named_go_on(named: ApiBroker) -> None:
    sizes(named, 0)
    held, free = sizes(named, 5, 5)
    assert (held, free > 0) == (0, True)


def test_followers_in_sync_are_counted_and_never_held_back(broker: ApiBroker) -> None:
    lead(broker, "*", isr=(1, 2))
    assert sizes(broker, 0)[0] > 0
    assert sizes(broker, 5)[0] > 0
    assert sizes(broker, 5, replica=3) == [0]


def test_consumers_are_nobodys_followers(named: ApiBroker) -> None:
    sizes(named, 0)
    named.replica_manager.partition("r", 0).leader_state.high_watermark = 10  # type: ignore[union-attr]
    answer = named.fetch(FetchPartition(0, 5, 1 << 20), topic="r")
    assert answer.topics[0].partitions[0].records_size > 0


def test_a_fetch_that_waited_is_answered_when_the_rate_allows_it(named: ApiBroker) -> None:
    first = sizes(named, 0)[0]
    asked = FetchPartition(0, 5, 1 << 20, 0)
    waiting = named.fetch(asked, topic="r", replica_id=2, max_wait_ms=500)
    named.clock.advance(0.5)
    assert waiting.result.topics[0].partitions[0].records_size == 0
    named.clock.advance(first / RATE)
    assert sizes(named, 5)[0] > 0


def test_another_rate_counts_at_once(named: ApiBroker) -> None:
    sizes(named, 0)
    named.replica_manager.quotas.limit(leader=10**9, follower=RATE)
    assert sizes(named, 5)[0] > 0
