"""Fetch: what is read, how much, when the response is sent, and which requests are refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

import pytest

from kbroker.log.slices import FileSlice
from kbroker.network.service import Peer
from kclient.wire import fetch
from kclient.wire.batches import iterate
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartition
from kclient.wire.interbroker import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from tests.kit.logs import batch_of
from tests.kit.one_broker import CLUSTER
from tests.unit.apis.kit import ApiBroker

BATCH = len(batch_of(1000))


def want(
    partition: int = 0, offset: int = 0, max_bytes: int = 1 << 20, **more: Any
) -> FetchPartition:
    return FetchPartition(partition, offset, max_bytes, **more)


def offsets(partition: Any) -> list[int]:
    return [info.base_offset for info in iterate(partition.record_set)]


def only(response: Any) -> Any:
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(4, 13))
def test_committed_batches_are_read_by_name(broker: ApiBroker, version: int) -> None:
    broker.fill(3)
    found = only(broker.fetch(want(offset=1), version=version))
    assert (offsets(found), found.high_watermark, found.last_stable_offset) == ([1, 2], 3, 3)


@pytest.mark.parametrize("version", [13, 15, 16])
def test_and_by_topic_id(broker: ApiBroker, version: int) -> None:
    broker.fill(2)
    found = only(broker.fetch(want(), version=version, topic_id=uuid5(CLUSTER, "t")))
    assert offsets(found) == [0, 1]


def test_an_unknown_topic_id_is_an_error_of_its_own(broker: ApiBroker) -> None:
    found = only(broker.fetch(want(), version=13, topic_id=UUID(int=9), max_wait_ms=1000))
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (want(offset=4), ErrorCode.OFFSET_OUT_OF_RANGE),
        (want(offset=-5), ErrorCode.OFFSET_OUT_OF_RANGE),
        (want(offset=2**63 - 1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (want(partition=9), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (want(partition=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (want(current_leader_epoch=1), ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_errors_do_not_wait(broker: ApiBroker, asked: FetchPartition, error: ErrorCode) -> None:
    broker.fill(3)
    response = broker.fetch(asked, want(offset=3), max_wait_ms=5000)
    assert only(response).error_code == error
    assert response.topics[0].partitions[1].error_code == 0


def test_a_consumer_with_an_older_leader_epoch_is_fenced(broker: ApiBroker) -> None:
    broker.fill(1)
    broker.lead("t", 1, leader_epoch=4)
    assert (
        only(broker.fetch(want(current_leader_epoch=3))).error_code == ErrorCode.FENCED_LEADER_EPOCH
    )
    assert only(broker.fetch(want(current_leader_epoch=4))).error_code == 0


def test_one_batch_comes_even_if_it_is_larger_than_allowed(broker: ApiBroker) -> None:
    broker.fill(3, 3)
    response = broker.fetch(want(max_bytes=1), want(partition=1, max_bytes=1))
    first, second = response.topics[0].partitions
    assert offsets(first) == [0]
    assert second.records_size == 0


def test_max_bytes_bounds_the_whole_response(broker: ApiBroker) -> None:
    broker.fill(10, 10)
    response = broker.fetch(want(), want(partition=1), max_bytes=12 * BATCH)
    first, second = response.topics[0].partitions
    assert (len(offsets(first)), len(offsets(second))) == (10, 2)


@pytest.mark.parametrize("limit", [-1, 0, -(2**31)])
def test_negative_limits_are_taken_for_nothing(broker: ApiBroker, limit: int) -> None:
    broker.fill(3)
    found = only(broker.fetch(want(max_bytes=limit), max_bytes=limit, min_bytes=limit))
    assert len(offsets(found)) <= 1


def test_a_long_poll_is_woken_by_an_append(broker: ApiBroker) -> None:
    broker.fill(2)
    waiting = broker.fetch(want(offset=2), max_wait_ms=5000)
    assert not waiting.called
    broker.produce(batch_of(1))
    assert not waiting.called, "the producer is answered first"
    broker.clock.advance(0)
    assert offsets(only(waiting.result)) == [2]
    assert not broker.clock.getDelayedCalls()


def test_a_long_poll_waits_for_min_bytes(broker: ApiBroker) -> None:
    broker.fill(0)
    waiting = broker.fetch(want(), max_wait_ms=5000, min_bytes=3 * BATCH)
    for expected in (False, False, True):
        broker.produce(batch_of(1))
        broker.clock.advance(0)
        assert waiting.called is expected


def test_a_long_poll_ends_empty_when_its_time_is_over(broker: ApiBroker) -> None:
    broker.fill(2)
    waiting = broker.fetch(want(offset=2), max_wait_ms=500)
    broker.clock.advance(0.4)
    assert not waiting.called
    broker.clock.advance(0.2)
    assert only(waiting.result).records_size == 0
    assert only(waiting.result).high_watermark == 2
    assert len(broker.replica_manager.purgatory) == 0


def test_a_long_poll_that_is_cancelled_leaves_nothing(broker: ApiBroker) -> None:
    broker.fill(0)
    waiting = broker.fetch(want(), max_wait_ms=5000)
    waiting.addErrback(lambda _: None)
    waiting.cancel()
    assert len(broker.replica_manager.purgatory) == 0
    assert not broker.clock.getDelayedCalls()


def test_a_long_poll_ends_when_the_topic_is_deleted(broker: ApiBroker) -> None:
    broker.fill(0)
    waiting = broker.fetch(want(), max_wait_ms=5000)
    stop = StopReplicaTopicState("t", [StopReplicaPartitionState(0, -2, True)])
    broker.stop_replicas(StopReplicaRequest(controller_epoch=1, topic_states=[stop]))
    broker.clock.advance(0)
    assert only(waiting.result).error_code != 0


def test_records_travel_as_file_slices(broker: ApiBroker) -> None:
    broker.fill(3)
    request = fetch.FetchRequest(0, 1, [fetch.FetchTopic("t", [want()])])
    answer = broker.ask_raw(fetch.encode_request(request, 12, 7, "c"))
    assert [type(part) for part in answer if isinstance(part, FileSlice)] == [FileSlice]


@pytest.mark.parametrize(("session_id", "session_epoch"), [(7, 1), (0, 1), (7, 5), (0, -9)])
def test_a_session_that_does_not_exist_is_not_found(
    broker: ApiBroker, session_id: int, session_epoch: int
) -> None:
    response = broker.fetch(session_id=session_id, session_epoch=session_epoch)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("replica", [1, 2, 99])
@pytest.mark.parametrize("proved", [-1, 1, 3])
def test_a_replica_id_that_the_connection_did_not_prove_is_refused(
    broker: ApiBroker, replica: int, proved: int
) -> None:
    broker.fill(1)
    peer = Peer("10.0.0.1", 1, "PLAINTEXT", broker_id=proved)
    refused = broker.fetch(want(), replica_id=replica, peer=peer, version=12)
    assert (refused.error_code, refused.topics) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    found = only(broker.fetch(want(), replica_id=replica, peer=peer, version=6))
    assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert found.records_size == 0


def test_read_committed_has_no_aborted_transactions(broker: ApiBroker) -> None:
    broker.fill(1)
    assert only(broker.fetch(want(), isolation_level=1)).aborted_transactions == []
    assert only(broker.fetch(want(), isolation_level=0)).aborted_transactions is None


def test_a_diverging_epoch_is_in_the_response(broker: ApiBroker) -> None:
    broker.fill(2)
    broker.lead("t", 1, leader_epoch=4)
    broker.produce(batch_of(1))
    found = only(broker.fetch(want(offset=3, last_fetched_epoch=2), max_wait_ms=5000))
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, 2)
    assert only(broker.fetch(want(offset=2, last_fetched_epoch=0))).diverging_epoch is None
