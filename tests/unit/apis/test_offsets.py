"""ListOffsets, DeleteRecords and OffsetForLeaderEpoch: what the log knows of offsets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import compress

import pytest

from kbroker.replica.conditional_append import append_copied
from kclient.wire.batches import build, parse
from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from kclient.wire.schema import delete_records, list_offsets, offset_for_leader_epoch
from tests.kit.logs import batch_of
from tests.unit.apis.kit import ApiBroker


def ask(
    broker: ApiBroker,
    *asked: tuple[int, int],
    version: int = 9,
    epoch: int = -1,
    replica_id: int = -1,
    topic: str = "t",
) -> list[Any]:
    partitions = [
        list_offsets.ListOffsetsPartition(
            partition_index=index, current_leader_epoch=epoch, timestamp=timestamp
        )
        for index, timestamp in asked
    ]
    request = list_offsets.ListOffsetsRequest(
        replica_id=replica_id,
        topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=partitions)],
    )
    found: list[Any] = broker.ask(2, version, request).topics[0].partitions
    return found


@pytest.fixture
def filled(broker: ApiBroker) -> ApiBroker:
    broker.lead("t", 1)
    for timestamps in ((1000, 2000), (9000,), (3000,)):
        broker.produce(batch_of(*timestamps))
    return broker


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [(-1, (-1, 4)), (-2, (-1, 0)), (-3, (9000, 2)), (-4, (-1, 0)), (-5, (-1, -1)), (0, (1000, 0)),
     (1500, (2000, 1)), (2001, (9000, 2)), (9001, (-1, -1))],
)  # fmt: skip
def test_offsets_are_found_by_time(
    filled: ApiBroker, timestamp: int, found: tuple[int, int]
) -> None:
    answer = ask(filled, (0, timestamp))[0]
    assert (answer.error_code, (answer.timestamp, answer.offset)) == (0, found)


@pytest.mark.parametrize("version", range(1, 10))
def test_every_version_has_both_ends(filled: ApiBroker, version: int) -> None:
    (latest,) = ask(filled, (0, -1), version=version)
    (earliest,) = ask(filled, (0, -2), version=version)
    assert (earliest.offset, latest.offset) == (0, 4)


@pytest.mark.parametrize(("timestamp", "version"), [(-9, 9), (-3, 6), (-4, 7), (-5, 8)])
def test_special_timestamps_unknown_to_the_version_are_refused(
    filled: ApiBroker, timestamp: int, version: int
) -> None:
    assert (
        ask(filled, (0, timestamp), version=version)[0].error_code == ErrorCode.UNSUPPORTED_VERSION
    )


def test_a_partition_named_twice_is_refused(filled: ApiBroker) -> None:
    assert [a.error_code for a in ask(filled, (0, -1), (0, -2))] == [ErrorCode.INVALID_REQUEST] * 2


def test_leader_epochs_are_checked(filled: ApiBroker) -> None:
    filled.lead("t", 1, leader_epoch=3)
    assert ask(filled, (0, -1), epoch=2)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(filled, (0, -1), epoch=4)[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ask(filled, (0, -1), epoch=3)[0].error_code == 0


@pytest.fixture
def ahead(broker: ApiBroker) -> ApiBroker:
    """Three records that broker 2, in the ISR, does not have."""
    be(broker, leader=1, epoch=0)
    for _ in range(3):
        broker.produce(batch_of(1000), topic="r")
    return broker


def be(broker: ApiBroker, leader: int, epoch: int) -> None:
    state = LeaderAndIsrPartitionState(0, 1, leader, epoch, [1, 2], 0, [1, 2])
    topic = LeaderAndIsrTopicState("r", None, [state])
    broker.become_leader_or_follower(LeaderAndIsrRequest(controller_epoch=1, topic_states=[topic]))


def test_only_a_consumer_is_kept_below_the_high_watermark(ahead: ApiBroker) -> None:
    ends = [ask(ahead, (0, -1), replica_id=asking, topic="r")[0] for asking in (-1, -2, 2)]
    assert [(end.error_code, end.offset) for end in ends] == [(0, 0), (0, 3), (0, 3)]
    by_time = [ask(ahead, (0, 1000), replica_id=asking, topic="r")[0] for asking in (-1, -2, 2)]
    assert [found.offset for found in by_time] == [-1, 0, 0]


def test_the_debugging_consumer_receives_a_followers_log_end(ahead: ApiBroker) -> None:
    be(ahead, leader=2, epoch=1)
    (end,) = ask(ahead, (0, -1), replica_id=-2, topic="r")
    assert (end.error_code, end.offset, end.leader_epoch) == (0, 3, 1)
    for asking in (-1, 2):
        (refused,) = ask(ahead, (0, -1), replica_id=asking, topic="r")
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    (stale,) = ask(ahead, (0, -1), replica_id=-2, epoch=0, topic="r")
    assert stale.error_code == ErrorCode.FENCED_LEADER_EPOCH


def last_offset_for_leader_epoch(
    broker: ApiBroker, topic: str, leader_epoch: int, **asking: int
) -> Any:
    """Ask OffsetForLeaderEpoch, *asking* with a current_leader_epoch and a replica_id."""
    partition = offset_for_leader_epoch.OffsetForLeaderPartition(
        partition=0,
        current_leader_epoch=asking["current_leader_epoch"],
        leader_epoch=leader_epoch,
    )
    topics = [offset_for_leader_epoch.OffsetForLeaderTopic(topic=topic, partitions=[partition])]
    request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
        replica_id=asking.get("replica_id", -1), topics=topics
    )
    return broker.ask(23, 4, request).topics[0].partitions[0]


@pytest.mark.parametrize(
    ("replica_id", "epoch", "error"),
    [
        (2, 0, ErrorCode.NONE),
        (2, 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (2, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (1, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (3, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (-1, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_s11_a_leader_that_is_cut_off_sends_its_range_to_followers_in_its_epoch(
    ahead: ApiBroker, replica_id: int, epoch: int, error: ErrorCode
) -> None:
    ahead.replica_manager.cut_off()
    (start,) = ask(ahead, (0, -2), replica_id=replica_id, epoch=epoch, topic="r")
    end = last_offset_for_leader_epoch(
        ahead, "r", 0, current_leader_epoch=epoch, replica_id=replica_id
    )
    assert (start.error_code, end.error_code) == (error, error)
    if error is ErrorCode.NONE:
        assert (start.offset, end.end_offset) == (0, 3)


def test_an_offline_replica_has_no_log_end(ahead: ApiBroker) -> None:
    ahead.replica_manager.partition("r", 0).go_offline("the disk is gone")
    (found,) = ask(ahead, (0, -1), replica_id=-2, topic="r")
    assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def delete(broker: ApiBroker, offset: int, topic: str = "t") -> Any:
    partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=offset)
    request = delete_records.DeleteRecordsRequest(
        topics=[delete_records.DeleteRecordsTopic(name=topic, partitions=[partition])]
    )
    return broker.ask(21, 2, request).topics[0].partitions[0]


@pytest.mark.parametrize(("offset", "low"), [(0, 0), (3, 3), (4, 4), (-1, 4)])
def test_records_are_deleted_up_to_an_offset(filled: ApiBroker, offset: int, low: int) -> None:
    result = delete(filled, offset)
    assert (result.error_code, result.low_watermark) == (0, low)
    assert ask(filled, (0, -2))[0].offset == low


@pytest.mark.parametrize("offset", [5, -2, 2**63 - 1])
def test_nothing_is_deleted_beyond_the_high_watermark(filled: ApiBroker, offset: int) -> None:
    result = delete(filled, offset)
    assert (result.error_code, result.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert ask(filled, (0, -2))[0].offset == 0


def test_a_topic_that_is_only_compacted_keeps_its_records(broker: ApiBroker) -> None:
    broker.topic_configs["t"] = replace(broker.config.log_defaults, cleanup_policy=("compact",))
    broker.lead("t", 1)
    assert delete(broker, -1).error_code == ErrorCode.POLICY_VIOLATION


def test_the_log_start_offset_does_not_go_back(filled: ApiBroker) -> None:
    delete(filled, 3)
    assert delete(filled, 1).low_watermark == 3


@pytest.mark.parametrize(
    ("epoch", "answer"), [(0, (0, 4)), (2, (0, 4)), (3, (3, 5)), (4, (-1, -1)), (-1, (-1, -1))]
)
def test_the_end_of_a_leader_epoch_is_in_the_response(
    filled: ApiBroker, epoch: int, answer: tuple[int, int]
) -> None:
    filled.lead("t", 1, leader_epoch=3)
    filled.produce(batch_of(1))
    found = last_offset_for_leader_epoch(filled, "t", epoch, current_leader_epoch=3)
    assert (found.error_code, (found.leader_epoch, found.end_offset)) == (0, answer)


@pytest.mark.long
def test_a_batch_that_decompresses_to_too_much_is_an_error_of_its_partition(
    broker: ApiBroker,
) -> None:
    """A mirror copies such a batch from its source; a producer's is refused."""
    broker.topic_configs["t"] = replace(
        broker.config.log_defaults, kbroker_mirror_source_cluster_id="source"
    )
    broker.lead("t", 2)
    small = parse(batch_of(1000))
    bomb = build(
        compress(bytes(64 << 20), 9, wbits=31),
        record_count=1,
        last_offset_delta=0,
        base_timestamp=small.base_timestamp,
        max_timestamp=small.max_timestamp,
        attributes=1,
    )
    for index, batch in enumerate((bomb, batch_of(1000))):
        append_copied(broker.replica_manager.partition("t", index), batch, (0, 0), 1, 1000)
    answers = ask(broker, (0, 500), (1, 500))
    assert [each.error_code for each in answers] == [ErrorCode.MESSAGE_TOO_LARGE, 0]
    assert answers[1].offset == 0
