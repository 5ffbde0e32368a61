"""The limit of fetched bytes per second."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrormaker.bandwidth import Bandwidth


def test_without_a_limit_nothing_waits() -> None:
    link = Bandwidth(0, now=0.0)
    link.fetched(1 << 40, now=0.0)
    assert link.wait(0.0) == 0.0
    assert link.most(123) == 123


def test_a_batch_larger_than_a_seconds_worth_is_fetched_and_paid_for() -> None:
    link = Bandwidth(1000, now=5.0)
    assert link.wait(5.0) == 0.0
    assert link.most(1 << 20) == 1000
    link.fetched(2500, now=5.0)
    assert link.wait(6.0) == 1.5
    assert link.wait(7.5) == 0.0


def test_time_without_fetches_is_not_saved_up() -> None:
    link = Bandwidth(1000, now=0.0)
    link.fetched(1000, now=100.0)
    assert link.wait(100.0) == 1.0


@given(
    rate=st.integers(1, 1000),
    responses=st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 10)), min_size=1),
    channels=st.integers(1, 3),
)
def test_every_interval_has_at_most_its_share_and_what_was_in_flight(
    rate: int, responses: list[tuple[int, float]], channels: int
) -> None:
    """*channels* fetches are in flight at once; each is sent when `wait` is over, and answered some time later."""
    link, now = Bandwidth(rate, now=0.0), 0.0
    arrived: list[tuple[float, int]] = []
    waiting = iter(responses)
    for group in zip(*[waiting] * channels, strict=False):
        now += link.wait(now)
        for size, delay in group:
            now += delay
            link.fetched(size, now)
            arrived.append((now, size))
    largest = max((size for size, _ in responses), default=0)
    for first in range(len(arrived)):
        for last in range(first, len(arrived)):
            total = sum(size for _, size in arrived[first : last + 1])
            span = arrived[last][0] - arrived[first][0]
            assert total <= rate * span + 2 * channels * largest + 1e-3 * rate
