"""A broker per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.apis.kit import ApiBroker, broker_in


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ApiBroker]:
    with broker_in(tmp_path / "log") as made:
        yield made
