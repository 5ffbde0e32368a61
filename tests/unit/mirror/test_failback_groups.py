"""Committed offsets that the brokers deleted with a topic, and which of them are committed again."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.versions import ApiKey
from mirrormaker.export_manifest import ExportedPartition, Manifest
from mirrormaker.failback_groups import Committed, Restored, as_committed_now, restore
from tests.kit.scripted_cluster import HELD, ScriptedCluster, commit_answer, now

CONFIG = CommonConfig.load({"bootstrap.servers": "a:1"})
TP = TopicPartition("orders", 0)


def known(*groups: str) -> Committed:
    return {group: {TP: OffsetAndMetadata(5)} for group in groups}


def test_a_group_that_cannot_commit_does_not_keep_the_others_from_it() -> None:
    """Before, the offsets of all later groups were lost, and the exit code was 0."""
    scripted = ScriptedCluster({"orders": 1})
    cluster = scripted.cluster(CONFIG)
    committed: dict[TopicPartition, int] = {}
    scripted.serve_commits(committed)
    received: list[str] = []

    def commit(request: Any) -> Any:
        received.append(request.group_id)
        if request.group_id == "silent":
            return HELD
        busy = request.group_id == "has members"
        return commit_answer(request, ErrorCode.UNKNOWN_MEMBER_ID if busy else 0)

    scripted.answers[ApiKey.OFFSET_COMMIT] = commit
    waiting = Deferred.fromCoroutine(
        restore(cluster, known("has members", "silent", "one", "two"), {TP: 3})
    )
    scripted.pass_time(70.0)
    found = now(waiting)
    assert {"has members", "silent", "one", "two"} == set(received)
    assert found.count == 2
    assert sorted(found.failed) == ["has members", "silent"]
    assert "UNKNOWN_MEMBER_ID" in found.failed["has members"]


def test_an_offset_that_its_coordinator_may_be_about_to_delete_is_committed_again() -> None:
    """Before, it was skipped, and gone a moment later: coordinators delete offsets after their topic."""
    scripted = ScriptedCluster({"orders": 1})
    cluster = scripted.cluster(CONFIG)
    scripted.serve_commits({TP: 3})
    waiting = Deferred.fromCoroutine(restore(cluster, known("g"), {TP: 3}))
    scripted.pass_time(1.0)
    assert now(waiting) == Restored(0, {})
    assert scripted.count(ApiKey.OFFSET_COMMIT) == 1


@pytest.mark.parametrize(
    ("answer", "is_there_later", "reason"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, True, "GROUP_AUTHORIZATION_FAILED"),
        (ErrorCode.UNKNOWN_MEMBER_ID, True, ""),
        (ErrorCode.UNKNOWN_MEMBER_ID, False, "UNKNOWN_MEMBER_ID"),
    ],
)
def test_an_offset_that_cannot_be_committed_again_is_restored_only_if_it_stays(
    answer: ErrorCode, is_there_later: bool, reason: str
) -> None:
    scripted = ScriptedCluster({"orders": 1})
    cluster = scripted.cluster(CONFIG)
    committed = {TP: 3}
    scripted.serve_commits(committed)

    def commit(request: Any) -> Any:
        if not is_there_later:
            committed.clear()
        return commit_answer(request, answer)

    scripted.answers[ApiKey.OFFSET_COMMIT] = commit
    waiting = Deferred.fromCoroutine(restore(cluster, known("g"), {TP: 3}))
    scripted.pass_time(7.0)
    found = now(waiting)
    assert found.count == 0
    assert reason in found.failed.get("g", "")
    assert bool(found.failed) == bool(reason)


def test_the_offsets_of_an_earlier_run_are_those_of_the_last_look() -> None:
    """Before, a group that committed after the first run, or with --no-groups in it, was not restored."""
    end = ExportedPartition(0, 0, 9, 0, 4, 4, 1, 0, ())
    unknown = TopicPartition("orders", 7)  # of an earlier topic with more partitions
    before = {"a": {0: (7, "x")}, "b": {0: (2, "")}, "gone": {0: (1, "")}, "c": {7: (3, "")}}
    made = Manifest("orders", "id", "E", "W", "id2", 1, 1, (end,), before)
    committed: Committed = {
        "a": {TP: OffsetAndMetadata(4, "x")},  # set back by the earlier run
        "b": {TP: OffsetAndMetadata(3, "")},
        "c": {unknown: OffsetAndMetadata(3, "")},
        "new": {TP: OffsetAndMetadata(1, ""), TopicPartition("other", 0): OffsetAndMetadata(1)},
    }
    found = as_committed_now(made, committed)
    assert found.groups == {
        "a": {0: (7, "x")},
        "b": {0: (3, "")},
        "c": {7: (3, "")},
        "new": {0: (1, "")},
    }


def test_an_offset_that_is_there_is_not_moved() -> None:
    scripted = ScriptedCluster({"orders": 1})
    cluster = scripted.cluster(CONFIG)
    scripted.serve_commits({TP: 2})
    waiting = Deferred.fromCoroutine(restore(cluster, known("g"), {TP: 3}))
    scripted.pass_time(1.0)
    assert now(waiting) == Restored(0, {})
    assert scripted.count(ApiKey.OFFSET_COMMIT) == 0
