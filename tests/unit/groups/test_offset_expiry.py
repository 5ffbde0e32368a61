"""The offsets of deleted topics: deleted when ZooKeeper, and not only one server that is behind, has no such topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from kbroker.runtime.group_coordinator import GroupCoordinator
from kbroker.runtime.offset_expiry import OffsetExpiry
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

    def listing(self) -> Any:
        return [SimpleNamespace(group_id="g")], None

    async def offsets(self, _group_id: str) -> Any:
        return {"again": {0: 5}, "gone": {0: 7}}

    async def drop_offsets(self, _group_id: str, wanted: list[tuple[str, int]]) -> int:
        self.dropped += wanted
        return len(wanted)


def test_offsets_of_a_topic_that_was_created_again_stay() -> None:
    groups = Groups()
    expiry = OffsetExpiry(
        Clock(),
        cast(ZooKeeper, ServerBehind()),
        cast(GroupCoordinator, groups),
        retention_ms=1,
        interval=1.0,
        topics=set,
        now_ms=lambda: 0,
    )
    Deferred.fromCoroutine(expiry.forget_topics({"again", "gone"}))
    assert groups.dropped == [("gone", 0)]
