"""What a log directory vouches for: one value, from the disk through the registration znode to the election (KIP-966).

A broker reads the value from its log directories at the start, and publishes it with its registration. The controller
elects a member of the ISR if the member's ISR broker epoch is covered. docs/design/log-integrity.md has the proof.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

MAX_BROKER_EPOCH: Final = 2**63 - 1
"""The end of a range whose last broker epoch is not known: its broker was registering."""


class LogDirCondition(Enum):
    """How a broker found its log directories at the start."""

    UNKNOWN = ""
    """The registration does not state it: an earlier version, or Apache Kafka."""
    CLEAN = "clean"
    """The last shutdown was clean: everything was synced."""
    CRASHED = "crashed"
    """The process was killed, the machine stayed up: the page cache was kept."""
    POWER_LOSS = "power-loss"
    """The machine went down: records that were not synced may be lost."""
    NEW = "new"
    """The directories are new, or wiped."""
    PARTIAL = "partial"
    """One of several directories is missing, or another disk is in its place; the others are intact."""


class LogDirIntegrity(NamedTuple):
    """What log directories vouch for."""

    condition: LogDirCondition
    intact: tuple[int, int] | None
    """First and last broker epoch under which every record that was written is still there; None: under none."""

    def __str__(self) -> str:
        return _DESCRIPTIONS[self.condition]


_DESCRIPTIONS: Final = {
    LogDirCondition.UNKNOWN: "the condition of the log directories is not known",
    LogDirCondition.CLEAN: "the last shutdown was clean",
    LogDirCondition.CRASHED: "the last process was killed; the machine stayed up and kept what was written",
    LogDirCondition.POWER_LOSS: "the machine went down: records that were not synced may be lost; complete replicas"
    " lead first",
    LogDirCondition.NEW: "the log directories are new",
    LogDirCondition.PARTIAL: "a log directory of the last run is missing, or another disk is in its place",
}
