"""What the tests of many seeds do; in files of their own, so that each core of the machine has its share."""

from __future__ import annotations

import pytest

from tests.simulation.batch import outcomes
from tests.simulation.shrink import shrink
from tests.simulation.simulation import Result

SEEDS_PER_CHUNK = 25
CHUNKS = 8
"""Of each file."""


def check_chunk(chunk: int) -> None:
    """Run the seeds of one chunk; fail with a short script."""
    first = 1 + chunk * SEEDS_PER_CHUNK
    acknowledged = 0
    for result in outcomes(range(first, first + SEEDS_PER_CHUNK)):
        if result.failure is not None:
            pytest.fail(f"seed {result.script.seed}: {_explained(result)}", pytrace=False)
        acknowledged += result.acknowledged
    assert acknowledged > SEEDS_PER_CHUNK  # else nothing was tried


def _explained(result: Result) -> str:
    found = shrink(result)
    return f"{found.failure}\n\nSave this and run it with --script:\n\n{found.script}"
