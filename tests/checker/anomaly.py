"""An anomaly: what no log that keeps its promises explains, and the events that show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding. *bad* ones break a promise, others are only reported."""

    name: str
    text: str
    events: tuple[int, ...]
    """The smallest evidence: the places in the history that contradict each other."""
    bad: bool = True
    key: str = ""
    offsets: tuple[int, ...] = ()
    """Of what there is too often."""
