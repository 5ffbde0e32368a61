"""A mirror's append happens at the log end it expects, once, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbroker.network.service import RequestRefusedError
from kclient.wire import produce
from kclient.wire.batches import LARGEST_COPIED_OFFSET, build, iterate, parse
from kclient.wire.error_codes import ErrorCode
from kclient.wire.produce import CONDITIONAL_APPEND, ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.schema.api_versions import ApiVersionsRequest
from kclient.wire.versions import ApiKey
from tests.kit.logs import batch_of, open_log, read_bytes
from tests.kit.producer_batches import numbered_batch
from tests.unit.apis.kit import ApiBroker, joined


@pytest.fixture
def broker(broker: ApiBroker) -> ApiBroker:
    """A broker with a topic `t` that is marked as a mirror."""
    configure(broker)
    return broker


def configure(broker: ApiBroker, source: str = "source", **settings: Any) -> None:
    """Give the topic `t` these settings."""
    broker.topic_configs["t"] = replace(
        broker.config.log_defaults, kbroker_mirror_source_cluster_id=source, **settings
    )


def promote(broker: ApiBroker) -> None:
    """Remove the mark of the topic `t`, as an operator does."""
    configure(broker, source="")
    log_of(broker).config = broker.topic_configs["t"]


def mark_again(broker: ApiBroker) -> None:
    """Mark the topic `t` as a mirror."""
    configure(broker)
    log_of(broker).config = broker.topic_configs["t"]


def written_by_another(broker: ApiBroker, *timestamps: int) -> int:
    """Return the base offset of a batch that an ordinary producer wrote while the topic was no mirror."""
    promote(broker)
    outcome = broker.produce(batch_of(*timestamps))[0]
    mark_again(broker)
    return int(outcome.base_offset)


def at(base_offset: int, records: int = 2, **fields: Any) -> bytes:
    fields.setdefault("value", b"%d" % base_offset)
    return batch_of(*range(1000, 1000 + records), base_offset=base_offset, leader_epoch=7, **fields)


def append(
    broker: ApiBroker, data: bytes, expected: int, *, after: bytes = b"", acks: int = -1
) -> Any:
    """Append behind *after*, the batch that is thought to be the log's last."""
    crc = parse(after).crc if after else 0
    partition = ProducePartition(0, data, expected, crc)
    request = ProduceRequest(acks, 1000, [ProduceTopic("t", [partition])])
    answer = broker.ask_raw(b"".join(produce.encode_request(request, 11, 7, "c")))
    return produce.decode_response(joined(answer), 11)[1].topics[0].partitions[0]


def log_of(broker: ApiBroker) -> Any:
    return broker.replica_manager.partition("t", 0).log


def held(broker: ApiBroker) -> list[tuple[int, int, int]]:
    """(first offset, next offset, leader epoch) of every batch in the log."""
    log = log_of(broker)
    if log.log_start_offset == log.log_end_offset:
        return []
    data = read_bytes(log, log.log_start_offset)
    return [(info.base_offset, info.next_offset, info.leader_epoch) for info in iterate(data)]


def test_batches_keep_their_offsets_and_get_the_leaders_epoch(broker: ApiBroker) -> None:
    broker.lead("t", 1, leader_epoch=3)
    outcome = append(broker, at(0) + at(2), 0)
    assert (outcome.error_code, outcome.base_offset, outcome.log_end_offset) == (0, 0, -1)
    assert held(broker) == [(0, 2, 3), (2, 4, 3)]
    assert broker.replica_manager.partition("t", 0).high_watermark == 4
    assert log_of(broker).leader_epochs.epoch_at(1) == 3


def test_a_topic_that_is_not_marked_takes_no_conditional_append(broker: ApiBroker) -> None:
    configure(broker, source="")
    broker.lead("t", 1)
    outcome = append(broker, at(0), 0)
    assert (outcome.error_code, outcome.base_offset) == (ErrorCode.POLICY_VIOLATION, -1)
    assert "kbroker.mirror.source.cluster.id" in outcome.error_message
    assert held(broker) == []
    assert broker.produce(batch_of(5))[0].error_code == 0


