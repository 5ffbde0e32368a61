"""How many bytes may be fetched: memory is reserved before a fetch, and one fetch is always possible."""

from __future__ import annotations

import pytest

from mirrormaker.fetch_budget import FetchBudget
from mirrormaker.settings import LinkSettings

BULK, TAIL = (1, "bulk"), (1, "tail")


def budget(memory: int = 1000, partition: int = 100, rate: int = 0) -> FetchBudget:
    settings = LinkSettings(
        buffer_memory=memory, max_partition_fetch_bytes=partition, fetch_max_rate=rate
    )
    return FetchBudget(settings, now=0.0)


def test_fetches_in_flight_and_buffered_bytes_share_the_memory() -> None:
    memory = budget()
    assert memory.room(600) == 600
    memory.reserve(BULK, 600)
    assert memory.room(600) == 400
    memory.buffered = 350
    assert memory.room(600) == 0, "less than one partition's fetch is left"
    memory.release(BULK)
    assert (memory.room(600), memory.room(2000)) == (600, 650)


def test_one_fetch_is_always_possible_when_nothing_is_buffered() -> None:
    memory = budget(memory=100, partition=500)
    assert memory.room(500) == 100
    memory.reserve(BULK, 100)
    assert memory.room(500) == 0
    memory.release(BULK)
    memory.buffered = 1
    assert memory.room(500) == 99


def test_a_limited_bandwidth_makes_fetches_smaller() -> None:
    assert budget(rate=50).room(600) == 50


def test_a_channel_has_one_fetch_in_flight() -> None:
    memory = budget()
    memory.reserve(BULK, 10)
    assert (memory.in_flight(BULK), memory.in_flight(TAIL)) == (True, False)
    with pytest.raises(AssertionError):
        memory.reserve(BULK, 10)
