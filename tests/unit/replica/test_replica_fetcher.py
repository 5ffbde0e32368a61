"""The follower's loop on a scripted connection: what it asks for, when, and what it makes of errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kbroker.config import LogConfig
from kbroker.metadata.epoch_fences import Registration
from kbroker.replica.core.replication_quota import ReplicationQuotas
from kbroker.replica.fetcher_state import NEW_PARTITIONS_PER_FETCH, FetcherSettings
from kbroker.replica.replica_fetcher import ReplicaFetcher
from kclient.errors import ConnectionClosed
from kclient.wire.batches import parse
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kclient.wire.schema.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kclient.wire.versions import ApiKey
from tests.kit.logs import batch_of
from tests.kit.partitions import HostedPartition

SESSION = 77


class ScriptedConnection:
    """What was asked, and the Deferreds of the answers."""

    def __init__(self) -> None:
        self.closed: Exception | None = None
        self.asked: list[tuple[ApiKey, Any, Deferred[Any]]] = []

    def request(self, api: ApiKey, _version: int, message: Any) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()
        self.asked.append((api, message, answer))
        return answer

    def close(self) -> None:
        self.lose()

    def lose(self) -> None:
        self.closed = ConnectionClosed("gone")
        for _, _, answer in self.asked:
            if not answer.called:
                answer.errback(self.closed)


class World:
    """A fetcher on broker 2, that follows broker 1; the clock is turned by hand."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.connections: list[ScriptedConnection] = []
        self._directory = directory
        settings = FetcherSettings(2, 500, 1, 1 << 20, 1 << 20, 1.0, 30.0)
        registration = Registration()
        registration.registered(5)
        self.fetcher = ReplicaFetcher(
            self.clock,
            1,
            settings,
            address=lambda _broker: ("127.0.0.1", 1),
            registration=registration,
            now_ms=lambda: 0,
            throttle=ReplicationQuotas(2).follower,
            dial=self.dial,  # type: ignore[arg-type]  # scripted
        )

    async def dial(self, *_: Any, **__: Any) -> ScriptedConnection:
        self.connections.append(ScriptedConnection())
        return self.connections[-1]

    def follow(self, index: int) -> HostedPartition:
        place = self._directory / str(index)
        place.mkdir()
        partition = HostedPartition(place, 2)
        partition.key = ("t", index)
        partition.take(1, 0)
        self.fetcher.add_partition(partition)
        return partition

    def turn(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)

    @property
    def fetches(self) -> list[FetchRequest]:
        return [
            message
            for connection in self.connections
            for api, message, _ in connection.asked
            if api is ApiKey.FETCH
        ]

    def answer(
        self, *partitions: FetchPartitionResponse, session: int = SESSION, error: int = 0
    ) -> None:
        """Answer what is out."""
        waiting = [each for each in self.connections[-1].asked if not each[2].called]
        topics = [FetchTopicResponse("", list(partitions))] if partitions else []
        waiting[0][2].callback(FetchResponse(topics, error_code=error, session_id=session))

    def reply(self, api: ApiKey, response: object) -> None:
        """Answer the last request, which is one of *api*."""
        asked, _, answer = self.connections[-1].asked[-1]
        assert asked is api
        answer.callback(response)


def named(request: FetchRequest) -> dict[int, int]:
    """Return partition -> offset."""
    return {
        each.partition: each.fetch_offset for topic in request.topics for each in topic.partitions
    }


def forgotten(request: FetchRequest) -> list[int]:
    return [index for topic in request.forgotten for index in topic.partitions]


def records(index: int, offset: int) -> FetchPartitionResponse:
    """Return one record, committed."""
    batch = bytearray(batch_of(1000))
    batch[:8] = offset.to_bytes(8, "big")
    assert parse(batch).base_offset == offset
    answer = FetchPartitionResponse(index, 0, offset + 1, offset + 1, 0)
    answer.records, answer.records_size = (bytes(batch),), len(batch)
    return answer


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def begin(world: World, count: int) -> list[HostedPartition]:
    """Follow *count* partitions; the first fetch is answered, the second is out."""
    followed = [world.follow(index) for index in range(count)]
    world.turn()
    assert (world.fetches[0].session_id, world.fetches[0].session_epoch) == (0, 0)
    assert named(world.fetches[0]) == dict.fromkeys(range(count), 0)
    world.answer(*(FetchPartitionResponse(index, 0, 0, 0, 0) for index in range(count)))
    return followed


def test_what_is_idle_is_named_once(world: World) -> None:
    first, _ = begin(world, 2)
    assert (world.fetches[1].session_id, world.fetches[1].session_epoch) == (SESSION, 1)
    assert named(world.fetches[1]) == {}
    world.answer(records(0, 0))
    assert first.end == 1
    assert named(world.fetches[2]) == {0: 1}
    world.answer()
    assert named(world.fetches[3]) == {}
    assert world.fetches[3].session_epoch == 3


