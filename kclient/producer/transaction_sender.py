"""Sends the requests of a `TransactionManager` to their coordinators, one at a time, and ends the calls that wait.

The manager decides; this class finds the coordinator, sends, and passes the outcome on. A coordinator that does not
answer, or answers that it is none, is found again. The calls of the producer wait here for a state of the manager, at
most max.block.ms. Then the requests go on, and the same call can be repeated.

Owner: the reactor's thread. The manager is accessed under *guard* only: `send` of the blocking API checks its state in
the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kclient.config import ProducerConfig
from kclient.errors import ClientClosed, ClientError, KafkaTimeoutError, TransactionAborted
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.coordinators import KeyType
from kclient.net.transactions import (
    CHANNEL,
    add_offsets,
    add_partitions,
    commit_transactional_offsets,
    end_transaction,
    init_producer_id,
)
from kclient.net.waiting import within
from kclient.producer.transaction_manager import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    Initialized,
    InitProducerId,
    Request,
    State,
    TransactionManager,
)
from kclient.types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from kclient.wire.errors import ErrorCode, KafkaError
from kclient.wire.versions import ApiKey

_FIND_AGAIN = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
)
_RAISES_EPOCHS = 3
"""The version of InitProducerId that raises the epoch of a producer id (KIP-360, Kafka 2.5)."""

_FENCES_MEMBERS = 3
"""The version of TxnOffsetCommit with the generation of the consumer (KIP-447, Kafka 2.5)."""


class TransactionSender:
    """Sends the requests of *manager*.

    *has_batches* returns whether records are waiting or in flight. *initialized* gets each new producer id and epoch.
    *changed* is called after each outcome, and after each change of the manager's state.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        cluster: Cluster,
        config: ProducerConfig,
        manager: TransactionManager,
        guard: AbstractContextManager[Any],
        *,
        has_batches: Callable[[], bool],
        initialized: Callable[[ProducerIdAndEpoch], None],
        changed: Callable[[], None],
    ) -> None:
        self.manager = manager
        self._reactor = reactor
        self._cluster = cluster
        self._config = config
        self._guard = guard
        self._has_batches = has_batches
        self._initialized = initialized
        self._changed = changed
        self._limit = config.max_block_ms / 1000
        self._sending: Deferred[Any] | None = None
        self._is_sent = False
        self._timer: Any = None
        self._waiters: list[Deferred[None]] = []
        self._unreported: State | None = None
        """The state of a call that has not returned: it waits, or it timed out."""
        self._warned = False
        self._closed = False

    # --- the calls of the producer

    async def init(self) -> None:
        """Request a producer id, and wait for it."""
        if not self._ended_unreported(State.INITIALIZING):
            with self._guard:
                self.manager.init()
            self.wake()
        await self._left(State.INITIALIZING, "init_transactions()")

    async def begin(self) -> None:
        """Begin a transaction; wait first while the epoch is raised after the last one."""
        call = "begin_transaction()"
        if self.manager.state is State.INITIALIZING:
            await self._until(lambda: self.manager.state is not State.INITIALIZING, call)
            self._raise_error(call)
        with self._guard:
            self.manager.begin()
        self._unreported = None

    async def send_offsets(
        self, member: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Send *offsets* to the coordinator of the group, and wait for its response."""
        with self._guard:
            commit = self.manager.send_offsets(member, offsets)
        self.wake()
        call = "send_offsets_to_transaction()"
        await self._until(lambda: not self.manager.is_pending(commit), call)
        self._raise_error(call)
        if self.manager.refusal is not None:
            raise self.manager.refusal  # aborted by another call meanwhile

    async def commit(self) -> None:
        """Commit when all records are acknowledged, and wait for it."""
        if not self._ended_unreported(State.COMMITTING):
            with self._guard:
                self.manager.begin_commit()
            self.after_change()
        await self._left(State.COMMITTING, "commit_transaction()")

    async def abort(self) -> None:
        """Abort, and wait for it."""
        if not self._ended_unreported(State.ABORTING):
            with self._guard:
                self.manager.begin_abort()
            self.after_change()
        await self._left(State.ABORTING, "abort_transaction()")

    def batch_failed(self, problem: KafkaError, *, has_sequence: bool) -> bool:
        """Handle a batch, or a record, that will not be sent, or not again.

        Return whether the state has changed. Then the caller reports the failure, and calls `after_change`.
        """
        before = self.manager.state
        with self._guard:
            self.manager.batch_failed(problem, has_sequence=has_sequence)
        return self.manager.state is not before

    def close(self) -> None:
        """Send nothing more; the calls that wait fail."""
        self._closed = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
        self._fire_waiters()

    # --- requests

    def wake(self) -> None:
        """Send the next request, if it is time."""
        if self._closed or self._sending is not None:
            return
        now = self._reactor.seconds()
        before = self.manager.state
        with self._guard:
            request = self.manager.next_request(now, has_batches=self._has_batches())
        if request is not None:
            self._is_sent = False
            sending = Deferred.fromCoroutine(self._send(request))
            self._sending = sending
            sending.addBoth(self._answered, request)
        elif self.manager.retry_at > now:
            self._set_timer(self.manager.retry_at - now)
        if self.manager.state is not before:  # a transaction without a request has ended
            self.after_change()

    def after_change(self) -> None:
        """Pass a change of the manager's state on."""
        self._changed()
        self._fire_waiters()
        self.wake()

    async def _send(self, request: Request) -> Initialized | None:
        connection = await self._cluster.coordinator(*_coordinator(self.manager, request), CHANNEL)
        self._is_sent = True
        name = self.manager.transactional_id
        if isinstance(request, InitProducerId):
            timeout = self._config.transaction_timeout_ms
            producer = await init_producer_id(connection, name, timeout, request.producer)
            version = connection.version_for(ApiKey.INIT_PRODUCER_ID)
            return Initialized(producer, version >= _RAISES_EPOCHS)
        if isinstance(request, AddPartitions):
            await add_partitions(connection, name, request.producer, request.partitions)
        elif isinstance(request, AddOffsets):
            await add_offsets(connection, name, request.producer, request.group_id)
        elif isinstance(request, CommitOffsets):
            member, offsets = request.commit.member, request.commit.offsets
            self._warn_without_fencing(connection, member)
            await commit_transactional_offsets(connection, name, request.producer, member, offsets)
        else:
            await end_transaction(connection, name, request.producer, committed=request.committed)
        return None

    def _answered(self, result: Any, request: Request) -> None:
        self._sending = None
        if self._closed:
            return
        if isinstance(result, Failure):
            self._failed(result, request)
        else:
            with self._guard:
                self.manager.succeeded(request, result)
            if result is not None:
                self._initialized(result.producer)
        self.after_change()

    def _failed(self, failure: Failure, request: Request) -> None:
        problem = failure.value
        if not isinstance(problem, KafkaError):
            self.log.failure("a request of a transaction failed", failure)
            problem = KafkaError(f"{type(request).__name__} failed: {problem!r}")
        if problem.code in _FIND_AGAIN or isinstance(problem, ClientError):
            self._cluster.coordinators.forget(*_coordinator(self.manager, request))
        now = self._reactor.seconds()
        with self._guard:
            self.manager.failed(request, problem, now, sent=self._is_sent)
        self.log.debug("{request}: {problem}", request=request, problem=problem)

    def _warn_without_fencing(self, connection: Connection, member: ConsumerGroupMetadata) -> None:
        version = connection.version_for(ApiKey.TXN_OFFSET_COMMIT)
        if version < _FENCES_MEMBERS and member.member_id and not self._warned:
            self._warned = True
            self.log.warn(
                "the coordinator of group {group} has TxnOffsetCommit v{version} only: it accepts the offsets of a "
                "member that was replaced (Kafka 2.5 and above refuse them)",
                group=member.group_id,
                version=version,
            )

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = self._reactor.callLater(max(0.0005, seconds), self.wake)

    # --- waiting

    def _ended_unreported(self, state: State) -> bool:
        """Return whether *state* has ended after its call timed out: the repeated call gets the outcome."""
        return self._unreported is state and self.manager.state is not state

    async def _left(self, state: State, call: str) -> None:
        """Wait until the manager has left *state*; raise its error."""
        self._unreported = state
        await self._until(lambda: self.manager.state is not state, call)
        self._unreported = None
        self._raise_error(call)

    def _raise_error(self, call: str) -> None:
        problem = self.manager.error
        if problem is None:
            return
        if self.manager.state is State.FATAL_ERROR:
            raise problem
        if self.manager.state is State.ABORTABLE_ERROR:
            raise TransactionAborted(
                f"{call} failed: {problem}",
                hint="call abort_transaction(), then the transaction can be repeated",
            ) from problem

    async def _until(self, done: Callable[[], bool], call: str) -> None:
        """Wait for done(), at most max.block.ms."""

        async def wait() -> None:
            while not done():
                if self._closed:
                    raise ClientClosed(f"the producer was closed during {call}")
                changed: Deferred[None] = Deferred()
                self._waiters.append(changed)
                await changed

        await within(self._reactor, wait(), self._limit, lambda: self._late(call))

    def _late(self, call: str) -> KafkaTimeoutError:
        problem = self.manager.last_problem or self._cluster.last_problem
        error = KafkaTimeoutError(
            f"{call} took more than {self._limit:g} s (max.block.ms)"
            + (f"; last problem: {problem}" if problem else ""),
            hint=f"call {call} again to wait for it",
        )
        error.__cause__ = problem
        return error

    def _fire_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.called:
                waiter.callback(None)


def _coordinator(manager: TransactionManager, request: Request) -> tuple[str, KeyType]:
    """Return the key and kind of the coordinator of *request*."""
    if isinstance(request, CommitOffsets):
        return request.commit.member.group_id, KeyType.GROUP
    return manager.transactional_id, KeyType.TRANSACTION
