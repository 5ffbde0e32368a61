"""Settings that are read and written on a scripted ZooKeeper, which answers on demand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import formatEvent, globalLogPublisher

from kbroker.config import KafkaConfig
from kbroker.metadata.config_admin_manager import ConfigAdminManager
from kbroker.metadata.core.config_entries import Change, ConfigOperation
from kbroker.metadata.dynamic_config_manager import DynamicConfigManager
from kbroker.zk import znodes
from kbroker.zk.errors import BadVersion, ConnectionLoss, NoNode
from kbroker.zk.interface import Children, Node, Stat
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import InvalidConfig, RequestTimedOut, UnknownTopicOrPartition

STATIC = KafkaConfig.of({"zookeeper.connect": "x:1", "broker.id": "1", "log.dirs": "/nowhere"})
T, U = "/config/topics/t", "/config/topics/u"
DEFAULT = "/config/brokers/<default>"
FIRST, SECOND = "/config/changes/config_change_1", "/config/changes/config_change_2"


def stat(version: int = 0) -> Stat:
    return Stat(0, 0, 0, 0, version, 0, 0, 0, 0, 0, 0)


class InMemoryZooKeeper:
    """Reads wait until they are answered; znodes below /config/brokers are there, and empty."""

    session = None
    connected = True

    def __init__(self) -> None:
        self.reads: dict[str, list[Deferred[Node]]] = defaultdict(list)
        self.changed: Callable[[Children], None] = lambda _children: None
        self.writes: list[list[Any]] = []
        self.outcomes: list[Exception | None] = []
        self.created = 1
        """The transaction that created each topic."""
        self.brokers = {DEFAULT: b"", "/config/brokers/1": b""}

    def on_session(self, _callback: object) -> None:
        pass

    def watch_children(self, _path: str, callback: Callable[[Children], None]) -> None:
        self.changed = callback

    def get(self, path: str) -> Deferred[Node]:
        if self.brokers.get(path):
            return succeed(Node(self.brokers[path], stat()))
        read: Deferred[Node] = Deferred()
        if path in self.brokers:
            read.errback(NoNode(path))
        else:
            self.reads[path].append(read)
        return read

    def exists(self, path: str) -> Deferred[Stat | None]:
        found = stat()._replace(czxid=self.created)
        return succeed(None if path.startswith("/config/changes") else found)

    async def multi(self, operations: list[Any]) -> None:
        self.writes.append(operations)
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome

    def answer(self, path: str, version: int = 0, **settings: str) -> None:
        """Answer the first read of *path* that waits."""
        values = {name.replace("_", "."): value for name, value in settings.items()}
        data = znodes.encode_config(values)
        self.reads[path].pop(0).callback(Node(data, stat(version)))

    def notify(self, path: str, topics: list[str]) -> None:
        """Report that topics changed: a notification for each, numbered from *path* on."""
        names = [f"{path.rsplit('/', 1)[1]}{number}" for number in range(len(topics))]
        self.changed(Children(names, stat()))
        for name, topic in zip(names, topics, strict=True):
            data = znodes.encode_config_change("topics", topic)
            self.reads[f"/config/changes/{name}"].pop(0).callback(Node(data, stat()))


class World:
    """Settings of broker 1, with topics t and u loaded."""

    def __init__(self) -> None:
        self.zookeeper: Any = InMemoryZooKeeper()
        reconnect = Reconnect(self.zookeeper, Clock())
        self.dynamic = DynamicConfigManager(
            self.zookeeper, reconnect, STATIC, broker_id=1, now_ms=lambda: 0
        )
        self.changes = ConfigAdminManager(
            self.zookeeper,
            reconnect,
            lambda: self.dynamic.broker_config,
            lambda: self.dynamic.layers,
        )
        self.reported: list[list[str]] = []
        self.dynamic.on_topic_config(lambda topics: self.reported.append(sorted(topics)))
        Deferred.fromCoroutine(self.dynamic.start())
        self.loading = Deferred.fromCoroutine(self.dynamic.load_topics({"t": None, "u": None}))

    def loaded(self) -> None:
        self.zookeeper.answer(T, retention_ms="1")
        self.zookeeper.answer(U, retention_ms="1")
        assert self.loading.called

    def retention(self, topic: str) -> int:
        return self.dynamic.log_config(topic).retention_ms


@pytest.fixture
def world() -> World:
    return World()


def test_what_was_read_earlier_does_not_replace_what_was_read_later(world: World) -> None:
    world.loaded()
    world.zookeeper.notify(FIRST, ["t", "u"])
    world.zookeeper.answer(T, retention_ms="2")
    world.zookeeper.notify(SECOND, ["t"])
    world.zookeeper.answer(T, retention_ms="3")
    assert world.retention("t") == 3
    world.zookeeper.answer(U, retention_ms="2")
    assert (world.retention("t"), world.retention("u")) == (3, 2)


def test_a_change_while_others_are_still_being_loaded_is_not_missed(world: World) -> None:
    world.zookeeper.answer(T, retention_ms="1")
    world.zookeeper.notify(FIRST, ["t"])
    world.zookeeper.answer(T, retention_ms="2")
    world.zookeeper.answer(U, retention_ms="1")
    assert world.retention("t") == 2


def test_what_changed_is_announced_although_another_read_failed(world: World) -> None:
    world.loaded()
    world.zookeeper.notify(FIRST, ["t", "u"])
    world.zookeeper.answer(T, retention_ms="2")
    world.zookeeper.reads[U].pop().errback(RequestTimedOut("cut off"))
    assert world.reported == [["t"]]


def test_a_topic_that_is_created_again_does_not_inherit_settings_while_its_own_cannot_be_read(
    world: World,
) -> None:
    earlier, later = {"t": UUID(int=1)}, {"t": UUID(int=2)}
    world.loaded()
    Deferred.fromCoroutine(world.dynamic.load_topics(earlier))
    world.zookeeper.answer(T, retention_ms="1")
    Deferred.fromCoroutine(world.dynamic.load_topics(later))
    world.zookeeper.reads[T].pop().errback(ConnectionLoss(T))
    assert world.retention("t") == STATIC.log_defaults.retention_ms


def test_settings_that_were_read_at_the_start_apply_while_they_cannot_be_read_again(
    world: World,
) -> None:
    world.loaded()
    Deferred.fromCoroutine(world.dynamic.load_topics({"t": UUID(int=1)}))
    world.zookeeper.reads[T].pop().errback(ConnectionLoss(T))
    assert world.retention("t") == 1


def test_a_change_that_is_read_before_its_notification_is_announced(world: World) -> None:
    world.loaded()
    world.dynamic.follow_topics({"t": UUID(int=3)}, ())
    world.zookeeper.answer(T, retention_ms="2")
    world.zookeeper.notify(FIRST, ["t"])
    world.zookeeper.answer(T, retention_ms="2")
    assert world.reported == [["t"]]


def test_min_insync_replicas_of_a_topic_without_a_replica_here_is_known(world: World) -> None:
    world.loaded()
    world.dynamic.follow_topics({"v": UUID(int=3)}, ())
    world.zookeeper.answer("/config/topics/v", **{"min.insync.replicas": "2"})
    assert world.dynamic.min_insync_replicas("v") == 2
    world.dynamic.follow_topics({}, ["v"])
    assert world.dynamic.min_insync_replicas("v") == 1


@pytest.mark.parametrize(("text", "found"), [("2", 2), (" 2", 2), ("0", 1), ("two", 1)])
def test_min_insync_replicas_is_read_as_the_log_reads_it(
    world: World, text: str, found: int
) -> None:
    world.zookeeper.answer(T, **{"min.insync.replicas": text})
    world.zookeeper.answer(U)
    assert world.dynamic.min_insync_replicas("t") == found
    assert world.dynamic.log_config("t").min_insync_replicas == found


def test_a_topic_without_readable_settings_is_synced_before_it_acknowledges(
    world: World,
) -> None:
    world.zookeeper.reads[T].pop().errback(ConnectionLoss(T))
    world.zookeeper.answer(U)
    assert world.dynamic.log_config("t").flush_messages == 1
    assert world.dynamic.log_config("u") == STATIC.log_defaults
    world.zookeeper.notify(FIRST, ["t"])
    world.zookeeper.answer(T)
    assert world.dynamic.log_config("t") == STATIC.log_defaults
    assert world.reported == [["t"]]


def test_a_change_with_a_lost_answer_is_not_made_to_a_topic_that_was_created_again(
    world: World,
) -> None:
    changing = Deferred.fromCoroutine(
        world.changes.alter_topic("t", [Change("retention.ms", ConfigOperation.SET, "2")])
    )
    results: list[Any] = []
    changing.addBoth(results.append)
    world.zookeeper.outcomes = [ConnectionLoss(T), None]
    world.zookeeper.created = 9  # deleted and created again before the answer to the read
    world.zookeeper.reads[T].pop(0)  # of `load_topics`
    world.zookeeper.answer(T, retention_ms="1")
    assert len(world.zookeeper.writes) == 1
    assert results[0].check(UnknownTopicOrPartition)


def test_settings_of_a_topic_without_effect_are_named_in_the_log(
    world: World,
) -> None:
    events: list[dict[str, Any]] = []
    globalLogPublisher.addObserver(events.append)
    try:
        world.zookeeper.answer(T, retention_ms="1", local_retention_ms="5")
        world.zookeeper.answer(U, retention_ms="1")
    finally:
        globalLogPublisher.removeObserver(events.append)
    lines = [formatEvent(event) for event in events]
    assert lines == ["topic t: accepted, no effect: local.retention.ms"]


def test_values_of_unknown_broker_settings_are_not_logged(world: World) -> None:
    events: list[dict[str, Any]] = []
    world.loaded()
    world.zookeeper.brokers[DEFAULT] = znodes.encode_config(
        {"my.password": "secret", "min.insync.replicas": "2"}
    )
    globalLogPublisher.addObserver(events.append)
    try:
        Deferred.fromCoroutine(world.dynamic._reload_brokers())
    finally:
        globalLogPublisher.removeObserver(events.append)
    text = "\n".join(formatEvent(event) or "" for event in events)
    assert "min.insync.replicas" in text
    assert "my.password" in text
    assert "secret" not in text
    assert world.dynamic.broker_config.min_insync_replicas == 2


def test_topics_that_go_by_other_defaults_are_announced_together(world: World) -> None:
    world.loaded()
    world.zookeeper.brokers[DEFAULT] = znodes.encode_config({"log.segment.bytes": "5000"})
    world.zookeeper.changed(Children(["config_change_1"], stat()))
    data = znodes.encode_config_change("brokers", "<default>")
    world.zookeeper.reads[FIRST].pop().callback(Node(data, stat()))
    assert world.dynamic.log_config("t").segment_bytes == 5000
    assert world.reported == [["t", "u"]]


def test_a_deletion_that_takes_the_effect_of_other_settings_is_refused(world: World) -> None:
    world.loaded()
    protocols = "listener.security.protocol.map"
    stored = {
        "listeners": f"{STATIC.listeners},B://:9999",
        protocols: "PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
    }
    world.zookeeper.brokers["/config/brokers/1"] = znodes.encode_config(stored)
    Deferred.fromCoroutine(world.dynamic._reload_brokers())
    delete = Change(protocols, ConfigOperation.DELETE, None)
    for changing in (
        world.changes.alter_broker("1", [delete]),
        world.changes.replace_broker("1", {"listeners": stored["listeners"]}),
    ):
        results: list[Any] = []
        Deferred.fromCoroutine(changing).addBoth(results.append)
        assert results[0].check(InvalidConfig)
    assert not world.zookeeper.writes


def test_what_replaces_all_settings_replaces_those_of_a_faster_change_too(world: World) -> None:
    world.zookeeper.outcomes = [BadVersion(T), None]
    done = Deferred.fromCoroutine(world.changes.replace_topic("t", {"segment.ms": "9"}))
    world.zookeeper.reads[T].pop(0)  # that of the topic's loading
    world.zookeeper.answer(T, 0, retention_ms="1")
    world.zookeeper.answer(T, 1, retention_ms="1", flush_ms="7")
    assert done.called
    written = world.zookeeper.writes[-1][1]
    assert (znodes.decode_config(T, written.data), written.version) == ({"segment.ms": "9"}, 1)
