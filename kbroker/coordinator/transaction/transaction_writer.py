"""The writes of all transactional ids: many steps, few multis (Kafka's appends to ``__transaction_state``).

Theory of operation
===================
The writes of one turn of the reactor, of any transactional ids, become the next multis; several are in flight. A multi
begins with one check for every shard that it writes for. Each write is conditional on the version of its znode. The
machine of a transactional id has one write under way at a time. Outcomes:

- done: the machine receives `written`, and the request is answered;
- a check failed: the state of that partition is read. Its writes fail if another broker leads; all others are sent
  again;
- one operation was refused (another version, or the znode exists or is missing unexpectedly): that znode is read
  again, and its request gets COORDINATOR_NOT_AVAILABLE. All others are sent again;
- the multi was refused as a whole: each write is sent alone;
- no answer: the outcome is unknown. The requests get COORDINATOR_NOT_AVAILABLE. After the reconnect the znodes are
  read, and the machines receive what is there (`found`). Until then these transactional ids answer
  CONCURRENT_TRANSACTIONS.

In: `Write` of a machine   Out: outcomes, markers to send   Owner: the reactor's thread
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
from kbroker.common.turns import WorkerTurns
from kbroker.coordinator.shard_fence import BATCH_BYTES, ShardFence, size_of
from kbroker.coordinator.transaction.core.records import (
    PoisonTransactionStateError,
    decode_metadata,
    encode_metadata,
)
from kbroker.coordinator.transaction.core.states import TransactionState
from kbroker.coordinator.transaction.core.transaction import Marker, Write
from kbroker.coordinator.transaction.transactional_id import TransactionalId
from kbroker.zk.errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    SessionExpired,
    ZooKeeperError,
)
from kbroker.zk.interface import Create, Delete, Operation, SetData, Stat
from kclient.wire.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    NotCoordinator,
    UnknownServerError,
)

log = Logger()

WRITES_AT_ONCE: Final = 300
"""Writes in one multi, at most."""

IN_FLIGHT: Final = 6
"""Multis in flight at a time."""

READS_AT_ONCE: Final = 200
"""Znodes read by one request."""

DECODED_PER_TURN: Final = 100
"""Znodes decoded in one turn of the reactor."""

RETRY_READING: Final = 1.0
"""Seconds before znodes are read again after an unexpected failure."""

MAX_STATE_BYTES: Final = 800_000
"""Largest state of an open transaction; ZooKeeper accepts 1 MiB in one request."""

OnStored = Callable[[TransactionalId, Collection[Marker]], None]
OnPoison = Callable[[TransactionalId, str], None]


class _Queued:
    """A write on its way; *alone*: a multi with other writes was refused as a whole."""

    __slots__ = ("alone", "done", "id", "operation", "write")

    def __init__(self, id: TransactionalId, write: Write, data: bytes) -> None:
        self.id = id
        self.write = write
        self.alone = False
        self.done: Deferred[None] = Deferred()
        if write.metadata.state is TransactionState.DEAD:
            assert id.version is not None
            self.operation: Create | SetData | Delete = Delete(id.path, id.version)
        elif id.version is None:
            self.operation = Create(id.path, data)
        else:
            self.operation = SetData(id.path, data, id.version)


class _Multi(NamedTuple):
    """A multi in flight: its checks, and the writes after them."""

    fences: list[ShardFence]
    writes: list[_Queued]


class TransactionWriter:
    """Writes the znodes of transactional ids.

    *on_stored* receives each transactional id with a known new state, and the markers to send. *on_poison* receives
    those with a znode that cannot be decoded, and the problem.
    """

    def __init__(self, clock: Clock, on_stored: OnStored, on_poison: OnPoison) -> None:
        self._clock = clock
        self._on_stored = on_stored
        self._on_poison = on_poison
        self._queue: deque[_Queued] = deque()
        self._in_flight = 0
        self._woken = False

    def write(self, id: TransactionalId, write: Write) -> Deferred[None]:
        """Write what the machine of *id* decided; fire once it is stored.

        NotCoordinator; CoordinatorNotAvailable: the outcome is unknown, or the znode was not as expected;
        UnknownServerError: ZooKeeper cannot store it.
        """
        data = b""
        if write.metadata.state is not TransactionState.DEAD:
            data = encode_metadata(write.metadata)
        queued = _Queued(id, write, data)
        if len(data) > MAX_STATE_BYTES and write.metadata.state is TransactionState.ONGOING:
            id.machine.found(id.machine.stored)  # nothing is written
            queued.done.errback(
                UnknownServerError(
                    f"the transaction of {id.name!r:.300} has too many partitions: {len(data)} bytes"
                )
            )
            return queued.done
        self._queue.append(queued)
        self._wake()
        return queued.done

    # --- sending ------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._woken and self._in_flight < IN_FLIGHT and self._queue:
            self._woken = True
            self._clock.callLater(0, self._send)

    def _send(self) -> None:
        self._woken = False
        while self._queue and self._in_flight < IN_FLIGHT:
            multi = self._next_multi()
            if not multi.writes:
                continue
            self._in_flight += 1
            checks: list[Operation] = [fence.check for fence in multi.fences]
            operations = [queued.operation for queued in multi.writes]
            multi.fences[0].zookeeper.multi([*checks, *operations]).addCallbacks(
                self._written, self._failed, callbackArgs=(multi,), errbackArgs=(multi,)
            ).addErrback(self._broken, multi)

    def _next_multi(self) -> _Multi:
        """Take the next writes; those of unloaded shards fail."""
        multi = _Multi([], [])
        fences: dict[ShardFence, None] = {}
        size = 0
        while self._queue and len(multi.writes) < WRITES_AT_ONCE:
            queued = self._queue[0]
            if queued.id.fence.resigned:
                self._queue.popleft()
                _fail(queued, NotCoordinator())
                continue
            size += size_of(queued.operation)
            if multi.writes and (queued.alone or multi.writes[-1].alone or size > BATCH_BYTES):
                break
            self._queue.popleft()
            multi.writes.append(queued)
            fences[queued.id.fence] = None
        multi.fences.extend(fences)
        return multi

    # --- outcomes -----------------------------------------------------------------------------

    def _written(self, results: Sequence[str | Stat | None], multi: _Multi) -> None:
        self._landed()
        for queued, result in zip(multi.writes, results[len(multi.fences) :], strict=True):
            id = queued.id
            match queued.operation:
                case Delete():
                    id.version = None
                case Create():
                    id.version = 0
                case SetData():
                    assert isinstance(result, Stat)
                    id.version = result.version
            self._on_stored(id, id.machine.written())
            queued.done.callback(None)

    def _failed(self, failure: Failure, multi: _Multi) -> None:
        self._landed()
        error = failure.value
        if isinstance(error, SessionExpired):
            for fence in multi.fences:
                fence.lost()
            for queued in multi.writes:
                _fail(queued, NotCoordinator())
        elif not isinstance(error, ZooKeeperError) or isinstance(error, ConnectionLoss):
            if not isinstance(error, ZooKeeperError):
                log.failure("transactions could not be written", failure=failure)
            self._fail_and_read(multi.writes, CoordinatorNotAvailable())
        elif error.index is None:
            self._refused_whole(error, multi)
        elif error.index < len(multi.fences):
            looking = Deferred.fromCoroutine(self._look_into(multi.fences[error.index], multi))
            looking.addErrback(self._broken, multi)
        else:
            refused = multi.writes.pop(error.index - len(multi.fences))
            self._again(multi.writes)
            if isinstance(error, BadVersion | NodeExists | NoNode):
                log.warn("{id!r}: its znode is not as expected: {e}", id=refused.id.name, e=error)
                self._fail_and_read([refused], CoordinatorNotAvailable())
            else:
                self._refused(error, refused)

    def _broken(self, failure: Failure, multi: _Multi) -> None:
        """Handle an unexpected error: the outcome of all writes of *multi* counts as unknown."""
        log.failure("writes of transactions failed", failure=failure)
        self._fail_and_read(
            [each for each in multi.writes if not each.done.called], UnknownServerError()
        )

    def _landed(self) -> None:
        self._in_flight -= 1
        self._wake()

    def _refused_whole(self, error: ZooKeeperError, multi: _Multi) -> None:
        if len(multi.writes) > 1:
            for queued in multi.writes:
                queued.alone = True
            self._again(multi.writes)
            return
        self._refused(error, multi.writes[0])

    def _refused(self, error: ZooKeeperError, queued: _Queued) -> None:
        """Fail a write that ZooKeeper does not accept; its next step waits for a moment."""
        log.error("the state of {id!r} cannot be written: {e}", id=queued.id.name, e=error)
        self._clock.callLater(RETRY_READING, self.read_again, [queued.id])
        _fail(queued, UnknownServerError(f"the transaction cannot be stored: {error}"))

    async def _look_into(self, fence: ShardFence, multi: _Multi) -> None:
        """Send *multi* again, without the writes of the shard of *fence* if it is lost."""
        try:
            still_leads = await fence.still_leads()
        except ZooKeeperError:
            mine = [queued for queued in multi.writes if queued.id.fence is fence]
            self._again([queued for queued in multi.writes if queued.id.fence is not fence])
            self._fail_and_read(mine, CoordinatorNotAvailable())
            return
        assert still_leads or fence.resigned
        self._again(multi.writes)

    def _again(self, writes: Sequence[_Queued]) -> None:
        """Send *writes* again, which were not done; those of lost shards fail when they are taken."""
        self._queue.extendleft(reversed(writes))
        self._wake()

    # --- reading after an unknown outcome -----------------------------------------------------

    def _fail_and_read(self, writes: Sequence[_Queued], error: KafkaError) -> None:
        """Answer *writes* with *error*; read their znodes before the next step of each."""
        ids = [queued.id for queued in writes]
        if ids:
            self.read_again(ids)
        for queued in writes:
            _fail(queued, error)

    def read_again(self, ids: Sequence[TransactionalId]) -> None:
        """Have the machines of *ids* receive what their znodes hold."""
        reading = Deferred.fromCoroutine(self._read(list(ids)))
        reading.addErrback(self._reading_failed, ids)

    def _reading_failed(self, failure: Failure, ids: Sequence[TransactionalId]) -> None:
        log.failure("transactions could not be read, retrying", failure=failure)
        self._clock.callLater(RETRY_READING, self.read_again, ids)

    async def _read(self, ids: list[TransactionalId]) -> None:
        while ids := [id for id in ids if not id.fence.resigned]:
            some = ids[:READS_AT_ONCE]
            try:
                await some[0].fence.reconnected()
                nodes = await some[0].fence.zookeeper.get_all([id.path for id in some])
            except ConnectionLoss:
                continue
            except (SessionExpired, NotCoordinator):
                continue  # the fence of the first one is lost; others may not be
            ids = ids[READS_AT_ONCE:]
            turns = WorkerTurns(self._clock, DECODED_PER_TURN)
            for id, node in zip(some, nodes, strict=True):
                if id.fence.resigned:
                    continue
                try:
                    stored = None if node is None else decode_metadata(id.path, node.data)
                except PoisonTransactionStateError as problem:
                    self._on_poison(id, str(problem))
                    continue
                id.version = None if node is None else node.stat.version
                self._on_stored(id, id.machine.found(stored))
                await turns.done()


def _fail(queued: _Queued, error: KafkaError) -> None:
    if not queued.done.called:
        queued.done.errback(error)
