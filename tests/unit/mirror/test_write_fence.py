"""What a leader's answers to the conditional append of a fence show."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.versions import ApiKey
from mirrormaker.write_fence import FenceTimeout, until_read_only
from tests.kit.scripted_cluster import ScriptedCluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
CONFIG = CommonConfig.load({"bootstrap.servers": "a:1"})
MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("before", "later", "writable"),
    [
        (ErrorCode.POLICY_VIOLATION, MOVED, [T1]),
        (MOVED, ErrorCode.POLICY_VIOLATION, [T1]),
        (MOVED, MOVED, []),
    ],
)
def test_a_leader_that_accepted_producers_is_named_although_it_fails_at_the_end(
    before: ErrorCode, later: ErrorCode, writable: list[TopicPartition]
) -> None:
    """Only the last answer counted: a partition that lost its fence was one that merely could not be read."""
    scripted = ScriptedCluster({"t": 2})
    scripted.serve_log_ends(5)
    fenced = scripted.answers[ApiKey.PRODUCE]

    def produced(request: Any) -> Any:
        answer = fenced(request)
        for topic in answer.topics:
            for each in topic.partitions:
                if each.index == 1:
                    each.error_code = before if scripted.clock.seconds() < 55 else later
                    each.log_end_offset = -1
        return answer

    scripted.answers[ApiKey.PRODUCE] = produced
    cluster = scripted.cluster(CONFIG)
    found: list[Any] = []
    Deferred.fromCoroutine(until_read_only(cluster, [T0, T1], timeout=60)).addBoth(found.append)
    scripted.pass_time(70, 0.5)
    (failure,) = found
    assert isinstance(failure.value, FenceTimeout)
    assert failure.value.found == {T0: 5}
    assert failure.value.writable == writable
