"""The expiry of offsets: of groups that have been empty for long, of unsubscribed topics, and of deleted ones.

As in Kafka (KIP-211) the offsets of a group that used the group protocol expire together. They do so
`offsets.retention.minutes` after the group became empty, or after the last commit if that was later. Those of a simple
consumer (assign()) expire each that long after its own commit. So do those of a Stable group in topics without a
subscription. A group without members and without any offset left is deleted. Groups are checked one after the other, so
that a sweep is never a burst.

A topic that disappears from the metadata cache, or has another id there, takes its offsets with it, once ZooKeeper
confirms the deletion. A new topic of that name must not inherit them (KAFKA-10545). It may exist again by then: its own
offsets are those that were written after its znode was created (by zxid). What ZooKeeper does not answer is asked again
soon. A deletion is remembered for one to two sweeps, and groups that are loaded meanwhile are looked through again.
Their former coordinator may not have deleted the offsets. A sweep finds what is left of a topic that does not exist. If
the topic exists again, a broker that has not known the earlier one keeps the offsets, as in Kafka.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from kbroker.common.reactor import Clock
from kbroker.coordinator.group.committed_offsets import READS_AT_ONCE, get_all
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.zk.errors import NoNode, PoisonZnode, ZooKeeperError
from kbroker.zk.interface import Node, ZooKeeper
from kbroker.zk.znodes import (
    TOPICS,
    decode_topic,
    delete_topic_path,
    group_offset_path,
    topic_path,
)
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError, NotCoordinator

log = Logger()

ALL: Final = 1 << 63
"""Above every zxid."""
RETRY: Final = 1.0
"""Seconds until what ZooKeeper did not answer is asked again, at first; twice as long each time."""
MOST_RETRY: Final = 30.0
"""The longest such wait."""


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
        self._forgetting = DeferredLock()
        """One deletion at a time: each sees the znodes that the one before has left."""
        self._left: dict[str, UUID | None] = {}
        """Deleted topics with offsets that may be there still, and their ids."""
        self._recent: dict[str, UUID | None] = {}
        """Topics that were deleted since the last sweep."""
        self._earlier: dict[str, UUID | None] = {}
        """Topics that were deleted between the two last sweeps."""
        self._looking: Any = None
        self._retry: Any = None
        self._delay = RETRY

    def start(self) -> None:
        """Start the sweeps."""
        self._timer = self._clock.callLater(self._interval, self._sweep_and_again)

    def stop(self) -> None:
        """Stop the sweeps."""
        self._stopped = True
        for timer in (self._timer, self._retry, self._looking):
            if timer is not None and timer.active():
                timer.cancel()

    def _sweep_and_again(self) -> None:
        def again(_: object) -> None:
            if not self._stopped:
                self._timer = self._clock.callLater(self._interval, self._sweep_and_again)

        Deferred.fromCoroutine(self.sweep()).addErrback(self._failed).addBoth(again)

    def _failed(self, failure: Any) -> None:
        log.failure("offsets could not be swept", failure=failure)

    async def sweep(self) -> None:
        """Expire what is old enough."""
        self._earlier, self._recent = self._recent, {}
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
        gone = sorted(topic for topic in with_offsets if not self._is_known(topic))
        if gone:
            await self.forget_topics(dict.fromkeys(gone))

    def topics_deleted(self, gone: Mapping[str, UUID | None]) -> None:
        """Handle topics that are gone from the metadata cache, or have another id there; *gone* has their ids."""
        self._recent |= gone
        self._forget_soon(gone)

    def groups_loaded(self) -> None:
        """Handle the beginning of the coordination of groups, perhaps some of many that are loaded in this turn."""
        if self._looking is None and not self._stopped:
            self._looking = self._clock.callLater(0, self._look_again)

    def _look_again(self) -> None:
        self._looking = None
        self._forget_soon(self._earlier | self._recent)

    def _forget_soon(self, gone: Mapping[str, UUID | None]) -> None:
        if (gone or self._left) and not self._stopped:
            Deferred.fromCoroutine(self.forget_topics(gone)).addErrback(self._failed)

    async def forget_topics(self, gone: Mapping[str, UUID | None]) -> None:
        """Delete the offsets of those topics in *gone* that are deleted; the id is None where it is not known."""
        # What was accepted before the deletion was known may be on its way to ZooKeeper.
        await self._coordinator.all_commits_of_now()
        await self._forgetting.acquire()
        self._left |= {topic: topic_id or self._left.get(topic) for topic, topic_id in gone.items()}
        why: object = "a group's offsets could not be read or deleted"
        try:
            # The server may be behind: it may have the deletion of a topic, but not its creation again.
            await self._zookeeper.sync(TOPICS)
            topics = dict(self._left)
            held, is_whole = await self._holders(topics.keys())
            for topic, topic_id in topics.items():
                if await self._forget(topic, topic_id, held.get(topic, ())) and is_whole:
                    del self._left[topic]
        except ZooKeeperError as error:
            why = error
        finally:
            self._forgetting.release()
        if not self._left:
            self._delay = RETRY
        elif not self._stopped and (self._retry is None or not self._retry.active()):
            log.warn("offsets of deleted topics are kept for now: {why}", why=why)
            self._retry = self._clock.callLater(self._delay, self._forget_soon, {})
            self._delay = min(2 * self._delay, MOST_RETRY)

    async def _holders(
        self, topics: Collection[str]
    ) -> tuple[dict[str, list[tuple[str, int]]], bool]:
        """Return the groups and partitions with an offset, committed or pending, of each of *topics*.

        And whether these are all: False if a group could not be read.
        """
        held: dict[str, list[tuple[str, int]]] = {}
        groups, error = self._coordinator.listing()
        is_whole = error is ErrorCode.NONE
        for listing in groups:
            try:
                if not self._coordinator.may_have_offsets(listing.group_id, topics):
                    continue
                offsets, pending = await self._coordinator.offsets_and_pending(listing.group_id)
            except NotCoordinator:
                continue
            except KafkaError:
                is_whole = False
                continue
            for topic in topics:
                partitions = [*offsets.partitions(topic), *pending.of_topic(topic)]
                if partitions:
                    held.setdefault(topic, []).extend(
                        (listing.group_id, partition) for partition in dict.fromkeys(partitions)
                    )
        return held, is_whole

    async def _forget(
        self, topic: str, topic_id: UUID | None, held: Sequence[tuple[str, int]]
    ) -> bool:
        """Delete the offsets *held* (group and partition) that were committed for the deleted topic.

        Return False if some must be decided again.
        """
        if not held or await self._end_of(topic, topic_id) is None:
            return True
        are_decided = True
        if not self._is_known(topic):
            # Before the offsets are read: the end of a transaction makes pending offsets the committed ones.
            pending: dict[str, set[tuple[str, int]]] = {}
            for group_id, partition in held:
                pending.setdefault(group_id, set()).add((topic, partition))
            for group_id, partitions in pending.items():
                are_decided &= await self._coordinator.drop_pending(group_id, partitions)
        nodes: list[Node | None] = []
        for start in range(0, len(held), READS_AT_ONCE):
            some = held[start : start + READS_AT_ONCE]
            paths = [group_offset_path(group_id, topic, partition) for group_id, partition in some]
            nodes += await get_all(self._zookeeper, paths)
        # After the offsets: one for a new topic of this name is not read without that topic.
        end = await self._end_of(topic, topic_id)
        if end is None:
            return True
        versions: dict[str, dict[tuple[str, int], int]] = {}
        for (group_id, partition), node in zip(held, nodes, strict=True):
            committed = versions.setdefault(group_id, {})
            if node is not None and node.stat.mzxid < end:
                committed[topic, partition] = node.stat.version
        for group_id, committed in versions.items():
            are_decided &= await self._coordinator.drop_offsets(group_id, committed)
        return are_decided

    async def _end_of(self, topic: str, topic_id: UUID | None) -> int | None:
        """Return the zxid up to which offsets of *topic* are those of the deleted one; None if none is deleted.

        The znode of a deleted topic is there until all its replicas are deleted, and the request for the deletion goes
        with it. So the request is read first.
        """
        is_requested = await self._zookeeper.exists(delete_topic_path(topic)) is not None
        try:
            node = await self._zookeeper.get(topic_path(topic))
            found = decode_topic(topic, node.data).topic_id
        except NoNode:
            return ALL
        except PoisonZnode:
            return None
        if topic_id is not None and found != topic_id:
            return node.stat.czxid
        return ALL if is_requested else None