def test_thousands_are_named_some_at_a_time_without_a_pause(world: World) -> None:
    count = 2 * NEW_PARTITIONS_PER_FETCH + 3
    for index in range(count):
        world.follow(index)
    world.turn()
    seen: list[int] = []
    waits = []
    for number in range(3):
        request = world.fetches[number]
        seen += named(request)
        waits.append(request.max_wait_ms)
        assert len(named(request)) <= NEW_PARTITIONS_PER_FETCH
        world.answer(*(FetchPartitionResponse(index, 0, 0, 0, 0) for index in named(request)))
    assert sorted(seen) == list(range(count))
    assert waits == [0, 0, 500]
    assert named(world.fetches[3]) == {}


def test_a_newcomer_makes_the_fetch_that_waits_be_answered(world: World) -> None:
    begin(world, 1)
    world.follow(1)
    world.follow(2)
    (connection,) = world.connections
    before = len(connection.asked)
    world.turn(0.01)
    assert [api for api, _, _ in connection.asked[before:]] == [ApiKey.API_VERSIONS]
    world.answer()
    assert named(world.fetches[-1]) == {1: 0, 2: 0}


def test_a_partition_that_fails_is_left_out_for_a_while(world: World) -> None:
    begin(world, 2)
    world.answer(FetchPartitionResponse(1, int(ErrorCode.UNKNOWN_LEADER_EPOCH)))
    assert forgotten(world.fetches[-1]) == [1]
    world.turn(0.06)
    world.answer()
    assert (named(world.fetches[-1]), forgotten(world.fetches[-1])) == ({1: 0}, [])


def test_the_end_of_a_delay_interrupts_the_fetch_that_waits(world: World) -> None:
    begin(world, 2)
    world.answer(FetchPartitionResponse(1, int(ErrorCode.UNKNOWN_LEADER_EPOCH)))
    (connection,) = world.connections
    before = len(connection.asked)
    world.turn(0.04)
    assert len(connection.asked) == before
    world.turn(0.01)
    world.turn(0.01)
    assert [api for api, _, _ in connection.asked[before:]] == [ApiKey.API_VERSIONS]
    world.answer()
    assert named(world.fetches[-1]) == {1: 0}
    world.turn(1.0)
    assert connection.asked[-1][0] is ApiKey.FETCH


def test_a_delay_that_outlasts_a_fetch_interrupts_the_next_one(world: World) -> None:
    begin(world, 2)
    world.answer(FetchPartitionResponse(1, int(ErrorCode.UNKNOWN_LEADER_EPOCH)))
    world.turn(0.04)
    world.answer(records(0, 0))
    world.turn(0.01)
    world.turn(0.01)
    assert named(world.fetches[-1]) == {0: 1}
    (connection,) = world.connections
    assert [api for api, _, answer in connection.asked if not answer.called] == [
        ApiKey.FETCH,
        ApiKey.API_VERSIONS,
    ]
    world.fetcher.close()
    assert not world.clock.getDelayedCalls()


def test_one_that_fails_alone_is_waited_for(world: World) -> None:
    begin(world, 1)
    world.answer(FetchPartitionResponse(0, int(ErrorCode.UNKNOWN_LEADER_EPOCH)))
    count = len(world.fetches)
    world.turn(0.04)
    assert len(world.fetches) == count
    world.turn(0.02)
    assert len(world.fetches) == count + 1
    # In the leader's session it is as before: it looks at what failed with every fetch.
    assert (named(world.fetches[-1]), forgotten(world.fetches[-1])) == ({}, [])


def test_an_answer_is_not_taken_for_a_role_that_it_was_not_asked_in(world: World) -> None:
    (partition,) = begin(world, 1)
    partition.take(1, 1)
    world.fetcher.add_partition(partition)
    world.answer(records(0, 0))
    assert partition.end == 0
    (asked,) = world.fetches[-1].topics[0].partitions
    assert (asked.fetch_offset, asked.current_leader_epoch) == (0, 1)


def test_what_is_followed_no_more_is_forgotten(world: World) -> None:
    begin(world, 2)
    world.fetcher.remove_partition(("t", 0))
    world.answer(records(0, 0))
    assert forgotten(world.fetches[-1]) == [0]


@pytest.mark.parametrize(
    ("error", "session"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, SESSION),
    ],
)
def test_after_an_error_of_the_session_another_is_begun_at_once(
    world: World, error: ErrorCode, session: int
) -> None:
    begin(world, 2)
    world.answer(error=int(error), session=0)
    request = world.fetches[-1]
    assert (request.session_id, request.session_epoch) == (session, 0)
    assert named(request) == {0: 0, 1: 0}


def test_after_a_lost_connection_every_partition_is_named_again(world: World) -> None:
    begin(world, 2)
    world.connections[0].lose()
    world.turn(0.05)
    assert len(world.connections) == 2
    request = world.fetches[-1]
    assert (request.session_id, request.session_epoch, named(request)) == (SESSION, 0, {0: 0, 1: 0})


