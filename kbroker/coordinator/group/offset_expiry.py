"""The expiry of offsets: of groups that have been empty for long, of unsubscribed topics, and of deleted ones.

As in Kafka (KIP-211) the offsets of a group that used the group protocol expire together,
`offsets.retention.minutes` after it became empty or, if that was later, after the last commit. Those of a simple
consumer (assign()) expire each that long after its own commit, as do those of a Stable group in topics without a
subscription. A group without members and without any offset left is deleted. Groups are checked one after the other,
so that a sweep is never a burst.

A topic that disappears from the metadata cache takes its offsets with it, once ZooKeeper confirms
that it is gone: a new topic of that name must not inherit the offsets of the old one (KAFKA-10545).
A sweep does the same for topics that disappeared while another broker coordinated the group, or
while this one could not ask ZooKeeper.
"""

from collections.abc import Callable, Collection
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.reactor import Clock
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.zk.errors import ZooKeeperError
from kbroker.zk.interface import ZooKeeper
from kbroker.zk.znodes import TOPICS, topic_path
from kclient.wire.errors import KafkaError

log = Logger()


class OffsetExpiry:
    """Sweeps every *interval* seconds; *retention_ms* is the age at which offsets expire."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        coordinator: GroupCoordinator,
        *,
        retention_ms: int,
        interval: float,
        is_known: Callable[[str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._clock = clock
        self._zookeeper = zookeeper
        self._coordinator = coordinator
        self._retention_ms = retention_ms
        self._interval = interval
        self._is_known = is_known
        self._now_ms = now_ms
        self._timer: Any = None
        self._stopped = False

    def start(self) -> None:
        """Start the sweeps."""
        self._timer = self._clock.callLater(self._interval, self._sweep_and_again)

    def stop(self) -> None:
        """Stop the sweeps."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _sweep_and_again(self) -> None:
        def again(_: object) -> None:
            if not self._stopped:
                self._timer = self._clock.callLater(self._interval, self._sweep_and_again)

        Deferred.fromCoroutine(self.sweep()).addErrback(self._failed).addBoth(again)

    def _failed(self, failure: Any) -> None:
        log.failure("offsets could not be swept", failure=failure)

    async def sweep(self) -> None:
        """Expire what is old enough."""
        before_ms = self._now_ms() - self._retention_ms
        with_offsets: set[str] = set()
        for listing in self._coordinator.listing()[0]:
            if self._stopped:
                return
            expired = await self._coordinator.expire_offsets(listing.group_id, before_ms)
            if expired:
                log.info(
                    "group {group!r}: {count} offsets expired",
                    group=listing.group_id,
                    count=expired,
                )
            with_offsets.update(self._coordinator.topics_with_offsets(listing.group_id))
        gone = {topic for topic in with_offsets if not self._is_known(topic)}
        if gone:
            await self.forget_topics(gone)

    def topics_deleted(self, gone: Collection[str]) -> None:
        """Handle topics that are gone from the metadata cache."""
        if not self._stopped:
            Deferred.fromCoroutine(self.forget_topics(gone)).addErrback(self._failed)

    async def forget_topics(self, gone: Collection[str]) -> None:
        """Delete the offsets of those topics in *gone* that ZooKeeper does not know either."""
        try:
            # The server may be behind: it may have the deletion of a topic, but not its creation again.
            await self._zookeeper.sync(TOPICS)
            deleted = [
                t for t in sorted(gone) if await self._zookeeper.exists(topic_path(t)) is None
            ]
        except ZooKeeperError as error:
            log.warn("offsets of deleted topics are kept for now: {error}", error=error)
            return
        for listing in self._coordinator.listing()[0] if deleted else ():
            try:
                offsets, pending = await self._coordinator.offsets_and_pending(listing.group_id)
            except KafkaError:
                continue
            for offset in [
                (t, p)
                for t in deleted
                for p in dict.fromkeys([*offsets.partitions(t), *pending.of_topic(t)])
            ]:
                # The topic may have been created again meanwhile. Commits are accepted for known topics only, so no
                # commit of the new topic was accepted while the cache does not have it.
                if not self._is_known(offset[0]):
                    await self._coordinator.drop_offsets(listing.group_id, [offset])
