"""Whether the goals of `benchmarks` are met, of made-up measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.linear import growth
from benchmarks.suites.audit import AuditFigures
from benchmarks.suites.mirror import at_rest
from mirrormaker.progress import Snapshot, line

REST = Snapshot(0, 0, 0.0, 0.0, 0, 0, 0.0, 0, 10_000, 0, 0, 0)


@pytest.mark.parametrize("start", [0.0, 12.0, 300.0])
@pytest.mark.parametrize(
    ("power", "expected"), [(1.0, 1.0), (1.5, 2**0.5), (2.0, 2.0), (0.5, 2**-0.5)]
)
def test_growth_is_that_of_the_cost_per_record_whatever_the_start_takes(
    power: float, expected: float, start: float
) -> None:
    costs = {n: start + 0.9 * n**power for n in (4.0, 8.0, 16.0)}
    assert growth(costs) == pytest.approx(expected)


def test_growth_is_unknown_if_the_smaller_sizes_cost_the_same() -> None:
    assert growth({4: 12.0, 8: 11.0, 16: 20.0}) is None


@pytest.mark.parametrize(
    ("per_million", "met"), [(lambda n: 0.9, "yes"), (lambda n: 0.5 + 0.08 * n, "**no**")]
)
def test_the_audit_suite_judges_whether_its_cpu_is_linear(
    per_million: Callable[[int], float], met: str
) -> None:
    figures = AuditFigures(16_000_000)
    assert figures.linear.met() == ""
    quarter, half, whole = (12 + n * per_million(n) for n in (4, 8, 16))
    figures.add_cpu(16, quarter, half, whole)
    assert figures.linear.met() == met
    assert figures.cpu.median("ours") == whole / 16
    assert figures.cpu_to_half.median("ours") == pytest.approx((half - quarter) / 4)
    assert figures.cpu_to_whole.median("ours") == pytest.approx((whole - half) / 8)


def test_an_unknown_growth_meets_no_goal_and_misses_none() -> None:
    figures = AuditFigures(16_000_000)
    figures.add_cpu(16, 12.0, 11.0, 20.0)
    assert figures.linear.met() == ""


def test_a_mirror_is_at_rest_once_its_last_line_has_all_partitions_without_lag() -> None:
    busy = replace(REST, lag_records=3)
    resting = line("source->target", REST)
    assert at_rest(f"{line('source->target', busy)}\n{resting}\n", 10_000)
    assert not at_rest(f"{resting}\n{line('source->target', busy)}\n", 10_000)
    assert not at_rest(resting, 10_000)  # It is still being written.
    assert not at_rest(f"{resting}\n", 1_000)
    waiting = line("source->target", replace(REST, locating=7))
    assert not at_rest(f"{waiting}\n", 10_000)
    assert not at_rest("", 10_000)
