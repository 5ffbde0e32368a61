"""Rates over a window and token buckets: how long a client waits, beside the formulas applied to the whole history."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.quota.core.meters import Rate, TokenBucket
from kbroker.quota.core.sampled_sum import SampledSum

HISTORY = st.lists(st.tuples(st.integers(0, 2500), st.integers(1, 3000)), min_size=1, max_size=40)
"""Pauses in ms, and values."""


def test_old_values_leave_the_window() -> None:
    window = SampledSum(samples=3, sample_seconds=1.0)
    window.record(100, 0.0)
    window.record(50, 2.5)
    assert window.measure(2.9) == (150, 2.9)
    assert window.measure(3.0) == (50, 0.5)
    assert window.measure(9.0) == (0, 0.0)


def test_a_sample_stays_as_long_as_its_last_value() -> None:
    window = SampledSum(samples=3, sample_seconds=1.0)
    window.record(100, 0.0)
    window.record(50, 0.9)
    assert window.measure(3.8) == (150, 3.8)
    assert window.measure(3.9) == (0, 0.0)


def test_the_first_burst_is_measured_over_the_whole_window() -> None:
    """Kafka's example: (O - T) / T * W, over 10 whole samples."""
    rate = Rate(11, 1.0)
    rate.record(1000, 100, 0.0)
    assert rate.throttle_seconds(100, 0.0) == 0
    rate.record(500, 100, 0.0)
    assert rate.throttle_seconds(100, 0.0) == pytest.approx(5.0)
    assert rate.throttle_seconds(100, 1.0) == pytest.approx(5.0)  # one sample more, of ten
    assert rate.throttle_seconds(200, 0.0) == 0


def test_a_window_of_one_sample_is_not_divided_by_nothing() -> None:
    rate = Rate(1, 1.0)
    rate.record(10, 5, 7.0)
    assert rate.throttle_seconds(5, 7.0) == pytest.approx(2.0, abs=0.01)


def test_a_token_bucket_lets_a_burst_through_and_then_waits_for_its_excess() -> None:
    """The example of Kafka's TokenBucket: 5 a second, 100 samples; a burst of 560 waits for 12 seconds."""
    bucket = TokenBucket(100, 1.0)
    bucket.record(560, 5, 1000.0)
    assert bucket.throttle_seconds(5, 1000.0) == pytest.approx(12.0)
    assert bucket.throttle_seconds(5, 1011.9) > 0
    assert bucket.throttle_seconds(5, 1012.0) == 0
    assert not bucket.is_idle(1100.0 - 1e-6)
    assert bucket.throttle_seconds(5, 5000.0) == 0


def test_idle_meters_measure_what_new_ones_do() -> None:
    rate, bucket = Rate(3, 1.0), TokenBucket(3, 1.0)
    assert rate.is_idle(0.0)
    assert bucket.is_idle(0.0)
    rate.record(10, 1, 0.0)
    bucket.record(2, 1, 0.0)
    assert not rate.is_idle(2.9)
    assert not bucket.is_idle(2.9)
    assert rate.is_idle(3.0)
    assert bucket.is_idle(3.0)
    bucket.record(100, 1, 4.0)
    assert not bucket.is_idle(8.0)


def oracle(history: list[tuple[int, int]], samples: int, limit: float) -> float:
    """Return the ms to wait after *history*, of (time, value): Kafka's Rate on samples that are never reused."""
    found: list[list[int]] = []  # begin, last, sum
    for time, value in history:
        if not found or time - found[-1][0] >= 1000:
            found.append([time, time, 0])
        found[-1][1] = time
        found[-1][2] += value
    now = history[-1][0]
    kept = [each for each in found if now - each[1] < samples * 1000]
    elapsed = now - min(begin for begin, _, _ in kept)
    elapsed += max(0, samples - 1 - elapsed // 1000) * 1000
    window = max(elapsed, 1)
    observed = sum(value for _, _, value in kept) / (window / 1000)
    return max(0.0, (observed - limit) / limit * window)


@given(HISTORY, st.integers(1, 12), st.integers(1, 2000))
def test_the_throttle_time_is_that_of_the_whole_history(
    pauses: list[tuple[int, int]], samples: int, limit: int
) -> None:
    rate, now, history = Rate(samples, 1.0), 0, []
    for pause, value in pauses:
        now += pause
        history.append((now, value))
        rate.record(value, limit, now / 1000)
        seconds = rate.throttle_seconds(limit, now / 1000)
        expected = oracle(history, samples, limit)
        # Fractions of seconds round a sample's age either way, where it is a whole number of samples.
        near = [(t, v) for t, v in history if (now - t) % 1000 == 0 and t != now]
        if not near:
            assert seconds * 1000 == pytest.approx(expected, abs=1.0)


@given(HISTORY, st.integers(1, 100))
def test_a_strict_bucket_never_allows_more_than_the_rate_and_one_burst(
    pauses: list[tuple[int, int]], limit: int
) -> None:
    bucket, now, allowed, largest = TokenBucket(11, 1.0), 0.0, 0, 0
    for pause, value in pauses:
        now += pause / 1000
        if not bucket.throttle_seconds(limit, now):
            bucket.record(value, limit, now)
            allowed += value
            largest = max(largest, value)
        assert allowed <= limit * (11 + now) + largest + 1e-6


@given(HISTORY, st.integers(1, 100))
def test_after_the_wait_the_tokens_are_back(pauses: list[tuple[int, int]], limit: int) -> None:
    bucket, now = TokenBucket(11, 1.0), 0.0
    for pause, value in pauses:
        now += pause / 1000
        bucket.record(value, limit, now)
    wait = bucket.throttle_seconds(limit, now)
    assert math.isclose(bucket.throttle_seconds(limit, now + wait), 0, abs_tol=1e-9)
