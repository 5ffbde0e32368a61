"""Groups with long names, many topics or many members: no multi exceeds ZooKeeper's limit of 1 MiB."""

from __future__ import annotations

from types import NoneType, SimpleNamespace
from typing import cast

from twisted.internet.defer import Deferred

from kbroker.coordinator.group.coordinator_shards import MAX_GROUP_ID
from kbroker.coordinator.group.group_store import delete_tree
from kbroker.coordinator.shard_fence import ShardFence
from kbroker.zk.errors import ConnectionLoss
from kbroker.zk.interface import Children, Stat
from kclient.wire.error_codes import ErrorCode
from tests.stepped.coordinator import SteppedCoordinator


def subscription(topics: int) -> bytes:
    """Return the metadata of a consumer of so many topics with short names."""
    names = [f"{number:03x}".encode() for number in range(topics)]
    listed = b"".join(len(name).to_bytes(2, "big") + name for name in names)
    return b"\0\1" + topics.to_bytes(4, "big") + listed + b"\xff\xff\xff\xff"


def test_a_group_with_a_long_name_can_be_deleted() -> None:
    coordinator = SteppedCoordinator()
    group = "é" * MAX_GROUP_ID  # six characters each in a path
    offsets = [("t", partition, 1) for partition in range(200)]
    assert set(coordinator.done(coordinator.commit(*offsets, group=group))) == {ErrorCode.NONE}
    coordinator.done(Deferred.fromCoroutine(coordinator.coordinator.delete(group)))
    assert coordinator.coordinator.listing() == ([], ErrorCode.NONE)
    assert not coordinator.ensemble.tree["/consumers"].children


def test_members_of_many_topics_join_at_once_and_outlive_their_coordinator() -> None:
    members = 70  # their state is in one multi with their ephemerals
    coordinator = SteppedCoordinator(initial_rebalance_delay=3.0)
    protocols = (("range", subscription(1000)),)
    joining = [coordinator.join(f"m{number}", protocols=protocols) for number in range(members)]
    joined = [coordinator.done(each) for each in joining]
    assert {(each.error, each.generation_id) for each in joined} == {(ErrorCode.NONE, 1)}
    coordinator.coordinator.on_resignation(0)
    coordinator.coordinator.on_election(0, 0)
    coordinator.pass_time(3.0)
    described = coordinator.done(Deferred.fromCoroutine(coordinator.coordinator.describe("g")))
    assert len(described.machine.members) == members
    assert len(coordinator.ensemble.tree["/consumers/g/ids"].children) == members


def test_a_deletion_that_loses_its_connection_handles_the_error_of_every_read() -> None:
    """Otherwise Twisted logs a traceback for each."""
    listings: list[Deferred[Children]] = []

    def children(_path: str) -> Deferred[Children]:
        listings.append(Deferred())
        return listings[-1]

    fence = SimpleNamespace(zookeeper=SimpleNamespace(children=children))
    deleting = Deferred.fromCoroutine(delete_tree(cast(ShardFence, fence), "g"))
    listings[0].callback(Children(["a", "b", "c"], cast(Stat, None)))
    for listing in listings[1:]:
        listing.errback(ConnectionLoss())
    assert deleting.addErrback(lambda failure: failure.check(ConnectionLoss)).called
    assert [type(listing.result) for listing in listings] == [NoneType] * 4
