"""Settings of Java clients that name Java classes, in the values that kclient has for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ASSIGNORS = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
_STRATEGY = "partition.assignment.strategy"


def from_java(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return *settings* with the assignors of Kafka under kclient's names."""
    found = dict(settings)
    if _STRATEGY in found:
        names = (part.strip().rpartition(".")[2] for part in str(found[_STRATEGY]).split(","))
        found[_STRATEGY] = ",".join(_ASSIGNORS.get(name, name) for name in names)
    return found
