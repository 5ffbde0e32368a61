"""Replication quotas: which replicas are listed, which bytes count, and how long fetches wait (KIP-73)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config import LogConfig
from kbroker.config.setting import throttled_replicas
from kbroker.replica.core.replication_quota import (
    UNLIMITED,
    ReplicationQuota,
    ReplicationQuotas,
)

T0, T1 = ("t", 0), ("t", 1)


def throttle(rate: int = 1000, *, broker_id: int = 3) -> ReplicationQuota:
    made = ReplicationQuota(broker_id, "leader_replication_throttled_replicas")
    made.bytes_per_second = rate
    return made


def config(*listed: str) -> LogConfig:
    return replace(LogConfig(), leader_replication_throttled_replicas=listed)


def test_only_replicas_on_this_broker_that_are_named_are_throttled() -> None:
    made, named = throttle(), config("0:3", "1:4", "13:3")
    assert made.is_throttled(T0, named)
    assert not made.is_throttled(T1, named)
    assert not made.is_throttled(("t", 3), named)
    assert not made.is_throttled(T0, config())
    assert made.is_throttled(T1, config("*"))


def test_other_settings_are_seen_at_once() -> None:
    made = throttle()
    assert made.is_throttled(T0, config("0:3"))
    assert not made.is_throttled(T0, config("0:4"))
    assert made.is_throttled(T0, config("*"))


def test_each_side_has_settings_and_a_rate_of_its_own() -> None:
    both = ReplicationQuotas(3)
    both.limit(leader=10, follower=UNLIMITED)
    listed = replace(LogConfig(), follower_replication_throttled_replicas=("0:3",))
    assert both.follower.is_throttled(T0, listed)
    assert not both.leader.is_throttled(T0, listed)
    both.leader.record(100, 0.0)
    both.follower.record(10**12, 0.0)
    assert both.leader.is_quota_exceeded(1.0)
    assert not both.follower.is_quota_exceeded(1.0)


def test_what_went_over_is_waited_for() -> None:
    made = throttle(1000)
    made.record(5000, 10.0)
    assert made.is_quota_exceeded(10.0)
    assert made.throttle_time(10.0) == pytest.approx(5.0)
    assert made.is_quota_exceeded(14.9)
    assert not made.is_quota_exceeded(15.0)
    assert made.throttle_time(15.0) == 0


def test_a_rate_of_nothing_lets_nothing_through() -> None:
    made = throttle(0)
    assert not made.is_quota_exceeded(0.0)
    made.record(1, 0.0)
    assert made.throttle_time(5.0) == math.inf


def test_what_was_not_sent_after_all_does_not_count() -> None:
    made = throttle(100)
    made.record(1000, 0.0)
    made.record(-1000, 0.0)
    assert not made.is_quota_exceeded(0.0)


@given(
    st.lists(st.tuples(st.floats(0.001, 3.0), st.integers(1, 3000)), min_size=1, max_size=60),
    st.integers(100, 5000),
)
def test_over_a_long_time_no_more_goes_than_the_rate_allows(
    answers: list[tuple[float, int]], rate: int
) -> None:
    """Requests come at any time, and get a response unless the rate is exceeded."""
    made, now, sent, largest = throttle(rate), 0.0, 0, 0
    for pause, size in answers:
        now += pause
        if not made.is_quota_exceeded(now):
            made.record(size, now)
            sent += size
            largest = max(largest, size)
        # One window's worth at the beginning, and an answer that goes over, in every window.
        assert sent <= rate * (now + 1.0) + (largest + rate) * (now / 11 + 2)


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 5000)), max_size=30))
def test_after_the_wait_the_average_is_right(answers: list[tuple[float, int]]) -> None:
    made, now = throttle(700), 0.0
    for pause, size in answers:
        now += pause
        made.record(size, now)
    for _ in range(12):  # a sample that is forgotten meanwhile leaves a shorter window
        now += made.throttle_time(now) + 1e-6
    assert not made.is_quota_exceeded(now)


@pytest.mark.parametrize("listed", [(), ("*",), ("0:1",), ("0:1", "12:345")])
def test_lists_of_replicas_are_accepted(listed: tuple[str, ...]) -> None:
    assert throttled_replicas(listed) is None


@pytest.mark.parametrize("listed", [("",), ("*", "0:1"), ("0",), ("0:1:2",), ("-1:2",), ("a:b",)])
def test_other_lists_are_not(listed: tuple[str, ...]) -> None:
    assert throttled_replicas(listed) is not None
