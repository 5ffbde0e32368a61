"""What a controller reads and writes in ZooKeeper, in the session of its epoch; every write is fenced by the epoch.

Every write is a multi that begins with a check of /controller_epoch (KAFKA-6082). Once a newer controller exists
nothing of it is applied, and `ControllerMovedError` is raised.

Reads of thousands of znodes take one request for many of them (`ZooKeeper.get_all`). The next requests are on their way
while the results of the first are processed (`READS_AT_ONCE`), some in every turn of the reactor. A new controller
reads every state before it elects a leader. A znode that cannot be decoded (S25) is reported once, by its path, and
treated as absent.

States are written a hundred to a multi, and multis are sent without waiting for the one before. One that is rejected is
repeated write by write, so that one lost race does not reject its neighbours. A write without an answer is read back
and compared. Writes of thousands of znodes are spread over turns of the reactor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from kbroker.common.gather import all_of, outcomes_of
from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.topic_partition import TopicPartition
from kbroker.common.turns import WorkerTurns
from kbroker.controller.controller_election import ControllerEpoch
from kbroker.controller.core.context import Broker, ReplicaAssignment, Topic
from kbroker.controller.core.effects import StateWrite, WriteAssignments
from kbroker.controller.core.events import AssignmentsWritten, BecameController, StatesWritten
from kbroker.zk import znodes
from kbroker.zk.errors import (
    BadVersion,
    ConnectionLoss,
    Disconnected,
    NodeExists,
    NoNode,
    NotEmpty,
    PoisonZnode,
    UnsafeName,
    ZooKeeperError,
)
from kbroker.zk.interface import (
    Check,
    Children,
    Create,
    Delete,
    Node,
    Operation,
    SetData,
    Stat,
    ZooKeeper,
)
from kbroker.zk.reconnect import Reconnect

log = Logger()

READS_AT_ONCE = 1000
STATES_PER_MULTI = 100

REFUSED_WAIT = 2.0
"""Seconds before a deletion that ZooKeeper refused, by an ACL for example, is tried again."""

K = TypeVar("K")
T = TypeVar("T")


class ControllerMovedError(Exception):
    """A newer controller epoch exists: this one has ended."""


class ControllerZkClient:
    """The reads and writes of one controller epoch, in the session of that epoch."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        reconnect: Reconnect,
        epoch: ControllerEpoch,
        clock: Any,
        *,
        new_topic_id: Callable[[], UUID],
        partitions_per_turn: int = 500,
    ) -> None:
        self._zookeeper = zookeeper.in_session(epoch.session)
        self._reconnect = reconnect
        self._epoch = epoch
        self._fence = Check(znodes.CONTROLLER_EPOCH, epoch.zk_version)
        self._clock = clock
        self._new_topic_id = new_topic_id
        self._per_turn = partitions_per_turn
        self._reads_per_turn = max(partitions_per_turn // 2, 1)
        self._reported: set[str] = set()

    async def read_all(self) -> BecameController:
        """Read the state of the cluster for a new controller."""
        brokers = await self.read_brokers(await self._children(znodes.BROKER_IDS))
        names = await self._children(znodes.TOPICS)
        topics = {t.name: t for t in await all_of(map(self.read_topic, names)) if t is not None}
        states = await self.read_states(
            (topic.name, index) for topic in topics.values() for index in topic.assignment
        )
        return BecameController(
            self._epoch.number,
            brokers,
            topics,
            states,
            await self.read_deletions(),
        )

    async def read_deletions(self) -> frozenset[str]:
        """Read the names of the topics with a request to delete them."""
        return frozenset(await self._children(znodes.DELETE_TOPICS))

    # -- brokers and topics -----------------------------------------------------------------

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

    async def read_topic(self, name: str) -> Topic | None:
        """Read a topic; one without a topic id (created by an old tool) is given one first (KIP-516)."""
        while (found := await self.read_topic_znode(name)) is not None:
            read, version = found
            if read.topic_id is not None:
                return self.decode_topic(name, read)
            given = replace(read, topic_id=self._new_topic_id())
            with suppress(BadVersion, NoNode, ConnectionLoss):
                await self._fenced(
                    [SetData(znodes.topic_path(name), znodes.encode_topic(given), version)]
                )
        return None

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

    async def topic_exists(self, name: str) -> bool:
        """Return whether the topic's znode exists; none does by a name that is not legal."""
        try:
            path = znodes.topic_path(name)
        except ValueError:
            return False
        return await self._exists(path)

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

    # -- notifications ----------------------------------------------------------------------

    async def read_isr_changes(
        self, names: Iterable[str]
    ) -> tuple[dict[TopicPartition, LeaderAndIsr], list[str]]:
        """Read the partitions of ISR change notifications: (states, paths of the notifications)."""
        paths = [f"{znodes.ISR_CHANGES}/{name}" for name in names]
        named = await self._read_notifications(paths, _decode_isr_change)
        return await self.read_states(sorted(set(chain.from_iterable(named)))), paths

    async def read_log_dir_events(self, names: Iterable[str]) -> tuple[frozenset[int], list[str]]:
        """Read the brokers of log-dir event notifications: (brokers, paths of the notifications)."""
        paths = [f"{znodes.LOG_DIR_EVENTS}/{name}" for name in names]
        brokers = await self._read_notifications(paths, znodes.decode_log_dir_event)
        return frozenset(brokers), paths

    async def _read_notifications(
        self, paths: list[str], decode: Callable[[str, bytes], T]
    ) -> list[T]:
        """Read the znodes *paths*; those that vanished or are poison are left out."""
        found = []
        for path, node in zip(paths, await all_of(map(self._get_or_none, paths)), strict=True):
            if node is not None:
                try:
                    found.append(decode(path, node))
                except (PoisonZnode, UnsafeName) as error:
                    self._report(error, path)
        return found

    # -- partition states and assignments ---------------------------------------------------

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
            await self._send_all(wanted, read, take)
            if not self._zookeeper.connected:
                await self._reconnect.connected(self._epoch.session)
        return found

    async def _send_all(
        self,
        things: Iterable[K],
        send: Callable[[list[K]], Deferred[T]],
        take: Callable[[list[K], T | BaseException], None],
    ) -> None:
        """Call *take* with the outcome of *send* for all *things*, piece by piece and in order, each in its turn."""
        waiting = iter(things)
        under_way: deque[tuple[list[K], Deferred[list[T | BaseException]]]] = deque()
        turns = WorkerTurns(self._clock, self._reads_per_turn - 1)
        while True:
            while len(under_way) * self._reads_per_turn < READS_AT_ONCE:
                piece = list(islice(waiting, self._reads_per_turn))
                if not piece:
                    break
                under_way.append((piece, outcomes_of([send(piece)])))
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
            return znodes.decode_partition_state(*partition, node.data, node.stat)
        except PoisonZnode as error:
            self._report(error)
            return None

    @property
    def _states_per_multi(self) -> int:
        return min(STATES_PER_MULTI, self._per_turn)

    async def write_states(self, writes: Sequence[StateWrite]) -> StatesWritten:
        """Write partition states; ControllerMovedError if a newer controller exists."""
        size = self._states_per_multi
        chunks = [writes[start : start + size] for start in range(0, len(writes), size)]
        turns = WorkerTurns(self._clock, self._per_turn - 1)
        under_way = []
        for chunk in chunks:
            under_way.append(Deferred.fromCoroutine(self._write_chunk(chunk)))
            await turns.done(len(chunk))
        versions: dict[TopicPartition, int] = {}
        conflicts: dict[TopicPartition, LeaderAndIsr | None] = {}
        for written in await all_of(under_way):
            versions.update(written.versions)
            conflicts.update(written.conflicts)
        return StatesWritten(versions, conflicts)

    async def _write_chunk(self, writes: Sequence[StateWrite]) -> StatesWritten:
        operations: list[Operation] = []
        for write in writes:
            operations += _operations(write, with_parent=_first_of_topic(write))
        try:
            await self._fenced(operations)
        except ZooKeeperError:
            # One of them lost a race, or the answer was lost: repeat them one by one.
            outcomes = await all_of([self._write_one(write) for write in writes])
            return StatesWritten(
                {p: v for o in outcomes for p, v in o.versions.items()},
                {p: s for o in outcomes for p, s in o.conflicts.items()},
            )
        return StatesWritten({w.partition: _next_version(w) for w in writes})

    async def _write_one(self, write: StateWrite) -> StatesWritten:
        """Write one state; repeat until the outcome is known."""
        while True:
            found = await self._read_state(write.partition)
            if found is not None and replace(found, zk_version=-1) == replace(
                write.state, zk_version=-1
            ):
                # An earlier attempt of ours was applied: no other controller writes our controller epoch
                # with this leader epoch.
                return StatesWritten({write.partition: found.zk_version})
            if found is not None and found.zk_version != write.expected_version:
                return StatesWritten(conflicts={write.partition: found})
            try:
                if write.expected_version is None:
                    await self._make_parents(write.partition)
                await self._fenced(_operations(write, with_parent=False, with_partition=False))
            except ConnectionLoss:
                await self._reconnect.connected(self._epoch.session)
            except (BadVersion, NodeExists):
                if await self._read_state(write.partition) is None:
                    return StatesWritten(conflicts={write.partition: None})  # poison
            except NoNode:
                return StatesWritten(conflicts={write.partition: None})
            else:
                return StatesWritten({write.partition: _next_version(write)})

    async def _make_parents(self, partition: TopicPartition) -> None:
        for path in (znodes.partitions_path(partition[0]), znodes.partition_path(*partition)):
            with suppress(NodeExists):
                await self._fenced([Create(path)])

    async def write_assignments(self, effect: WriteAssignments) -> AssignmentsWritten:
        """Write partitions' replicas into their topics' znodes; ControllerMovedError if a newer controller exists."""
        changes: dict[str, dict[int, znodes.ReplicaAssignment]] = {}
        for (name, index), new in effect.assignments.items():
            replicas = znodes.ReplicaAssignment(new.replicas, new.adding, new.removing)
            changes.setdefault(name, {})[index] = replicas
        written = await all_of(
            self._reconnect.read(
                self._epoch.session,
                partial(self._assign, name, effect.topics[name], change),
            )
            for name, change in changes.items()
        )
        return AssignmentsWritten(
            frozenset(name for name, done in zip(changes, written, strict=True) if not done)
        )

    async def _assign(
        self, name: str, topic_id: UUID, change: Mapping[int, znodes.ReplicaAssignment]
    ) -> bool:
        """Change one topic's znode; False if that topic is gone. It is repeated after a lost answer."""
        path = znodes.topic_path(name)
        turns = WorkerTurns(self._clock, self._per_turn)
        while True:
            try:
                node = await self._zookeeper.get(path)
                read = znodes.decode_topic(name, node.data)
            except NoNode:
                return False
            except PoisonZnode as error:
                self._report(error)
                return False
            if read.topic_id != topic_id:
                return False
            await turns.done(len(read.partitions))
            # Partitions added meanwhile stay: brokers add partitions, only the controller reassigns them.
            wanted = replace(read, partitions={**read.partitions, **change})
            if wanted == read:
                return True
            await turns.done(len(wanted.partitions))
            with suppress(BadVersion, NoNode):
                await self._fenced([SetData(path, znodes.encode_topic(wanted), node.stat.version)])
                return True

    # -- deletions and administrative requests ----------------------------------------------

    async def delete_topic(self, name: str, topic_id: UUID) -> None:
        """Remove everything of a topic, and at last, in one step, its name and its deletion request.

        A topic of the same name with another id stays: it may have been created before a lost answer is noticed.
        """
        refused: str | None = None
        while True:
            try:
                await self._delete_below(znodes.partitions_path(name))
                last = [znodes.delete_topic_path(name), znodes.config_path("topics", name)]
                present = await all_of(self._exists(path) for path in last)
                paths = [znodes.topic_path(name)]
                paths += [path for path, there in zip(last, present, strict=True) if there]
                await self._fenced([Delete(path) for path in paths])
            except Disconnected:
                await self._reconnect.connected(self._epoch.session)
            except ZooKeeperError as error:
                # A znode was created or deleted meanwhile, or the answer was lost: look again.
                await self._reconnect.connected(self._epoch.session)
                if not await self._is_there(name, topic_id):
                    return
                if isinstance(error, (NoNode, NotEmpty, ConnectionLoss)):
                    log.debug("deleting {name} again: {error}", name=name, error=error)
                    continue
                if str(error) != refused:
                    refused = str(error)
                    log.warn(
                        "topic {name} cannot be deleted: {error}; tried again every {wait:g} s",
                        name=name,
                        error=error,
                        wait=REFUSED_WAIT,
                    )
                await deferLater(self._clock, REFUSED_WAIT)
            else:
                return

    async def _is_there(self, name: str, topic_id: UUID) -> bool:
        """Return whether the topic with that id has its znode, even one that cannot be decoded any more."""
        try:
            node = await self._read(lambda: self._zookeeper.get(znodes.topic_path(name)))
            return znodes.decode_topic(name, node.data).topic_id == topic_id
        except NoNode:
            return False
        except PoisonZnode as error:
            self._report(error)
            return True

    async def _delete_below(self, path: str) -> None:
        """Delete *path* with all below it, in multis of a hundred, which ZooKeeper takes in the order they are sent."""
        doomed = await self._tree(path)
        doomed.reverse()
        turns = WorkerTurns(self._clock, self._per_turn - 1)
        under_way = []
        for start in range(0, len(doomed), self._states_per_multi):
            deletes = [Delete(p) for p in doomed[start : start + self._states_per_multi]]
            under_way.append(Deferred.fromCoroutine(self._fenced(deletes)))
            await turns.done(len(deletes))
        await all_of(under_way)

    async def _tree(self, path: str) -> list[str]:
        """List *path* and all paths below it, parents first; [] if it does not exist."""
        found: list[str] = []
        level = [path]

        def take(
            parents: list[str], listed: list[Children | BaseException] | BaseException
        ) -> None:
            if isinstance(listed, BaseException):
                raise listed
            for parent, children in zip(parents, listed, strict=True):
                if isinstance(children, Children):
                    found.append(parent)
                    below.extend(f"{parent}/{name}" for name in children.names)
                elif not isinstance(children, NoNode):
                    raise children

        while level:
            below: list[str] = []
            await self._send_all(level, self._list_each, take)
            level = below
        return found

    def _list_each(self, paths: list[str]) -> Deferred[list[Children | BaseException]]:
        return outcomes_of([self._list(path) for path in paths])

    def _list(self, path: str) -> Deferred[Children]:
        return Deferred.fromCoroutine(self._read(lambda: self._zookeeper.children(path)))

    async def delete_paths(self, paths: Sequence[str]) -> None:
        """Delete znodes that may be gone already: processed requests and notifications."""
        for path in paths:
            gone = [Delete(path)]
            with suppress(NoNode):
                # A lost answer makes no difference: the znode is deleted or found to be gone.
                await self._reconnect.read(
                    self._epoch.session,
                    lambda gone=gone: self._fenced(gone),  # type: ignore[misc]
                )

    async def update_admin_znode(self, path: str, data: bytes, version: int) -> int | None:
        """Replace an administrative znode; the new version, None if another client has written it."""
        write = [SetData(path, data, version)]
        try:
            await self._reconnect.read(self._epoch.session, lambda: self._fenced(write))
        except (NoNode, BadVersion):
            return None
        return version + 1

    async def read_admin_znode(self, path: str) -> Node | None:
        """Read an administrative znode; None while there is none."""
        try:
            return await self._read(lambda: self._zookeeper.get(path))
        except NoNode:
            return None

    async def delete_admin_znode(self, path: str, stat: Stat) -> None:
        """Delete an administrative znode that was processed, but not if another client has written it since."""
        with suppress(NoNode, BadVersion):
            while True:
                with suppress(ConnectionLoss):
                    await self._fenced([Delete(path, stat.version)])
                    return
                # The next znode of that path begins with the same version: it is another one if that was deleted.
                found = await self._read(lambda: self._zookeeper.exists(path))
                if found is None or found.czxid != stat.czxid:
                    return

    # -- every read, every write ------------------------------------------------------------

    async def _read(self, request: Callable[[], Awaitable[T]]) -> T:
        return await self._reconnect.read(self._epoch.session, request)

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

    async def _exists(self, path: str) -> bool:
        return await self._read(lambda: self._zookeeper.exists(path)) is not None

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

    async def _fenced(self, operations: Sequence[Operation]) -> list[object]:
        """Write *operations* in one multi under the fence; ControllerMovedError if a newer epoch exists."""
        try:
            results: Sequence[object] = await self._zookeeper.multi([self._fence, *operations])
        except (BadVersion, NoNode) as error:
            if error.index == 0 or error.path == znodes.CONTROLLER_EPOCH:
                raise ControllerMovedError(
                    f"controller epoch {self._epoch.number} is over"
                ) from error
            raise
        return list(results[1:])


def _decode_isr_change(path: str, data: bytes) -> list[TopicPartition]:
    """Return the partitions of a notification; PoisonZnode, UnsafeName."""
    partitions = znodes.decode_partitions(path, data)
    for topic, _ in partitions:
        znodes.topic_path(topic)  # UnsafeName where no topic can have that name
    return partitions


def _first_of_topic(write: StateWrite) -> bool:
    """Whether the topic's `partitions` znode is to be made along with this one."""
    return write.expected_version is None and write.partition[1] == 0


def _next_version(write: StateWrite) -> int:
    return 0 if write.expected_version is None else write.expected_version + 1


def _operations(
    write: StateWrite, *, with_parent: bool, with_partition: bool = True
) -> list[Operation]:
    path = znodes.partition_state_path(*write.partition)
    data = znodes.encode_partition_state(write.state)
    if write.expected_version is not None:
        return [SetData(path, data, write.expected_version)]
    made: list[Operation] = []
    if with_parent:
        made.append(Create(znodes.partitions_path(write.partition[0])))
    if with_partition:
        made.append(Create(znodes.partition_path(*write.partition)))
    return [*made, Create(path, data)]
