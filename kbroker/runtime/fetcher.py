"""Following: one connection to a broker, by which everything is fetched that it leads and we have a replica of.

Theory of operation
===================
One fetch at a time, sent again as soon as its answer was taken; it waits at the leader while there is nothing new. The
offset that it asks for tells the leader what we have. Both sides keep a session (KIP-227), so it names only partitions
where that changed: what was appended to, what begins or ceases to be followed. An idle partition costs nothing.

Of thousands that begin to be followed a fetch names some hundred more, and is answered at once as long as others wait
to be named: neither we nor the leader have them all to look at in one turn, in the first fetch or after.

A partition that begins to be followed while a fetch waits does not wait for its end: any request behind a follower's
fetch makes the leader answer, so we send the least there is. A partition that fails pauses alone, and is left out of
the session meanwhile; a connection that fails pauses them all, for a short time first, at most
replica.fetch.backoff.ms.

A role may change while a fetch is out: its answer is taken only for partitions that still follow the same leader
in the same epoch, and that were asked for since.

In: partitions to follow   Out: appended logs   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from kbroker.replication.following import Following
from kbroker.replication.throttle import Throttle
from kbroker.runtime import followed_partition
from kbroker.runtime.offset_lookup import EARLIEST
from kbroker.runtime.partition import Key, Partition
from kclient.errors import Address, ConnectionClosed
from kclient.net.connection import Connection, Dial, connect
from kclient.net.fetch_session import FetchSession
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import BrokerNotAvailable, KafkaError, for_code
from kclient.wire.fetch import FetchPartitionResponse, FetchRequest, FetchResponse
from kclient.wire.schema.api_versions import ApiVersionsRequest
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

log = Logger()

FETCH_VERSION = 15
API_VERSIONS_VERSION = 0
LIST_OFFSETS_VERSION = 6
OFFSET_FOR_LEADER_EPOCH_VERSION = 4
SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""The next fetch begins another session."""

CONNECT_SECONDS = 5.0
FIRST_PAUSE = 0.05
"""Seconds before what failed once is tried again; twice as long every time."""

TROUBLE_SECONDS = 0.5
"""How long partitions that cannot be followed are gathered into one line of the log."""

LONGEST_THROTTLE_SECONDS = 1.0
"""After so long a throttled partition looks again: the rate may be another one by then."""

NEWCOMERS_PER_FETCH = 250
"""How many partitions a fetch asks for that the session does not know yet."""

GATHER_SECONDS = 0.01
"""How long new partitions are gathered before a waiting fetch is given up for them."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """What followers take from the broker's configuration; seconds and bytes."""

    broker_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    max_pause: float
    request_timeout: float


class _Followed:
    """One partition that is followed."""

    __slots__ = (
        "failures",
        "following",
        "in_sync",
        "is_asked",
        "not_before",
        "partition",
        "topic_id",
    )

    def __init__(self, partition: Partition, following: Following) -> None:
        self.partition = partition
        self.following = following
        self.topic_id = partition.topic_id
        self.is_asked = False
        """Whether a fetch has asked for it."""
        self.in_sync = False
        """Whether it had all that is committed, by the last answer."""
        self.failures = 0
        self.not_before = 0.0
        """When it may be asked for again; 0: now."""

    @property
    def current(self) -> bool:
        """Whether the role is still the one that we follow in."""
        return self.partition.following is self.following


