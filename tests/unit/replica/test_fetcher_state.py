"""What the next fetch asks for, without a connection: pauses, throttles, roles that change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.replica.core.replication_quota import ReplicationQuotas
from kbroker.replica.fetcher_state import REPORTED_AFTER_FAILURES, FetcherSettings, FetcherState
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from tests.kit.partitions import HostedPartition

Follow = Callable[[int], HostedPartition]


@pytest.fixture
def state() -> FetcherState:
    settings = FetcherSettings(2, 500, 1, 1 << 20, 1 << 20, max_pause=1.0, request_timeout=30.0)
    return FetcherState(1, settings, ReplicationQuotas(2).follower)


@pytest.fixture
def follow(state: FetcherState, tmp_path: Path) -> Follow:
    def follow(index: int) -> HostedPartition:
        place = tmp_path / str(index)
        place.mkdir()
        partition = HostedPartition(place, 2)
        partition.key = ("t", index)
        partition.take(1, 0)
        state.add_partition(partition)
        return partition

    return follow


def asked(state: FetcherState, now: float) -> list[int]:
    """Return the partitions that the next fetch names."""
    request = state.build_fetch(5, now)
    if request is None:
        return []
    return [each.partition for topic in request.topics for each in topic.partitions]


def answer(state: FetcherState, index: int, error: ErrorCode, now: float) -> None:
    partition = FetchPartitionResponse(index, int(error), 0, 0, 0)
    response = FetchResponse([FetchTopicResponse("", [partition])], session_id=77)
    state.session.answered(response)
    state.process_fetch_response(response, now, 0)


def test_nothing_is_due_where_nothing_is_followed(state: FetcherState, follow: Follow) -> None:
    assert state.seconds_until_fetch(0.0) is None
    partition = follow(0)
    assert state.seconds_until_fetch(0.0) == 0.0
    state.remove_partition(partition.key)
    assert state.seconds_until_fetch(0.0) is None


def test_the_delays_of_a_failing_partition_grow_and_are_reported_once(
    state: FetcherState, follow: Follow
) -> None:
    follow(0)
    now, pauses = 0.0, []
    for _ in range(2 * REPORTED_AFTER_FAILURES):
        assert state.build_fetch(5, now) is not None
        answer(state, 0, ErrorCode.UNKNOWN_LEADER_EPOCH, now)
        assert state.build_fetch(5, now) is None  # all pause, and the session is empty
        pause = state.seconds_until_fetch(now)
        assert pause is not None
        pauses.append(pause)
        now += pause
    assert pauses[:5] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8])
    assert max(pauses) <= 1.0
    assert [each.partition.key for each, _ in state.failing] == [("t", 0)]


def test_a_failing_partition_delays_no_other(state: FetcherState, follow: Follow) -> None:
    follow(0), follow(1)
    assert asked(state, 0.0) == [0, 1]
    answer(state, 1, ErrorCode.UNKNOWN_LEADER_EPOCH, 0.0)
    assert state.seconds_until_fetch(0.0) == 0.0
    assert asked(state, 0.04) == []
    assert asked(state, 0.05) == [1]


def test_an_unexpected_error_delays_no_other_partition(state: FetcherState, follow: Follow) -> None:
    first, second = follow(0), follow(1)
    assert asked(state, 0.0) == [0, 1]
    answers = [FetchPartitionResponse(index, 0, 3, 0, 0) for index in range(2)]
    answers[0].log_start_offset = "no number"  # type: ignore[assignment]
    response = FetchResponse([FetchTopicResponse("", answers)], session_id=77)
    state.session.answered(response)
    state.process_fetch_response(response, 0.0, 0)
    assert asked(state, 0.0) == []
    first.log = second.log
    second.log = object()  # type: ignore[assignment]
    state.log_start_advanced(second.key)
    state.log_start_advanced(follow(2).key)
    assert asked(state, 0.0) == [2]
    assert asked(state, 0.05) == [0]
    assert state.seconds_until_fetch(0.05) == 0.0


def test_a_partition_with_another_role_is_dropped_when_it_is_met(
    state: FetcherState, follow: Follow
) -> None:
    first = follow(0)
    follow(1)
    first.take(2, 1)
    assert asked(state, 0.0) == [1]
    assert len(state) == 1


def test_no_answer_is_taken_before_it_was_asked_for(state: FetcherState, follow: Follow) -> None:
    follow(0)
    answer(state, 0, ErrorCode.UNKNOWN_LEADER_EPOCH, 0.0)
    assert state.seconds_until_fetch(0.0) == 0.0
    assert asked(state, 0.0) == [0]
