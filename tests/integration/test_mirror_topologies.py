"""Rings and meshes of mirrors between three real clusters: they come to rest, and no record returns to its origin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.mirrored_clusters import (
    MARK,
    admin,
    delivery_error,
    make_topic,
    mark_of,
    produce,
)
from tests.kit.mirrors import Mirror, stored
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


class Three(NamedTuple):
    """Three clusters, and the mirrors between them."""

    clusters: dict[str, Cluster]
    mirror: Mirror

    def topics(self) -> dict[str, set[str]]:
        """Return the names of the topics of each cluster."""
        return {
            name: {t for t in admin(cluster).list_topics(timeout=5).topics if t[0] != "_"}
            for name, cluster in self.clusters.items()
        }

    def mirror_until_at_rest(self, at_most: int = 6) -> dict[str, set[str]]:
        """Copy again and again until a run creates no topic; return the topics."""
        found = self.topics()
        for _ in range(at_most):
            assert self.mirror.run_once() == 0, self.mirror.output
            before, found = found, self.topics()
            if before == found:
                return found
        raise AssertionError(f"the mirrors do not come to rest: {found}")


@pytest.fixture
def three(broker_clusters: MakeCluster, tmp_path: Path) -> Callable[..., Three]:
    def make(*flows: str, policy: str, refresh_s: int = 600) -> Three:
        clusters = {name: broker_clusters(1) for name in ("east", "west", "north")}
        settings = {"clusters": "east, west, north", "east->west.enabled": "false"}
        settings["north.bootstrap.servers"] = clusters["north"].bootstrap
        settings["replication.policy.class"] = policy
        settings["refresh.topics.interval.seconds"] = str(refresh_s)
        settings |= {f"{flow}.enabled": "true" for flow in flows}
        return Three(
            clusters, Mirror(tmp_path / "ring", clusters["east"], clusters["west"], settings)
        )

    return make


RING = ("east->west", "west->north", "north->east")
MESH = (*RING, "west->east", "north->west", "east->north")


def test_a_ring_of_three_clusters_comes_to_rest(three: Callable[..., Three]) -> None:
    ring = three(*RING, policy="DefaultReplicationPolicy")
    for cluster in ring.clusters.values():
        make_topic(cluster, "orders")
        produce(cluster, "orders", 10)
    assert ring.mirror_until_at_rest() == {
        "east": {"orders", "north.orders", "north.west.orders"},
        "west": {"orders", "east.orders", "east.north.orders"},
        "north": {"orders", "west.orders", "west.east.orders"},
    }
    copy = stored(ring.clusters["north"], "west.east.orders")
    assert copy == stored(ring.clusters["east"], "orders") != []
    assert "topic west.east.orders: is not copied: its records come from east" in ring.mirror.output


@pytest.mark.parametrize("flows", [RING, MESH])
def test_records_that_are_written_to_all_clusters_meanwhile_are_copied_once(
    three: Callable[..., Three], flows: tuple[str, ...]
) -> None:
    """Active-active: producers write to the same topic of each cluster while the mirrors run."""
    all_three = three(*flows, policy="DefaultReplicationPolicy", refresh_s=1)
    clusters, mirror = all_three.clusters, all_three.mirror
    for cluster in clusters.values():
        make_topic(cluster, "orders")
    expected = 6 if flows is RING else 12

    def written_to_all() -> bool:
        """Write to each cluster; return whether there are all copies, each with records."""
        for cluster in clusters.values():
            produce(cluster, "orders", 20)
        topics = [(n, t) for n, of_it in all_three.topics().items() for t in of_it - {"orders"}]
        return len(topics) == expected and all(stored(clusters[n], t) for n, t in topics)

    mirror.start()
    eventually("a record of each copy", written_to_all, 60)
    for _ in range(15):
        written_to_all()
    written = {name: stored(cluster, "orders") for name, cluster in clusters.items()}

    def copies() -> dict[tuple[str, str], bool]:
        """Return for each copy, by cluster and topic, whether it is the log of its origin."""
        found = {}
        for name, topics in all_three.topics().items():
            for topic in topics - {"orders"}:
                origin = topic.split(".")[-2]
                found[name, topic] = stored(clusters[name], topic) == written[origin]
        return found

    eventually("the copies", lambda: list(copies().values()) == [True] * expected, 60)
    assert mirror.stop() == 0, mirror.output
    before = all_three.topics()
    assert all_three.mirror_until_at_rest() == before
    assert set(copies().values()) == {True}
    assert {name: stored(cluster, "orders") for name, cluster in clusters.items()} == written


def test_a_full_mesh_comes_to_rest(three: Callable[..., Three]) -> None:
    mesh = three(*MESH, policy="DefaultReplicationPolicy")
    for cluster in mesh.clusters.values():
        make_topic(cluster, "orders")
        produce(cluster, "orders", 10)
    found = mesh.mirror_until_at_rest()
    assert found["east"] == {
        "orders",
        "west.orders",
        "north.orders",
        "north.west.orders",
        "west.north.orders",
    }


@pytest.mark.parametrize("flows", [RING, MESH, ("east->west", "west->east")])
def test_a_topic_of_one_name_everywhere_is_never_copied_back_to_its_origin(
    three: Callable[..., Three], flows: tuple[str, ...]
) -> None:
    """Else its origin would become a mirror, and read-only."""
    clusters = three(*flows, policy="IdentityReplicationPolicy")
    east = clusters.clusters["east"]
    make_topic(east, "orders")
    produce(east, "orders", 10)
    clusters.mirror_until_at_rest()
    produce(east, "orders", 10)
    for _ in range(3):
        assert clusters.mirror.run_once() == 0, clusters.mirror.output
    assert mark_of(east, "orders") is None
    assert delivery_error(east, "orders") is None
    assert stored(clusters.clusters["west"], "orders") == stored(east, "orders")[:-1]


def test_after_a_promotion_in_a_mesh_the_third_cluster_follows_the_new_origin(
    three: Callable[..., Three],
) -> None:
    """Its copy is of the former origin, which is a mirror now: the records come to it on that way."""
    mesh = three(*MESH, policy="IdentityReplicationPolicy")
    east, west, north = (mesh.clusters[name] for name in ("east", "west", "north"))
    make_topic(east, "orders")
    produce(east, "orders", 10)
    mesh.mirror_until_at_rest()
    code, output = mesh.mirror.ask("promote", "--flow", "east->west", timeout=60)
    assert code == 0, output
    assert delivery_error(east, "orders") is not None
    produce(west, "orders", 10)
    codes = [mesh.mirror.run_once() for _ in range(4)]
    assert codes[-1] == 0, mesh.mirror.output
    assert len(stored(west, "orders")) > 1
    assert stored(west, "orders") == stored(east, "orders") == stored(north, "orders")
    assert delivery_error(west, "orders") is None


def test_two_topics_that_are_mirrors_of_each_other_are_a_conflict(
    three: Callable[..., Three],
) -> None:
    both = three("east->west", "west->east", policy="IdentityReplicationPolicy")
    east, west = both.clusters["east"], both.clusters["west"]
    ids = {name: admin(c).list_topics(timeout=5).cluster_id for name, c in both.clusters.items()}
    make_topic(east, "orders", **{MARK: ids["west"]})
    make_topic(west, "orders", **{MARK: ids["east"]})
    assert both.mirror.run_once() == 1
    assert "orders is marked as a mirror at both clusters" in both.mirror.output
