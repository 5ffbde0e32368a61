"""A kmirror that was paused sends its append after a newer one has taken over: the target's leader rejects it."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from kbroker.log.unified_log import UnifiedLog
from kclient.errors import ConnectionClosed
from kclient.types import TopicPartition
from kclient.wire import produce
from kclient.wire.batches import parse
from kclient.wire.error_codes import ErrorCode
from kclient.wire.produce import ProducePartitionResponse, ProduceRequest
from kclient.wire.uuids import encode_uuid
from mirrormaker import target
from mirrormaker.lineage import Lineage
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import Append, LastBatch, LinkState, LogEnds
from mirrormaker.runs import read_run
from tests.kit.logs import batch_of, read_bytes
from tests.unit.apis.kit import ApiBroker, joined

TP = TopicPartition("t", 0)
EARLIER, LATER = UUID(int=0xA), UUID(int=0xB)
"""Topic ids at the source: the topic was deleted and created again."""


def mark(broker: ApiBroker, source_topic_id: UUID) -> None:
    """State which topic the records of `t` are of, as kmirror does."""
    broker.topic_configs["t"] = replace(
        broker.config.log_defaults,
        kbroker_mirror_source_cluster_id="source",
        kbroker_mirror_source_topic_id=encode_uuid(source_topic_id),
    )
    log_of(broker).config = broker.topic_configs["t"]


def log_of(broker: ApiBroker) -> UnifiedLog:
    log = broker.replica_manager.partition("t", 0).log
    assert log is not None
    return log


def record(value: bytes) -> bytes:
    return batch_of(1000, base_offset=0, value=value)


class HeldConnection:
    """A connection that keeps the request: the process is paused before it is sent."""

    def __init__(self) -> None:
        self.frame = b""

    async def request(
        self, _api: int, _version: object, request: ProduceRequest, **_: object
    ) -> object:
        self.frame = b"".join(produce.encode_request(request, 11, 7, "kmirror"))
        raise ConnectionClosed("paused")


def held(append: Append) -> bytes:
    """Return the bytes of the request that kmirror sends for *append*."""
    connection = HeldConnection()
    with pytest.raises(ConnectionClosed):
        target.append(connection, [(TP, append)], timeout_ms=1000).send(None)  # type: ignore[arg-type]
    return connection.frame


def delivered(broker: ApiBroker, frame: bytes) -> ProducePartitionResponse:
    return produce.decode_response(joined(broker.ask_raw(frame)), 11)[1].topics[0].partitions[0]


def located(source_topic_id: UUID, ends: LogEnds) -> PartitionLink:
    """Return the link of a compacted topic after its prefix check."""
    text = encode_uuid(source_topic_id)
    link = PartitionLink(TP, topic_id=source_topic_id, lineage=Lineage(text, text), compacted=True)
    link.start()
    link.located(0, ends)
    assert link.state is LinkState.COPYING
    return link


def ends_of(broker: ApiBroker, source: bytes) -> LogEnds:
    """Return the log ends of a source that has the one batch *source*, and of the target."""
    log = log_of(broker)
    end = log.log_end_offset
    if not end:
        return LogEnds(0, 1, 0, 0, target_topic_id=log.topic_id)
    theirs, ours = (
        LastBatch(0, 1, parse(data).crc, 0) for data in (source, bytes(read_bytes(log, 0)))
    )
    return LogEnds(0, 1, 0, end, theirs, ours, target_topic_id=log.topic_id)


def first_append(broker: ApiBroker, source_topic_id: UUID, data: bytes) -> Append:
    """Return the first append of a mirror that found the target empty."""
    link = located(source_topic_id, ends_of(broker, data))
    run = read_run(memoryview(data), 0)
    link.fetched(link.generation, 0, run, 1)
    return link.next_append()


def test_a_paused_mirror_adds_no_record_of_an_earlier_topic_to_the_mirror_of_its_successor(
    broker: ApiBroker,
) -> None:
    """Both topics are compacted and have one record at offset 0: offsets cannot show the difference afterwards."""
    broker.lead("t", 1)
    mark(broker, EARLIER)
    old, new = record(b"of the earlier topic"), record(b"of the later topic")
    paused = held(first_append(broker, EARLIER, old))
    mark(broker, LATER)
    answer = delivered(broker, paused)
    successor = located(LATER, ends_of(broker, new))
    assert successor.fetch_offset == 0, "the successor takes the record for its own"
    assert answer.error_code == ErrorCode.POLICY_VIOLATION
    assert encode_uuid(EARLIER) in (answer.error_message or "")


def test_a_new_leader_rejects_it_too(broker: ApiBroker) -> None:
    """The topic ids are settings and files of the topic: nothing has to be remembered by a leader."""
    broker.lead("t", 1)
    mark(broker, EARLIER)
    paused = held(first_append(broker, EARLIER, record(b"of the earlier topic")))
    mark(broker, LATER)
    broker.lead("t", 1, leader_epoch=1)
    assert delivered(broker, paused).error_code == ErrorCode.POLICY_VIOLATION


def test_a_paused_mirror_adds_no_record_to_a_target_topic_that_was_created_again(
    broker: ApiBroker,
) -> None:
    """An operator deletes a mirror topic to have it copied again: the records that it had may be the reason."""
    broker.lead("t", 1)
    mark(broker, EARLIER)
    first = first_append(broker, EARLIER, record(b"of the earlier topic"))
    assert first.topics.target_id is not None
    of_deleted = replace(first, topics=first.topics._replace(target_id=UUID(int=0xC)))
    answer = delivered(broker, held(of_deleted))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert delivered(broker, held(first)).error_code == ErrorCode.NONE


def test_a_topic_that_states_no_topic_id_takes_no_run_that_names_one(broker: ApiBroker) -> None:
    """A leader that has not read the new marks yet answers the same: kmirror sends the run again."""
    broker.lead("t", 1)
    mark(broker, EARLIER)
    append = first_append(broker, EARLIER, record(b"a"))
    log = log_of(broker)
    log.config = replace(log.config, kbroker_mirror_source_topic_id="")
    answer = delivered(broker, held(append))
    assert answer.error_code == ErrorCode.POLICY_VIOLATION
    assert "(none)" in (answer.error_message or "")


def test_a_source_without_topic_ids_is_copied_by_offsets_and_crcs_alone(broker: ApiBroker) -> None:
    broker.lead("t", 1)
    mark(broker, EARLIER)
    append = first_append(broker, EARLIER, record(b"a"))
    unnamed = replace(append, topics=append.topics._replace(source_id=""))
    assert delivered(broker, held(unnamed)).error_code == ErrorCode.NONE
