"""What the clients log reaches the standard library's logging, one line for each cause."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import Logger, globalLogPublisher

from kclient import standard_logging
from kclient.config import AdminConfig
from kclient.net.cluster import Cluster
from kclient.standard_logging import use_standard_logging
from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode
from tests.kit.consumer_fixture import ConsumerFixture
from tests.kit.scripted_cluster import ScriptedCluster


@pytest.fixture(autouse=True)
def _passed_on(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, "kclient")
    use_standard_logging()
    yield
    globalLogPublisher.removeObserver(standard_logging._pass_on)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_messages_have_the_name_of_their_module_and_their_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    use_standard_logging()
    Logger("kclient.net.cluster").warn("{what} failed", what="it")
    Logger("kclient.net.cluster").debug("quiet")
    Logger("twisted.other").error("not ours")
    assert caplog.record_tuples == [("kclient.net.cluster", logging.WARNING, "it failed")]


def test_a_failure_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("cause")
    except ValueError:
        Logger("kclient.x").failure("broken")
    assert "ValueError: cause" in caplog.text


def test_a_topic_that_does_not_exist_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    it = ConsumerFixture(group_id="g", metadata_max_age_ms=100)
    it.scripted.topic_errors["nope"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    it.consumer.subscribe(["t", "nope"])
    for _ in range(10):
        it.poll()
        it.scripted.pass_time(0.3)
    [line] = warnings(caplog)
    assert line == "topic 'nope' does not exist: group g has no records of it until it is created"


@pytest.mark.parametrize("offsets", [{}, {TopicPartition("nope", 0): 5}])
def test_an_assigned_topic_that_does_not_exist_is_logged_once(
    caplog: pytest.LogCaptureFixture, offsets: dict[TopicPartition, int]
) -> None:
    it = ConsumerFixture(metadata_max_age_ms=100)
    it.scripted.topic_errors["nope"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    it.consumer.assign([TopicPartition("nope", 0), TopicPartition("nope", 1)], offsets)
    for _ in range(10):
        it.poll()
        it.scripted.pass_time(0.3)
    [line] = warnings(caplog)
    assert line == (
        "topic 'nope' does not exist: this consumer has no records of it until it is created"
    )
    it.scripted.topics["nope"] = 2
    del it.scripted.topic_errors["nope"]
    it.scripted.pass_time(3)
    it.scripted.topic_errors["nope"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    it.scripted.pass_time(3)
    assert warnings(caplog) == [line, line]


def test_an_assigned_partition_that_does_not_exist_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = ConsumerFixture(2, metadata_max_age_ms=100)
    it.consumer.assign([TopicPartition("t", n) for n in (1, 2, 7)])
    for _ in range(10):
        it.poll()
        it.scripted.pass_time(0.3)
    [line] = warnings(caplog)
    assert line.startswith("topic 't' has no partition 2, 7, only 2 in all: ")


def test_what_is_missing_is_found_without_waiting_for_the_age_of_metadata(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = ConsumerFixture(2).assign(0)
    it.scripted.pass_time(3)
    nope, absent = TopicPartition("nope", 0), TopicPartition("t", 7)
    it.consumer.assign([nope, absent], {nope: 0, absent: 0})
    it.scripted.pass_time(3)
    assert len(warnings(caplog)) == 2


def test_an_assigned_topic_that_is_refused_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    it = ConsumerFixture(metadata_max_age_ms=100)
    it.scripted.topic_errors["secret"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    it.consumer.assign([TopicPartition("secret", 0)], {TopicPartition("secret", 0): 0})
    for _ in range(10):
        it.poll()
        it.scripted.pass_time(0.3)
    [line] = warnings(caplog)
    assert line.startswith("TOPIC_AUTHORIZATION_FAILED: topic 'secret': ")


def test_brokers_that_are_down_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A producer waited for 59 s without a line."""
    scripted = ScriptedCluster({"t": 1})
    scripted.down = {1}
    cluster = scripted.attach(Cluster(scripted.clock, AdminConfig.load(bootstrap_servers="one:1")))
    waiting: Deferred[Any] = Deferred.fromCoroutine(cluster.partitions("t", timeout=60))
    waiting.addErrback(lambda _: None)
    scripted.pass_time(5)
    [line] = warnings(caplog)
    assert "one:1: connection refused" in line
    assert "retrying" in line
