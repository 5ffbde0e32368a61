"""Confirms, before an answer from memory leaves, that this broker still coordinates the group.

Theory of operation
===================
A coordinator that was paused (SIGSTOP, a long collection) does not know that it was replaced. Its memory may be stale:
another coordinator may have acknowledged later commits, or begun another generation. So no answer about a group leaves
before a confirmation that began after the request arrived. Two sources can confirm:

- ZooKeeper: a multi of one `Check` per shard, on the version of the partition's state. Reads in ZooKeeper are not
  linearizable, a multi is. All requests of one turn of the reactor share a multi; one multi is in flight at a time.
- The followers, while ZooKeeper does not answer: the next coordinator would be one of the in-sync replicas, and a
  replica that leads stops fetching from this broker. `no_successor_at` returns the time up to which the fetches of all
  of them rule out a successor (docs/design/groups-without-zookeeper.md).

A change that has to be written (a rebalance, a member that leaves) needs a confirmation by ZooKeeper itself:
`confirm_writable`.

In: fences, outcomes of multis, time   Out: confirmations, KafkaError   Owner: the reactor's thread
"""

from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger

from kbroker.common.reactor import Clock
from kbroker.coordinator.group.shard_fence import ShardFence
from kbroker.zk.errors import SessionExpired, ZooKeeperError
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
    """Confirms the fences of shards.

    *no_successor_at* and *is_alone* take a partition and its leader epoch. *is_alone* returns whether no other
    replica can be in the ISR.
    """

    def __init__(
        self,
        clock: Clock,
        no_successor_at: Callable[[int, int], float],
        is_alone: Callable[[int, int], bool] = lambda _partition, _leader_epoch: False,
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
