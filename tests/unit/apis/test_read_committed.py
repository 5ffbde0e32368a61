"""Fetch and ListOffsets with read_committed, on a mirror of a transactional topic: batches and markers are copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.log.unified_log import UnifiedLog
from kbroker.replica.conditional_append import append_copied
from kclient.wire.batches import iterate, parse
from kclient.wire.fetch import FetchPartition
from kclient.wire.records import ABORT, COMMIT, decode_batch
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.versions import ApiKey
from tests.kit.logs import batch_of
from tests.kit.partitions import HostedPartition, fetch_all
from tests.kit.producer_batches import numbered_batch
from tests.kit.transactional_logs import marker, transactional, visible
from tests.unit.apis.kit import ApiBroker, broker_in

MIRROR = {"kbroker_mirror_source_cluster_id": "source", "kbroker_mirror_source_topic_id": "t"}
PROMOTED = {**MIRROR, "kbroker_mirror_source_cluster_id": ""}

P, Q = 7, 8
LOG = (
    transactional(P, b"aborted", base_offset=0),
    transactional(Q, b"committed", 2, base_offset=1),
    batch_of(1000, value=b"plain", base_offset=3),
    marker(P, ABORT, base_offset=4),
    transactional(P, b"of P, committed", base_offset=5),
    marker(Q, COMMIT, base_offset=6),
    transactional(Q, b"open", base_offset=7),
    marker(P, COMMIT, base_offset=8),
    batch_of(1000, value=b"behind", base_offset=9),
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ApiBroker]:
    """A leader of the empty mirror `t`."""
    with broker_in(tmp_path) as broker:
        configure(broker, MIRROR)
        broker.lead("t", 1)
        yield broker


def configure(broker: ApiBroker, settings: dict[str, str]) -> None:
    broker.topic_configs["t"] = replace(broker.config.log_defaults, **settings)
    broker.replica_manager.reconfigure(["t"])


def log_of(broker: ApiBroker) -> UnifiedLog:
    log = broker.replica_manager.partition("t", 0).log
    assert log is not None
    return log


def copy(broker: ApiBroker, *batches: bytes) -> None:
    """Copy batches as kmirror does, one by one."""
    partition = broker.replica_manager.partition("t", 0)
    for batch in batches:
        end = log_of(broker).log_end_offset
        crc = 0
        if end:
            found = log_of(broker).read(end - 1, 61)
            crc = parse(b"".join(part.read() for part in found.slices)).crc
        append_copied(partition, batch, (end, crc), 1, 1000)


def ask(broker: ApiBroker, offset: int = 0, *, level: int = 1, **fields: Any) -> Any:
    answer = broker.fetch(FetchPartition(0, offset, 1 << 20), isolation_level=level, **fields)
    return answer if isinstance(answer, Deferred) else answer.topics[0].partitions[0]


def read(broker: ApiBroker, offset: int = 0, **fields: Any) -> list[bytes | None]:
    """What a consumer with read_committed reads from *offset* on, fetch after fetch."""
    values: list[bytes | None] = []
    while True:
        answer = ask(broker, offset, **fields)
        if not answer.records_size:
            return values
        found, offset = visible(bytes(answer.record_set), answer.aborted_transactions, offset)
        values += [value for _, value in found]


def look_up(broker: ApiBroker, timestamp: int, level: int) -> int:
    topic = ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, timestamp)])
    request = ListOffsetsRequest(-1, level, [topic])
    response = broker.ask(ApiKey.LIST_OFFSETS, 5, request)
    offset: int = response.topics[0].partitions[0].offset
    return offset


@pytest.mark.parametrize("version", range(4, 17))
def test_records_end_at_the_last_stable_offset_and_aborted_ones_are_listed(
    broker: ApiBroker, version: int
) -> None:
    copy(broker, *LOG)
    asked = {"version": version}
    if version >= 13:
        asked["topic_id"] = broker.replica_manager.partition("t", 0).topic_id
    answer = ask(broker, **asked)
    assert (answer.high_watermark, answer.last_stable_offset) == (10, 7)
    assert [info.base_offset for info in iterate(answer.record_set)] == [0, 1, 3, 4, 5, 6]
    listed = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]
    assert listed == [(P, 0)]
    values = [
        value for _, value in visible(bytes(answer.record_set), answer.aborted_transactions, 0)[0]
    ]
    assert values == [b"committed", b"committed", b"plain", b"of P, committed"]


def test_read_uncommitted_gets_everything_and_no_list(broker: ApiBroker) -> None:
    copy(broker, *LOG)
    answer = ask(broker, level=0)
    assert (answer.high_watermark, answer.last_stable_offset) == (10, 7)
    assert [info.base_offset for info in iterate(answer.record_set)] == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    assert answer.aborted_transactions is None


def test_a_transaction_that_is_not_in_the_range_is_not_listed(broker: ApiBroker) -> None:
    copy(broker, *LOG)
    assert ask(broker, 5).aborted_transactions == []
    assert [each.first_offset for each in ask(broker, 3).aborted_transactions] == [0]


@pytest.mark.parametrize("copied", range(len(LOG) + 1))
def test_a_mirror_has_at_each_batch_what_its_copy_decides(broker: ApiBroker, copied: int) -> None:
    copy(broker, *LOG[:copied])
    assert ask(broker).last_stable_offset == (0, 0, 0, 0, 1, 1, 5, 5, 7, 7)[copied]
    committed = [b"committed", b"committed", b"plain"] if copied >= 6 else []
    committed += [b"of P, committed"] if copied >= 8 else []
    assert read(broker) == committed


def test_latest_is_the_last_stable_offset_and_no_record_behind_it_is_found(
    broker: ApiBroker,
) -> None:
    copy(broker, *LOG)
    assert (look_up(broker, -1, 0), look_up(broker, -1, 1)) == (10, 7)
    assert (look_up(broker, -2, 0), look_up(broker, -2, 1)) == (0, 0)
    late = batch_of(5000, value=b"late", base_offset=10)
    copy(broker, late)
    assert (look_up(broker, 5000, 0), look_up(broker, 5000, 1)) == (10, -1)
    copy(broker, marker(Q, ABORT, base_offset=11))
    assert look_up(broker, 5000, 1) == 10


def test_a_fetch_at_the_last_stable_offset_waits_for_the_marker(broker: ApiBroker) -> None:
    copy(broker, *LOG)
    waiting = ask(broker, 7, max_wait_ms=5000)
    assert isinstance(waiting, Deferred)
    copy(broker, marker(Q, COMMIT, base_offset=10))
    broker.clock.advance(0)
    assert waiting.called
    answer = waiting.result.topics[0].partitions[0]
    assert [info.base_offset for info in iterate(answer.record_set)] == [7, 8, 9, 10]


def test_a_session_gets_the_records_when_the_marker_is_replicated(broker: ApiBroker) -> None:
    copy(broker, *LOG)
    asked = FetchPartition(0, 7, 1 << 20)
    opened = broker.fetch(asked, isolation_level=1, session_epoch=0)
    assert opened.session_id > 0
    session = {"isolation_level": 1, "session_id": opened.session_id}
    assert broker.fetch(session_epoch=1, **session).topics == []
    held = broker.replica_manager.fetch_sessions.get(opened.session_id)
    assert held is not None
    assert not held.due, "the marker arrives as an event"
    copy(broker, marker(Q, COMMIT, base_offset=10))
    (topic,) = broker.fetch(session_epoch=2, **session).topics
    assert topic.partitions[0].last_stable_offset == 11
    assert next(iterate(topic.partitions[0].record_set)).base_offset == 7


def test_a_leader_and_its_follower_answer_alike(tmp_path: Path) -> None:
    leader = HostedPartition(tmp_path, 1, kbroker_mirror_source_cluster_id="source")
    follower = HostedPartition(tmp_path, 2)
    leader.take(1, 0, isr=(1, 2), replicas=(1, 2))
    follower.take(1, 0, isr=(1, 2), replicas=(1, 2))
    crc = 0
    for batch in LOG:
        append_copied(leader, batch, (leader.end, crc), 1, 1000)
        crc = parse(batch).crc
    fetch_all(follower, leader)
    fetch_all(follower, leader)
    options = {"min_one_batch": True, "current_leader_epoch": -1, "read_committed": True}
    for found in (leader.read(0, 9999, **options), follower.read_at_follower(0, 9999, **options)):
        assert (found.high_watermark, found.last_stable_offset) == (10, 7)
        assert [each.first_offset for each in found.aborted] == [0]


# A mirror that is promoted


def test_a_promoted_mirror_aborts_the_transactions_that_are_open(broker: ApiBroker) -> None:
    copy(broker, *LOG)
    waiting = ask(broker, 7, max_wait_ms=5000)
    configure(broker, PROMOTED)
    broker.clock.advance(0)
    assert waiting.called
    log = log_of(broker)
    assert log.log_end_offset == 11
    assert log.last_stable_offset(11) == 11
    assert read(broker, 7) == [b"behind"]
    assert read(broker) == [b"committed", b"committed", b"plain", b"of P, committed", b"behind"]
    configure(broker, PROMOTED)
    assert log.log_end_offset == 11, "once"


def test_the_markers_do_not_fence_a_producer_of_this_cluster_with_the_same_id(
    broker: ApiBroker,
) -> None:
    copy(broker, transactional(P, epoch=5))
    configure(broker, PROMOTED)
    own = [broker.produce(numbered_batch(P, n))[0] for n in range(2)]
    assert [(each.error_code, each.base_offset) for each in own] == [(0, 2), (0, 3)]
    assert read(broker) == [b"7/0/0", b"7/0/1"]


def test_the_next_leader_of_a_promoted_mirror_aborts_them(tmp_path: Path) -> None:
    leader = HostedPartition(tmp_path, 1, **PROMOTED)
    assert leader._own_log is not None
    data = transactional(P)
    leader._own_log.append_as_follower(data, 0)
    leader.take(1, 3, isr=(1,), replicas=(1,))
    assert leader.end == 2
    found = leader.read(0, 9999, min_one_batch=True, read_committed=True)
    assert (found.last_stable_offset, found.high_watermark) == (2, 2)
    assert [each[:3] for each in found.aborted] == [(P, 0, 1)]


@pytest.mark.parametrize("settings", [{}, MIRROR], ids=["no mirror, or not read yet", "mirror"])
def test_a_log_that_is_no_promoted_mirror_gets_no_markers(
    broker: ApiBroker, settings: dict[str, str]
) -> None:
    copy(broker, transactional(P))
    configure(broker, settings)
    broker.lead("t", 1, leader_epoch=4)
    assert log_of(broker).log_end_offset == 1


def test_the_markers_of_a_promotion_have_the_epoch_of_their_producer(broker: ApiBroker) -> None:
    copy(broker, transactional(P, epoch=3), transactional(Q, epoch=9, base_offset=1))
    configure(broker, PROMOTED)
    data = bytes(ask(broker, 2).record_set)
    found = [(info.producer_id, info.producer_epoch, info.is_control) for info in iterate(data)]
    assert found == [(P, 3, True), (Q, 9, True)]
    assert all(decode_batch(data, info)[0].key == b"\0\0\0\0" for info in iterate(data))