def test_the_same_append_again_is_refused_with_the_log_end(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    append(broker, at(0), 0)
    outcome = append(broker, at(0), 0)
    assert outcome.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (outcome.base_offset, outcome.log_end_offset) == (-1, 2)
    assert held(broker) == [(0, 2, 0)]


def test_what_comes_behind_a_lost_append_is_refused(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    outcome = append(broker, at(2), 2, after=at(0))
    assert (outcome.base_offset, outcome.log_end_offset) == (-1, 0)
    assert held(broker) == []


def test_what_comes_behind_another_batch_than_expected_is_refused(broker: ApiBroker) -> None:
    """Else another client's record could silently take the place of one that was refused."""
    broker.lead("t", 1)
    append(broker, at(0), 0)
    assert written_by_another(broker, 5, 6) == 2
    outcome = append(broker, at(4), 4, after=at(2))
    assert outcome.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (outcome.base_offset, outcome.log_end_offset) == (-1, 4)
    assert append(broker, at(4), 4, after=batch_of(5, 6)).error_code == 0
    assert append(broker, at(6), 6, after=batch_of(5, 6)).log_end_offset == 6
    assert append(broker, at(6), 6, after=at(4)).error_code == 0


def test_the_batch_before_is_found_in_an_older_segment_too(broker: ApiBroker) -> None:
    configure(broker, segment_bytes=100)
    broker.lead("t", 1)
    append(broker, at(0), 0)
    log_of(broker).roll(0)
    broker.replica_manager.partition("t", 0).last_copied = (-1, -1, 0)  # as after a restart
    assert append(broker, at(2), 2, after=at(4)).log_end_offset == 2
    assert append(broker, at(2), 2, after=at(0)).error_code == 0


def test_a_gap_is_taken_when_it_is_declared(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    append(broker, at(0), 0)
    assert append(broker, at(100) + at(200), 2, after=at(0)).error_code == 0
    assert held(broker) == [(0, 2, 0), (100, 102, 0), (200, 202, 0)]


def test_a_gap_at_the_beginning_is_no_other_log_start(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    outcome = append(broker, at(900), 0)
    assert (outcome.error_code, outcome.log_start_offset) == (0, 0)
    assert held(broker) == [(900, 902, 0)]


def test_only_an_empty_log_begins_elsewhere(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    assert append(broker, at(10), 8, after=at(6)).log_end_offset == 0, "something was lost before"
    append(broker, at(0), 0)
    assert append(broker, at(10), 10).log_end_offset == 2
    assert held(broker) == [(0, 2, 0)]


def test_an_empty_log_begins_where_the_source_does(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    outcome = append(broker, at(5_000_000_000), 5_000_000_000)
    assert (outcome.error_code, outcome.log_start_offset) == (0, 5_000_000_000)
    assert append(broker, at(5_000_000_002), 5_000_000_002, after=at(5_000_000_000)).error_code == 0
    log = log_of(broker)
    assert (log.log_start_offset, log.log_end_offset) == (5_000_000_000, 5_000_000_004)
    log.flush()
    again = open_log(Path(log.directory))
    assert (again.log_start_offset, again.log_end_offset) == (5_000_000_000, 5_000_000_004)
    again.close(clean=False)


@pytest.mark.parametrize("gap", [2**31 - 3, 2**31 + 5, 2**40, LARGEST_COPIED_OFFSET - 1])
def test_a_gap_of_any_size_is_no_hole_after_a_crash(broker: ApiBroker, gap: int) -> None:
    broker.lead("t", 1)
    append(broker, at(0), 0)
    assert append(broker, at(gap), 2, after=at(0)).error_code == 0
    assert written_by_another(broker, 5) == gap + 2
    log = log_of(broker)
    log.flush()
    again = open_log(Path(log.directory))
    assert (again.log_start_offset, again.log_end_offset) == (0, gap + 3)
    for each in (log, again):
        reads = [read_bytes(each, offset) for offset in (0, 2, gap + 2)]
        assert {info.base_offset for read in reads for info in iterate(read)} == {0, gap, gap + 2}
    again.close(clean=False)


def test_a_lost_end_before_a_gap_is_a_hole(broker: ApiBroker) -> None:
    """A power loss took what was not synced: the gap does not excuse it."""
    broker.lead("t", 1)
    append(broker, at(0) + at(2), 0)
    append(broker, at(2**40), 4, after=at(2))
    log = log_of(broker)
    first = Path(log.segments[0].path)
    log.flush()
    with first.open("r+b") as file:
        file.truncate(len(at(0)))
    again = open_log(Path(log.directory))
    assert (again.log_start_offset, again.log_end_offset) == (0, 2)
    again.close(clean=False)


def test_the_largest_offset_leaves_room_for_the_next_append(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    last = LARGEST_COPIED_OFFSET - 1
    assert append(broker, at(last), last).error_code == 0
    assert append(broker, at(last + 2), last + 2, after=at(last)).error_code == 87
    assert written_by_another(broker, 5) == LARGEST_COPIED_OFFSET + 1
    log = log_of(broker)
    log.flush()
    again = open_log(Path(log.directory))
    assert again.log_end_offset == LARGEST_COPIED_OFFSET + 2
    again.close(clean=False)


@pytest.mark.parametrize("expected", [LARGEST_COPIED_OFFSET, 2**63 - 2, 2**63 - 1])
def test_an_offset_that_leaves_no_room_is_refused(broker: ApiBroker, expected: int) -> None:
    broker.lead("t", 1)
    outcome = append(broker, at(expected), expected)
    assert (outcome.error_code, outcome.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    append(broker, at(0), 0)
    assert append(broker, at(expected), 2, after=at(0)).error_code == ErrorCode.INVALID_RECORD
    assert append(broker, at(2), 2, after=at(0)).error_code == 0
    assert held(broker) == [(0, 2, 0), (2, 4, 0)]


@pytest.mark.parametrize("count", [-1, 3, 2**31 - 1, -(2**31)])
def test_a_record_count_that_its_offsets_do_not_hold_is_refused(
    broker: ApiBroker, count: int
) -> None:
    broker.lead("t", 1)
    records = build(
        b"records",
        record_count=count,
        last_offset_delta=1,
        base_timestamp=0,
        max_timestamp=0,
    )
    assert append(broker, records, 0).error_code == ErrorCode.INVALID_RECORD
    assert held(broker) == []


def test_an_ordinary_append_behind_the_largest_offset_there_is_is_refused(
    broker: ApiBroker,
) -> None:
    configure(broker, source="")
    broker.lead("t", 1)
    log = log_of(broker)
    log.truncate_fully_and_start_at(2**63 - 2)
    assert broker.produce(batch_of(5))[0].base_offset == 2**63 - 2
    outcome = broker.produce(batch_of(5))[0]
    assert (outcome.error_code, outcome.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert log.log_end_offset == 2**63 - 1


def test_one_bad_batch_refuses_all(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    corrupt = bytearray(at(0) + at(2))
    corrupt[-1] ^= 1
    outcome = append(broker, bytes(corrupt), 0)
    assert outcome.error_code == ErrorCode.CORRUPT_MESSAGE
    assert outcome.log_end_offset == -1, "it is no matter of where the log ends"
    assert held(broker) == []
    assert append(broker, at(0), 0).error_code == 0


def test_batches_go_over_as_many_segments_as_they_need(broker: ApiBroker) -> None:
    configure(broker, segment_bytes=200)
    broker.lead("t", 1)
    data = b"".join(at(2 * n) for n in range(20))
    assert append(broker, data, 0).error_code == 0
    log = log_of(broker)
    assert len(log.segments) > 5
    assert log.log_end_offset == 40
    large = append(broker, at(40, value=b"x" * 300), 40, after=at(38))
    assert large.error_code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 40


def test_old_timestamps_are_taken_as_they_are(broker: ApiBroker) -> None:
    configure(broker, message_timestamp_before_max_ms=1)
    broker.lead("t", 1)
    assert append(broker, at(0), 0).error_code == 0


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_ordinary_appends_follow_on_after_the_promotion(broker: ApiBroker, acks: int) -> None:
    broker.lead("t", 1)
    append(broker, at(0), 0)
    promote(broker)
    broker.produce(batch_of(1000), acks=acks)
    assert held(broker) == [(0, 2, 0), (2, 3, 0)]


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [3, 7, 8, 11])
def test_a_mirror_is_read_only_for_ordinary_producers(
    broker: ApiBroker, acks: int, version: int
) -> None:
    """POLICY_VIOLATION: clients do not retry it, and show its message (docs/design/mirror-mark.md)."""
    broker.lead("t", 1)
    append(broker, at(0), 0)
    for batch in (batch_of(5), numbered_batch(9, 0)):
        outcome = broker.produce(batch, acks=acks, version=version)[0]
        assert (outcome.error_code, outcome.base_offset) == (ErrorCode.POLICY_VIOLATION, -1)
        if version >= 8:
            assert "t-0 is a mirror of cluster source and read-only" in outcome.error_message
            assert "kbroker.mirror.source.cluster.id" in outcome.error_message
            assert "kmirror promote makes it writable" in outcome.error_message
            assert "kmirror promote --abort" in outcome.error_message, "the mark may be a fence"
    assert held(broker) == [(0, 2, 0)]
    assert append(broker, at(2), 2, after=at(0)).error_code == 0


def test_a_mirror_closes_the_connection_of_a_producer_that_waits_for_no_answer(
    broker: ApiBroker,
) -> None:
    broker.lead("t", 1)
    with pytest.raises(RequestRefusedError, match="t-0 failed: POLICY_VIOLATION"):
        broker.produce(batch_of(5), acks=0)
    assert held(broker) == []


def test_a_mirror_that_was_promoted_takes_ordinary_appends_and_none_of_the_mirror(
    broker: ApiBroker,
) -> None:
    broker.lead("t", 1)
    append(broker, at(0), 0)
    promote(broker)
    assert broker.produce(batch_of(5))[0].base_offset == 2
    refused = append(broker, at(3), 3, after=batch_of(5))
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert "kbroker.mirror.source.cluster.id, which kmirror sets" in refused.error_message
    configure(broker, source="", kbroker_mirror_source_topic_id="source topic")
    log_of(broker).config = broker.topic_configs["t"]
    refused = append(broker, at(3), 3, after=batch_of(5))
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert (
        "kmirror promote of the flow from this cluster makes it a mirror again"
        in refused.error_message
    )


def test_a_broker_advertises_conditional_appends(broker: ApiBroker) -> None:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    features = broker.ask(ApiKey.API_VERSIONS, 3, request).supported_features
    assert [(f.name, f.min_version, f.max_version) for f in features] == [
        (CONDITIONAL_APPEND, 1, 1)
    ]
