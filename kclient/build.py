"""Which build runs: whether the modules that work on every record are compiled, or interpreted from the same source."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

MODULES: Final = (
    "kclient.producer.accumulator",
    "kclient.producer.append",
    "kclient.producer.batch",
    "kclient.producer.columns",
    "kclient.producer.partitioner",
    "kclient.producer.record_serializer",
    "kclient.producer.topics",
    "kclient.wire.record_cursor",
    "kclient.wire.record_places",
    "kclient.wire.record_reader",
    "kclient.wire.record_writer",
)
"""The modules that the package compiles where it can."""


def description() -> str:
    """Return "compiled", or "interpreted" with the reason, of the record codec."""
    interpreted = [name for name in MODULES if _is_interpreted(name)]
    if not interpreted:
        return "compiled"
    if len(interpreted) == len(MODULES):
        return "interpreted: the pure wheel, no C compiler when it was installed, or KBROKER_PURE_PYTHON"
    return f"compiled in part: {', '.join(interpreted)} interpreted, so install it again"


def _is_interpreted(name: str) -> bool:
    spec = find_spec(name)
    return spec is None or spec.origin is None or spec.origin.endswith(".py")
