"""What `GroupMirror` states about groups that were not copied."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.types import TopicPartition
from kclient.wire.errors import ClusterAuthorizationFailed
from kclient.wire.versions import ApiKey
from mirrormaker.group_sync import GroupMirror
from mirrormaker.offset_pairs import Translate, Translated
from mirrormaker.settings import LinkSettings
from tests.kit.scripted_cluster import HELD, ScriptedCluster

CONFIG = CommonConfig.load({"bootstrap.servers": "a:1"})


async def as_they_are(_copies: object) -> Translate:
    return lambda _copy, offset: Translated(offset)


def test_groups_that_could_not_be_listed_stay_not_copied_until_they_can_be() -> None:
    east, west = ScriptedCluster({"orders": 1}), ScriptedCluster({"orders": 1})
    west.clock = east.clock
    tp = TopicPartition("orders", 0)
    groups = GroupMirror(
        east.cluster(CONFIG),
        west.cluster(CONFIG),
        LinkSettings(sync_group_offsets=True),
        alias="east",
        copies=lambda: {tp: tp},
        translator=as_they_are,
        report=lambda *_: None,
    )
    answers: list[Any] = [ClusterAuthorizationFailed("no"), HELD]
    east.answers[ApiKey.LIST_GROUPS] = lambda _: answers.pop(0)
    assert (groups.is_synchronized, groups.problems) == (False, {})
    Deferred.fromCoroutine(groups.synchronize())
    east.pass_time(1.0)
    assert (groups.is_synchronized, list(groups.problems)) == (True, [""])
    Deferred.fromCoroutine(groups.synchronize()).addErrback(lambda _: None)
    east.pass_time(1.0)
    assert not answers
    assert list(groups.problems) == [""], "nothing was copied since"
