"""The offsets of deleted topics: deleted when ZooKeeper, and not only one server that is behind, has no such topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from kbroker.coordinator.group.committed_offsets import CommittedOffset, GroupOffsets
from kbroker.coordinator.group.core.records import NO_DETAIL
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.offset_expiry import OffsetExpiry
from kbroker.coordinator.group.pending_offsets import UnstablePartitions
from kbroker.zk.interface import ZooKeeper


class ServerBehind:
    """A server that knows the deletion of a topic; of its creation since then it learns by `sync`."""

    def __init__(self) -> None:
        self.has_synced = False

    def sync(self, _path: str) -> Deferred[None]:
        self.has_synced = True
        return succeed(None)

    def exists(self, path: str) -> Deferred[Any]:
        again = path == "/brokers/topics/again" and self.has_synced
        return succeed("a record" if again else None)


class Groups:
    """One group with an offset of each topic."""

    def __init__(self) -> None:
        self.dropped: list[tuple[str, int]] = []
        self.created: Deferred[None] | None = None
        """What `offsets_and_pending` waits for."""

    async def expire_offsets(self, _group_id: str, before_ms: int) -> int:
        return 0

    def topics_with_offsets(self, _group_id: str) -> set[str]:
        return {"again", "gone"}

    def listing(self) -> Any:
        return [SimpleNamespace(group_id="g")], None

    async def offsets_and_pending(self, group_id: str) -> tuple[GroupOffsets, UnstablePartitions]:
        if self.created is not None:
            await self.created
        # An offset that cannot be decoded goes with its topic, too.
        committed = {"again": {0: CommittedOffset(5, NO_DETAIL, 0)}}
        # So does one that is pending in a transaction.
        offsets = GroupOffsets(group_id, committed, unreadable={"gone": {0}})
        return offsets, UnstablePartitions({("gone", 1), ("gone", 0)})

    async def drop_offsets(self, _group_id: str, wanted: list[tuple[str, int]]) -> int:
        self.dropped += wanted
        return len(wanted)


def offset_expiry(groups: Groups, topics: set[str]) -> OffsetExpiry:
    return OffsetExpiry(
        Clock(),
        cast(ZooKeeper, ServerBehind()),
        cast(GroupCoordinator, groups),
        retention_ms=1,
        interval=1.0,
        is_known=topics.__contains__,
        now_ms=lambda: 0,
    )


def test_offsets_of_a_topic_that_was_created_again_stay() -> None:
    groups = Groups()
    expiry = offset_expiry(groups, set())
    Deferred.fromCoroutine(expiry.forget_topics({"again", "gone"}))
    assert groups.dropped == [("gone", 0), ("gone", 1)]


def test_offsets_of_a_topic_that_is_created_again_meanwhile_stay() -> None:
    groups, topics = Groups(), set[str]()
    groups.created = Deferred()
    Deferred.fromCoroutine(offset_expiry(groups, topics).forget_topics({"gone"}))
    topics.add("gone")
    groups.created.callback(None)
    assert not groups.dropped


def test_a_sweep_deletes_offsets_of_topics_that_were_deleted_under_another_coordinator() -> None:
    """The coordinator at the time of the deletion had no connection to ZooKeeper, or did not live any more."""
    groups = Groups()
    Deferred.fromCoroutine(offset_expiry(groups, set()).sweep())
    assert groups.dropped == [("gone", 0), ("gone", 1)]


def test_a_sweep_keeps_offsets_of_topics_that_the_metadata_cache_has() -> None:
    groups = Groups()
    Deferred.fromCoroutine(offset_expiry(groups, {"gone"}).sweep())
    assert not groups.dropped
