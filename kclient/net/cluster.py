"""A client's view of one cluster: metadata, connections, and the routing of requests.

Theory of operation
===================
The first use connects to a bootstrap server and requests metadata. Later requests go to brokers by id. Metadata are
requested again when they are older than metadata.max.age.ms, or when a caller reports them as wrong (`update_soon`,
`refresh`). Concurrent callers share one Metadata request. It names only the topics that callers want, until one wants
all topics.

Invariants: 1. `metadata` is an immutable snapshot: any thread may read it. 2. at most one Metadata request is in
flight. 3. every wait is bounded by a setting or by the caller.
Owner: the reactor's thread.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger

from kclient.config import CommonConfig
from kclient.errors import (
    ClientClosed,
    ConnectError,
    KafkaError,
    KafkaTimeoutError,
    LeaderUnavailable,
)
from kclient.net.bootstrap import connect_to_first
from kclient.net.brokers import Brokers, unreachable
from kclient.net.connection import Connection, Dial, connect
from kclient.net.coordinators import Coordinators, KeyType
from kclient.net.metadata import ClusterMetadata
from kclient.net.waiting import SingleFlight, backoff, sleep, within
from kclient.types import TopicPartition
from kclient.wire.errors import (
    BrokerNotAvailable,
    ErrorCode,
    UnknownTopicOrPartition,
    for_code,
)
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.versions import ApiKey

T = TypeVar("T")

_FAILURES_TO_LOG = 2
"""The first failed Metadata request is often raised to the caller. The second is one of a series, logged once."""


class Cluster:
    """Connections, metadata and routing of one client.

    *on_change* callbacks get every new snapshot. Await its coroutine methods, or turn them into Deferreds with
    ``Deferred.fromCoroutine``. *dial* and *rng* replace sockets and randomness in tests.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        config: CommonConfig,
        *,
        dial: Dial = connect,
        rng: Random | None = None,
        allow_auto_topic_creation: bool = False,
    ) -> None:
        self.reactor = reactor
        self.config = config
        self._rng = rng or Random()
        self.metadata = ClusterMetadata()
        self.brokers = Brokers(reactor, config, dial)
        self.coordinators = Coordinators()
        self._allow_auto_topic_creation = allow_auto_topic_creation
        self.last_problem: KafkaError | None = None
        self._wanted: set[str] = set()
        self._wants_all = False
        self._refresh = SingleFlight(self._request_metadata)
        self._stale = False
        self._failures = 0
        self._failed_at = -math.inf
        """When the last request for metadata failed."""
        self._next_update: Any = None
        self._listeners: list[Callable[[ClusterMetadata], None]] = []
        self.closed = False

    # --- metadata

    def on_change(self, callback: Callable[[ClusterMetadata], None]) -> None:
        """Call *callback* with every new snapshot from now on."""
        self._listeners.append(callback)

    def want(self, topics: Iterable[str]) -> None:
        """Add *topics* to the metadata, from the next update on."""
        self._wanted.update(topics)

    def want_only(self, topics: Iterable[str]) -> None:
        """Keep *topics* and no others in the metadata."""
        self._wanted = set(topics)
        self._wants_all = False

    def want_all(self) -> None:
        """Keep all topics in the metadata, for subscriptions by pattern."""
        self._wants_all = True

    async def start(self) -> ClusterMetadata:
        """Connect to a bootstrap server and fetch metadata.

        Raise `BootstrapError` with each address and its cause if no server answers. A broker that has just started
        knows no brokers yet: the call retries for default.api.timeout.ms.
        """
        give_up_at = self.reactor.seconds() + self.config.default_api_timeout_ms / 1000
        while not self.metadata.version:
            try:
                await self.refresh()
            except BrokerNotAvailable:
                if self.reactor.seconds() >= give_up_at:
                    raise
                await sleep(self.reactor, self.config.retry_backoff_ms / 1000)
        return self.metadata

    def refresh(self) -> Deferred[ClusterMetadata]:
        """Request metadata now, or share the request in flight; fire with the new snapshot."""
        if self.closed:
            raise ClientClosed("the client is closed")
        return self._refresh.join()

    def update_soon(self) -> None:
        """Request metadata again, which turned out to be wrong, once the backoff since the last request is over."""
        if self._stale or self.closed:
            return
        self._stale = True
        age = self.reactor.seconds() - max(self.metadata.updated_at, self._failed_at)
        first, most = self._backoffs()
        self._schedule(max(0.0, backoff(self._failures, first, most, self._jitter()) - age))

    async def partitions(self, topic: str, *, timeout: float) -> list[int]:
        """Return the partitions of *topic*; wait at most *timeout* seconds for the metadata.

        Raise the topic's error (UnknownTopicOrPartition, InvalidTopic, ...), or `BootstrapError` if no broker answered.
        """
        if not isinstance(topic, str):
            raise TypeError(f"{topic!r} is no name of a topic: it must be a str")

        async def attempt() -> list[int]:
            known = self.metadata.partitions(topic)
            if known is None or topic not in self._wanted:
                self.want([topic])
                known = (await self.refresh()).partitions(topic)
            if known:
                return known
            found = self.metadata.topics.get(topic)
            code = found.error_code if found else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if found is not None and not code:
                raise LeaderUnavailable(f"topic {topic!r} has no partitions yet")
            raise for_code(code)(f"topic {topic!r}: {_error_text(code)}")

        return await self.retrying(attempt, timeout=timeout, what=f"metadata of topic {topic!r}")

    # --- routing

    def leader_connection(self, tp: TopicPartition) -> Connection | None:
        """Return the open connection to the leader of *tp*, if it has a leader and the connection is open."""
        leader = self.metadata.leader(tp)
        return None if leader is None else self.brokers.ready(leader)

    async def connection(self, node_id: int, channel: str = "") -> Connection:
        """Return an open connection to broker *node_id*; raise `ConnectError` if it cannot be opened.

        For an unknown id the metadata are fetched first.
        """
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            broker = (await self.refresh()).brokers.get(node_id)
            if broker is None:
                self.update_soon()
                raise LeaderUnavailable(f"broker {node_id} is not in the cluster")
        try:
            return await self.brokers.connection(node_id, broker.address, channel)
        except ConnectError as problem:
            self.update_soon()
            raise unreachable(node_id, problem) from problem

    async def any_connection(self) -> Connection:
        """Return an open connection to any broker of the cluster."""
        open_one = self.brokers.least_busy()
        if open_one is not None:
            return open_one[1]
        known = list(self.metadata.brokers.values())
        self._rng.shuffle(known)
        for broker in known:
            try:
                return await self.brokers.connection(broker.node_id, broker.address)
            except ConnectError:
                continue
        return await connect_to_first(self.brokers, self.config.addresses)

    async def controller(self) -> Connection:
        """Return an open connection to the controller."""
        if self.metadata.controller_id not in self.metadata.brokers:
            await self.refresh()
        if self.metadata.controller_id not in self.metadata.brokers:
            raise for_code(ErrorCode.NOT_CONTROLLER)("the cluster has no controller")
        return await self.connection(self.metadata.controller_id)

    async def coordinator(
        self, key: str, kind: KeyType = KeyType.GROUP, channel: str = ""
    ) -> Connection:
        """Return an open connection to the coordinator of a group or transactional id.

        Raise CoordinatorNotAvailable and similar errors; all of them are retriable.
        """
        known = self.coordinators.known(key, kind)
        if known is None:
            await self.start()
            known = await self.coordinators.find(await self.any_connection(), key, kind)
        node_id, address = known
        try:
            return await self.brokers.connection(node_id, address, channel)
        except ConnectError as problem:
            self.coordinators.forget(key, kind)
            raise unreachable(node_id, problem) from problem

    async def request(
        self, node_id: int, api_key: int, message: Any, *, timeout: float | None = None
    ) -> Any:
        """Send *message* to broker *node_id* and return its response."""
        connection = await self.connection(node_id)
        return await connection.request(api_key, None, message, timeout=timeout)

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout: float,
        what: str,
        retries: int | None = None,
    ) -> T:
        """Await attempt() until it succeeds or fails with an error that is not retriable, at most *timeout* seconds.

        After the timeout raise the last failure, or KafkaTimeoutError if there was none.
        """
        give_up_at = self.reactor.seconds() + timeout
        first, most = self._backoffs()
        tries = 0
        while True:
            problem: KafkaError
            left = max(0.001, give_up_at - self.reactor.seconds())
            try:
                return await _bounded(self.reactor, attempt, left)
            except KafkaTimeoutError as late:
                problem = late
                if isinstance(late, _OutOfTime):
                    cause = self.last_problem
                    raise KafkaTimeoutError(
                        f"{what}: gave up after {timeout:.3g} s" + (f": {cause}" if cause else "")
                    ) from cause
            except KafkaError as failed:
                problem = failed
            if not problem.retriable:
                raise problem
            wait = backoff(tries, first, most, self._jitter())
            tries += 1
            if self.reactor.seconds() + wait >= give_up_at or (
                retries is not None and tries > retries
            ):
                raise problem
            if isinstance(problem, UnknownTopicOrPartition) or problem.needs_metadata:
                self.update_soon()
            await sleep(self.reactor, wait)
            if self.reactor.seconds() >= give_up_at:
                raise problem  # the process was paused: another attempt would have no time to fail

    def close(self) -> Deferred[Any]:
        """Close every connection; fires when the sockets are closed."""
        self.closed = True
        if self._next_update is not None:
            self._next_update.cancel()
            self._next_update = None
        self._refresh.cancel(ClientClosed("the client was closed"))
        return self.brokers.close()

    # --- inside

    def _jitter(self) -> float:
        return self._rng.uniform(-1, 1)

    def _backoffs(self) -> tuple[float, float]:
        return self.config.retry_backoff_ms / 1000, self.config.retry_backoff_max_ms / 1000

    async def _request_metadata(self) -> ClusterMetadata:
        try:
            snapshot = await self._request_from_any()
        except KafkaError as problem:
            self.last_problem = problem
            self._failures += 1
            self._failed_at = self.reactor.seconds()
            if self._failures == _FAILURES_TO_LOG and not self.closed:
                self.log.warn("{problem}\n  retrying", problem=problem)
            if self.metadata.version and not self.closed:
                self._stale = False
                self.update_soon()
            raise
        self.last_problem = None
        self._failures = 0
        self._stale = False
        self._schedule(self.config.metadata_max_age_ms / 1000)
        for listener in self._listeners:  # the last step: a listener may call `update_soon`
            listener(snapshot)
        return snapshot

    async def _request_from_any(self) -> ClusterMetadata:
        """Request metadata from one broker after the other; a lost connection leads to the next broker."""
        tries = len(self.metadata.brokers) + 1
        while True:
            connection = await self.any_connection()
            wants_all = self._wants_all
            topics = None if wants_all else [MetadataRequestTopic(name=t) for t in self._wanted]
            request = MetadataRequest(
                topics=topics, allow_auto_topic_creation=self._allow_auto_topic_creation
            )
            try:
                response = await connection.request(ApiKey.METADATA, None, request)
            except KafkaError as problem:
                tries -= 1
                if not problem.retriable or tries <= 0:
                    raise
                continue
            break
        if not response.brokers:
            raise for_code(ErrorCode.BROKER_NOT_AVAILABLE)(
                f"{connection.address} knows no brokers yet"
            )
        now = self.reactor.seconds()
        self.metadata = self.metadata.updated(response, now=now, complete=wants_all)
        self.brokers.forget(lambda node_id: node_id < 0 or node_id in self.metadata.brokers)
        return self.metadata

    def _schedule(self, delay: float) -> None:
        if self.closed:
            return
        if self._next_update is not None and self._next_update.active():
            self._next_update.cancel()
        self._next_update = self.reactor.callLater(delay, self._update_now)

    def _update_now(self) -> None:
        self._next_update = None
        maybeDeferred(self.refresh).addErrback(self._update_failed)

    def _update_failed(self, failure: Any) -> None:
        self.log.debug("metadata update failed: {problem}", problem=failure.value)


class _OutOfTime(KafkaTimeoutError):
    """The caller's timeout has passed, not that of a request."""


async def _bounded(reactor: Any, attempt: Callable[[], Awaitable[T]], seconds: float) -> T:
    return await within(reactor, attempt(), seconds, lambda: _OutOfTime("out of time"))


def _error_text(code: int) -> str:
    doc = for_code(code).__doc__ or ""
    return doc.partition("\n")[0].rstrip(".").lower()
