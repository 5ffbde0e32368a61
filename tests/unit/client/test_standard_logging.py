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
from kclient.wire.errors import ErrorCode
from tests.kit.paper_cluster import PaperCluster
from tests.kit.paper_consumer import PaperConsumer


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
    it = PaperConsumer(group_id="g", metadata_max_age_ms=100)
    it.paper.topic_errors["nope"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    it.consumer.subscribe(["t", "nope"])
    for _ in range(10):
        it.poll()
        it.paper.pass_time(0.3)
    [line] = warnings(caplog)
    assert line == "topic 'nope' does not exist: group g has no records of it until it is created"


def test_brokers_that_are_down_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A producer waited for 59 s without a line."""
    paper = PaperCluster({"t": 1})
    paper.down = {1}
    cluster = paper.attach(Cluster(paper.clock, AdminConfig.load(bootstrap_servers="one:1")))
    waiting: Deferred[Any] = Deferred.fromCoroutine(cluster.partitions("t", timeout=60))
    waiting.addErrback(lambda _: None)
    paper.pass_time(5)
    [line] = warnings(caplog)
    assert "one:1: connection refused" in line
    assert "retrying" in line
