"""What several tests of logs ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.log_managers import Broker, Brokers


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """Make brokers on directories of tmp_path; whatever locks are left are given up."""
    made: list[Broker] = []

    def make(*names: str, **options: Any) -> Broker:
        broker = Broker(*(tmp_path / name for name in names or ("a",)), **options)
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.dirs.release()
