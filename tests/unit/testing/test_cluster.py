"""`KafkaCluster` before it starts: what it refuses, and where names lead."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import kbroker.testing
import kclient.testing
from kbroker.testing import ZOOKEEPER, KafkaCluster, Observer


@pytest.fixture
def cluster() -> Any:
    made = KafkaCluster(3)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"brokers": 0}, "brokers=0: a cluster for tests has 1 to 20"),
        ({"brokers": "3"}, "brokers='3': a cluster for tests has 1 to 20"),
        ({"settings": {"broker.id": 7}}, r"settings\['broker.id'\]: KafkaCluster sets it"),
        ({"brokers": 2, "racks": {3: "c"}}, r"racks\[3\]: the brokers are 1 to 2"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        KafkaCluster(**arguments)


@pytest.mark.parametrize(
    ("sides", "problem"),
    [
        ([[1]], "two sides or more"),
        ([[1], []], "two sides or more"),
        ([[1], [1, 2]], "broker-1 is on two sides"),
        ([[ZOOKEEPER], [1, ZOOKEEPER]], "zookeeper is on two sides"),
        ([[1], [4]], "no broker 4; the cluster has: 1, 2, 3"),
        ([[1], ["zk"]], "no member 'zk': members are broker ids and 'zookeeper'"),
    ],
)
def test_partitions_that_cannot_be_are_refused(
    cluster: KafkaCluster, sides: Any, problem: str
) -> None:
    with pytest.raises((ValueError, LookupError), match=problem):
        cluster.partition(*sides)


def test_a_partition_has_the_directions_between_its_sides(cluster: KafkaCluster) -> None:
    assert cluster.partition([1], [2, ZOOKEEPER]).directions == {
        ("broker-1", "broker-2"), ("broker-1", ZOOKEEPER),
        ("broker-2", "broker-1"), (ZOOKEEPER, "broker-1"),
    }  # fmt: skip
    assert cluster.partition(1, 2, 3).directions == {
        (f"broker-{one}", f"broker-{other}")
        for one in (1, 2, 3)
        for other in (1, 2, 3)
        if one != other
    }


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_delay_that_cannot_be_is_refused(cluster: KafkaCluster, seconds: float) -> None:
    with pytest.raises(ValueError, match="a delay is longer than 0"):
        cluster.delay([1], [2], seconds=seconds)
    with pytest.raises(ValueError, match="two sides or more"):
        cluster.reset([1])


def test_a_broker_that_does_not_run_cannot_be_paused(cluster: KafkaCluster) -> None:
    with pytest.raises(RuntimeError, match="broker 2 does not run"):
        cluster.pause(2)
    cluster.kill(2)  # it is dead already
    assert cluster.down == [1, 2, 3]


def test_a_closed_cluster_does_not_start(cluster: KafkaCluster) -> None:
    cluster.close()
    with pytest.raises(RuntimeError, match="the cluster is closed"):
        cluster.start()
    with pytest.raises(RuntimeError, match="the cluster is closed"), cluster:
        pass
    assert not cluster.directory.exists(), "nothing is made before a start"


def test_a_wait_has_an_end_and_names_what_it_saw_last() -> None:
    with (
        Observer("127.0.0.1:1") as observer,
        pytest.raises(AssertionError, match=r"(?s)waited 0.1 s for a leader of t-0 .*127.0.0.1:1"),
    ):
        observer.wait_leader("t", not_on=[1], timeout=0.1)


def test_every_public_name_is_there() -> None:
    for module in (kbroker.testing, kclient.testing):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []
        with pytest.raises(AttributeError, match="has no attribute 'Kafka'"):
            _ = module.Kafka  # type: ignore[attr-defined]


def test_kclient_names_the_place_of_the_cluster() -> None:
    with pytest.raises(ImportError, match=r"from kbroker\.testing import KafkaCluster"):
        exec("from kclient.testing import KafkaCluster")


def test_the_plugin_imports_nothing_that_pytest_has_not_imported() -> None:
    """Every pytest run where kbroker is installed loads it: it must cost nothing, and nothing in it may break."""
    program = """
import sys, pytest
before = set(sys.modules)
import kbroker.testing.plugin
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        "kbroker",
        "kbroker.testing",
        "kbroker.testing.plugin",
        "kbroker.testing.pytest_run",
    ]


def test_pytest_does_not_compile_our_modules_again() -> None:
    """It rewrites the asserts of every package of a distribution with a plugin, unless the plugin prevents that."""
    rewritten = [
        name
        for name, module in sys.modules.items()
        if name.partition(".")[0] in ("kbroker", "kclient")
        and type(module.__loader__).__name__ == "AssertionRewritingHook"
    ]
    of_the_plugin = {
        "kbroker",
        "kbroker.testing",
        "kbroker.testing.plugin",
        "kbroker.testing.pytest_run",
    }  # they are imported before it acts
    assert set(rewritten) <= of_the_plugin
