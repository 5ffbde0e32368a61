"""The offsets of deleted topics: deleted when ZooKeeper, and not only one server that is behind, has no such topic."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from kbroker.coordinator.group.committed_offsets import CommittedOffset, GroupOffsets
from kbroker.coordinator.group.core.records import NO_DETAIL
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.offset_expiry import OffsetExpiry
from kbroker.coordinator.group.pending_offsets import UnstablePartitions
from kbroker.zk.errors import ConnectionLoss, NoNode
from kbroker.zk.interface import Node, Stat, ZooKeeper
from kbroker.zk.znodes import TopicAssignment, encode_topic
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import CoordinatorNotAvailable, KafkaError, NotCoordinator

OLD, NEW = UUID(int=1), UUID(int=2)
COMMITTED = 100
"""The zxid of every commit."""
VERSION = 7


def znode(data: bytes, czxid: int, mzxid: int) -> Node:
    return Node(data, Stat(czxid, mzxid, 0, 0, VERSION, 0, 0, 0, len(data), 0, 0))


class ServerBehind:
    """A server that knows the deletion of topics; of what was created since then it learns by `sync`.

    *created* has the id and the zxid of topics that exist; *requested* are those with a request for their deletion.
    """

    def __init__(self) -> None:
        self.has_synced = False
        self.created = {"again": (NEW, COMMITTED - 1)}
        self.requested: set[str] = set()
        self.deletes_meanwhile = False
        """Whether deletions are complete once a request was looked for."""

        self.is_away = False
        self.offsets = {("gone", 0), ("gone", 1), ("again", 0)}
        """The topic and partition of each committed offset."""

    def sync(self, _path: str) -> Deferred[None]:
        if self.is_away:
            return fail(ConnectionLoss("/brokers/topics"))
        self.has_synced = True
        return succeed(None)

    def exists(self, path: str) -> Deferred[Any]:
        name = path.removeprefix("/admin/delete_topics/")
        answer = "a record" if name in self.requested else None
        if self.deletes_meanwhile:
            self.requested.discard(name)
            self.created.pop(name, None)
        return succeed(answer)

    def get(self, path: str) -> Deferred[Any]:
        if path.startswith("/consumers"):
            topic, partition = path.split("/")[-2:]
            if (topic, int(partition)) not in self.offsets:
                return fail(NoNode(path))
            return succeed(znode(b"5", 1, COMMITTED))
        name = path.removeprefix("/brokers/topics/")
        if name not in self.created or not self.has_synced:
            return fail(NoNode(path))
        topic_id, zxid = self.created[name]
        return succeed(znode(encode_topic(TopicAssignment(topic_id, {})), zxid, zxid))


class Groups:
    """One group with an offset of each topic."""

    def __init__(self) -> None:
        self.dropped: list[tuple[str, int]] = []
        self.pending: set[tuple[str, int]] = set()
        self.created: Deferred[None] | None = None
        """What `offsets_and_pending` waits for."""
        self.is_loading = False
        self.are_ours = True
        self.problem: KafkaError | None = None
        """What `offsets_and_pending` raises."""
        self.drops = True
        """Whether `drop_offsets` deletes what it should."""
        self.commits: Deferred[None] = succeed(None)
        """Fires when the commits under way are written."""
        self.before_pending_is_dropped: Callable[[], None] = lambda: None

    async def expire_offsets(self, _group_id: str, before_ms: int) -> int:
        return 0

    def topics_with_offsets(self, _group_id: str) -> set[str]:
        return {"again", "gone"}

    def may_have_offsets(self, _group_id: str, _topics: Any) -> bool:
        return True

    def listing(self) -> Any:
        if self.is_loading:
            return [], ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return [SimpleNamespace(group_id="g")] if self.are_ours else [], ErrorCode.NONE

    async def offsets_and_pending(self, group_id: str) -> tuple[GroupOffsets, UnstablePartitions]:
        if self.created is not None:
            await self.created
        if self.problem is not None:
            raise self.problem
        # An offset that cannot be decoded goes with its topic, too.
        committed = {"again": {0: CommittedOffset(5, NO_DETAIL, 0)}}
        # So does one that is pending in a transaction.
        offsets = GroupOffsets(group_id, committed, unreadable={"gone": {0}})
        return offsets, UnstablePartitions({("gone", 1), ("gone", 0)})

    def all_commits_of_now(self) -> Deferred[None]:
        return self.commits

    async def drop_pending(self, _group_id: str, partitions: set[tuple[str, int]]) -> bool:
        self.before_pending_is_dropped()
        self.pending |= partitions
        return True

    async def drop_offsets(self, _group_id: str, versions: dict[tuple[str, int], int]) -> bool:
        assert set(versions.values()) <= {VERSION}
        if self.drops:
            self.dropped += versions
        return self.drops


def offset_expiry(
    groups: Groups,
    topics: set[str],
    server: ServerBehind | None = None,
    clock: Clock | None = None,
) -> OffsetExpiry:
    return OffsetExpiry(
        clock or Clock(),
        cast(ZooKeeper, server or ServerBehind()),
        cast(GroupCoordinator, groups),
        retention_ms=1,
        interval=10.0,
        is_known=topics.__contains__,
        now_ms=lambda: 0,
    )


def forgotten(groups: Groups, server: ServerBehind, *topics: str, known: bool = False) -> list[str]:
    """Return the topics with offsets that are dropped after the deletion of OLD."""
    expiry = offset_expiry(groups, set(topics) if known else set(), server)
    Deferred.fromCoroutine(expiry.forget_topics(dict.fromkeys(topics, OLD)))
    return sorted({topic for topic, _ in groups.dropped})


def test_offsets_that_were_committed_for_the_new_topic_of_a_name_stay() -> None:
    assert forgotten(Groups(), ServerBehind(), "again", "gone", known=True) == ["gone"]


def test_offsets_from_before_the_creation_of_the_new_topic_go() -> None:
    server, groups = ServerBehind(), Groups()
    server.created["again"] = NEW, COMMITTED + 1
    assert forgotten(groups, server, "again", "gone", known=True) == ["again", "gone"]
    assert not groups.pending, "they may be those of the new topic"


@pytest.mark.parametrize("deletes_meanwhile", [False, True])
def test_offsets_go_while_the_topic_is_being_deleted(deletes_meanwhile: bool) -> None:
    server, groups = ServerBehind(), Groups()
    server.created["gone"] = OLD, 1
    server.requested.add("gone")
    server.deletes_meanwhile = deletes_meanwhile
    assert forgotten(groups, server, "gone") == ["gone"]
    assert groups.pending == {("gone", 0), ("gone", 1)}


def test_offsets_of_a_topic_that_is_not_deleted_stay() -> None:
    server = ServerBehind()
    server.created["gone"] = OLD, 1
    assert forgotten(Groups(), server, "gone") == []


def test_a_commit_after_the_creation_of_the_topic_again_stays() -> None:
    groups, topics, server = Groups(), set[str](), ServerBehind()
    groups.created = Deferred()
    Deferred.fromCoroutine(offset_expiry(groups, topics, server).forget_topics({"gone": OLD}))
    topics.add("gone")
    server.created["gone"] = NEW, COMMITTED - 1
    groups.created.callback(None)
    assert not groups.dropped


def test_commits_that_are_under_way_are_waited_for() -> None:
    """Found by the simulation (seed 6592): a commit was accepted before the deletion was known, and written after."""
    groups, server = Groups(), ServerBehind()
    server.offsets.clear()
    groups.commits = Deferred()
    offset_expiry(groups, set(), server).topics_deleted({"gone": OLD})
    server.offsets.add(("gone", 0))
    groups.commits.callback(None)
    assert groups.dropped == [("gone", 0)]


def test_offsets_that_a_transaction_commits_meanwhile_go() -> None:
    groups, server = Groups(), ServerBehind()
    server.offsets.remove(("gone", 1))
    groups.before_pending_is_dropped = lambda: server.offsets.add(("gone", 1))
    assert forgotten(groups, server, "gone") == ["gone"]
    assert groups.dropped == [("gone", 0), ("gone", 1)]


def test_deletions_are_handled_one_after_the_other() -> None:
    groups = Groups()
    groups.created = Deferred()
    expiry = offset_expiry(groups, set())
    for _ in range(2):
        expiry.topics_deleted({"gone": OLD})
    assert not groups.dropped
    groups.created.callback(None)
    assert groups.dropped == [("gone", 0), ("gone", 1)] * 2


@pytest.mark.parametrize("what", ["zookeeper", "group", "deletion", "loading"])
def test_what_could_not_be_deleted_is_deleted_later_also_if_the_topic_exists_again(
    what: str,
) -> None:
    """Found by the simulation: the coordinator lost ZooKeeper for two seconds, or was loading the group."""
    groups, topics, server, clock = Groups(), set[str](), ServerBehind(), Clock()
    groups.is_loading = what == "loading"
    server.is_away = what == "zookeeper"
    groups.problem = CoordinatorNotAvailable("g") if what == "group" else None
    groups.drops = what != "deletion"
    expiry = offset_expiry(groups, topics, server, clock)
    expiry.topics_deleted({"gone": OLD})
    topics.add("gone")
    server.created["gone"] = NEW, COMMITTED + 1
    clock.pump([1.0, 2.0, 1.0])
    expiry.topics_deleted({"other": OLD})  # does not ask later
    assert not groups.dropped
    server.is_away, groups.problem, groups.drops = False, None, True
    groups.is_loading = False
    clock.advance(3.0)
    assert groups.dropped == [("gone", 0), ("gone", 1)]
    assert not clock.getDelayedCalls()


@pytest.mark.parametrize("sweeps", [0, 1, 2])
def test_the_next_coordinator_deletes_what_the_one_before_has_left(sweeps: int) -> None:
    groups, topics, server, clock = Groups(), set[str](), ServerBehind(), Clock()
    groups.are_ours = False
    expiry = offset_expiry(groups, topics, server, clock)
    expiry.topics_deleted({"gone": OLD})
    topics.add("gone")
    server.created["gone"] = NEW, COMMITTED + 1
    for _ in range(sweeps):
        Deferred.fromCoroutine(expiry.sweep())
    groups.are_ours = True
    for _ in range(3):  # partitions of __consumer_offsets
        expiry.groups_loaded()
    clock.advance(0)
    assert groups.dropped == ([("gone", 0), ("gone", 1)] if sweeps < 2 else [])
    assert not clock.getDelayedCalls()


def test_what_waits_is_given_up_with_the_group() -> None:
    groups, clock = Groups(), Clock()
    groups.problem = NotCoordinator("g")
    offset_expiry(groups, set(), clock=clock).topics_deleted({"gone": OLD})
    assert not clock.getDelayedCalls()


def test_nothing_is_asked_again_after_the_end() -> None:
    server, clock = ServerBehind(), Clock()
    server.is_away = True
    expiry = offset_expiry(Groups(), set(), server, clock)
    expiry.topics_deleted({"gone": OLD})
    expiry.stop()
    assert not clock.getDelayedCalls()


def test_a_sweep_deletes_offsets_of_topics_that_were_deleted_under_another_coordinator() -> None:
    """The coordinator at the time of the deletion had no connection to ZooKeeper, or did not live any more."""
    groups = Groups()
    Deferred.fromCoroutine(offset_expiry(groups, set()).sweep())
    assert groups.dropped == [("gone", 0), ("gone", 1)]


def test_a_sweep_keeps_offsets_of_topics_that_the_metadata_cache_has() -> None:
    groups = Groups()
    Deferred.fromCoroutine(offset_expiry(groups, {"gone"}).sweep())
    assert not groups.dropped
