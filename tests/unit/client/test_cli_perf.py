"""The pure parts of `kclient perf`: rates, percentiles, progress lines, the time of rebalances."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.cli.perf_consume import RebalanceTime
from kclient.cli.perf_figures import Latencies, Window, busy_note, rates
from kclient.cli.perf_run import payloads


def distribution(*seconds: float) -> Latencies:
    found = Latencies()
    for each in seconds:
        found.add(each)
    return found


@given(
    st.lists(st.floats(0, 1000), min_size=1, max_size=300),
    st.sampled_from([50, 95, 99, 99.9, 100]),
)
def test_a_percentile_is_a_thousandth_too_high_at_most(
    seconds: list[float], percent: float
) -> None:
    exact = sorted(seconds)[math.ceil(len(seconds) * percent / 100) - 1]
    found = distribution(*seconds).percentile_s(percent)
    assert exact - 1e-9 <= found <= exact * 1.001 + 1.001e-6


def test_mean_and_maximum_are_exact() -> None:
    row = distribution(*(n / 1000 for n in range(1, 1001))).row()
    assert (row["avg_ms"], row["max_ms"]) == (500.5, 1000.0)
    assert row["p50_ms"] == pytest.approx(500, rel=0.001)
    assert row["p999_ms"] == pytest.approx(999, rel=0.001)


def test_without_a_latency_nothing_is_known() -> None:
    assert set(Latencies().row().values()) == {None}


def test_the_distribution_of_many_latencies_is_small() -> None:
    found = distribution(*(random.expovariate(1) for _ in range(50_000)))
    assert found.count == 50_000
    assert len(found._counts) < 20_000


def test_a_mb_is_that_of_apaches_tools() -> None:
    row = rates(2000, 4 * 1_048_576, 2.0)
    assert (row["records_per_s"], row["mb_per_s"]) == (1000.0, 2.0)
    assert rates(0, 0, 0.0)["records_per_s"] is None


def test_a_window_reports_what_came_since_the_last_report() -> None:
    window = Window("sent", 10.0)
    window.add(1, 1_048_576, 0.002)
    window.add(1, 1_048_576, 0.004)
    assert window.report(15.0) == (
        "2 records sent, 0.4 records/s (0.40 MB/s), 3.0 ms avg latency, 4.0 ms max latency"
    )
    assert window.report(20.0) == "0 records sent, 0.0 records/s (0.00 MB/s)"


@pytest.mark.parametrize(("cpu_s", "is_busy"), [(8.9, False), (9.5, True), (12.0, True)])
def test_a_client_without_spare_time_is_named(cpu_s: float, is_busy: bool) -> None:
    note = busy_note(cpu_s, 10.0)
    assert (note is not None) is is_busy
    assert note is None or "%" in note


def test_rebalances_take_the_time_from_subscription_or_revocation_to_assignment() -> None:
    time = RebalanceTime(0.0)
    time.assigned(3.0)
    time.assigned(4.0)  # More partitions, while it consumes those that it has (KIP-429).
    time.revoked(10.0)
    time.revoked(10.5)
    time.assigned(12.0)
    assert time.seconds == 5.0


def test_payloads_have_their_size_and_differ() -> None:
    payload = payloads(100)
    found = {payload() for _ in range(50)}
    assert {len(each) for each in found} == {100}
    assert len(found) > 40
    assert payloads(0)() == b""
