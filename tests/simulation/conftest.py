"""What every test of the simulation begins with."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _no_garbage_of_other_tests() -> None:
    """Collect what other tests left behind: an error in it would count as one of a simulated broker (NoErrors)."""
    gc.collect()
