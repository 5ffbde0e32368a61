"""The second half of the seeds."""

from __future__ import annotations

import pytest

from tests.kit.property_tests import cases
from tests.simulation.schedules import CHUNKS, check_chunk


@pytest.mark.slow
@pytest.mark.parametrize("chunk", cases(range(CHUNKS, 2 * CHUNKS)))
@pytest.mark.timeout(300)
def test_every_seed_ends_with_a_whole_cluster_that_lost_nothing(chunk: int) -> None:
    check_chunk(chunk)
