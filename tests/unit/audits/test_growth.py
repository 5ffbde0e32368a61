"""What is called flat, and what is called growing: series as leaks, caches and garbage collectors make them."""

from __future__ import annotations

import random

import pytest

from tests.audits.growth import ALLOWED, Series, judge, theil_sen

MIB = 1 << 20
HOUR = 3600


def series(value: object, seconds: int = HOUR, every: int = 5, noise: float = 0.0) -> Series:
    chance = random.Random(7)
    assert callable(value)
    return [(t, value(t) + chance.uniform(-noise, noise)) for t in range(0, seconds, every)]


FLAT = {
    "constant": series(lambda t: 80 * MIB),
    "noisy": series(lambda t: 80 * MIB, noise=10 * MIB),
    "warming up": series(lambda t: 80 * MIB - 40 * MIB * 0.5 ** (t / 200)),
    "warming up in a short run": series(lambda t: 80 * MIB - 40 * MIB * 0.5 ** (t / 30), 480),
    "spikes": series(lambda t: (200 if t % 60 < 10 else 80) * MIB),
    "a saw": series(lambda t: (80 + t % 300 / 20) * MIB),
    "a spike at the end": series(lambda t: (200 if t > 0.95 * HOUR else 80) * MIB),
    "a little": series(lambda t: 80 * MIB + t * MIB / HOUR),
    "falling": series(lambda t: 200 * MIB - t * 20 * MIB / HOUR),
}
GROWING = {
    "a leak": series(lambda t: 80 * MIB + t * 10 * MIB / HOUR),
    "a noisy leak": series(lambda t: 80 * MIB + t * 16 * MIB / HOUR, noise=5 * MIB),
    "a saw that climbs": series(lambda t: (80 + t % 300 / 20 + t * 20 / HOUR) * MIB),
    "a leak in steps": series(lambda t: (80 + t // 600 * 3) * MIB),
    "a fast leak in a short run": series(lambda t: 80 * MIB + t * 120 * MIB / HOUR, 480),
}


@pytest.mark.parametrize("name", FLAT)
def test_flat(name: str) -> None:
    found = judge("rss", "broker-1", FLAT[name])
    assert found.judged
    assert not found.is_growing, found.to_text()


@pytest.mark.parametrize("name", GROWING)
def test_growing(name: str) -> None:
    found = judge("rss", "broker-1", GROWING[name])
    assert found.is_growing, found.to_text()
    assert found.to_text().startswith("GROWING: rss of broker-1")


@pytest.mark.parametrize("kind", sorted(ALLOWED.keys() - {"rss"}))
def test_one_a_minute_is_growing_and_one_in_all_is_not(kind: str) -> None:
    assert judge(kind, "x", series(lambda t: 100 + t // 60)).is_growing
    assert not judge(kind, "x", series(lambda t: 100 + t // 2000)).is_growing


def test_the_allowance_is_a_share_where_there_is_much() -> None:
    assert judge("descriptors", "x", series(lambda t: 50 + t * 20 / HOUR)).is_growing
    assert not judge("descriptors", "x", series(lambda t: 1000 + t * 20 / HOUR)).is_growing


@pytest.mark.parametrize("kind", sorted(ALLOWED))
def test_the_allowance_is_a_number_where_there_is_little(kind: str) -> None:
    least = ALLOWED[kind].number
    assert not judge(kind, "x", series(lambda t: least + 1.8 * least * t / HOUR)).is_growing
    assert judge(kind, "x", series(lambda t: least + 2.2 * least * t / HOUR)).is_growing


def test_too_little_is_not_judged() -> None:
    for few in ([], series(lambda t: t * MIB, seconds=60)):
        found = judge("rss", "x", few)
        assert not found.judged
        assert not found.is_growing
        assert found.to_text().startswith("too few samples")


def test_the_slope_is_that_of_most_pairs() -> None:
    line = [(float(t), 3.0 * t) for t in range(50)]
    assert theil_sen(line) == pytest.approx(3.0)
    assert theil_sen([*line[:20], (20.0, 1e9), *line[21:]]) == pytest.approx(3.0)
    assert theil_sen([(1.0, 5.0)]) == 0.0
