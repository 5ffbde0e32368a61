"""Topics that are written on a ZooKeeper of paper, whose answers get lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from kbroker.config import BrokerConfig
from kbroker.runtime.metadata_cache import MetadataCache
from kbroker.runtime.reconnect import Reconnect
from kbroker.runtime.topic_placement import NewTopic
from kbroker.runtime.topics import ATTEMPTS, Topics
from kbroker.zk import znodes
from kbroker.zk.errors import ConnectionLoss, NodeExists, NoNode
from kbroker.zk.interface import Node, Operation, Stat
from kclient.wire.errors import KafkaError, TopicAlreadyExists, UnknownServerError
from kclient.wire.interbroker import UpdateMetadataBroker, UpdateMetadataRequest

OURS, THEIRS = UUID(int=1), UUID(int=2)
PATH = znodes.topic_path("t")
STAT = Stat(*[0] * 11)


class PaperZooKeeper:
    """*answers* are given one by one to whoever writes; what is there is in *nodes*."""

    session = None
    connected = True

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.nodes: dict[str, bytes] = {}

    def on_session(self, _callback: object) -> None:
        pass

    def exists(self, path: str) -> Deferred[Stat | None]:
        return succeed(STAT if path in self.nodes else None)

    async def get(self, path: str) -> Node:
        if path not in self.nodes:
            raise NoNode(path)
        return Node(self.nodes[path], STAT)

    async def create(self, _path: str) -> None:
        self._answer()

    async def multi(self, operations: Sequence[Operation]) -> None:
        self._answer()

    def _answer(self) -> None:
        answer = self.answers.pop(0)
        if isinstance(answer, NodeExists):
            self.nodes.setdefault(answer.path, topic_of(OURS))
        if answer is not None:
            raise answer


def topic_of(topic_id: UUID) -> bytes:
    return znodes.encode_topic(
        znodes.TopicAssignment(topic_id, {0: znodes.ReplicaAssignment((1,))})
    )


def topics_on(zookeeper: Any) -> Topics:
    cache = MetadataCache("cluster")
    brokers = [UpdateMetadataBroker(1, [], None)]
    cache.update(UpdateMetadataRequest(controller_epoch=1, live_brokers=brokers))
    config = BrokerConfig.of({"zookeeper.connect": "x:1", "broker.id": "1", "log.dirs": "/nowhere"})
    clock: Any = Clock()
    return Topics(
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
    zookeeper = PaperZooKeeper(ConnectionLoss(), NodeExists(PATH))
    created = outcome(topics_on(zookeeper).create(NewTopic("t")))
    assert created.topic_id == OURS


def test_a_topic_that_somebody_else_made_meanwhile_is_theirs() -> None:
    zookeeper = PaperZooKeeper(NodeExists(PATH))
    topics = topics_on(zookeeper)
    zookeeper.answers.insert(0, ConnectionLoss())
    creating = topics._write("t", OURS, {0: (1,)}, {})
    zookeeper.nodes[PATH] = topic_of(THEIRS)
    assert isinstance(outcome(creating), TopicAlreadyExists)


@pytest.mark.parametrize("attempts", [0, 1, ATTEMPTS - 1])
def test_a_deletion_is_asked_for_until_an_answer_is_heard(attempts: int) -> None:
    zookeeper = PaperZooKeeper(*[ConnectionLoss()] * attempts, None)
    zookeeper.nodes[PATH] = topic_of(OURS)
    assert outcome(topics_on(zookeeper).delete("t")) is None


def test_a_deletion_that_was_never_heard_of_is_no_success() -> None:
    zookeeper = PaperZooKeeper(*[ConnectionLoss()] * ATTEMPTS)
    zookeeper.nodes[PATH] = topic_of(OURS)
    error = outcome(topics_on(zookeeper).delete("t"))
    assert isinstance(error, KafkaError)
    assert isinstance(error, UnknownServerError)