class Fetcher:
    """Follows the partitions that broker *leader* leads.

    *address* gives the leader's, None while it is not known; *broker_epoch* is our own (KIP-903).
    """

    def __init__(
        self,
        reactor: Any,
        leader: int,
        settings: FetcherSettings,
        *,
        address: Callable[[int], tuple[str, int] | None],
        broker_epoch: Callable[[], int],
        now_ms: Callable[[], int],
        throttle: Throttle,
        dial: Dial = connect,
    ) -> None:
        self._reactor = reactor
        self._throttle = throttle
        self._dial = dial
        self._leader = leader
        self._settings = settings
        self._address = address
        self._broker_epoch = broker_epoch
        self._now_ms = now_ms
        self._followed: dict[Key, _Followed] = {}
        self._by_id: dict[tuple[UUID | None, int], _Followed] = {}
        """The same, as answers call them."""
        self._moved: dict[_Followed, None] = {}
        """Those that the next fetch asks for from another offset, or for the first time."""
        self._pausing: dict[_Followed, None] = {}
        self._session = FetchSession()
        self._connection: Connection | None = None
        self._is_out = False
        """Whether a fetch is out."""
        self._newcomers = False
        """Whether something began to be followed that it does not ask for."""
        self._failures = 0
        self._troubled: list[tuple[_Followed, KafkaError]] = []
        self._sleeping: Deferred[None] | None = None
        self._waking = False
        self._gathering: Any = None
        self._closed = False
        self._ended = Deferred.fromCoroutine(self._run())
        self._ended.addErrback(
            lambda failure: log.failure("following broker {id} failed", failure, id=leader)
        )

    def __len__(self) -> int:
        return len(self._followed)

    def follow(self, partition: Partition) -> None:
        """Follow *partition* in the role it has now."""
        assert partition.following is not None
        self.unfollow(partition.key)
        each = _Followed(partition, partition.following)
        self._followed[partition.key] = each
        self._by_id[each.topic_id, partition.key[1]] = each
        self._moved[each] = None
        if self._sleeping is not None and not self._waking:
            self._waking = True
            self._reactor.callLater(0, self._wake)  # those of one order come together
        if self._is_out:
            self._newcomers = True
            if self._gathering is None:
                self._gathering = self._reactor.callLater(GATHER_SECONDS, self._gathered)

    def ask_again(self, key: Key) -> None:
        """Say with the next fetch what there is of a partition now: its log begins elsewhere."""
        each = self._followed.get(key)
        if each is not None and each not in self._pausing:
            self._moved[each] = None

    def unfollow(self, key: Key) -> None:
        """Fetch a partition no more."""
        each = self._followed.pop(key, None)
        if each is None:
            return
        self._by_id.pop((each.topic_id, key[1]), None)
        self._moved.pop(each, None)
        self._pausing.pop(each, None)
        self._session.leave(each.topic_id, key[1])

    def close(self) -> None:
        """Follow nothing any more."""
        self._closed = True
        for key in list(self._followed):
            self.unfollow(key)
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._drop_connection()
        self._wake()

    def _gathered(self) -> None:
        """Have a waiting fetch answered that does not ask for all that is to be asked."""
        self._gathering = None
        connection = self._connection
        if self._is_out and self._newcomers and connection is not None:
            request = ApiVersionsRequest()
            behind = connection.request(ApiKey.API_VERSIONS, API_VERSIONS_VERSION, request)
            behind.addErrback(lambda _failure: None)  # the fetch fails, too

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- the loop ------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self._sleep(0.0)  # the first partitions come together
        while not self._closed:
            pause = self._next_due()
            if pause is None or pause > 0:
                await self._sleep(pause)
                continue
            try:
                await self._fetch()
                self._failures = 0
            except CancelledError:
                return
            except KafkaError as error:
                if not self._closed:
                    await self._pause(error)

    async def _pause(self, error: KafkaError) -> None:
        self._drop_connection()
        self._session.lost()
        self._failures += 1
        if self._failures == 3:
            log.warn(
                "cannot fetch from broker {id}: {error}; trying on", id=self._leader, error=error
            )
        pause = min(FIRST_PAUSE * 2 ** min(self._failures - 1, 10), self._settings.max_pause)
        await self._sleep(pause)

    def _next_due(self) -> float | None:
        """Return the seconds until something is to be fetched; None: nothing is followed."""
        if not self._followed:
            return None
        if len(self._pausing) < len(self._followed):
            return 0.0
        first = min(each.not_before for each in self._pausing)
        now: float = self._reactor.seconds()
        return max(first - now, 0.0)

    async def _sleep(self, seconds: float | None) -> None:
        """Wait for so long, or (with None for ever) until there is something new."""
        if self._closed:
            return
        self._sleeping = Deferred()
        timer = None if seconds is None else self._reactor.callLater(seconds, self._wake)
        await self._sleeping
        if timer is not None and timer.active():
            timer.cancel()

    def _wake(self) -> None:
        self._waking = False
        sleeping, self._sleeping = self._sleeping, None
        if sleeping is not None and not sleeping.called:
            sleeping.callback(None)

    # -- one fetch -----------------------------------------------------------------------------

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is not None and connection.closed is None:
            return connection
        self._connection = None
        where = self._address(self._leader)
        if where is None:
            raise BrokerNotAvailable(f"broker {self._leader} is not known to be alive")
        connection = await self._dial(
            self._reactor,
            Address(*where),
            client_id=f"broker-{self._settings.broker_id}-fetcher-0",
            connect_timeout=CONNECT_SECONDS,
            request_timeout=self._settings.request_timeout,
            negotiate_versions=False,
        )
        if self._closed:
            connection.close()
            raise ConnectionClosed("following ended")
        self._connection = connection
        return connection

    async def _fetch(self) -> None:
        """Ask for all that is due, and take the answer."""
        connection = await self._connected()
        request = self._request()
        if request is None:
            return
        self._is_out, self._newcomers = True, False
        try:
            response: FetchResponse = await connection.request(ApiKey.FETCH, FETCH_VERSION, request)
        finally:
            self._is_out = False
        self._session.answered(response)
        if response.error_code in SESSION_ERRORS:
            return
        if response.error_code:
            raise for_code(response.error_code)(f"Fetch from broker {self._leader}")
        await self._take(response)

    def _request(self) -> FetchRequest | None:
        settings = self._settings
        if self._pausing:
            now = self._reactor.seconds()
            for each in [each for each in self._pausing if each.not_before <= now]:
                del self._pausing[each]
                self._moved[each] = None
        moved, self._moved = self._moved, {}
        for each in moved:
            if each.current and self._held_back(each):
                continue
            if each.current:
                asked = followed_partition.question(each.partition, settings.partition_max_bytes)
                self._session.want(each.topic_id, asked)
                each.is_asked = True
            else:
                self.unfollow(each.partition.key)
        if not self._session:
            return None
        saying = self._session.request(NEWCOMERS_PER_FETCH)
        return FetchRequest(
            0 if self._session.is_behind else settings.max_wait_ms,
            settings.min_bytes,
            saying.topics,
            max_bytes=settings.max_bytes,
            session_id=saying.session_id,
            session_epoch=saying.session_epoch,
            replica_id=settings.broker_id,
            replica_epoch=self._broker_epoch(),
            forgotten=saying.forgotten,
        )

    def _held_back(self, each: _Followed) -> bool:
        """Let a partition pause that is throttled (KIP-73), unless it is in sync."""
        throttle, log_of = self._throttle, each.partition.log
        if each.in_sync or log_of is None:
            return False
        if not throttle.names(each.partition.key, log_of.config):
            return False
        now = self._reactor.seconds()
        wait = throttle.wait(now)
        if wait <= 0:
            return False
        each.not_before = now + min(wait, LONGEST_THROTTLE_SECONDS)
        self._pausing[each] = None
        self._session.leave(each.topic_id, each.partition.key[1])
        return True

    async def _take(self, response: FetchResponse) -> None:
        now_ms = self._now_ms()
        out_of_range = []
        for topic in response.topics:
            for answer in topic.partitions:
                each = self._by_id.get((topic.topic_id, answer.partition))
                if each is None or not each.is_asked or each in self._pausing or not each.current:
                    continue
                if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    out_of_range.append(each)
                elif answer.error_code:
                    self._failed(each, for_code(answer.error_code)())
                else:
                    self._take_one(each, answer, now_ms)
        for each in out_of_range:
            await self._start_over(each)

    def _take_one(self, each: _Followed, answer: FetchPartitionResponse, now_ms: int) -> None:
        partition = each.partition
        try:
            log_of = partition.log
            end = log_of.log_end_offset if log_of is not None else -1
            start = log_of.log_start_offset if log_of is not None else -1
            size = followed_partition.take_answer(partition, answer, now_ms)
        except KafkaError as error:
            self._failed(each, error)
            return
        each.failures = 0
        if log_of is not None:
            each.in_sync = log_of.log_end_offset >= answer.high_watermark
            if size and self._throttle.names(partition.key, log_of.config):
                self._throttle.record(size, self._reactor.seconds())
        moved_start = log_of is not None and log_of.log_start_offset != start
        if size or moved_start or answer.diverging_epoch is not None:
            self._moved[each] = None
        if answer.diverging_epoch is not None and partition.log is not None:
            log.info(
                "truncated {partition} from {old} to {new} to agree with its leader, broker {id},"
                " in epoch {epoch}",
                partition=partition, old=end, new=partition.log.log_end_offset,
                id=self._leader, epoch=each.following.leader_epoch,
            )  # fmt: skip

    def _failed(self, each: _Followed, error: KafkaError) -> None:
        """Let one partition pause."""
        if self._followed.get(each.partition.key) is not each:
            return
        each.failures += 1
        pause = min(FIRST_PAUSE * 2 ** min(each.failures - 1, 10), self._settings.max_pause)
        each.not_before = self._reactor.seconds() + pause
        self._moved.pop(each, None)
        self._pausing[each] = None
        self._session.leave(each.topic_id, each.partition.key[1])
        if each.failures == 4:
            self._troubled.append((each, error))
            if len(self._troubled) == 1:
                self._reactor.callLater(TROUBLE_SECONDS, self._tell_of_trouble)

    def _tell_of_trouble(self) -> None:
        """Say in one line which partitions cannot be followed for a while now."""
        troubled, self._troubled = self._troubled, []
        (first, error), count = troubled[0], len(troubled)
        log.warn(
            "cannot follow {partition}{others} on broker {id}: {error}; trying on",
            partition=first.partition, id=self._leader, error=error,
            others=f" and {count - 1} more" if count > 1 else "",
        )  # fmt: skip

    # -- out of range --------------------------------------------------------------------------

    async def _start_over(self, each: _Followed) -> None:
        """Ask where the leader's log begins and ends, and bring ours into that range."""
        partition = each.partition
        connection = await self._connected()
        try:
            start = await self._leader_start(connection, each)
            end = await self._leader_end(connection, each)
            if not each.current or partition.log is None:
                return
            old = partition.log.log_end_offset
            followed_partition.start_over(partition, start, end, self._now_ms())
            self._moved[each] = None
        except ConnectionClosed:
            raise
        except KafkaError as error:
            self._failed(each, error)
            return
        log.warn(
            "{partition} ended at {old}, outside {start}..{end} of its leader, broker {id}; goes on at {new}",
            partition=partition, old=old, start=start, end=end, id=self._leader,
            new=partition.log.log_end_offset,
        )  # fmt: skip

    async def _leader_start(self, connection: Connection, each: _Followed) -> int:
        topic, index = each.partition.key
        epoch = each.following.leader_epoch
        asked = ListOffsetsPartition(
            partition_index=index, current_leader_epoch=epoch, timestamp=EARLIEST
        )
        request = ListOffsetsRequest(
            replica_id=self._settings.broker_id,
            topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
        )
        response = await connection.request(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, request)
        answer = response.topics[0].partitions[0]
        _raise_for(answer.error_code, each)
        return int(answer.offset)

    async def _leader_end(self, connection: Connection, each: _Followed) -> int:
        """Ask for the end of the leader's own epoch: that is its log end."""
        topic, index = each.partition.key
        epoch = each.following.leader_epoch
        asked = OffsetForLeaderPartition(
            partition=index, current_leader_epoch=epoch, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=self._settings.broker_id,
            topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])],
        )
        response = await connection.request(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, OFFSET_FOR_LEADER_EPOCH_VERSION, request
        )
        answer = response.topics[0].partitions[0]
        _raise_for(answer.error_code, each)
        return int(answer.end_offset)


def _raise_for(error_code: int, each: _Followed) -> None:
    if error_code:
        raise for_code(error_code)(repr(each.partition))
