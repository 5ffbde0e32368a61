"""One key's log as a history shows it: which value is at which offset."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.checker.history import Operation


@dataclass
class Log:
    """The offsets of one key. Two values at one offset, or one value at two, contradict each other."""

    key: str
    at: dict[int, dict[int, Operation]] = field(default_factory=dict)
    """Offset -> value -> the first operation that proves it."""
    offsets_of: dict[int, list[int]] = field(default_factory=dict)
    """Value -> its offsets."""

    def put(self, offset: int, value: int, operation: Operation) -> None:
        """Note that *value* is at *offset*."""
        values = self.at.setdefault(offset, {})
        if value not in values:
            values[value] = operation
            self.offsets_of.setdefault(value, []).append(offset)
