"""Topics that are written to a scripted ZooKeeper, which loses answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from kbroker.config import KafkaConfig
from kbroker.metadata.admin_manager import ATTEMPTS, AdminManager
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.metadata.topic_placement import NewTopic
from kbroker.zk import znodes
from kbroker.zk.errors import ConnectionLoss, NodeExists, NoNode, SessionExpired
from kbroker.zk.interface import Children, Create, Node, Operation, Session, SetData, Stat
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    KafkaError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kclient.wire.interbroker import UpdateMetadataBroker, UpdateMetadataRequest

OURS, THEIRS = UUID(int=1), UUID(int=2)
PATH = znodes.topic_path("t")
STAT = Stat(*[0] * 11)


class InMemoryZooKeeper:
    """*answers* are given to the writes one by one; the znodes are in *nodes*."""

    session: Session | None = Session(1, 6.0)
    connected = True

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.nodes: dict[str, bytes] = {znodes.TOPICS: b""}
        self.registered = ["1"]
        self.topics: list[str] = []
        self.written: list[bytes] = []
        self.changes = 0
        """Topics that were created or deleted by other clients."""
        self.created_again: set[str] = set()

    def on_session(self, _callback: object) -> None:
        pass

    def in_session(self, session: Session) -> InMemorySession:
        return InMemorySession(self, session)

    def exists(self, path: str) -> Deferred[Stat | None]:
        return succeed(self._stat(path) if path in self.nodes else None)

    async def get(self, path: str) -> Node:
        if path not in self.nodes:
            raise NoNode(path)
        return Node(self.nodes[path], self._stat(path))

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        return [await self.get(path) if path in self.nodes else None for path in paths]

    async def children(self, path: str) -> Children:
        names = {znodes.BROKER_IDS: self.registered, znodes.TOPICS: self.topics}
        return Children(names[path], STAT)

    async def sync(self, _path: str) -> None:
        pass

    def _stat(self, path: str) -> Stat:
        return STAT._replace(czxid=int(path in self.created_again), pzxid=self.changes)

    async def create(self, _path: str) -> None:
        self._answer()

    async def set(self, _path: str, data: bytes, _version: int) -> None:
        self._answer()
        self.written.append(data)

    async def multi(self, operations: Sequence[Operation]) -> None:
        self._answer()
        self.written += [each.data for each in operations if isinstance(each, Create | SetData)]

    def _answer(self) -> None:
        answer = self.answers.pop(0)
        if isinstance(answer, SessionLost):
            self.session = Session(2, 6.0)
            self.nodes.update(answer.meanwhile)
            raise ConnectionLoss
        if isinstance(answer, CreatedAgain):
            self.created_again.add(answer.path)
        if isinstance(answer, ChangedMeanwhile):
            self.changes += 1
        if isinstance(answer, NodeExists):
            self.nodes.setdefault(answer.path, topic_of(OURS))
        if answer is not None:
            raise answer


class InMemorySession:
    """The same, for as long as the session lasts."""

    def __init__(self, zookeeper: InMemoryZooKeeper, session: Session) -> None:
        self._zookeeper = zookeeper
        self._session = session

    def __getattr__(self, name: str) -> Any:
        if self._session != self._zookeeper.session:
            raise SessionExpired
        return getattr(self._zookeeper, name)


class SessionLost(Exception):
    """A lost answer: the next connection has another session, and another client wrote meanwhile."""

    def __init__(self, meanwhile: dict[str, bytes]) -> None:
        self.meanwhile = meanwhile


class CreatedAgain(ConnectionLoss):
    """A lost answer: meanwhile the znode was deleted, and another client created it again."""


class ChangedMeanwhile(ConnectionLoss):
    """A lost answer: meanwhile a topic was deleted."""


def topic_of(topic_id: UUID) -> bytes:
    return znodes.encode_topic(
        znodes.TopicAssignment(topic_id, {0: znodes.ReplicaAssignment((1,))})
    )


def topics_on(zookeeper: Any, brokers_known: Sequence[int] = (1,)) -> AdminManager:
    cache = MetadataCache("cluster")
    brokers = [UpdateMetadataBroker(broker, [], None) for broker in brokers_known]
    cache.update(UpdateMetadataRequest(controller_epoch=1, live_brokers=brokers))
    config = KafkaConfig.of({"zookeeper.connect": "x:1", "broker.id": "1", "log.dirs": "/nowhere"})
    clock: Any = Clock()
    return AdminManager(
        clock,
        zookeeper,
        Reconnect(zookeeper, clock),
        cache,
        lambda: config,
        new_topic_id=lambda: OURS,
        random_below=lambda _below: 0,
    )


def outcome(work: Any) -> Any:
    """Return the result or the error of what does not wait."""
    results: list[Any] = []
    Deferred.fromCoroutine(work).addBoth(results.append)
    return getattr(results[0], "value", results[0])


def test_a_topic_that_a_lost_attempt_made_is_ours() -> None:
    zookeeper = InMemoryZooKeeper(ConnectionLoss(), NodeExists(PATH))
    created = outcome(topics_on(zookeeper).create(NewTopic("t")))
    assert created.topic_id == OURS


def test_a_topic_that_another_client_made_meanwhile_is_theirs() -> None:
    zookeeper = InMemoryZooKeeper(NodeExists(PATH))
    topics = topics_on(zookeeper)
    zookeeper.answers.insert(0, ConnectionLoss())
    creating = topics._write("t", OURS, {0: (1,)}, {}, zookeeper, 0)
    zookeeper.nodes[PATH] = topic_of(THEIRS)
    assert isinstance(outcome(creating), TopicAlreadyExists)


def test_a_creation_is_repeated_after_a_lost_answer() -> None:
    zookeeper = InMemoryZooKeeper(ConnectionLoss(), None)
    assert outcome(topics_on(zookeeper).create(NewTopic("t"))).topic_id == OURS
    assert not zookeeper.answers


def test_a_topic_that_may_have_been_deleted_meanwhile_is_not_created_again() -> None:
    zookeeper = InMemoryZooKeeper(ChangedMeanwhile(), None)
    assert isinstance(outcome(topics_on(zookeeper).create(NewTopic("t"))), RequestTimedOut)
    assert zookeeper.answers == [None]


def test_a_topic_that_was_created_again_meanwhile_does_not_grow() -> None:
    zookeeper = InMemoryZooKeeper(CreatedAgain(PATH), None)
    zookeeper.nodes[PATH] = topic_of(OURS)
    error = outcome(topics_on(zookeeper).add_partitions("t", 2))
    assert isinstance(error, UnknownTopicOrPartition)
    assert zookeeper.answers == [None]


@pytest.mark.parametrize("attempts", [0, 1, ATTEMPTS - 1])
def test_a_deletion_is_retried_until_it_is_answered(attempts: int) -> None:
    zookeeper = InMemoryZooKeeper(*[ConnectionLoss()] * attempts, None)
    zookeeper.nodes[PATH] = topic_of(OURS)
    assert outcome(topics_on(zookeeper).delete("t")) is None


def test_a_topic_that_was_created_again_meanwhile_is_not_deleted_by_a_retry() -> None:
    zookeeper = InMemoryZooKeeper(CreatedAgain(PATH), None)
    zookeeper.nodes[PATH] = topic_of(OURS)
    assert outcome(topics_on(zookeeper).delete("t")) is None
    assert zookeeper.answers == [None]


def test_a_topic_that_was_created_again_is_not_deleted_by_the_id_of_the_former_one() -> None:
    zookeeper = InMemoryZooKeeper(None)
    zookeeper.nodes[PATH] = topic_of(THEIRS)
    error = outcome(topics_on(zookeeper).delete("t", OURS))
    assert isinstance(error, UnknownTopicId)
    assert zookeeper.answers == [None]
    assert outcome(topics_on(zookeeper).delete("t", THEIRS)) is None
    assert zookeeper.answers == []


def test_a_deletion_without_an_answer_is_no_success() -> None:
    zookeeper = InMemoryZooKeeper(*[ConnectionLoss()] * ATTEMPTS)
    zookeeper.nodes[PATH] = topic_of(OURS)
    error = outcome(topics_on(zookeeper).delete("t"))
    assert isinstance(error, KafkaError)
    assert isinstance(error, UnknownServerError)


def test_a_topic_is_not_deleted_in_a_later_session() -> None:
    """Another broker may have deleted it meanwhile, and another client may have made it again."""
    zookeeper = InMemoryZooKeeper(SessionLost({}), None)
    zookeeper.nodes[PATH] = topic_of(OURS)
    assert isinstance(outcome(topics_on(zookeeper).delete("t")), RequestTimedOut)
    assert zookeeper.answers == [None]


def test_a_deletion_that_is_found_done_in_a_later_session_is_a_success() -> None:
    zookeeper = InMemoryZooKeeper(SessionLost({znodes.delete_topic_path("t"): b""}), None)
    zookeeper.nodes[PATH] = topic_of(OURS)
    assert outcome(topics_on(zookeeper).delete("t")) is None
    assert zookeeper.answers == [None]


def test_a_topic_does_not_grow_in_a_later_session() -> None:
    zookeeper = InMemoryZooKeeper(SessionLost({PATH: topic_of(THEIRS)}), None)
    zookeeper.nodes[PATH] = topic_of(OURS)
    assert isinstance(outcome(topics_on(zookeeper).add_partitions("t", 2)), RequestTimedOut)
    assert zookeeper.answers == [None]


def test_a_growth_that_is_found_done_in_a_later_session_is_a_success() -> None:
    grown = {p: znodes.ReplicaAssignment((1,)) for p in range(2)}
    done = znodes.encode_topic(znodes.TopicAssignment(OURS, grown))
    zookeeper = InMemoryZooKeeper(SessionLost({PATH: done}), None)
    zookeeper.nodes[PATH] = topic_of(OURS)
    assert outcome(topics_on(zookeeper).add_partitions("t", 2)) == range(1, 2)


def test_a_broker_cut_off_from_zookeeper_changes_nothing() -> None:
    zookeeper = InMemoryZooKeeper()
    zookeeper.nodes[PATH] = topic_of(OURS)
    zookeeper.session = None
    topics = topics_on(zookeeper)
    new = NewTopic("u")
    for asked in (topics.create(new), topics.delete("t"), topics.add_partitions("t", 2)):
        assert isinstance(outcome(asked), RequestTimedOut)


def test_a_broker_that_is_registered_no_more_gets_no_replica_though_the_metadata_name_it() -> None:
    """As at a new controller, until its own UpdateMetadata arrives."""
    zookeeper = InMemoryZooKeeper(None, None, None)
    zookeeper.registered = ["2", "3"]
    topics = topics_on(zookeeper, brokers_known=[1, 2, 3])
    created = outcome(topics.create(NewTopic("t", 4, 2)))
    assert {broker for replicas in created.assignment.values() for broker in replicas} == {2, 3}
    assert isinstance(outcome(topics.create(NewTopic("u", 1, 3))), InvalidReplicationFactor)
    given = NewTopic("u", assignment={0: [1]})
    assert isinstance(outcome(topics.create(given)), InvalidReplicaAssignment)
    zookeeper.nodes[PATH] = topic_of(OURS)
    assert outcome(topics.add_partitions("t", 3)) == range(1, 3)
    grown = znodes.decode_topic("t", zookeeper.written[-1]).partitions
    assert {grown[p].replicas for p in (1, 2)} == {(2,), (3,)}
    zookeeper.answers = [None]
    assert outcome(topics.create_offsets_topic()) is None  # of two replicas, not three


@pytest.mark.parametrize(("brokers", "min_isr"), [([1, 2, 3], "2"), ([1], "1")])
def test_the_topic_of_transactions_has_its_settings(brokers: list[int], min_isr: str) -> None:
    """Not a min.insync.replicas above its replicas: kclient cluster health would report its partitions for ever."""
    zookeeper = InMemoryZooKeeper(None)
    zookeeper.registered = [str(broker) for broker in brokers]
    assert outcome(topics_on(zookeeper, brokers_known=brokers).create_transactions_topic()) is None
    settings, topic = zookeeper.written[-2:]
    assert len(znodes.decode_topic("t", topic).partitions) == 50
    assert znodes.decode_config("/config", settings) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": min_isr,
        "segment.bytes": str(100 * 1024 * 1024),
        "unclean.leader.election.enable": "false",
    }


def test_topics_without_a_znode_are_deleted_ones() -> None:
    zookeeper = InMemoryZooKeeper()
    zookeeper.topics = ["here"]
    assert outcome(topics_on(zookeeper).deleted_of(["here", "gone"])) == {"gone"}
