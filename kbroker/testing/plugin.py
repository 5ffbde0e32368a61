"""The pytest plugin: fixtures with a real Kafka cluster, for clients of any library.

    kafka                   bootstrap.servers of the test's cluster
    kafka_topic             the name of a topic of the test
    kafka_producer          a kclient.Producer
    kafka_consumer          a kclient.Consumer of kafka_topic, from its beginning
    kafka_admin             a kclient.AdminClient
    kafka_observer          leaders, ISR, groups and records, with waits: a kclient.testing.Observer
    kafka_cluster           a `KafkaCluster` for this test alone, to be killed, paused, partitioned
    kafka_session_cluster   the cluster that all other tests of the session share: they leave it as it is

A test that asks for kafka_cluster, or has ``@pytest.mark.kafka(brokers=..., settings=...)``, has a cluster of its own,
and all fixtures are on it. The other tests share one, which starts with the first of them; under pytest-xdist each
worker has one. All clusters of a run, in all workers, use one ZooKeeper server (`kbroker.testing.zookeeper`).

Every pytest run where kbroker is installed loads this module. So it imports what pytest has imported already, and
nothing else before a test asks for a fixture.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from kbroker.testing import pytest_run

if TYPE_CHECKING:
    from kbroker.testing.cluster import KafkaCluster
    from kclient import AdminClient, Consumer, Producer
    from kclient.testing import Observer

_MARKER = (
    "kafka(brokers=3, settings={}, racks={}, partitions=1, replication_factor=None, config={}): the cluster of a test "
    "(brokers, settings, racks; any of them gives it a cluster of its own) and the topic of kafka_topic (the others)"
)
_OF_CLUSTER = ("brokers", "settings", "racks")
_OF_TOPIC = ("partitions", "replication_factor", "config")

_CLUSTERS = pytest.StashKey[list[Any]]()
"""The clusters of a test, for the logs in the report of a failure."""

_PACKAGES = ("kbroker", "kclient", "mirrormaker", "spark_jobs")
_SESSION = "kbroker_testing_session"
_BROKERS = "kafka_brokers"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the option of pytest.ini, and keep pytest from compiling the modules of the distribution again.

    pytest rewrites the asserts of all packages of a distribution with a plugin. Where it cannot keep the byte code, as
    with PYTHONDONTWRITEBYTECODE in many images, that is 1.2 s of processor time in every run. There is no public way to
    leave packages out; without this set pytest does what it does for other plugins.
    """
    marked = getattr(getattr(pluginmanager, "rewrite_hook", None), "_must_rewrite", None)
    if isinstance(marked, set):
        marked.difference_update(_PACKAGES)
    parser.addini(
        _BROKERS, "brokers of a cluster, where a test does not ask for another number", default="3"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker, and choose the directory of the session: it does not exist before a cluster starts."""
    config.addinivalue_line("markers", _MARKER)
    handed_over = getattr(config, "workerinput", {}).get(_SESSION)
    pytest_run.session = (
        handed_over
        or pytest_run.session
        or (
            os.getpid(),
            str(Path(tempfile.gettempdir(), f"kbroker-testing-{os.urandom(6).hex()}")),
        )
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the session to a worker of pytest-xdist: it ends with the controller's process."""
    node.workerinput[_SESSION] = pytest_run.session


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Add the last lines of the brokers' logs to the report of a failed test."""
    report = yield
    if report.failed:
        for cluster in item.stash.get(_CLUSTERS, []):
            if cluster.directory.exists():
                report.sections.append((f"Brokers of {cluster!r}", cluster.logs()))
    return report


def _cluster(config: pytest.Config, settings: dict[str, Any]) -> KafkaCluster:
    """Return a cluster of this run, not started."""
    from kbroker.testing.cluster import KafkaCluster

    number = config.getini(_BROKERS)
    if not str(number).isdecimal():
        _stop(f"{_BROKERS} = {number}: not a number of brokers")
    try:
        return KafkaCluster(**{"brokers": int(number), **settings})
    except (TypeError, ValueError) as problem:
        _stop(f"the marker kafka: {problem}")


@contextmanager
def _running(request: pytest.FixtureRequest, settings: dict[str, Any]) -> Iterator[KafkaCluster]:
    """Run a cluster; why one does not start is the user's to change, so it is a failure without a traceback."""
    from kclient.extras import what_to_install

    problem = None
    try:
        from kbroker.local.zookeeper import LocalError

        cluster = _cluster(request.config, settings)
        request.node.stash.setdefault(_CLUSTERS, []).append(cluster)
        try:
            cluster.__enter__()
        except (AssertionError, LocalError) as error:
            problem = f"the Kafka cluster does not start: {error}"
    except ModuleNotFoundError as error:
        problem = what_to_install(error, "this fixture", "testing")
        if problem is None:
            raise
    if problem is not None:
        _stop(problem)
    with closing(cluster):
        yield cluster


def _stop(reason: str) -> NoReturn:
    pytest.fail(reason, pytrace=False)


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the arguments of the test's markers; the closest one of each name counts."""
    found: dict[str, Any] = {}
    for marker in request.node.iter_markers("kafka"):
        if marker.args:
            _stop("the marker kafka has keyword arguments only")
        for name, value in marker.kwargs.items():
            if name not in (*_OF_CLUSTER, *_OF_TOPIC):
                known = ", ".join((*_OF_CLUSTER, *_OF_TOPIC))
                _stop(f"the marker kafka has no argument {name}; it has {known}")
            found.setdefault(name, value)
    return found


def _has_its_own(request: pytest.FixtureRequest) -> bool:
    """Return whether the test has a cluster of its own."""
    return "kafka_cluster" in request.fixturenames or bool(
        set(_OF_CLUSTER).intersection(_marked(request))
    )


@pytest.fixture(scope="session")
def kafka_session_cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Run a `KafkaCluster` for the whole session. A test may use it, and must leave it as it is."""
    with _running(request, {}) as cluster:
        yield cluster


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Run a `KafkaCluster` for this test alone: kill, pause, resume, restart, partition."""
    settings = {name: value for name, value in _marked(request).items() if name in _OF_CLUSTER}
    with _running(request, settings) as cluster:
        yield cluster


@pytest.fixture
def kafka_observer(request: pytest.FixtureRequest) -> Observer:
    """Give the test's cluster as a test sees it from outside: leaders, ISR, groups, records, and waits for them."""
    name = "kafka_cluster" if _has_its_own(request) else "kafka_session_cluster"
    found: KafkaCluster = request.getfixturevalue(name)
    if name == "kafka_session_cluster":
        request.node.stash.setdefault(_CLUSTERS, []).append(found)
    return found


@pytest.fixture
def kafka(kafka_observer: Observer) -> str:
    """Give the addresses of the test's cluster, as in bootstrap.servers."""
    return kafka_observer.bootstrap


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_observer: Observer) -> Iterator[str]:
    """Create a topic with a name of its own; give its name. ``@pytest.mark.kafka(partitions=3)`` changes it."""
    settings = {name: value for name, value in _marked(request).items() if name in _OF_TOPIC}
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:200]
    topic = kafka_observer.create_topic(f"{name}-{os.urandom(3).hex()}", **settings)
    yield topic
    if not _has_its_own(request):
        from kclient.wire.errors import UnknownTopicOrPartition

        with suppress(UnknownTopicOrPartition):  # the test has deleted it
            kafka_observer.delete_topic(topic)


@pytest.fixture
def kafka_producer(kafka: str) -> Iterator[Producer[Any, Any]]:
    """Give a kclient.Producer on the test's cluster."""
    from kclient import Producer

    with Producer({"bootstrap.servers": kafka}) as producer:
        yield producer


@pytest.fixture
def kafka_consumer(kafka: str, kafka_topic: str) -> Iterator[Consumer]:
    """Give a kclient.Consumer of kafka_topic, from its beginning, in a group of its own."""
    from kclient import Consumer

    settings = {
        "bootstrap.servers": kafka,
        "group.id": f"{kafka_topic}-group",
        "auto.offset.reset": "earliest",
    }
    with Consumer(settings, [kafka_topic]) as consumer:
        yield consumer


@pytest.fixture
def kafka_admin(kafka: str) -> Iterator[AdminClient]:
    """Give a kclient.AdminClient on the test's cluster."""
    from kclient import AdminClient

    with AdminClient({"bootstrap.servers": kafka}) as admin:
        yield admin
