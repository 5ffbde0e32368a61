"""Offsets, epochs, counts and timestamps at the ends of their types: each has Kafka's error, and none a traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import globalLogPublisher

from kclient.wire.batches import build
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartition
from kclient.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.schema.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kclient.wire.versions import ApiKey
from tests.kit.logs import open_log
from tests.unit.apis.kit import ApiBroker

LONGS = (-(2**63), -(2**31) - 1, -6, -3, -2, -1, 0, 1, 5, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
INTS = (-(2**31), -3, -2, -1, 0, 1, 2**31 - 1)
SHORTS = (-(2**15), -2, -1, 0, 1, 2**15 - 1)
E = ErrorCode


@pytest.fixture
def broker(broker: ApiBroker) -> Iterator[ApiBroker]:
    """A broker that leads t-0 with three records in leader epoch 0, and logs no failure meanwhile."""
    failures: list[Any] = []

    def observe(event: dict[str, Any]) -> None:
        if "log_failure" in event:
            failures.append(event["log_failure"])

    globalLogPublisher.addObserver(observe)
    broker.fill(3)
    try:
        yield broker
    finally:
        globalLogPublisher.removeObserver(observe)
    assert not failures


def codes(answers: Iterator[int]) -> set[ErrorCode]:
    return {ErrorCode(answer) for answer in answers}


def fetched(broker: ApiBroker, *wanted: int, **fields: Any) -> int:
    answer = broker.fetch(FetchPartition(0, *wanted), **fields)
    return answer.error_code or answer.topics[0].partitions[0].error_code


def test_fetch(broker: ApiBroker) -> None:
    for offset, epoch, last_epoch in product(LONGS, INTS, INTS):
        error = fetched(broker, offset, 1 << 20, epoch, last_epoch)
        if epoch not in (-1, 0):
            assert error in (E.FENCED_LEADER_EPOCH, E.UNKNOWN_LEADER_EPOCH), (offset, epoch)
        elif last_epoch < 0:
            inside = 0 <= offset <= 3
            assert error == (E.NONE if inside else E.OFFSET_OUT_OF_RANGE), (offset, epoch)
        else:
            assert error in (E.NONE, E.OFFSET_OUT_OF_RANGE), (offset, epoch, last_epoch)
    for size in INTS:
        assert fetched(broker, 0, size) == E.NONE
        assert fetched(broker, 0, 100, max_bytes=size) == E.NONE
        assert fetched(broker, 0, 100, min_bytes=size) == E.NONE


def test_list_offsets(broker: ApiBroker) -> None:
    def ask(timestamp: int, epoch: int, replica: int) -> int:
        asked = ListOffsetsPartition(0, epoch, timestamp)
        request = ListOffsetsRequest(replica, 0, [ListOffsetsTopic("t", [asked])])
        answer = broker.ask(ApiKey.LIST_OFFSETS, 9, request).topics[0].partitions[0]
        assert -1 <= answer.offset <= 3
        error: int = answer.error_code
        return error

    for timestamp, replica in product(LONGS, (-(2**31), -3, -2, -1)):
        known = timestamp >= -5
        assert ask(timestamp, -1, replica) == (E.NONE if known else E.UNSUPPORTED_VERSION)
    assert codes(ask(-1, epoch, -1) for epoch in INTS) == {
        E.NONE,
        E.FENCED_LEADER_EPOCH,
        E.UNKNOWN_LEADER_EPOCH,
    }


def test_offset_for_leader_epoch(broker: ApiBroker) -> None:
    for current, epoch in product(INTS, INTS):
        asked = OffsetForLeaderPartition(0, current, epoch)
        request = OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("t", [asked])])
        response = broker.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
        answer = response.topics[0].partitions[0]
        if current not in (-1, 0):
            assert answer.error_code in (E.FENCED_LEADER_EPOCH, E.UNKNOWN_LEADER_EPOCH)
        else:
            found = (answer.error_code, answer.leader_epoch, answer.end_offset)
            assert found == ((0, 0, 3) if epoch == 0 else (0, -1, -1)), (current, epoch)


def test_delete_records(broker: ApiBroker) -> None:
    for offset in LONGS:
        asked = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, offset)])
        for timeout in INTS:
            request = DeleteRecordsRequest([asked], timeout)
            answer = broker.ask(ApiKey.DELETE_RECORDS, 2, request).topics[0].partitions[0]
            inside = -1 <= offset <= 3
            assert answer.error_code == (E.NONE if inside else E.OFFSET_OUT_OF_RANGE), offset


RECORD = b"\x0c\0\0\0\1\1\0"
"""A record without key and value."""


def batch(**fields: int) -> bytes:
    """Return a batch of one record with some fields of its header otherwise."""
    header = {
        "record_count": 1, "last_offset_delta": 0, "base_timestamp": 1000, "max_timestamp": 1000
    }  # fmt: skip
    return build(RECORD, **{**header, **fields})


def test_timestamps_of_a_batch(broker: ApiBroker) -> None:
    """Kafka takes any CreateTime while message.timestamp.before.max.ms and .after.max.ms are Long.MAX_VALUE.

    The max timestamp of the header does not matter: the records have others.
    """
    for base, largest in product(LONGS, LONGS):
        error = broker.produce(batch(base_timestamp=base, max_timestamp=largest))[0].error_code
        assert error == E.NONE
    log = broker.replica_manager.partition("t", 0).log
    assert log is not None
    log.flush()
    again = open_log(Path(log.directory))
    assert again.log_end_offset == log.log_end_offset
    again.close(clean=False)


def test_a_record_without_a_timestamp_is_not_too_old(broker: ApiBroker) -> None:
    broker.topic_configs["u"] = replace(
        broker.config.log_defaults, message_timestamp_before_max_ms=1000
    )
    broker.lead("u", 1)
    none = batch(base_timestamp=-1, max_timestamp=-1)
    assert broker.produce(none, topic="u")[0].error_code == E.NONE
    old = batch(base_timestamp=0, max_timestamp=0)
    assert broker.produce(old, topic="u")[0].error_code == E.INVALID_TIMESTAMP


@pytest.mark.parametrize(
    ("make", "accepted"),
    [
        (lambda n: batch(record_count=n), {1}),
        (lambda n: batch(last_offset_delta=n), {0}),
        (lambda n: batch(record_count=n, last_offset_delta=n), set()),
        (lambda n: batch(base_offset=n), {0}),
        (lambda n: batch(leader_epoch=n), set(INTS)),
        (lambda n: batch(producer_id=7, producer_epoch=0, base_sequence=n), {0, 1, 2**31 - 1}),
    ],
)
def test_counts_sequences_and_offsets_of_a_batch(
    broker: ApiBroker, make: Callable[[int], bytes], accepted: set[int]
) -> None:
    for number in INTS:
        before = broker.replica_manager.partition("t", 0).high_watermark
        outcome = broker.produce(make(number))[0]
        if number in accepted:
            assert outcome.error_code in (E.NONE, E.OUT_OF_ORDER_SEQUENCE_NUMBER), number
        else:
            assert (outcome.error_code, outcome.base_offset) == (E.INVALID_RECORD, -1), number
            assert broker.replica_manager.partition("t", 0).high_watermark == before


def test_producer_ids_and_epochs_of_a_batch(broker: ApiBroker) -> None:
    for producer, epoch in product(LONGS, SHORTS):
        made = batch(producer_id=producer, producer_epoch=epoch, base_sequence=0)
        error = broker.produce(made)[0].error_code
        if producer < -1 or (producer >= 0 and epoch < 0):
            assert error == E.INVALID_RECORD, (producer, epoch)
        else:
            assert error == E.NONE, (producer, epoch)
