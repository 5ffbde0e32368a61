"""What a controller reads in ZooKeeper: brokers, topics, the state of every partition, notifications.

Reads of thousands of znodes take one request for many of them (`ZooKeeper.get_all`). The next requests are on their way
while the results of the first are processed (`READS_AT_ONCE`), some in every turn of the reactor: a new controller
reads every state before it elects a leader.

A znode that cannot be decoded (S25) is reported once, by its path, and treated as absent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.gather import all_of, outcomes_of
from kbroker.common.topic_partition import TopicPartition
from kbroker.common.turns import WorkerTurns
from kbroker.controller.controller_election import ControllerEpoch
from kbroker.controller.core.context import Broker, LeaderAndIsr, ReplicaAssignment, Topic
from kbroker.zk import znodes
from kbroker.zk.errors import (
    ConnectionLoss,
    NoNode,
    PoisonZnode,
)
from kbroker.zk.interface import (
    Node,
    ZooKeeper,
)
from kbroker.zk.reconnect import Reconnect

log = Logger()

READS_AT_ONCE = 1000
K = TypeVar("K")
T = TypeVar("T")


class ControllerZkReads:
    """The reads of one controller epoch, in the session of that epoch."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        reconnect: Reconnect,
        epoch: ControllerEpoch,
        clock: Any,
        *,
        partitions_per_turn: int = 500,
    ) -> None:
        self._zookeeper = zookeeper.in_session(epoch.session)
        self._reconnect = reconnect
        self._epoch = epoch
        self._clock = clock
        self._reported: set[str] = set()
        self._per_turn = partitions_per_turn
        self._reads_per_turn = max(partitions_per_turn // 2, 1)

    async def read_brokers(self, names: Iterable[str]) -> dict[int, Broker]:
        """Read the registrations under /brokers/ids; those that vanished or are poison are left out."""
        ids = [int(name) for name in names if name.isdecimal()]
        found = await all_of(map(self._read_broker, ids))
        return {broker.broker_id: broker for broker in found if broker is not None}

    async def _read_broker(self, broker_id: int) -> Broker | None:
        try:
            node = await self._read(lambda: self._zookeeper.get(znodes.broker_path(broker_id)))
            read = znodes.decode_broker(broker_id, node.data)
        except NoNode:
            return None
        except PoisonZnode as error:
            self._report(error)
            return None
        # A registration of an earlier version does not have these fields: the broker is trusted, as in classic Kafka.
        return Broker(broker_id, node.stat.czxid, read.endpoints, read.rack, read.integrity)

    async def read_topic_znode(self, name: str) -> tuple[znodes.TopicAssignment, int] | None:
        """Read a topic's znode and its version; None for one that does not exist or cannot be decoded."""
        try:
            path = znodes.topic_path(name)
            node = await self._read(lambda: self._zookeeper.get(path))
            return znodes.decode_topic(name, node.data), node.stat.version
        except NoNode:
            return None
        except (PoisonZnode, ValueError) as error:
            self._report(error, name)
            return None

    def decode_topic(self, name: str, read: znodes.TopicAssignment) -> Topic | None:
        """Convert the content of a topic's znode; None while it has no topic id."""
        if read.topic_id is None:
            return None
        return Topic(
            name,
            read.topic_id,
            {p: a.replicas for p, a in read.partitions.items()},
            {
                p: ReplicaAssignment(a.replicas, a.adding, a.removing)
                for p, a in read.partitions.items()
                if a.adding or a.removing
            },
        )

    async def read_unclean_election(self, topic: str, default: bool) -> bool:
        """Read a topic's unclean.leader.election.enable; *default* where it is not set."""
        path = znodes.config_path("topics", topic)
        try:
            node = await self._read(lambda: self._zookeeper.get(path))
            value = znodes.decode_config(path, node.data).get("unclean.leader.election.enable")
        except NoNode:
            return default
        except PoisonZnode as error:
            self._report(error)
            return False
        return default if value is None else value.strip().lower() == "true"

    async def read_states(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, LeaderAndIsr]:
        """Read the state znodes of *partitions*; those that do not exist, or are poison, are left out."""
        found: dict[TopicPartition, LeaderAndIsr] = {}
        lost: list[TopicPartition] = list(partitions)

        def read(wanted: list[TopicPartition]) -> Deferred[list[Node | None]]:
            return self._zookeeper.get_all([znodes.partition_state_path(*p) for p in wanted])

        def take(wanted: list[TopicPartition], nodes: list[Node | None] | BaseException) -> None:
            if isinstance(nodes, ConnectionLoss):
                lost.extend(wanted)
                return
            if isinstance(nodes, BaseException):
                raise nodes
            for partition, node in zip(wanted, nodes, strict=True):
                state = self._decode_state(partition, node) if node is not None else None
                if state is not None:
                    found[partition] = state

        while lost:
            wanted, lost = lost, []
            await self._ask_all(wanted, read, take)
            if not self._zookeeper.connected:
                await self._reconnect.connected(self._epoch.session)
        return found

    async def _ask_all(
        self,
        things: Iterable[K],
        ask: Callable[[list[K]], Deferred[T]],
        take: Callable[[list[K], T | BaseException], None],
    ) -> None:
        """Call *take* with the outcome of *ask* for all *things*, piece by piece and in order, each in its turn."""
        waiting = iter(things)
        under_way: deque[tuple[list[K], Deferred[list[T | BaseException]]]] = deque()
        turns = WorkerTurns(self._clock, self._reads_per_turn - 1)
        while True:
            while len(under_way) * self._reads_per_turn < READS_AT_ONCE:
                piece = list(islice(waiting, self._reads_per_turn))
                if not piece:
                    break
                under_way.append((piece, outcomes_of([ask(piece)])))
                await turns.done(len(piece))
            if not under_way:
                return
            piece, outcomes = under_way.popleft()
            take(piece, (await outcomes)[0])
            await turns.done(len(piece))

    async def _read_state(self, partition: TopicPartition) -> LeaderAndIsr | None:
        return (await self.read_states([partition])).get(partition)

    def _decode_state(self, partition: TopicPartition, node: Node) -> LeaderAndIsr | None:
        try:
            read = znodes.decode_partition_state(*partition, node.data, node.stat)
        except PoisonZnode as error:
            self._report(error)
            return None
        return LeaderAndIsr(
            read.leader,
            read.leader_epoch,
            read.isr,
            read.controller_epoch,
            read.zk_version,
            read.isr_epochs,
            read.elr,
            read.leader_recovery_state,
        )

    async def read_isr_changes(
        self, names: Iterable[str]
    ) -> tuple[dict[TopicPartition, LeaderAndIsr], list[str]]:
        """Read the partitions of ISR change notifications: (states, paths of the notifications)."""
        paths = [f"{znodes.ISR_CHANGES}/{name}" for name in names]
        partitions: set[TopicPartition] = set()
        for path, node in zip(paths, await all_of(map(self._get_or_none, paths)), strict=True):
            if node is not None:
                try:
                    partitions.update(znodes.decode_partitions(path, node))
                except PoisonZnode as error:
                    self._report(error)
        return await self.read_states(sorted(partitions)), paths

    async def read_log_dir_events(self, names: Iterable[str]) -> tuple[frozenset[int], list[str]]:
        """Read the brokers of log-dir event notifications: (brokers, paths of the notifications)."""
        paths = [f"{znodes.LOG_DIR_EVENTS}/{name}" for name in names]
        brokers: set[int] = set()
        for path, node in zip(paths, await all_of(map(self._get_or_none, paths)), strict=True):
            if node is not None:
                try:
                    brokers.add(znodes.decode_log_dir_event(path, node))
                except PoisonZnode as error:
                    self._report(error)
        return frozenset(brokers), paths

    async def topic_exists(self, name: str) -> bool:
        """Return whether the topic's znode exists."""
        path = znodes.topic_path(name)
        return await self._read(lambda: self._zookeeper.exists(path)) is not None

    async def _get_or_none(self, path: str) -> bytes | None:
        try:
            return (await self._read(lambda: self._zookeeper.get(path))).data
        except NoNode:
            return None

    async def _children(self, path: str) -> list[str]:
        try:
            return (await self._read(lambda: self._zookeeper.children(path))).names
        except NoNode:
            return []

    async def _read(self, request: Callable[[], Awaitable[T]]) -> T:
        return await self._reconnect.read(self._epoch.session, request)

    def _report(self, error: Exception, name: str = "") -> None:
        """Log once what is wrong with a znode."""
        text = str(error)
        if text not in self._reported:
            self._reported.add(text)
            log.error(
                "skipped {name}: {error}. Repair or delete the znode; nothing else is affected.",
                name=name or "a znode",
                error=text,
            )

    async def _exists(self, path: str) -> bool:
        return await self._read(lambda: self._zookeeper.exists(path)) is not None
