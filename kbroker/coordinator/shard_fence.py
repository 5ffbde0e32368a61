"""The fence of one shard: only the leader of its partition writes and answers for the ids that belong to it.

Theory of operation
===================
A shard is a partition of ``__consumer_offsets`` with its groups, or one of ``__transaction_state`` with its
transactional ids. The leader of the partition coordinates. *Writes*: ZooKeeper enforces it. Every write is a multi with
a `Check` on the version of the partition's state znode, bound to the session of the election. Once another broker
leads, or the session is over, ZooKeeper executes no write of this broker. The version also grows without a change of
leader (the controller or the leader itself changes the ISR). So after a failed check `still_leads` reads the znode
again.

*Answers*: a coordinator that was paused (SIGSTOP, a long collection) does not know that it was replaced. Its memory may
be stale: another coordinator may have acknowledged later commits, or begun another generation. So no answer about a
group or a transaction leaves before a confirmation that began after the request arrived (`confirm`). Two sources can
confirm:

- ZooKeeper: a multi of one `Check` per shard, on the version of the partition's state. Reads in ZooKeeper are not
  linearizable, a multi is. All requests of one turn of the reactor share a multi; one multi is in flight at a time.
- The followers confirm it while ZooKeeper does not answer. The next coordinator would be one of the in-sync replicas,
  and a replica that leads stops fetching from this broker. `no_successor_at` returns the time up to which the fetches
  of all of them rule out a successor (docs/design/groups-without-zookeeper.md).

A change that has to be written (a rebalance, a member that leaves) needs a confirmation by ZooKeeper itself:
`confirm_writable`.

The other fences (`metadata/epoch_fences.py`) compare numbers of requests: they need no ZooKeeper, because a request
brings its epoch with it. This one fences the broker's own writes and answers, for which only ZooKeeper or the
followers know a later epoch. So the two have no code in common.

In: writes, outcomes of multis, time   Out: confirmations, KafkaError   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger

from kbroker.common.reactor import Clock
from kbroker.zk.errors import ConnectionLoss, NoNode, SessionExpired, ZooKeeperError
from kbroker.zk.interface import Check, Create, Operation, Session, SetData, Stat, ZooKeeper
from kbroker.zk.znodes import decode_partition_state, partition_state_path
from kclient.wire.errors import CoordinatorNotAvailable, KafkaError, NotCoordinator

log = Logger()

CHECK_TIMEOUT = 1.0
"""Seconds after which ZooKeeper counts as silent, and the followers confirm."""

FOLLOWERS_TIMEOUT = 3.0
"""Seconds to wait for the followers' fetches; each may wait here for replica.fetch.wait.max.ms."""

FOLLOWERS_LOST = 2.0
"""Seconds without a confirmation after which the followers probably follow another leader."""

LOST_FOLLOWERS_TIMEOUT = 0.5
"""Seconds to wait for them then: members must find the next coordinator within their session timeout."""

SLOW_ZOOKEEPER_TIMEOUT = 5.0
"""Seconds to wait for a slow ZooKeeper where no follower can confirm: the leader is alone in the ISR."""

CHECK_INTERVAL = 0.02
"""Seconds between two checks of the followers' fetches, while a request waits for them."""

BATCH_BYTES = 400_000
"""Bytes in one multi, about, at most: far enough from ZooKeeper's 1 MiB."""


