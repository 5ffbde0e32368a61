"""ReplicaFetcher: one connection to a broker, which fetches every partition that it leads and this broker follows.

Theory of operation
===================
One fetch is in flight at a time; the next one is sent when its response was applied. It waits at the leader while there
is nothing new. The fetch offsets show the leader what this broker has. Both sides keep a session (KIP-227), so a fetch
names only changed partitions, and an idle partition costs nothing. `FetcherState` builds requests and applies
responses; this file has the connection and the delays.

Of thousands of new partitions a fetch names at most NEW_PARTITIONS_PER_FETCH, and returns at once while others wait to
be named. So neither side handles all of them in one turn, in the first fetch or later.

A failed partition is delayed alone. A failed connection delays them all, first for a short time, at most for
replica.fetch.backoff.ms. A partition that is added, or reaches the end of its delay, during a fetch does not wait for
the end of the fetch. Any request behind a follower's fetch makes the leader answer the fetch, so the fetcher sends the
smallest one. (In Kafka such a partition waits until the fetch ends, at most replica.fetch.wait.max.ms. acks=all would
wait as long whenever a follower knows a leader epoch before the leader does.)

In: partitions to follow   Out: appended logs   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.metadata.epoch_fences import Registration
from kbroker.network.broker_connections import DialBroker
from kbroker.replica import follower_log
from kbroker.replica.core.replication_quota import ReplicationQuota
from kbroker.replica.fetcher_state import (
    FIRST_PAUSE,
    FetcherSettings,
    FetcherState,
    PartitionFetchState,
)
from kbroker.replica.leader_end_point import fetch_earliest_offset, fetch_latest_offset
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
"""After these the next fetch begins another session."""

REPORT_SECONDS = 0.5
"""How long failing partitions are collected for one log line."""

GATHER_SECONDS = 0.01
"""How long new partitions are collected before a waiting fetch is interrupted for them."""


FLUSH_SECONDS = 0.01
"""How long the next fetch waits for syncs of appended records; it omits partitions with longer ones."""


class ReplicaFetcher:
    """Fetches the partitions that broker *leader* leads.

    *address* gives the leader's, None while it is unknown. Fetches carry the broker epoch of *registration* (KIP-903).
    """

    def __init__(
        self,
        reactor: Any,
        leader: int,
        settings: FetcherSettings,
        *,
        address: Callable[[int], tuple[str, int] | None],
        registration: Registration,
        now_ms: Callable[[], int],
        throttle: ReplicationQuota,
        dial: DialBroker,
    ) -> None:
        self._reactor = reactor
        self._dial = dial
        self._leader = leader
        self._settings = settings
        self._address = address
        self._registration = registration
        self._now_ms = now_ms
        self._state = FetcherState(leader, settings, throttle)
        self._connection: Connection | None = None
        self._fetch_in_flight = False
        """Whether a fetch has no response yet."""
        self._new_partitions = False
        """Whether a partition was added that the fetch in flight does not name."""
        self._failures = 0
        self._report_is_due = False
        """Whether a report of failing partitions is scheduled."""
        self._sleeping: Deferred[None] | None = None
        self._waking = False
        self._interrupt_timer: Any = None
        self._due_timer: Any = None
        """Runs while a fetch is in flight and a partition is delayed."""
        self._closed = False
        self._ended = Deferred.fromCoroutine(self._run())
        self._ended.addErrback(
            lambda failure: log.failure("following broker {id} failed", failure, id=leader)
        )

    def __len__(self) -> int:
        return len(self._state)

    def add_partition(self, partition: Partition) -> None:
        """Fetch *partition* in its present role."""
        self._state.add_partition(partition)
        if self._sleeping is not None and not self._waking:
            self._waking = True
            self._reactor.callLater(0, self._wake)  # partitions of one request come together
        if self._fetch_in_flight:
            self._interrupt_fetch_soon()

    def _interrupt_fetch_soon(self) -> None:
        self._new_partitions = True
        if self._interrupt_timer is None:
            self._interrupt_timer = self._reactor.callLater(GATHER_SECONDS, self._interrupt_fetch)

    def log_start_advanced(self, key: TopicPartition) -> None:
        """Send the new log start offset of a partition with the next fetch."""
        self._state.log_start_advanced(key)

    def log_flushed(self, key: TopicPartition) -> None:
        """Fetch on after a sync of a log."""
        if not self._state.log_flushed(key):
            return
        if self._fetch_in_flight:
            self._interrupt_fetch_soon()
        elif self._sleeping is not None and not self._state.awaits_flush:
            self._wake()

    def remove_partition(self, key: TopicPartition) -> None:
        """Fetch a partition no longer."""
        self._state.remove_partition(key)

    def close(self) -> None:
        """Fetch nothing more."""
        self._closed = True
        self._state.clear()
        if self._interrupt_timer is not None:
            self._interrupt_timer.cancel()
            self._interrupt_timer = None
        self._cancel_due_timer()
        self._drop_connection()
        self._wake()

    def _interrupt_fetch(self) -> None:
        """Make the leader answer a waiting fetch that does not name every partition."""
        self._interrupt_timer = None
        connection = self._connection
        if self._fetch_in_flight and self._new_partitions and connection is not None:
            request = ApiVersionsRequest()
            behind = connection.request(ApiKey.API_VERSIONS, API_VERSIONS_VERSION, request)
            behind.addErrback(lambda _failure: None)  # the fetch fails, too

    def _delay_ended(self) -> None:
        self._due_timer = None
        self._interrupt_fetch_soon()

    def _cancel_due_timer(self) -> None:
        timer, self._due_timer = self._due_timer, None
        if timer is not None:
            timer.cancel()

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
                # Unexpected: no other fetcher would follow these partitions.
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
                "cannot fetch from broker {id}: {error}; retrying", id=self._leader, error=error
            )
        pause = min(FIRST_PAUSE * 2 ** min(self._failures - 1, 10), self._settings.max_pause)
        await self._sleep(pause)

    async def _sleep(self, seconds: float | None) -> None:
        """Wait for *seconds*, or (with None for ever) until `_wake`."""
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
        """Send one fetch, and apply its response."""
        connection = await self._connected()
        broker_epoch = self._registration.epoch_to_join_by
        request = self._state.build_fetch(broker_epoch, self._reactor.seconds())
        if request is None:
            return
        self._fetch_in_flight, self._new_partitions = True, False
        due = self._state.seconds_until_due(self._reactor.seconds())
        if due is not None:
            self._due_timer = self._reactor.callLater(due, self._delay_ended)
        try:
            response: FetchResponse = await connection.request(ApiKey.FETCH, FETCH_VERSION, request)
        finally:
            self._fetch_in_flight = False
            self._cancel_due_timer()
        self._state.session.answered(response)
        if response.error_code in SESSION_ERRORS:
            return
        if response.error_code:
            raise for_code(response.error_code)(f"Fetch from broker {self._leader}")
        out_of_range = self._state.process_fetch_response(
            response, self._reactor.seconds(), self._now_ms()
        )
        for each in out_of_range:
            await self._fetch_offset_and_truncate(each)
        if self._state.failing and not self._report_is_due:
            self._report_is_due = True
            self._reactor.callLater(REPORT_SECONDS, self._report_failing)

    def _report_failing(self) -> None:
        """Log in one line which partitions keep failing."""
        self._report_is_due = False
        failing, self._state.failing = self._state.failing, []
        (first, error), count = failing[0], len(failing)
        log.warn(
            "cannot follow {partition}{others} on broker {id}: {error}; retrying",
            partition=first.partition, id=self._leader, error=error,
            others=f" and {count - 1} more" if count > 1 else "",
        )  # fmt: skip

    # -- out of range --------------------------------------------------------------------------

    async def _fetch_offset_and_truncate(self, each: PartitionFetchState) -> None:
        """Request the leader's range, and bring our log into it."""
        partition = each.partition
        connection = await self._connected()
        try:
            start = await fetch_earliest_offset(connection, each)
            end = await fetch_latest_offset(connection, each)
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
