"""The first half of the seeds: every schedule ends with a whole cluster that lost nothing."""

from __future__ import annotations

import pytest

from tests.simulation.batch import outcomes
from tests.simulation.schedules import CHUNKS, OPEN, check_chunk


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.timeout(300)
def test_every_seed_ends_with_a_whole_cluster_that_lost_nothing(chunk: int) -> None:
    check_chunk(chunk)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.xfail(strict=True, reason=why))
        for seed, why in OPEN.items()
    ],
)
def test_what_is_still_open_is_what_it_was(seed: int) -> None:
    (result,) = outcomes([seed])
    assert result.failure is None
