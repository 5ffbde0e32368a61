"""Produce and the batches of idempotent producers: one copy, the first answer again, refusals (S12)."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.unified_log import UnifiedLog
from kclient.wire import produce
from kclient.wire.batches import iterate
from kclient.wire.error_codes import ErrorCode
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from tests.kit.logs import FaultyDisk, batch_of
from tests.kit.producer_batches import numbered_batch
from tests.unit.apis.kit import ApiBroker, broker_in, joined


def log_of(broker: ApiBroker) -> UnifiedLog:
    log = broker.replica_manager.log_manager.get("t", 0)
    assert log is not None
    return log


def held(broker: ApiBroker) -> list[tuple[int, int]]:
    """Base offset and sequence of every batch in the log."""
    log = log_of(broker)
    found = b"".join(part.read() for part in log.read(log.log_start_offset, 1 << 20).slices)
    return [(info.base_offset, info.base_sequence) for info in iterate(found)]


def send(broker: ApiBroker, sequence: int, count: int = 1, **fields: Any) -> tuple[int, int]:
    outcome = broker.produce(numbered_batch(9, sequence, count, **fields))[0]
    return outcome.error_code, outcome.base_offset


@pytest.mark.parametrize("acks", [1, -1])
def test_a_batch_that_is_sent_again_is_there_once_and_answered_as_before(
    broker: ApiBroker, acks: int
) -> None:
    broker.lead("t", 1)
    sent = [numbered_batch(9, 3 * n, 3) for n in range(5)]
    first = [broker.produce(batch, acks=acks)[0] for batch in sent]
    again = [broker.produce(batch, acks=acks)[0] for batch in sent]
    assert again == first
    assert held(broker) == [(3 * n, 3 * n) for n in range(5)]


def test_the_first_answer_has_the_leaders_clock_and_the_second_the_same(broker: ApiBroker) -> None:
    broker.topic_configs["t"] = replace(
        broker.config.log_defaults, message_timestamp_type="LogAppendTime"
    )
    broker.lead("t", 1)
    first = broker.produce(numbered_batch(9, 0))[0]
    assert first.log_append_time_ms > 0
    broker.wall_clock = lambda: 99.0
    assert broker.produce(numbered_batch(9, 0))[0] == first
    assert broker.produce(numbered_batch(9, 1))[0].log_append_time_ms == 99_000


def test_a_gap_and_an_old_epoch_are_refused_and_nothing_is_written(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    assert send(broker, 0) == (0, 0)
    assert send(broker, 2) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(broker, 0, epoch=1) == (0, 1)
    assert send(broker, 1) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert send(broker, 5, epoch=2) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert held(broker) == [(0, 0), (1, 0)]


def test_an_append_that_fails_is_not_remembered(tmp_path: Path) -> None:
    """KAFKA-6683: else the batch sent again would be taken for one that is there."""
    disk = FaultyDisk()
    with broker_in(tmp_path / "log") as broker:
        broker.lead("t", 1)
        assert send(broker, 0) == (0, 0)
        log = log_of(broker)
        log._disk = disk
        disk.fail("pwritev", errno.ENOSPC)
        assert send(broker, 1)[0] == ErrorCode.KAFKA_STORAGE_ERROR
        assert log.producers.states.entries[9].last_sequence == 0


def test_five_in_flight_the_second_answer_lost(broker: ApiBroker) -> None:
    """The client sends the second to fifth again, and goes on."""
    broker.lead("t", 1)
    assert [send(broker, n) for n in range(5)] == [(0, n) for n in range(5)]
    assert [send(broker, n) for n in range(1, 5)] == [(0, n) for n in range(1, 5)]
    assert send(broker, 5) == (0, 5)
    assert held(broker) == [(n, n) for n in range(6)]


def lead_mirror(broker: ApiBroker, **named: Any) -> None:
    """Lead the topic `t`, which is marked as a mirror."""
    broker.topic_configs["t"] = replace(
        broker.config.log_defaults, kbroker_mirror_source_cluster_id="source"
    )
    broker.lead("t", 1, **named)


def write(broker: ApiBroker, sequence: int) -> tuple[int, int]:
    """Write to the topic `t` while it is no mirror."""
    log, marked = log_of(broker), log_of(broker).config
    log.config = replace(marked, kbroker_mirror_source_cluster_id="")
    outcome = send(broker, sequence, value=b"ours")
    log.config = marked
    return outcome


def copy(broker: ApiBroker, data: bytes, end: int, after: bytes = b"") -> int:
    crc = next(iterate(after)).crc if after else 0
    request = ProduceRequest(1, 1000, [ProduceTopic("t", [ProducePartition(0, data, end, crc)])])
    answer = broker.ask_raw(b"".join(produce.encode_request(request, 11, 7, "c")))
    outcome = produce.decode_response(joined(answer), 11)[1].topics[0].partitions[0]
    return int(outcome.error_code)


def test_a_producer_is_not_taken_for_one_of_another_cluster(tmp_path: Path) -> None:
    """redpanda#31659: its first records would be acknowledged and thrown away."""
    copied = [numbered_batch(9, n, base_offset=n, leader_epoch=4) for n in range(3)]
    with broker_in(tmp_path / "log") as broker:
        lead_mirror(broker)
        assert copy(broker, b"".join(copied), 0) == 0
        assert len(log_of(broker).producers.states) == 0
        assert write(broker, 0) == (0, 3)
        assert write(broker, 0) == (0, 3)
        ours = numbered_batch(9, 0, value=b"ours")
        assert copy(broker, numbered_batch(9, 3, base_offset=4), 4, after=ours) == 0
        assert write(broker, 1) == (0, 5)
        assert write(broker, 1) == (0, 5)
        assert log_of(broker).producers.copied.ranges == ((0, 3), (4, 5))


