"""The images and compose files on a real Docker engine: up, faults, down, and up again with all data.

Skipped with the reason where there is no engine. The first run makes the images: some five minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.local.zookeeper import free_ports
from kclient import Producer
from tests.kit import containers
from tests.kit.containers import IMAGES, Project
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with containers.engine() as found:
        yield found


@pytest.fixture(scope="module")
def command(client: Any) -> list[str]:
    return containers.compose_command()


@pytest.fixture(scope="module")
def images(client: Any, command: list[str]) -> dict[str, str]:
    """Build all images by the build sections of the pair's file; ZooKeeper's from the one with Spark."""
    variables = {**IMAGES, "BASE_IMAGE": containers.base_image(client)}
    Project(client, command, "kbroker-pair", variables).compose(
        "--profile", "audit", "build", timeout=containers.BUILD_SECONDS
    )
    client.images.build(
        path=str(containers.COMPOSE.parent),
        dockerfile="compose/zookeeper.Dockerfile",
        tag=IMAGES["ZOOKEEPER_IMAGE"],
        buildargs={"BASE": IMAGES["KBROKER_SPARK_IMAGE"]},
        forcerm=True,
    )
    return variables


@pytest.fixture
def cluster(client: Any, command: list[str], images: dict[str, str]) -> Iterator[Project]:
    ports = {f"PORT{number}": str(port) for number, port in enumerate(free_ports(3), 1)}
    with containers.project(client, command, "kbroker", {**images, **ports}) as made:
        yield made


@pytest.fixture
def pair(client: Any, command: list[str], images: dict[str, str]) -> Iterator[Project]:
    east, west = map(str, free_ports(2))
    ports = {"EAST_PORT": east, "WEST_PORT": west}
    with containers.project(client, command, "kbroker-pair", {**images, **ports}) as made:
        yield made


def numbers(made: Project, broker: str) -> list[int]:
    """Return the records of the topic, read inside of the network."""
    out = made.shell(broker, f"kclient -b {broker}:9092 consume orders -o start -e -f '%v\\n'")
    return sorted(map(int, out.split()))


def produce(made: Project, broker: str, first: int, last: int) -> None:
    made.shell(broker, f"seq {first} {last} | kclient -b {broker}:9092 produce orders --acks all")


def topics(made: Project, broker: str) -> str:
    return made.shell(broker, f"kclient -b {broker}:9092 topic list")


def test_a_cluster_keeps_its_records_over_a_killed_broker_and_down(cluster: Project) -> None:
    cluster.up()
    cluster.shell("broker1", "kclient -b broker1:9092 topic create orders -p 6 -r 3")
    produce(cluster, "broker1", 1, 500)
    cluster.container("broker2").kill()
    # From the host, by the address that the brokers advertise for it.
    outside = ",".join(f"localhost:{cluster.environment[name]}" for name in ("PORT1", "PORT3"))
    with Producer(bootstrap_servers=outside) as producer:
        sent = [producer.send("orders", b"%d" % number) for number in range(501, 1001)]
        for each in sent:
            each.result(60)
    before = cluster.shell("broker1", "kclient -b broker1:9092 info")
    cluster.compose("down")
    assert cluster.containers() == []
    cluster.up()
    assert numbers(cluster, "broker2") == list(range(1, 1001))
    produce(cluster, "broker3", 1001, 1100)
    assert numbers(cluster, "broker1") == list(range(1, 1101))
    after = cluster.shell("broker1", "kclient -b broker1:9092 info")
    assert before.splitlines()[0] == after.splitlines()[0]  # the cluster id


def test_a_mirrored_pair_continues_after_down_and_kaudit_proves_it(pair: Project) -> None:
    def mirrored(last: int) -> None:
        expected = list(range(1, last + 1))
        eventually("the mirror has every record", lambda: numbers(pair, "west") == expected, 60)

    pair.compose("up", "-d")  # east and west are healthy: the mirror waits for that
    pair.shell("east", "kclient -b east:9092 topic create orders -p 2")
    produce(pair, "east", 1, 500)
    eventually("the topic is at west", lambda: "orders" in topics(pair, "west"), 60)
    mirrored(500)
    pair.shell("west", "kclient -b west:9092 consume orders -g readers -o start -n 500")
    pair.compose("down")
    pair.up()
    produce(pair, "east", 501, 1000)
    mirrored(1000)
    report = pair.compose("run", "--rm", "-T", "audit", timeout=400)
    assert "CONSISTENT" in report
    assert "verified 100 % (1 000 of 1 000)" in report
