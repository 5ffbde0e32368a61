"""DescribeProducers: what a log knows of producers and their open transactions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.apis.api61_describe_producers import DescribeProducers
from kbroker.replica.conditional_append import append_copied
from kclient.wire import messages
from kclient.wire.error_codes import ErrorCode
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.describe_producers import DescribeProducersRequest, TopicRequest
from kclient.wire.versions import ApiKey
from tests.kit.producer_batches import numbered_batch
from tests.kit.transactional_logs import marker, transactional
from tests.unit.apis.kit import ApiBroker, broker_in, joined


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ApiBroker]:
    with broker_in(tmp_path) as broker:
        api = ApiKey.DESCRIBE_PRODUCERS
        broker.serve(api, lambda: DescribeProducers(broker.replica_manager))
        yield broker


def describe(broker: ApiBroker, *partitions: int, topic: str = "t") -> list[Any]:
    request = DescribeProducersRequest([TopicRequest(topic, list(partitions))])
    header = RequestHeader(ApiKey.DESCRIBE_PRODUCERS, 0, 7, "c")
    answer = broker.ask_raw(messages.encode_request(header, request))
    assert isinstance(answer, Deferred)
    parts: list[Any] = []
    answer.addCallback(parts.append)
    broker.clock.pump([0.1] * 50)
    _, response = messages.decode_response(ApiKey.DESCRIBE_PRODUCERS, 0, joined(parts[0]))
    (found,) = response.topics
    assert found.name == topic
    return list(found.partitions)


def rows(partition: Any) -> list[tuple[int, ...]]:
    return [
        (p.producer_id, p.producer_epoch, p.last_sequence, p.coordinator_epoch, p.current_txn_start_offset)
        for p in partition.active_producers
    ]  # fmt: skip


def test_the_producers_of_each_partition_are_described(broker: ApiBroker) -> None:
    broker.lead("t", 2)
    before = broker.now_ms()
    broker.produce(numbered_batch(7, 0, 3), numbered_batch(8, 40, epoch=2))
    broker.produce(numbered_batch(7, 3))
    first, second = describe(broker, 0, 1)
    assert (first.partition_index, first.error_code, rows(first)) == (0, 0, [(7, 0, 3, -1, -1)])
    assert (second.partition_index, rows(second)) == (1, [(8, 2, 40, -1, -1)])
    assert before <= first.active_producers[0].last_timestamp <= broker.now_ms()


def test_open_transactions_are_described_copied_ones_too(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    log = broker.replica_manager.partition("t", 0).log
    assert log is not None
    data = transactional(7, epoch=1) + transactional(8, base_offset=1)
    data += marker(7, base_offset=2, epoch=1, coordinator_epoch=4)
    log.append_as_follower(data, 0)
    assert rows(describe(broker, 0)[0]) == [(7, 1, 0, 4, -1), (8, 0, 0, -1, 1)]
    broker.topic_configs["m"] = replace(
        broker.config.log_defaults, kbroker_mirror_source_cluster_id="source"
    )
    broker.lead("m", 1)
    append_copied(broker.replica_manager.partition("m", 0), transactional(9, epoch=5), (0, 0), 1, 1)
    assert rows(describe(broker, 0, topic="m")[0]) == [(9, 5, -1, -1, 0)]


def test_many_producers_are_all_described(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    log = broker.replica_manager.partition("t", 0).log
    assert log is not None
    for producer_id in range(2500):
        log.append_as_follower(numbered_batch(producer_id, 0, base_offset=producer_id), 0)
    assert [row[0] for row in rows(describe(broker, 0)[0])] == list(range(2500))


def test_each_partition_has_its_error(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    broker.produce(numbered_batch(7, 0))
    found = describe(broker, 0, 5, 0)
    assert [each.error_code for each in found] == [
        0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST,
    ]  # fmt: skip
    assert "twice" in found[2].error_message
    assert found[2].active_producers == []
