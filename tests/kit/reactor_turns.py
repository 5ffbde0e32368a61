"""The turns of a broker's reactor, as a broker notes them after `note_turns` (`benchmarks.turns`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from kbroker.testing.brokers import Broker

TURN_MS: Final = 100.0 * float(
    os.environ.get("KBROKER_TURN_FACTOR", "2" if os.environ.get("CI") else "1")
)
"""The longest turn, in CPU time. A processor that is shared takes longer for the same work."""


def note_turns(broker: Broker, path: Path, stacks: str = "-") -> None:
    """Have *broker* note its turns in *path* from its next start on; with *stacks* "stacks", the lines of ours, too."""
    broker.program = ("-m", "benchmarks.turns", "broker", str(path), stacks)


def longest_turn(noted: Path, since: float, until: float) -> tuple[float, list[object]]:
    """Return the longest turn that ended between two times of the monotonic clock: ms, and its stacks."""
    longest: tuple[float, list[object]] = (0.0, [])
    for line in noted.read_text().splitlines():
        turn = json.loads(line)
        if since <= turn["at"] <= until + 0.05 and turn["ms"] > longest[0]:
            longest = turn["ms"], turn["stacks"]
    return longest
