"""What a link hears and says: states, causes, gaps, where logs are, what it wants done. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mirrormaker.runs import Run


class LinkState(Enum):
    """What a link is doing."""

    LOCATING = "locating"
    COPYING = "copying"
    FINISHED = "finished"
    STOPPED = "stopped"


class Cause(Enum):
    """Why a link stopped, or why offsets are missing; the words are what people read."""

    RETENTION = "the source deleted records before they were copied"
    COMPACTION = "the source has no records at these offsets any more (compaction)"
    TARGET_AHEAD = "the target has offsets that the source does not have"
    DIVERGED = "source and target hold different records at the same offset"
    STRADDLES = "the target's log ends inside a batch of the source"
    RECREATED = "the topic was deleted and created anew at the source"
    CORRUPT = "a batch is damaged at the source"
    REFUSED = "the target refuses the records"
    NO_MIRROR = "the target's topic is not marked as a mirror"
    UNREADABLE = "the source refuses to be read"


class GapPolicy(Enum):
    """What happens when the source has deleted what was not copied yet (gap.policy)."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets from *first* up to but not including *until* that are not in the target."""

    first: int
    until: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a link stopped."""

    cause: Cause
    detail: str

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Tail:
    """The header of the batch that holds the last offset before the target's log end."""

    base_offset: int
    next_offset: int
    crc: int
    leader_epoch: int = -1

    def __str__(self) -> str:
        return f"offsets {self.base_offset}-{self.next_offset - 1} with CRC {self.crc:#010x}"


@dataclass(frozen=True, slots=True)
class Ends:
    """Where both logs begin and end, and the batch before the target's end on both sides.

    A tail is None where that side has no such offset.
    """

    source_start: int
    source_end: int
    target_start: int
    target_end: int
    source_tail: Tail | None = None
    target_tail: Tail | None = None


@dataclass(frozen=True, slots=True)
class Locate:
    """Ask both logs for their `Ends`, after *delay* seconds; answer with `located`."""

    generation: int
    delay: float


@dataclass(frozen=True, slots=True)
class Declared:
    """A gap was left."""

    gap: Gap


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything below the cut is in the target."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The link copies no more."""

    problem: Problem


Effect = Locate | Declared | Finished | Stopped


@dataclass(frozen=True, slots=True, eq=False)
class Append:
    """A run to be appended at the target where its log ends with a batch of *previous_crc*.

    *previous_crc* is 0 where the log is empty.
    """

    run: Run
    expected_log_end: int
    previous_crc: int
    generation: int
