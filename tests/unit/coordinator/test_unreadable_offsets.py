"""Offset znodes that cannot be decoded: no client takes them for "no committed offset"."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from kbroker.apis.api09_offset_fetch import OffsetFetch
from kbroker.apis.api_specs import API_SPECS
from kbroker.apis.request import RequestContext
from kbroker.common.turns import WithoutTurns
from kbroker.network.service import Peer
from kclient.wire.error_codes import ErrorCode
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kclient.wire.versions import ApiKey
from tests.stepped.coordinator import SteppedCoordinator

OFFSET = "/consumers/g/offsets/t/0"
UNREADABLE = {0: (-1, ErrorCode.UNKNOWN_SERVER_ERROR), 1: (7, ErrorCode.NONE)}


@pytest.fixture(params=["offset", "detail"])
def coordinator(request: pytest.FixtureRequest) -> SteppedCoordinator:
    """Return a coordinator that has loaded two offsets of t; a znode of the first one is damaged."""
    made = SteppedCoordinator()
    made.done(made.commit(("t", 0, 5), metadata="m"))
    made.done(made.commit(("t", 1, 7)))
    damaged = OFFSET if request.param == "offset" else f"{OFFSET}/detail"
    made.write(damaged, b"no offset")
    made.elect()
    return made


def fetched(
    coordinator: SteppedCoordinator, version: int, *partitions: int
) -> dict[int, tuple[int, int]]:
    """Return offset and error by partition of t, as OffsetFetch answers; of all partitions without *partitions*."""
    if version >= 8:
        topics = [OffsetFetchRequestTopics("t", list(partitions))] if partitions else None
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)])
    else:
        topic = [OffsetFetchRequestTopic("t", list(partitions))] if partitions else None
        request = OffsetFetchRequest("g", topic)
    header = RequestHeader(ApiKey.OFFSET_FETCH, version, 7, "c")
    peer = Peer("10.0.0.1", 1234, "PLAINTEXT")
    context = RequestContext(header, peer, API_SPECS[ApiKey.OFFSET_FETCH].budget, WithoutTurns())
    answering = OffsetFetch(coordinator.coordinator)(context, request)
    response = coordinator.done(Deferred.fromCoroutine(answering))
    answer = response.groups[0] if version >= 8 else response
    assert answer.error_code == ErrorCode.NONE
    return {
        each.partition_index: (each.committed_offset, each.error_code)
        for topic in answer.topics
        for each in topic.partitions
    }


@pytest.mark.parametrize("version", [2, 7, 8, 9])
def test_an_offset_that_cannot_be_decoded_is_an_error_and_not_no_offset(
    coordinator: SteppedCoordinator, version: int
) -> None:
    assert fetched(coordinator, version, 0, 1) == UNREADABLE
    assert fetched(coordinator, version) == UNREADABLE
    assert fetched(coordinator, version, 2) == {2: (-1, ErrorCode.NONE)}


def test_another_commit_takes_its_place(coordinator: SteppedCoordinator) -> None:
    fetched(coordinator, 8)
    assert coordinator.done(coordinator.commit(("t", 0, 6))) == [ErrorCode.NONE]
    whole = {0: (6, ErrorCode.NONE), 1: (7, ErrorCode.NONE)}
    assert fetched(coordinator, 8) == whole
    coordinator.elect()
    assert fetched(coordinator, 8) == whole


def test_it_can_be_deleted(coordinator: SteppedCoordinator) -> None:
    assert coordinator.done(coordinator.delete_offsets(("t", 0))) == [ErrorCode.NONE]
    assert OFFSET not in coordinator.ensemble.tree
    assert fetched(coordinator, 8, 0) == {0: (-1, ErrorCode.NONE)}


def test_a_group_with_one_does_not_expire(coordinator: SteppedCoordinator) -> None:
    coordinator.done(coordinator.expire(coordinator.now_ms + 1))
    assert OFFSET in coordinator.ensemble.tree
    assert fetched(coordinator, 8) == {0: UNREADABLE[0]}