def size_of(operation: Operation) -> int:
    """Return the bytes of *operation* in a multi, about."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return 64 + len(operation.path) + len(data)


def batches(operations: Sequence[Operation], most: int) -> Iterator[list[Operation]]:
    """Split *operations* for multis of up to *most* operations and `BATCH_BYTES` each."""
    batch: list[Operation] = []
    size = 0
    for operation in operations:
        size += size_of(operation)
        if batch and (len(batch) == most or size > BATCH_BYTES):
            yield batch
            batch, size = [], size_of(operation)
        batch.append(operation)
    if batch:
        yield batch


class ShardFence:
    """The fence of *broker_id* for *partition* of *topic*, elected in *leader_epoch* and *session*.

    *on_lost* is called when ZooKeeper has another leader; it calls `resign`.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        session: Session,
        *,
        broker_id: int,
        topic: str,
        partition: int,
        leader_epoch: int,
        on_lost: Callable[[ShardFence], None],
        confirmer: LeadershipConfirmer,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.session = session
        self.zookeeper = zookeeper.in_session(session)
        self.resigned = False
        """Whether the shard is unloaded: no answer and no write for its ids."""

        self.confirmed_at = float("-inf")
        """Send time of the last check that passed; the confirmer updates it."""

        self._confirmer = confirmer
        self._broker_id = broker_id
        self._on_lost = on_lost
        self._path = partition_state_path(topic, partition)
        self._zk_version = -1
        self._reconnections: list[Deferred[None]] = []
        self._readers: list[Deferred[bool]] | None = None
        """The other callers of `still_leads` during a read; None without a read."""

    @property
    def check(self) -> Check:
        """The first operation of every multi."""
        return Check(self._path, self._zk_version)

    async def still_leads(self) -> bool:
        """Read the partition's state; return whether this broker still leads, and update the check.

        Errors: ConnectionLoss. Concurrent calls share one read. Without the lead, *on_lost* has been called.
        """
        if self._readers is not None:
            waiting: Deferred[bool] = Deferred()
            self._readers.append(waiting)
            return await waiting
        self._readers = []
        try:
            ours = await self._read()
        except ZooKeeperError as error:
            for waiting in self._others_reading():
                waiting.errback(error)
            raise
        if not ours:
            self.lost()
        for waiting in self._others_reading():
            waiting.callback(ours)
        return ours

    def confirm(self) -> Deferred[None]:
        """Fire once no other broker can have coordinated at this call. NotCoordinator, CoordinatorNotAvailable."""
        return self._confirmer.confirm(self)

    def confirm_writable(self) -> Deferred[None]:
        """Do as `confirm`, but only by ZooKeeper: a write would succeed."""
        return self._confirmer.confirm_writable(self)

    @property
    def zookeeper_answers(self) -> bool:
        """Whether ZooKeeper answered its last request in time."""
        return self._confirmer.answers(self)

    def confirmed_since(self, since: float) -> bool:
        """Return whether a confirmation already covers *since*."""
        return not self.resigned and self._confirmer.confirmed_at(self) >= since

    def lost(self) -> None:
        """Handle another leader, or the end of the session."""
        if not self.resigned:
            self._on_lost(self)

    def _others_reading(self) -> list[Deferred[bool]]:
        waiting, self._readers = self._readers or [], None
        return waiting

    async def _read(self) -> bool:
        try:
            node = await self.zookeeper.get(self._path)
        except (NoNode, SessionExpired):
            return False
        state = decode_partition_state(self.topic, self.partition, node.data, node.stat)
        if (state.leader, state.leader_epoch) != (self._broker_id, self.leader_epoch):
            return False
        self._zk_version = state.zk_version
        return not self.resigned

    async def write(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """Do all *operations* or none. NotCoordinator if this broker does not coordinate any more.

        ZooKeeperError: its `index` counts *operations*, without the check.
        """
        while True:
            results = await self.write_once(operations)
            if results is not None:
                return results

    async def write_once(self, operations: Sequence[Operation]) -> list[str | Stat | None] | None:
        """Do as `write`, but return None if nothing was done because the check was stale.

        The caller may then decide again: another request may have overtaken this one.
        """
        if self.resigned:
            raise NotCoordinator
        try:
            results = await self.zookeeper.multi([self.check, *operations])
            return results[1:]
        except SessionExpired as error:
            self.lost()
            raise NotCoordinator from error
        except ZooKeeperError as error:
            if error.index != 0:
                error.index = error.index - 1 if error.index is not None else None
                raise
            if not await self.still_leads():
                raise NotCoordinator from error
            return None

    async def reconnected(self) -> None:
        """Wait until ZooKeeper answers again; NotCoordinator if the fence is lost before."""
        while not self.resigned:
            try:
                await self.zookeeper.sync(self._path)
                return
            except SessionExpired as error:
                self.lost()
                raise NotCoordinator from error
            except ConnectionLoss:
                again: Deferred[None] = Deferred()
                self._reconnections.append(again)
                await again
        raise NotCoordinator

    def connection_is_back(self) -> None:
        """Resume the callers of `reconnected`."""
        waiting, self._reconnections = self._reconnections, []
        for deferred in waiting:
            deferred.callback(None)

    def resign(self) -> None:
        """Stop answering and writing; idempotent."""
        self.resigned = True
        self.connection_is_back()


class _Request:
    """A request that waits for a confirmation of *fence* at *since* or later; *to_write*: by ZooKeeper only."""

    __slots__ = ("done", "fence", "since", "to_write")

    def __init__(self, fence: ShardFence, since: float, *, to_write: bool) -> None:
        self.fence = fence
        self.since = since
        self.to_write = to_write
        self.done: Deferred[None] = Deferred()

    def settle(self, error: KafkaError | None) -> None:
        if self.done.called:
            return
        if error is None:
            self.done.callback(None)
        else:
            self.done.errback(error)


class LeadershipConfirmer:
    """Confirms the fences of the shards of one topic.

    *no_successor_at* and *is_alone* take a partition and its leader epoch. *is_alone* returns whether no other
    replica can be in the ISR.
    """

    def __init__(
        self,
        clock: Clock,
        no_successor_at: Callable[[int, int], float],
        is_alone: Callable[[int, int], bool],
    ) -> None:
        self._clock = clock
        self._no_successor_at = no_successor_at
        self._is_alone = is_alone
        self._queued: list[_Request] = []
        """Requests for the next multi."""
        self._checked: list[_Request] = []
        """Requests of the multi in flight."""
        self._by_followers: list[_Request] = []
        """Requests for which ZooKeeper does not answer."""
        self._check_scheduled = False
        self._in_flight = False
        self._is_silent = False
        """Whether the multi in flight was not answered in time."""
        self._checking_followers = False

    def confirm(self, fence: ShardFence) -> Deferred[None]:
        """Fire once *fence* is confirmed.

        NotCoordinator if it is lost; CoordinatorNotAvailable if neither ZooKeeper nor the followers confirm it in time.
        """
        return self._confirm(fence, to_write=False)

    def confirm_writable(self, fence: ShardFence) -> Deferred[None]:
        """Do as `confirm`, but by ZooKeeper only: CoordinatorNotAvailable while it does not answer."""
        return self._confirm(fence, to_write=True)

    def _confirm(self, fence: ShardFence, *, to_write: bool) -> Deferred[None]:
        if fence.resigned:
            return fail(NotCoordinator())
        request = _Request(fence, self._clock.seconds(), to_write=to_write)
        if self.answers(fence):
            self._queued.append(request)
            self._schedule_check()
        else:
            self._confirm_by_followers([request])
        return request.done

    def confirmed_at(self, fence: ShardFence) -> float:
        """Return the latest time at which *fence* certainly held."""
        by_followers = self._no_successor_at(fence.partition, fence.leader_epoch)
        fence.confirmed_at = max(fence.confirmed_at, by_followers)
        return fence.confirmed_at

    def answers(self, fence: ShardFence) -> bool:
        """Return whether ZooKeeper answered its last request in time."""
        return fence.zookeeper.connected and not self._is_silent

    # --- by ZooKeeper -------------------------------------------------------------------------

    def _schedule_check(self) -> None:
        if not self._check_scheduled and not self._in_flight:
            self._check_scheduled = True
            self._clock.callLater(0, self._check)

    def _check(self) -> None:
        self._check_scheduled = False
        self._in_flight = True
        self._checked, self._queued = self._queued, []
        timer = self._clock.callLater(CHECK_TIMEOUT, self._silent)
        checking = Deferred.fromCoroutine(self._check_all(self._checked))
        checking.addErrback(self._failed, self._checked).addBoth(self._answered, timer)

    async def _check_all(self, requests: list[_Request]) -> None:
        fences = list(dict.fromkeys(request.fence for request in requests))
        while fences := [fence for fence in fences if not fence.resigned]:
            sent_at = self._clock.seconds()
            try:
                await fences[0].zookeeper.multi([fence.check for fence in fences])
            except SessionExpired:
                for fence in fences:
                    fence.lost()
            except ZooKeeperError as error:
                if error.index is None:
                    raise
                # The version also grows with every change of the ISR: `still_leads` reads the leader.
                await fences[error.index].still_leads()
            else:
                for fence in fences:
                    fence.confirmed_at = max(fence.confirmed_at, sent_at)
                break
        for request in requests:
            lost = request.fence.resigned
            request.settle(NotCoordinator() if lost else None)

    def _failed(self, failure: Any, requests: list[_Request]) -> bool:
        """Have the followers confirm *requests*; return False: ZooKeeper did not answer."""
        if not isinstance(failure.value, ZooKeeperError):
            log.failure("shards could not be checked", failure=failure)
        if not self._is_silent:
            self._confirm_by_followers(requests)
        return False

    def _silent(self) -> None:
        """Have the followers confirm until the multi in flight is answered."""
        self._is_silent = True
        waiting, self._queued = self._queued, []
        self._confirm_by_followers([*self._checked, *waiting])

    def _answered(self, result: object, timer: Any) -> None:
        if timer.active():
            timer.cancel()
        self._in_flight = self._is_silent = False
        self._checked = []
        if result is not False:
            # ZooKeeper is slow: the next multi may confirm the requests that wait for followers.
            waiting, self._by_followers = self._by_followers, []
            self._queued += [request for request in waiting if not request.done.called]
        if self._queued:
            self._schedule_check()

    # --- by followers -------------------------------------------------------------------------

    def _confirm_by_followers(self, requests: Iterable[_Request]) -> None:
        self._by_followers += [request for request in requests if not request.done.called]
        if self._by_followers and not self._checking_followers:
            self._check_followers()

    def _timeout(self, request: _Request) -> float:
        fence = request.fence
        if fence.zookeeper.connected and self._is_alone(fence.partition, fence.leader_epoch):
            return SLOW_ZOOKEEPER_TIMEOUT
        gone = self.confirmed_at(request.fence) < request.since - FOLLOWERS_LOST
        return LOST_FOLLOWERS_TIMEOUT if gone else FOLLOWERS_TIMEOUT

    def _check_followers(self) -> None:
        now = self._clock.seconds()
        self._checking_followers = True
        requests, self._by_followers = self._by_followers, []
        waiting = []
        for request in requests:
            fence = request.fence
            if fence.resigned:
                request.settle(NotCoordinator())
            elif request.to_write:
                request.settle(CoordinatorNotAvailable())
            elif self.confirmed_at(fence) >= request.since:
                request.settle(None)
            elif now >= request.since + self._timeout(request):
                request.settle(CoordinatorNotAvailable())
            elif not request.done.called:
                waiting.append(request)
        self._by_followers += waiting
        self._checking_followers = bool(self._by_followers)
        if self._checking_followers:
            self._clock.callLater(CHECK_INTERVAL, self._check_followers)
