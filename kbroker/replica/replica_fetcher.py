"""Following: one connection to a broker, by which everything is fetched that it leads and we have a replica of.

Theory of operation
===================
One fetch at a time, sent again as soon as its answer was taken; it waits at the leader while there is nothing new. The
offset that it asks for tells the leader what we have. Both sides keep a session (KIP-227), so it names only partitions
where that changed: what was appended to, what begins or ceases to be followed. An idle partition costs nothing. What is
asked, and what becomes of an answer, is decided in `fetch_plan.py`; here is the connection, and what is waited for.

Of thousands that begin to be followed a fetch names some hundred more, and is answered at once as long as others wait
to be named: neither we nor the leader have them all to look at in one turn, in the first fetch or after.

A partition that begins to be followed while a fetch waits does not wait for its end: any request behind a follower's
fetch makes the leader answer, so we send the least there is. A partition that fails pauses alone; a connection that
fails pauses them all, for a short time first, at most replica.fetch.backoff.ms.

In: partitions to follow   Out: appended logs   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.network.broker_connections import DialBroker
from kbroker.replica import follower_log
from kbroker.replica.core.replication_quota import ReplicationQuota
from kbroker.replica.fetcher_state import (
    FIRST_PAUSE,
    FetcherSettings,
    FetcherState,
    PartitionFetchState,
)
from kbroker.replica.leader_end_point import leader_end, leader_start
from kbroker.replica.partition import Partition
from kclient.errors import Address, ConnectionClosed
from kclient.net.connection import Connection
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import BrokerNotAvailable, KafkaError, for_code
from kclient.wire.fetch import FetchResponse
from kclient.wire.schema.api_versions import ApiVersionsRequest
from kclient.wire.versions import ApiKey

log = Logger()

FETCH_VERSION = 15
API_VERSIONS_VERSION = 0
SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""The next fetch begins another session."""

REPORT_SECONDS = 0.5
"""How long partitions that cannot be followed are gathered into one line of the log."""

GATHER_SECONDS = 0.01
"""How long new partitions are gathered before a waiting fetch is given up for them."""


FLUSH_SECONDS = 0.01
"""How long the next fetch waits for syncs of what the last one brought; it leaves partitions of longer ones out."""


