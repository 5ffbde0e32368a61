"""Which collections are the last that look at what survived them."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from kbroker.app.collector import LONG_SECONDS, LongCollections


@pytest.mark.parametrize(
    ("generation", "used", "frozen"),
    [
        (2, 2 * LONG_SECONDS, 1),
        (2, LONG_SECONDS / 2, 0),
        (1, 2 * LONG_SECONDS, 0),
    ],
)
def test_what_survives_a_long_full_collection_is_frozen(
    generation: int, used: float, frozen: int
) -> None:
    calls: list[None] = []
    clock = [5.0]
    collections = LongCollections(lambda: calls.append(None), lambda: clock[0])
    collections("start", {"generation": generation})
    clock[0] += used
    assert not calls
    collections("stop", {"generation": generation})
    assert len(calls) == frozen


def test_a_collection_looks_at_what_came_since_the_last_long_one() -> None:
    clock = [0.0]

    def cpu() -> float:
        clock[0] += 2 * LONG_SECONDS
        return clock[0]

    collections = LongCollections(cpu=cpu)
    kept: list[Any] = [[] for _ in range(1000)]
    gc.callbacks.append(collections)
    before = gc.get_freeze_count()
    try:
        gc.collect()
        assert gc.get_freeze_count() >= before + len(kept)
        assert not any(each is kept[0] for each in gc.get_objects())
    finally:
        gc.callbacks.remove(collections)
        gc.unfreeze()