@pytest.mark.parametrize("clean", [True, False], ids=["shut down", "killed"])
def test_nor_after_a_restart(tmp_path: Path, clean: bool) -> None:
    copied = [numbered_batch(9, n, base_offset=n) for n in range(3)]
    with broker_in(tmp_path / "log") as broker:
        lead_mirror(broker)
        assert copy(broker, b"".join(copied), 0) == 0
        if not clean:
            broker.replica_manager.log_manager.release()
    with broker_in(tmp_path / "log") as broker:
        assert broker.replica_manager.log_manager.clean is clean
        lead_mirror(broker, leader_epoch=1)
        assert log_of(broker).log_end_offset == 3
        assert write(broker, 0) == (0, 3)
        assert write(broker, 0) == (0, 3)


@pytest.mark.parametrize("clean", [True, False], ids=["shut down", "killed"])
def test_the_last_five_are_answered_as_before_after_a_restart(tmp_path: Path, clean: bool) -> None:
    with broker_in(tmp_path / "log") as broker:
        broker.lead("t", 1)
        broker.produce(batch_of(1))
        assert [send(broker, n) for n in range(7)] == [(0, n + 1) for n in range(7)]
        log_of(broker).roll(0)
        assert send(broker, 7) == (0, 8)
        if not clean:
            broker.replica_manager.log_manager.release()
    with broker_in(tmp_path / "log") as broker:
        assert broker.replica_manager.log_manager.clean is clean
        broker.lead("t", 1, leader_epoch=1)
        for sequence in range(3, 8):
            assert send(broker, sequence) == (0, sequence + 1)
        assert send(broker, 9) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert send(broker, 8) == (0, 9)


def test_an_idle_producer_is_forgotten_and_may_go_on(tmp_path: Path) -> None:
    with broker_in(tmp_path / "log", {"producer.id.expiration.ms": "50000"}) as broker:
        broker.wall_clock = broker.clock.seconds
        broker.lead("t", 1)
        broker.replica_manager.log_schedule.start()
        assert send(broker, 0) == (0, 0)
        broker.clock.advance(600)
        assert len(log_of(broker).producers.states) == 0
        assert send(broker, 7) == (0, 1)
        longer = replace(broker.config, producer_id_expiration_ms=700_000)
        broker.replica_manager.log_schedule.reconfigure(longer)
        broker.clock.advance(600)
        assert len(log_of(broker).producers.states) == 1
        broker.clock.advance(600)
        assert len(log_of(broker).producers.states) == 0
        broker.replica_manager.log_schedule.stop()
