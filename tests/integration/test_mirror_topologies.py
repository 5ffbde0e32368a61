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
    def make(*flows: str, policy: str) -> Three:
        clusters = {name: broker_clusters(1) for name in ("east", "west", "north")}
        settings = {"clusters": "east, west, north", "east->west.enabled": "false"}
        settings["north.bootstrap.servers"] = clusters["north"].bootstrap
        settings["replication.policy.class"] = policy
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