class ReplicaFetcher:
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
        throttle: ReplicationQuota,
        dial: DialBroker,
    ) -> None:
        self._reactor = reactor
        self._dial = dial
        self._leader = leader
        self._settings = settings
        self._address = address
        self._broker_epoch = broker_epoch
        self._now_ms = now_ms
        self._state = FetcherState(leader, settings, throttle)
        self._connection: Connection | None = None
        self._fetch_in_flight = False
        """Whether a fetch is out."""
        self._new_partitions = False
        """Whether something began to be followed that it does not ask for."""
        self._failures = 0
        self._report_is_due = False
        """Whether partitions that cannot be followed are about to be told of."""
        self._sleeping: Deferred[None] | None = None
        self._waking = False
        self._interrupt_timer: Any = None
        self._closed = False
        self._ended = Deferred.fromCoroutine(self._run())
        self._ended.addErrback(
            lambda failure: log.failure("following broker {id} failed", failure, id=leader)
        )

    def __len__(self) -> int:
        return len(self._state)

    def add_partition(self, partition: Partition) -> None:
        """Follow *partition* in the role it has now."""
        self._state.add_partition(partition)
        if self._sleeping is not None and not self._waking:
            self._waking = True
            self._reactor.callLater(0, self._wake)  # those of one order come together
        if self._fetch_in_flight:
            self._interrupt_fetch_soon()

    def _interrupt_fetch_soon(self) -> None:
        self._new_partitions = True
        if self._interrupt_timer is None:
            self._interrupt_timer = self._reactor.callLater(GATHER_SECONDS, self._interrupt_fetch)

    def log_start_advanced(self, key: TopicPartition) -> None:
        """Say with the next fetch what there is of a partition now: its log begins elsewhere."""
        self._state.log_start_advanced(key)

    def log_flushed(self, key: TopicPartition) -> None:
        """Fetch on what waited for a sync of its log, which has ended."""
        if not self._state.log_flushed(key):
            return
        if self._fetch_in_flight:
            self._interrupt_fetch_soon()
        elif self._sleeping is not None and not self._state.awaits_flush:
            self._wake()

    def remove_partition(self, key: TopicPartition) -> None:
        """Fetch a partition no more."""
        self._state.remove_partition(key)

    def close(self) -> None:
        """Follow nothing any more."""
        self._closed = True
        self._state.clear()
        if self._interrupt_timer is not None:
            self._interrupt_timer.cancel()
            self._interrupt_timer = None
        self._drop_connection()
        self._wake()

    def _interrupt_fetch(self) -> None:
        """Have a waiting fetch answered that does not ask for all that is to be asked."""
        self._interrupt_timer = None
        connection = self._connection
        if self._fetch_in_flight and self._new_partitions and connection is not None:
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
            pause = self._state.seconds_until_fetch(self._reactor.seconds())
            if pause is None or pause > 0:
                await self._sleep(pause)
                continue
            try:
                await self._fetch()
                self._failures = 0
                if self._state.awaits_flush:
                    await self._sleep(FLUSH_SECONDS)
            except CancelledError:
                return
            except KafkaError as error:
                await self._pause(error)
            except Exception as error:
                # Not foreseen: nobody else would follow these partitions if we gave up.
                log.failure("following broker {id} failed", id=self._leader)
                await self._pause(error)

    async def _pause(self, error: Exception) -> None:
        if self._closed:
            return
        self._drop_connection()
        self._state.session.lost()
        self._failures += 1
        if self._failures == 3:
            log.warn(
                "cannot fetch from broker {id}: {error}; trying on", id=self._leader, error=error
            )
        pause = min(FIRST_PAUSE * 2 ** min(self._failures - 1, 10), self._settings.max_pause)
        await self._sleep(pause)

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
            self._leader,
            Address(*where),
            client_id=f"broker-{self._settings.broker_id}-fetcher-0",
            request_timeout=self._settings.request_timeout,
        )
        if self._closed:
            connection.close()
            raise ConnectionClosed("following ended")
        self._connection = connection
        return connection

    async def _fetch(self) -> None:
        """Ask for all that is due, and take the answer."""
        connection = await self._connected()
        request = self._state.build_fetch(self._broker_epoch(), self._reactor.seconds())
        if request is None:
            return
        self._fetch_in_flight, self._new_partitions = True, False
        try:
            response: FetchResponse = await connection.request(ApiKey.FETCH, FETCH_VERSION, request)
        finally:
            self._fetch_in_flight = False
        self._state.session.answered(response)
        if response.error_code in SESSION_ERRORS:
            return
        if response.error_code:
            raise for_code(response.error_code)(f"Fetch from broker {self._leader}")
        out_of_range = self._state.process_fetch_response(
            response, self._reactor.seconds(), self._now_ms()
        )
        for each in out_of_range:
            await self._start_over(each)
        if self._state.failing and not self._report_is_due:
            self._report_is_due = True
            self._reactor.callLater(REPORT_SECONDS, self._report_failing)

    def _report_failing(self) -> None:
        """Say in one line which partitions cannot be followed for a while now."""
        self._report_is_due = False
        failing, self._state.failing = self._state.failing, []
        (first, error), count = failing[0], len(failing)
        log.warn(
            "cannot follow {partition}{others} on broker {id}: {error}; trying on",
            partition=first.partition, id=self._leader, error=error,
            others=f" and {count - 1} more" if count > 1 else "",
        )  # fmt: skip

    # -- out of range --------------------------------------------------------------------------

    async def _start_over(self, each: PartitionFetchState) -> None:
        """Ask where the leader's log begins and ends, and bring ours into that range."""
        partition = each.partition
        connection = await self._connected()
        try:
            start = await leader_start(connection, each)
            end = await leader_end(connection, each)
            if not each.current or partition.log is None:
                return
            old = partition.log.log_end_offset
            follower_log.fetch_offset_and_truncate(partition, start, end, self._now_ms())
            self._state.resume(each)
        except (CancelledError, ConnectionClosed):
            raise
        except Exception as error:
            self._state.delay_partition(each, error, self._reactor.seconds())
            return
        log.warn(
            "{partition} ended at {old}, outside {start}..{end} of its leader, broker {id}; goes on at {new}",
            partition=partition, old=old, start=start, end=end, id=self._leader,
            new=partition.log.log_end_offset,
        )  # fmt: skip
