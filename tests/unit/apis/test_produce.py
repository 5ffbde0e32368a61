"""Produce: what is appended, what is refused, and when it is answered."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.log.log_validator import BRIEF_BYTES
from kbroker.network.service import RequestRefusedError
from kclient.wire import batches
from kclient.wire.compression import MAX_DECOMPRESSED
from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from kclient.wire.records import Record, encode_batch
from tests.kit.log_managers import Pool
from tests.kit.log_timestamps import max_timestamp
from tests.kit.logs import batch_of
from tests.kit.record_batches import NOW_MS, rebuilt, some_records
from tests.unit.apis.kit import ApiBroker, broker_in


def code(outcome: Any) -> ErrorCode:
    assert outcome.error_code == 0 or outcome.base_offset == -1, "S45: no offset with an error"
    return ErrorCode(outcome.error_code)


@pytest.mark.parametrize("version", range(3, 12))
def test_batches_get_the_next_offsets(broker: ApiBroker, version: int) -> None:
    broker.lead("t", 2)
    broker.produce(batch_of(1, 2, 3), version=version)
    first, second = broker.produce(batch_of(1), batch_of(1), version=version)
    assert (first.base_offset, second.base_offset) == (3, 0)
    assert (first.error_code, first.log_append_time_ms) == (0, -1)


def test_each_partition_fails_alone(broker: ApiBroker) -> None:
    broker.lead("t", 2)
    corrupt = bytearray(batch_of(1))
    corrupt[-1] ^= 1
    outcomes = broker.produce(bytes(corrupt), batch_of(1), batch_of(1))
    assert [code(outcome) for outcome in outcomes] == [
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_no_records_are_refused(broker: ApiBroker) -> None:
    broker.lead("t", 2)
    assert all(code(outcome) is not ErrorCode.NONE for outcome in broker.produce(None, b""))


@pytest.mark.parametrize("acks", [2, -2, 7])
def test_other_acks_than_none_one_and_all_do_not_exist(broker: ApiBroker, acks: int) -> None:
    broker.lead("t", 1)
    assert code(broker.produce(batch_of(1), acks=acks)[0]) is ErrorCode.INVALID_REQUIRED_ACKS
    assert broker.replica_manager.partition("t", 0).high_watermark == 0


def test_a_batch_above_max_message_bytes_is_refused(broker: ApiBroker) -> None:
    broker.topic_configs["t"] = replace(broker.config.log_defaults, max_message_bytes=100)
    broker.lead("t", 1)
    large = batch_of(1, value=b"x" * 200)
    assert code(broker.produce(large)[0]) is ErrorCode.MESSAGE_TOO_LARGE


def test_log_append_time_is_in_the_response(broker: ApiBroker) -> None:
    broker.topic_configs["t"] = replace(
        broker.config.log_defaults, message_timestamp_type="LogAppendTime"
    )
    broker.lead("t", 1)
    assert broker.produce(batch_of(1))[0].log_append_time_ms > 1_700_000_000_000


@pytest.mark.parametrize(
    "bound", ["message_timestamp_before_max_ms", "message_timestamp_after_max_ms"]
)
def test_timestamps_out_of_bounds_are_refused(broker: ApiBroker, bound: str) -> None:
    broker.topic_configs["t"] = replace(broker.config.log_defaults, **{bound: 1000})
    broker.lead("t", 1)
    now = broker.replica_manager.now_ms()
    stamped = now - 60_000 if "before" in bound else now + 60_000
    assert code(broker.produce(batch_of(stamped))[0]) is ErrorCode.INVALID_TIMESTAMP
    assert code(broker.produce(batch_of(now))[0]) is ErrorCode.NONE


def test_internal_topics_are_not_written_by_clients(broker: ApiBroker) -> None:
    broker.lead("__consumer_offsets", 1)
    outcome = broker.produce(batch_of(1), topic="__consumer_offsets")[0]
    assert code(outcome) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_acks_none_gets_no_answer(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    assert broker.produce(batch_of(1), acks=0) is None
    assert broker.replica_manager.partition("t", 0).high_watermark == 1


def test_an_error_under_acks_none_closes_the_connection(broker: ApiBroker) -> None:
    with pytest.raises(RequestRefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        broker.produce(batch_of(1), acks=0)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_message_formats_close_the_connection(broker: ApiBroker, version: int) -> None:
    with pytest.raises(RequestRefusedError, match="message format"):
        broker.ask_raw(
            bytes([0, 0, 0, version, 0, 0, 0, 7, 255, 255, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0])
        )


def lead_with_follower(
    broker: ApiBroker, min_insync_replicas: int = 1, isr: tuple[int, ...] = (1, 2)
) -> None:
    broker.topic_configs["r"] = replace(
        broker.config.log_defaults, min_insync_replicas=min_insync_replicas
    )
    state = LeaderAndIsrPartitionState(0, 1, 1, 0, list(isr), 0, [1, 2])
    broker.become_leader_or_follower(
        LeaderAndIsrRequest(
            controller_epoch=1, topic_states=[LeaderAndIsrTopicState("r", None, [state])]
        )
    )


def test_acks_all_waits_for_the_followers(broker: ApiBroker) -> None:
    lead_with_follower(broker)
    waiting = broker.produce(batch_of(1, 2), topic="r", acks=-1)
    assert not waiting.called
    partition = broker.replica_manager.partition("r", 0)
    partition.read_as_follower(2, 2, 100, min_one_batch=True, current_leader_epoch=0)
    broker.clock.advance(0)
    assert waiting.result[0].base_offset == 0
    assert not broker.clock.getDelayedCalls()


def test_acks_all_times_out(broker: ApiBroker) -> None:
    lead_with_follower(broker)
    waiting = broker.produce(batch_of(1), topic="r", acks=-1, timeout_ms=500)
    broker.clock.advance(0.6)
    assert code(waiting.result[0]) is ErrorCode.REQUEST_TIMED_OUT
    assert len(broker.replica_manager.purgatory) == 0


def test_acks_all_ends_when_leadership_goes(broker: ApiBroker) -> None:
    lead_with_follower(broker)
    waiting = broker.produce(batch_of(1), topic="r", acks=-1)
    state = LeaderAndIsrPartitionState(0, 1, 2, 1, [1, 2], 0, [1, 2])
    broker.become_leader_or_follower(
        LeaderAndIsrRequest(
            controller_epoch=1, topic_states=[LeaderAndIsrTopicState("r", None, [state])]
        )
    )
    broker.clock.advance(0)
    assert code(waiting.result[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_acks_all_is_refused_under_min_insync_replicas(broker: ApiBroker) -> None:
    lead_with_follower(broker, min_insync_replicas=2, isr=(1,))
    assert code(broker.produce(batch_of(1), topic="r", acks=-1)[0]) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert code(broker.produce(batch_of(1), topic="r", acks=1)[0]) is ErrorCode.NONE


def test_a_client_that_goes_while_it_waits_leaves_nothing(broker: ApiBroker) -> None:
    lead_with_follower(broker)
    waiting = broker.produce(batch_of(1), topic="r", acks=-1)
    waiting.addErrback(lambda _: None)
    waiting.cancel()
    assert len(broker.replica_manager.purgatory) == 0
    assert not broker.clock.getDelayedCalls()


def test_a_failed_disk_is_a_storage_error_for_this_and_all_that_follow(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    log = broker.replica_manager.partition("t", 0).log
    assert log is not None

    class Full:
        def __getattr__(self, name: str) -> Any:
            if name == "pwritev":
                raise OSError(errno.ENOSPC, "no space left")
            return getattr(kept, name)

    kept, log._disk = log._disk, Full()
    assert code(broker.produce(batch_of(1))[0]) is ErrorCode.KAFKA_STORAGE_ERROR
    assert code(broker.produce(batch_of(1))[0]) is ErrorCode.KAFKA_STORAGE_ERROR
    assert "no space left" in broker.fatal[0]


@pytest.mark.parametrize("version", [8, 9])
def test_the_error_for_the_longest_topic_name_fits_its_response(
    broker: ApiBroker, version: int
) -> None:
    (found,) = broker.produce(batch_of(1), topic="x" * 32_767, version=version)
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(found.error_message) <= 1024


def test_a_bad_record_is_refused_with_its_index_and_the_partition_stays_readable(
    broker: ApiBroker,
) -> None:
    broker.topic_configs["t"] = replace(broker.config.log_defaults, cleanup_policy=("compact",))
    broker.lead("t", 1)
    keyed = encode_batch([Record(0, 1000, b"k", b"v", ())])
    mixed = encode_batch([Record(n, 1000, None if n else b"k", b"v", ()) for n in range(3)])
    assert code(broker.produce(keyed)[0]) is ErrorCode.NONE
    refused = broker.produce(mixed)[0]
    assert code(refused) is ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [1, 2]
    assert "t-0" in refused.error_message
    assert "no key" in refused.record_errors[0].message
    assert code(broker.produce(mixed, version=7)[0]) is ErrorCode.INVALID_RECORD  # KIP-467 is v8
    assert code(broker.produce(keyed)[0]) is ErrorCode.NONE
    assert broker.replica_manager.partition("t", 0).log.log_end_offset == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("codec", range(5))
def test_records_that_no_consumer_could_read_are_refused(broker: ApiBroker, codec: int) -> None:
    broker.lead("t", 1)
    batch = encode_batch(some_records(3), codec=codec)
    for broken in (
        rebuilt(batch, record_count=2, last_offset_delta=1),
        rebuilt(batch[:-3] + b"\xff\xff\xff", length=len(batch) - 12),
    ):
        assert code(broker.produce(broken)[0]) is ErrorCode.INVALID_RECORD
    assert broker.replica_manager.partition("t", 0).log.log_end_offset == 0  # type: ignore[union-attr]


def test_the_max_timestamp_of_a_batch_is_that_of_its_records(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    batch = encode_batch(some_records(3))
    broker.produce(rebuilt(batch, max_timestamp=1 << 50))
    log = broker.replica_manager.partition("t", 0).log
    assert log is not None
    found = max_timestamp(log)
    assert found is not None
    assert found.timestamp == NOW_MS + 2


def test_zstd_needs_version_7_as_its_clients_know(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    batch = encode_batch(some_records(3), codec=4)
    assert code(broker.produce(batch, version=6)[0]) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert code(broker.produce(batch, version=7)[0]) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("transactional_id", "error"),
    [
        (None, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("x", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_transactional_records_without_a_transaction_are_refused(
    broker: ApiBroker, transactional_id: str | None, error: ErrorCode
) -> None:
    broker.lead("t", 1)
    batch = encode_batch(
        some_records(1),
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        attributes=batches.TRANSACTIONAL,
    )
    assert code(broker.produce(batch, transactional_id=transactional_id)[0]) is error
    assert broker.replica_manager.partition("t", 0).log.log_end_offset == 0  # type: ignore[union-attr]


def test_a_long_batch_is_checked_in_the_pool_and_then_appended(tmp_path: Path) -> None:
    with broker_in(tmp_path, pool=Pool(holds=True)) as broker:
        pool = broker.disk_pool
        assert isinstance(pool, Pool)
        broker.lead("t", 2)
        pool.run()
        records = [Record(n, NOW_MS, b"k", bytes(BRIEF_BYTES // 2), ()) for n in range(3)]
        bomb = encode_batch([Record(0, NOW_MS, b"k", bytes(MAX_DECOMPRESSED), ())], codec=4)
        log = broker.replica_manager.partition("t", 0).log
        assert log is not None
        first, second = (
            broker.produce(batch, batch_of(1)) for batch in (encode_batch(records, codec=4), bomb)
        )
        assert (log.log_end_offset, len(pool.waiting)) == (0, 1), "one validation at a time"
        pool.run()
        assert log.log_end_offset == 3
        assert [code(each) for each in after_turns(broker, first)] == [ErrorCode.NONE] * 2
        pool.run()
        assert [code(each) for each in after_turns(broker, second)] == [
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.NONE,
        ]
        assert log.log_end_offset == 3


def after_turns(broker: ApiBroker, answer: Any) -> Any:
    """Return what *answer* fires with once the clock has been turned."""
    assert isinstance(answer, Deferred)
    for _ in range(10):
        broker.clock.advance(0)
    return answer.result