def test_a_leader_without_room_is_asked_in_full_every_time(world: World) -> None:
    for index in range(2):
        world.follow(index)
    world.turn()
    world.answer(records(0, 0), FetchPartitionResponse(1, 0, 0, 0, 0), session=0)
    assert world.fetches[-1].session_epoch == 0
    # A partition that was read comes last, so that none starves.
    assert list(named(world.fetches[-1]).items()) == [(1, 0), (0, 1)]


def test_a_new_log_start_offset_is_sent_to_the_leader(world: World) -> None:
    first, _ = begin(world, 2)
    world.answer(records(0, 0))
    world.answer()
    assert first.log is not None
    first.log.advance_log_start(1)
    world.fetcher.log_start_advanced(first.key)
    world.answer()
    (asked,) = world.fetches[-1].topics[0].partitions
    assert (asked.partition, asked.log_start_offset) == (0, 1)


def out_of_range(index: int) -> FetchPartitionResponse:
    return FetchPartitionResponse(index, int(ErrorCode.OFFSET_OUT_OF_RANGE))


def test_a_log_out_of_its_leaders_range_begins_where_that_begins(world: World) -> None:
    (partition,) = begin(world, 1)
    world.answer(out_of_range(0))
    start = ListOffsetsPartitionResponse(
        partition_index=0, error_code=0, timestamp=-1, offset=5, leader_epoch=0
    )
    topic = ListOffsetsTopicResponse(name="t", partitions=[start])
    world.reply(ApiKey.LIST_OFFSETS, ListOffsetsResponse(topics=[topic]))
    end = EpochEndOffset(partition=0, error_code=0, leader_epoch=0, end_offset=9)
    result = OffsetForLeaderTopicResult(topic="t", partitions=[end])
    world.reply(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochResponse(topics=[result]))
    assert partition.end == 5
    assert named(world.fetches[-1]) == {0: 5}


def test_an_answer_that_makes_no_sense_does_not_end_the_following(world: World) -> None:
    begin(world, 1)
    world.answer(out_of_range(0))
    world.reply(ApiKey.LIST_OFFSETS, ListOffsetsResponse(topics=[]))
    count = len(world.fetches)
    world.turn(0.05)
    assert len(world.fetches) == count + 1
    world.answer(records(0, 0))
    assert named(world.fetches[-1]) == {0: 1}


def test_an_invalid_response_delays_no_other_partition(world: World) -> None:
    begin(world, 2)
    world.answer(out_of_range(0), records(1, 0))
    world.reply(ApiKey.LIST_OFFSETS, ListOffsetsResponse(topics=[]))
    assert len(world.connections) == 1
    assert named(world.fetches[-1]) == {1: 1}
    assert forgotten(world.fetches[-1]) == [0]


def test_the_next_fetch_waits_for_the_sync_of_what_came(world: World) -> None:
    """With flush.messages, the offset of a fetch states what this replica has."""
    first, _ = begin(world, 2)
    hold_syncs(first)
    count = len(world.fetches)
    world.answer(records(0, 0))
    assert first.end == 1
    assert len(world.fetches) == count
    sync(world, first)
    assert named(world.fetches[-1]) == {0: 1}
    assert forgotten(world.fetches[-1]) == []


def test_a_long_sync_holds_up_its_own_partition_only(world: World) -> None:
    first, second = begin(world, 2)
    hold_syncs(first)
    world.answer(records(0, 0))
    world.turn(0.01)
    assert (named(world.fetches[-1]), forgotten(world.fetches[-1])) == ({}, [0])
    world.answer(records(1, 0))
    assert second.end == 1
    assert (named(world.fetches[-1]), forgotten(world.fetches[-1])) == ({1: 1}, [])
    sync(world, first)
    (connection,) = world.connections
    world.turn(0.01)
    assert connection.asked[-1][0] is ApiKey.API_VERSIONS  # makes the fetch that waits be answered
    world.answer()
    assert named(world.fetches[-1]) == {0: 1}


def test_a_partition_that_syncs_alone_is_waited_for(world: World) -> None:
    (first,) = begin(world, 1)
    hold_syncs(first)
    count = len(world.fetches)
    world.answer(records(0, 0))
    world.turn(30.0)
    assert len(world.fetches) == count
    sync(world, first)
    assert named(world.fetches[-1]) == {0: 1}


def hold_syncs(partition: HostedPartition) -> None:
    """Have every append of *partition* wait for a sync, which `sync` ends."""
    assert partition.log is not None
    partition.log.config = LogConfig(flush_messages=1)


def sync(world: World, partition: HostedPartition) -> None:
    """End the sync of all there is, as the pool does."""
    assert partition.log is not None
    partition.log.flush()
    world.fetcher.log_flushed(partition.key)
