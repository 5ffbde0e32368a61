"""OffsetFetch: a request that names a partition many times gets its offset, and its metadata, once."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.apis.api09_offset_fetch import OffsetFetch
from kbroker.apis.budgets import RequestBudget
from kbroker.apis.request import RequestContext
from kbroker.common.turns import WithoutTurns
from kbroker.coordinator.group.committed_offsets import GroupOffsets
from kbroker.network.service import Peer
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kclient.wire.versions import ApiKey


class Coordinator:
    """Has no committed offset of any group."""

    async def offsets(self, group_id: str) -> GroupOffsets:
        return GroupOffsets(group_id)


def topics_of(version: int, request: OffsetFetchRequest) -> list[tuple[str, list[int]]]:
    header = RequestHeader(ApiKey.OFFSET_FETCH, version, 7, "c")
    context = RequestContext(
        header, Peer("10.0.0.3", 1, "PLAINTEXT"), RequestBudget(1 << 20, 1000), WithoutTurns()
    )
    responses: list[Any] = []
    coordinator: Any = Coordinator()
    Deferred.fromCoroutine(OffsetFetch(coordinator)(context, request)).addBoth(responses.append)
    (response,) = responses
    topics = response.groups[0].topics if version >= 8 else response.topics
    return [(each.name, [p.partition_index for p in each.partitions]) for each in topics]


@pytest.mark.parametrize("version", [1, 5, 7, 8, 9])
def test_each_partition_is_answered_once(version: int) -> None:
    """20,000 times one with 3 KB of metadata were 60 MB, and a turn of 150 ms."""
    named = [("t", [0, 2, 0, 2]), ("u", [1]), ("t", [2, 3])]
    request = OffsetFetchRequest("g", [OffsetFetchRequestTopic(*each) for each in named])
    if version >= 8:
        group = OffsetFetchRequestGroup(
            "g", topics=[OffsetFetchRequestTopics(*each) for each in named]
        )
        request = OffsetFetchRequest(groups=[group])
    assert topics_of(version, request) == [("t", [0, 2, 3]), ("u", [1])]
