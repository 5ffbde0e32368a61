"""The controller's side of ZooKeeper: reads all there is, writes under the fence of its epoch.

Every write is a multi that begins with a check of /controller_epoch (KAFKA-6082): once a newer
controller exists none of it is applied, and `FencedError` is raised. States are written a hundred to a
multi, which nobody waits for before sending the next; one that is refused is taken apart, so that one lost race does
not hold up its neighbours. A write whose answer was lost is read back and compared.

Reads and writes of thousands of znodes are made, and their answers taken in, some in every turn of the reactor. Reads
are always on their way while others are taken in (`READS_AT_ONCE`): a new controller has to read all there is before
anybody is led.

Poison (S25): a znode that cannot be read is reported once, by its path, and treated as absent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.controller.context import (
    ALWAYS,
    Assignment,
    Broker,
    Endpoint,
    LeaderAndIsr,
    Start,
    Topic,
    TopicPartition,
)
from kbroker.controller.effects import StateWrite, WriteAssignments
from kbroker.controller.events import AssignmentsWritten, BecameController, StatesWritten
from kbroker.runtime.controller_election import Term
from kbroker.runtime.gather import all_of, outcomes_of
from kbroker.runtime.reconnect import Reconnect
from kbroker.runtime.turns import Turns
from kbroker.zk import znodes
from kbroker.zk.errors import (
    BadVersion,
    ConnectionLoss,
    Disconnected,
    NodeExists,
    NoNode,
    PoisonZnode,
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
    ZooKeeper,
)

log = Logger()

STATES_PER_MULTI = 100
READS_AT_ONCE = 1000
_STARTS = frozenset(start.value for start in Start)
K = TypeVar("K")
T = TypeVar("T")


class FencedError(Exception):
    """A newer controller epoch exists: this term is over."""


class ControllerStore:
    """ZooKeeper as the controller of one *term* uses it."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        reconnect: Reconnect,
        term: Term,
        clock: Any,
        *,
        new_topic_id: Callable[[], UUID],
        partitions_per_turn: int = 500,
    ) -> None:
        self._zookeeper = zookeeper.in_session(term.session)
        self._reconnect = reconnect
        self._term = term
        self._clock = clock
        self._new_topic_id = new_topic_id
        self._fence = Check(znodes.CONTROLLER_EPOCH, term.epoch_zk_version)
        self._reported: set[str] = set()
        self._per_turn = partitions_per_turn
        self._reads_per_turn = max(partitions_per_turn // 2, 1)
        self._per_multi = min(STATES_PER_MULTI, partitions_per_turn)

    # -- reading -----------------------------------------------------------------------------

    async def read_all(self, *, delete_topic_enable: bool) -> BecameController:
        """Read what a new controller has to know."""
        brokers = await self.read_brokers(await self._children(znodes.BROKER_IDS))
        names = await self._children(znodes.TOPICS)
        topics = {t.name: t for t in await all_of(map(self.read_topic, names)) if t is not None}
        states = await self.read_states(
            (topic.name, index) for topic in topics.values() for index in topic.assignment
        )
        return BecameController(
            self._term.controller_epoch,
            brokers,
            topics,
            states,
            frozenset(await self._children(znodes.DELETE_TOPICS)),
            delete_topic_enable,
        )

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
        endpoints = tuple(
            Endpoint(e.listener, e.security_protocol, e.host, e.port) for e in read.endpoints
        )
        # One that says nothing of itself (of an earlier version) is believed, as it always was.
        start = Start(read.start) if read.start in _STARTS else Start.UNKNOWN
        intact = read.intact if read.start else ALWAYS
        return Broker(broker_id, node.stat.czxid, endpoints, read.rack, intact, start)

    async def read_topic(self, name: str) -> Topic | None:
        """Read a topic; one without a topic id (made by an old tool) is given one first."""
        while True:
            try:
                path = znodes.topic_path(name)
                node = await self._read(lambda path=path: self._zookeeper.get(path))  # type: ignore[misc]
                read = znodes.decode_topic(name, node.data)
            except NoNode:
                return None
            except (PoisonZnode, ValueError) as error:
                self._report(error, name)
                return None
            if read.topic_id is None:
                given = replace(read, topic_id=self._new_topic_id())
                with suppress(BadVersion, NoNode, ConnectionLoss):
                    await self._fenced(
                        [SetData(path, znodes.encode_topic(given), node.stat.version)]
                    )
                continue
            return self.decode_topic(name, read)

    def decode_topic(self, name: str, read: znodes.TopicAssignment) -> Topic | None:
        """Convert what a topic's znode holds; None while it has no topic id."""
        if read.topic_id is None:
            return None
        return Topic(
            name,
            read.topic_id,
            {p: a.replicas for p, a in read.partitions.items()},
            {
                p: Assignment(a.replicas, a.adding, a.removing)
                for p, a in read.partitions.items()
                if a.adding or a.removing
            },
        )

    async def read_unclean_election(self, topic: str, default: bool) -> bool:
        """Read a topic's unclean.leader.election.enable; *default* where it does not say."""
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
                await self._reconnect.connected(self._term.session)
        return found

    async def _ask_all(
        self,
        things: Iterable[K],
        ask: Callable[[list[K]], Deferred[T]],
        take: Callable[[list[K], T | BaseException], None],
    ) -> None:
        """Have *take* called with the outcome of *ask* for all *things*, piece by piece, in order, each in its turn."""
        waiting = iter(things)
        under_way: deque[tuple[list[K], Deferred[list[T | BaseException]]]] = deque()
        turns = Turns(self._clock, self._reads_per_turn - 1)
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
        """Read the partitions that leaders announced: (states, paths of the announcements)."""
        paths = [f"{znodes.ISR_CHANGES}/{name}" for name in names]
        partitions: set[TopicPartition] = set()
        for path, node in zip(paths, await all_of(map(self._get_or_none, paths)), strict=True):
            if node is not None:
                try:
                    partitions.update((t, p) for t, p in znodes.decode_partitions(path, node))
                except PoisonZnode as error:
                    self._report(error)
        return await self.read_states(sorted(partitions)), paths

    async def read_log_dir_events(self, names: Iterable[str]) -> tuple[frozenset[int], list[str]]:
        """Read which brokers lost a log directory: (brokers, paths of the announcements)."""
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
        """Say whether the topic's znode exists."""
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
        return await self._reconnect.read(self._term.session, request)

    def _report(self, error: Exception, name: str = "") -> None:
        """Say once what is wrong with a znode."""
        text = str(error)
        if text not in self._reported:
            self._reported.add(text)
            log.error(
                "skipped {name}: {error}. Repair or delete the znode; nothing else is affected.",
                name=name or "a znode",
                error=text,
            )

    # -- writing -----------------------------------------------------------------------------

    async def _fenced(self, operations: Sequence[Operation]) -> list[object]:
        """Do *operations* in one multi under the fence; FencedError if a newer epoch exists."""
        try:
            results: Sequence[object] = await self._zookeeper.multi([self._fence, *operations])
        except (BadVersion, NoNode) as error:
            if error.index == 0 or error.path == znodes.CONTROLLER_EPOCH:
                raise FencedError(
                    f"controller epoch {self._term.controller_epoch} is over"
                ) from error
            raise
        return list(results[1:])

    async def write_states(self, writes: Sequence[StateWrite]) -> StatesWritten:
        """Write partition states; FencedError if a newer controller exists."""
        size = self._per_multi
        chunks = [writes[start : start + size] for start in range(0, len(writes), size)]
        turns = Turns(self._clock, self._per_turn - 1)
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
            # One of them lost a race, or the answer was lost: find out which, one by one.
            outcomes = await all_of([self._write_one(write) for write in writes])
            return StatesWritten(
                {p: v for o in outcomes for p, v in o.versions.items()},
                {p: s for o in outcomes for p, s in o.conflicts.items()},
            )
        return StatesWritten({w.partition: _next_version(w) for w in writes})

    async def _write_one(self, write: StateWrite) -> StatesWritten:
        """Write one state, whatever it takes to learn the outcome."""
        while True:
            found = await self._read_state(write.partition)
            if found is not None and replace(found, zk_version=-1) == replace(
                write.state, zk_version=-1
            ):
                # An earlier attempt of ours was applied: no other writes our controller epoch
                # with this leader epoch.
                return StatesWritten({write.partition: found.zk_version})
            if found is not None and found.zk_version != write.expected_version:
                return StatesWritten(conflicts={write.partition: found})
            try:
                if write.expected_version is None:
                    await self._make_parents(write.partition)
                await self._fenced(_operations(write, with_parent=False, with_partition=False))
            except ConnectionLoss:
                await self._reconnect.connected(self._term.session)
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
        """Write partitions' replicas into their topics' znodes; FencedError if a newer controller exists."""
        changes: dict[str, dict[int, znodes.ReplicaAssignment]] = {}
        for (name, index), new in effect.assignments.items():
            replicas = znodes.ReplicaAssignment(new.replicas, new.adding, new.removing)
            changes.setdefault(name, {})[index] = replicas
        written = await all_of(
            self._reconnect.read(
                self._term.session,
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
        """Change one topic's znode; False if that topic is gone. May be done again after a lost answer."""
        path = znodes.topic_path(name)
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
            # Partitions added meanwhile stay: others than the controller add some, nobody else moves any.
            wanted = replace(read, partitions={**read.partitions, **change})
            if wanted == read:
                return True
            with suppress(BadVersion, NoNode):
                await self._fenced([SetData(path, znodes.encode_topic(wanted), node.stat.version)])
                return True

    async def delete_topic(self, name: str) -> None:
        """Remove everything of a topic, and at last, in one step, its name and its deletion request."""
        while True:
            try:
                await self._delete_below(znodes.partitions_path(name))
                last = [znodes.delete_topic_path(name), znodes.config_path("topics", name)]
                present = await all_of(self._exists(path) for path in last)
                paths = [znodes.topic_path(name)]
                paths += [path for path, there in zip(last, present, strict=True) if there]
                await self._fenced([Delete(path) for path in paths])
            except Disconnected:
                await self._reconnect.connected(self._term.session)
            except ZooKeeperError as error:
                # Something came or went meanwhile, or the answer was lost: look again.
                await self._reconnect.connected(self._term.session)
                if not await self._exists(znodes.topic_path(name)):
                    return
                log.debug("deleting {name} again: {error}", name=name, error=error)
            else:
                return

    async def _delete_below(self, path: str) -> None:
        """Delete *path* with all below it, in multis of a hundred, which ZooKeeper takes in the order they are sent."""
        doomed = await self._tree(path)
        doomed.reverse()
        turns = Turns(self._clock, self._per_turn - 1)
        under_way = []
        for start in range(0, len(doomed), self._per_multi):
            deletes = [Delete(p) for p in doomed[start : start + self._per_multi]]
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
            await self._ask_all(level, self._list_each, take)
            level = below
        return found

    def _list_each(self, paths: list[str]) -> Deferred[list[Children | BaseException]]:
        return outcomes_of([self._list(path) for path in paths])

    def _list(self, path: str) -> Deferred[Children]:
        return Deferred.fromCoroutine(self._read(lambda: self._zookeeper.children(path)))

    async def _exists(self, path: str) -> bool:
        return await self._read(lambda: self._zookeeper.exists(path)) is not None

    async def delete_paths(self, paths: Sequence[str]) -> None:
        """Delete znodes that may be gone already (requests and announcements that are done with)."""
        for path in paths:
            gone = [Delete(path)]
            with suppress(NoNode):
                # Whether an answer was lost is all the same: what is gone is gone.
                await self._reconnect.read(
                    self._term.session,
                    lambda gone=gone: self._fenced(gone),  # type: ignore[misc]
                )

    async def replace_wish(self, path: str, data: bytes, version: int) -> int | None:
        """Write what is left of an operator's znode; the new version, None if another has written it."""
        write = [SetData(path, data, version)]
        try:
            await self._reconnect.read(self._term.session, lambda: self._fenced(write))
        except (NoNode, BadVersion):
            return None
        return version + 1

    async def remove_wish(self, path: str, version: int) -> None:
        """Delete an operator's znode that was dealt with, whatever it takes; not one written since."""
        delete = [Delete(path, version)]
        with suppress(NoNode, BadVersion):
            await self._reconnect.read(self._term.session, lambda: self._fenced(delete))


def _first_of_topic(write: StateWrite) -> bool:
    """Whether the topic's `partitions` znode is to be made along with this one."""
    return write.expected_version is None and write.partition[1] == 0


def _next_version(write: StateWrite) -> int:
    return 0 if write.expected_version is None else write.expected_version + 1


def _operations(
    write: StateWrite, *, with_parent: bool, with_partition: bool = True
) -> list[Operation]:
    path = znodes.partition_state_path(*write.partition)
    state = write.state
    data = znodes.encode_partition_state(
        znodes.PartitionState(
            state.leader,
            state.leader_epoch,
            state.isr,
            state.controller_epoch,
            leader_recovery_state=state.leader_recovery_state,
            isr_epochs=state.isr_epochs,
            elr=state.elr,
        )
    )
    if write.expected_version is not None:
        return [SetData(path, data, write.expected_version)]
    made: list[Operation] = []
    if with_parent:
        made.append(Create(znodes.partitions_path(write.partition[0])))
    if with_partition:
        made.append(Create(znodes.partition_path(*write.partition)))
    return [*made, Create(path, data)]
