"""AlterPartitionManager: ISR changes of the leaders on this broker, written into ZooKeeper.

Each ISR expansion or shrink is one conditional write of the partition's state znode. The leader state
(`kbroker.replica.core.leader_state`) decides what to write, and counts both the old and the new ISR until it receives
the outcome. After a rejected write, or one without an answer, the znode is read (after a sync: a lagging ZooKeeper
server must not mislead us). A sequential znode below /isr_change_notification, for many partitions, informs the
controller, which sends UpdateMetadata to every broker.

A follower that returns may join the ISR of thousands of partitions within one fetch. At most WRITES_AT_A_TIME writes
are in flight: neither the reactor nor ZooKeeper's thread has thousands to do while other work waits. A queued write is
as safe as one in flight: both ISRs count.

A deleted topic may be created again with a state znode of the same version. A write for the earlier topic must not be
applied to it. So the broker confirms the deletion of a replica only after `settled`.

Owner: the reactor's thread.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.topic_partition import TopicPartition
from kbroker.replica.core.leader_state import (
    FoundState,
    HighWatermarkAdvanced,
    LeaderState,
    WriteIsr,
)
from kbroker.replica.partition import Partition
from kbroker.zk import znodes
from kbroker.zk.errors import (
    ConnectionLoss,
    NoNode,
    PoisonZnode,
    SessionExpired,
    ZooKeeperError,
)
from kbroker.zk.interface import Session, Stat, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import RequestTimedOut

log = Logger()

ANNOUNCE_SECONDS = 0.05
"""How long changes are collected for one notification."""

LONGEST_GATHERING_SECONDS = 0.5
"""The longest collection while further writes wait: each notification costs a request to every broker."""

WRITES_AT_A_TIME = 100
"""The most writes in flight."""

PARTITIONS_PER_ANNOUNCEMENT = 3000
"""The most names in one znode."""

RETRY_SECONDS = 1.0


CHANGES_LOGGED = 20
"""Up to so many changes are logged one by one; more, as when a broker returns, by kind."""

NAMES_LOGGED = 5
"""The most partition names in the log line of a kind."""

IsrChange: TypeAlias = tuple[str, int, frozenset[int], frozenset[int]]
"""Partition, leader epoch, the ISR before and after."""


def isr_change_lines(changes: Sequence[IsrChange]) -> list[str]:
    """Return the log lines: one for each change, or one for each kind."""
    if len(changes) <= CHANGES_LOGGED:
        return [
            f"ISR of {name} in epoch {epoch}: {sorted(before)} -> {sorted(after)}"
            for name, epoch, before, after in changes
        ]
    kinds: dict[tuple[frozenset[int], frozenset[int]], list[str]] = {}
    for name, _, before, after in changes:
        kinds.setdefault((before, after), []).append(name)
    return [
        f"ISR of {len(names)} partition{'' if len(names) == 1 else 's'} ({', '.join(names[:NAMES_LOGGED])}"
        f"{', ...' if len(names) > NAMES_LOGGED else ''}): {sorted(before)} -> {sorted(after)}"
        for (before, after), names in kinds.items()
    ]


class AlterPartitionManager:
    """Writes the ISR changes of the leaders on this broker."""

    def __init__(self, reactor: Any, zookeeper: ZooKeeper, reconnect: Reconnect) -> None:
        self._reactor = reactor
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._waiting: deque[tuple[Partition, LeaderState, WriteIsr]] = deque()
        self._on_their_way = 0
        self._unsettled: Counter[TopicPartition] = Counter()
        """Writes that ZooKeeper may still apply."""
        self._settling: dict[TopicPartition, list[Deferred[None]]] = {}
        """Waiters for `settled`."""
        self._beginning = False
        self._changed: set[TopicPartition] = set()
        self._to_log: list[IsrChange] = []
        """Changes to be logged with the next notification."""
        self._timer: Any = None
        self._gathered_since = 0.0
        self._stopped = False

    def stop(self) -> None:
        """Begin no further write."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def submit(self, partition: Partition, write: WriteIsr) -> None:
        """Write, until the outcome is known; then report it to the leader state."""
        leader_state = partition.leader_state
        if leader_state is None:
            return
        self._waiting.append((partition, leader_state, write))
        self._begin()

    async def settled(self, key: TopicPartition) -> None:
        """Wait until no write of *key*'s state znode can still be applied."""
        if key in self._unsettled:
            waiting: Deferred[None] = Deferred()
            self._settling.setdefault(key, []).append(waiting)
            await waiting

    def _begin(self) -> None:
        """Begin as many queued writes as may be in flight."""
        if self._beginning:
            return  # a write ended at once: the loop below continues
        self._beginning = True
        try:
            while self._waiting and self._on_their_way < WRITES_AT_A_TIME:
                partition, leader_state, write = self._waiting.popleft()
                self._on_their_way += 1
                work = Deferred.fromCoroutine(self._write(partition, leader_state, write))
                work.addErrback(self._failed, partition)
                work.addBoth(lambda _: self._has_ended())
        finally:
            self._beginning = False

    def _failed(self, failure: Failure, partition: Partition) -> None:
        log.failure("writing the ISR of {partition} failed", failure, partition=repr(partition))

    def _has_ended(self) -> None:
        self._on_their_way -= 1
        self._begin()

    async def _write(
        self, partition: Partition, leader_state: LeaderState, write: WriteIsr
    ) -> None:
        path = znodes.partition_state_path(*partition.key)
        attempts = 0
        while not self._stopped and partition.leader_state is leader_state:
            attempts += 1
            if attempts > 2:
                await deferLater(self._reactor, RETRY_SECONDS)
                if self._stopped or partition.leader_state is not leader_state:
                    return
            role = partition.role
            before = leader_state.isr
            isr = tuple(replica for replica in role.replicas if replica in write.isr)
            epochs = dict(write.epochs)
            state = LeaderAndIsr(
                role.broker_id,
                leader_state.leader_epoch,
                isr,
                role.controller_epoch,
                isr_epochs=tuple(epochs.get(replica, -1) for replica in isr) if epochs else (),
                elr=write.elr,
            )
            try:
                stat = await self._set(partition.key, path, state, write.zk_version)
                effects, wrote = leader_state.isr_written(stat.version), True
            except ZooKeeperError as error:
                wrote = False
                found = await self._read(partition, leader_state)
                if partition.leader_state is not leader_state or self._stopped:
                    return
                effects = leader_state.isr_found(found)
                if leader_state.is_fenced:
                    log.info(
                        "the ISR of {partition} has another writer now: {error}",
                        partition=partition, error=error,
                    )  # fmt: skip
                    return
            again = [effect for effect in effects if isinstance(effect, WriteIsr)]
            if again:
                write = again[0]
                continue
            if not wrote:
                partition.isr_write_failed()
            self._written(partition, leader_state, before)
            if partition.leader_state is leader_state:
                partition.perform([e for e in effects if isinstance(e, HighWatermarkAdvanced)])
            return

    async def _set(self, key: TopicPartition, path: str, state: LeaderAndIsr, version: int) -> Stat:
        """Write a state znode, and keep it unsettled until ZooKeeper cannot apply the write any more."""
        session = self._zookeeper.session
        self._unsettled[key] += 1
        try:
            stat = await self._zookeeper.set(path, znodes.encode_partition_state(state), version)
        except ConnectionLoss:
            # The server may still apply it, until the session is connected to another one, or is over.
            fenced = Deferred.fromCoroutine(self._until_fenced(path, session))
            fenced.addErrback(lambda failure: log.failure("waiting for ZooKeeper failed", failure))
            fenced.addBoth(lambda _: self._settle(key))
            raise
        except BaseException:
            self._settle(key)
            raise
        self._settle(key)
        return stat

    async def _until_fenced(self, path: str, session: Session | None) -> None:
        while not self._stopped:
            try:
                await self._reconnect.connected(session)
                await self._zookeeper.sync(path)
            except (ConnectionLoss, RequestTimedOut):
                continue
            except SessionExpired:
                pass
            except ZooKeeperError as error:
                log.warn("cannot sync {path}: {error}; retrying", path=path, error=error)
                await deferLater(self._reactor, RETRY_SECONDS)
                continue
            return

    def _settle(self, key: TopicPartition) -> None:
        self._unsettled[key] -= 1
        if not self._unsettled[key]:
            del self._unsettled[key]
            for waiting in self._settling.pop(key, []):
                waiting.callback(None)

    def _written(
        self, partition: Partition, leader_state: LeaderState, before: frozenset[int]
    ) -> None:
        if partition.leader_state is leader_state:
            partition.role.isr = leader_state.isr
            partition.role.partition_epoch = leader_state.zk_version
        self._to_log.append((repr(partition), leader_state.leader_epoch, before, leader_state.isr))
        self._announce(partition.key)

    async def _read(self, partition: Partition, leader_state: LeaderState) -> FoundState | None:
        """Read the state znode as the ensemble has it; None if it is missing or invalid."""
        path = znodes.partition_state_path(*partition.key)
        while partition.leader_state is leader_state and not self._stopped:
            try:
                await self._zookeeper.sync(path)
                node = await self._zookeeper.get(path)
                found = znodes.decode_partition_state(*partition.key, node.data, node.stat)
            except (ConnectionLoss, SessionExpired):
                try:
                    await self._reconnect.connected()
                except RequestTimedOut:
                    continue
            except (NoNode, PoisonZnode):
                return None
            except ZooKeeperError as error:
                # Given up, the write would stay pending: this leader would change its ISR no more.
                log.warn(
                    "cannot read the state of {partition}: {error}; retrying",
                    partition=partition, error=error,
                )  # fmt: skip
                await deferLater(self._reactor, RETRY_SECONDS)
            else:
                epochs = zip(found.isr, found.isr_epochs, strict=False)
                return FoundState(
                    found.leader,
                    found.leader_epoch,
                    frozenset(found.isr),
                    found.zk_version,
                    tuple(sorted((replica, epoch) for replica, epoch in epochs if epoch >= 0)),
                    found.elr,
                )
        return None

    # -- the announcement ----------------------------------------------------------------------

    def _announce(self, key: TopicPartition) -> None:
        if not self._changed:
            self._gathered_since = self._reactor.seconds()
        self._changed.add(key)
        self._announce_later(ANNOUNCE_SECONDS)

    def _announce_later(self, seconds: float) -> None:
        if self._timer is None and not self._stopped:
            self._timer = self._reactor.callLater(seconds, self._announce_now)

    def _announce_now(self) -> None:
        self._timer = None
        gathered_for = self._reactor.seconds() - self._gathered_since
        if self._waiting and gathered_for < LONGEST_GATHERING_SECONDS:
            self._announce_later(ANNOUNCE_SECONDS)
            return
        to_log, self._to_log = self._to_log, []
        for line in isr_change_lines(to_log):
            log.info("{line}", line=line)
        changed = sorted(self._changed)
        some = changed[:PARTITIONS_PER_ANNOUNCEMENT]
        self._changed.difference_update(some)
        if not some or self._stopped:
            return
        creating = self._zookeeper.create(
            znodes.ISR_CHANGE_PREFIX,
            znodes.encode_partitions(some),
            sequential=True,
        )
        creating.addCallbacks(self._announced, self._not_announced, errbackArgs=(some,))

    def _announced(self, _path: str) -> None:
        if self._changed:
            self._announce_later(ANNOUNCE_SECONDS)

    def _not_announced(self, failure: Any, some: list[TopicPartition]) -> None:
        failure.trap(ZooKeeperError)
        self._changed.update(some)
        self._announce_later(RETRY_SECONDS)
