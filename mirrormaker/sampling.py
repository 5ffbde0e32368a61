"""Which offsets `kmirror verify` reads, and what may be stated about what it read. Pure.

A batch counts as compared only if both sides returned it and all bytes but the leader epoch are the same. Its reader
has computed both CRCs. Nothing is inferred about batches that were not read. So there is no verdict CONSISTENT: the
words are the counts.

Invariants (tests/unit/mirror/test_sampling.py):
 1. exit code 0 only if a batch of each partition was compared. Partitions without a record at both sides need none, if
    the target ends where the source does, or was never written. Nothing differs, is unreadable, or over the lag limit;
 2. each batch is counted once, however many sampled offsets it holds.

In: log ends, pairs of batches   Out: offsets to read, a `Result`   Owner: the command
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise

from mirrormaker.divergence import Batch


class ExitCode(IntEnum):
    """The exit codes of kaudit. 0 is about the batches that were compared, not about all."""

    NO_DIFFERENCE = 0
    DIFFERENT = 1
    LAGGING = 3
    UNREADABLE = 4
    NOT_COMPARED = 5


_PRECEDENCE = (
    ExitCode.UNREADABLE,
    ExitCode.DIFFERENT,
    ExitCode.NOT_COMPARED,
    ExitCode.LAGGING,
)


def sampled_offsets(start: int, end: int, count: int, below: Callable[[int], int]) -> list[int]:
    """Return at most *count* offsets of [*start*, *end*): the first, the last, and one in each equal part between.

    *below* returns a random number from 0 to its argument, exclusive.
    """
    if start >= end or count <= 0:
        return []
    if end - start <= count:
        return list(range(start, end))
    if count == 1:
        return [end - 1]
    first, size, parts = start + 1, end - start - 2, count - 2
    edges = [size * n // parts for n in range(parts + 1)] if parts else []
    between = [first + low + below(high - low) for low, high in pairwise(edges)]
    return sorted({start, end - 1, *between})


@dataclass(slots=True)
class Result:
    """What was compared of one partition."""

    source_start: int
    source_end: int
    """The last stable offset of the source."""
    target_start: int
    target_end: int
    max_lag: int = 0
    unreadable: str = ""
    why_not: str = ""
    """Why no batch was compared, if that is known before."""
    not_mirrored: str = ""
    """Why the topic is not mirrored at all."""
    differences: list[str] = field(default_factory=list)
    records: int = 0
    """Records in the equal batches."""
    _seen: set[int] = field(default_factory=set)

    @property
    def common(self) -> tuple[int, int]:
        """The offsets [start, end) that both logs have."""
        return max(self.source_start, self.target_start), min(self.source_end, self.target_end)

    @property
    def lag(self) -> int:
        """Offsets of the source that the target lacks."""
        return max(0, self.source_end - max(self.target_end, self.source_start))

    @property
    def batches(self) -> int:
        """The number of equal batches."""
        return len(self._seen)

    def compare(self, at: int, source: Batch | None, target: Batch | None) -> None:
        """Handle what both logs have at the offset *at*, or above it."""
        if source is None and target is None:
            return
        if source is not None and target is not None and source.equals(target):
            if source.base_offset not in self._seen:
                self._seen.add(source.base_offset)
                self.records += source.info.record_count
            return
        self.differences.append(f"offset {at}: source {_text(source)}, target {_text(target)}")

    def code(self) -> ExitCode:
        """Return the exit code of this partition."""
        if self.unreadable:
            return ExitCode.UNREADABLE
        if self.not_mirrored:
            return ExitCode.NOT_COMPARED
        if self.differences or self.target_end > self.source_end:
            return ExitCode.DIFFERENT
        if not self._seen and not self._has_nothing_to_compare:
            return ExitCode.NOT_COMPARED
        if self.lag > (self.max_lag if self._seen else 0):
            return ExitCode.LAGGING
        return ExitCode.NO_DIFFERENCE

    @property
    def _has_nothing_to_compare(self) -> bool:
        """Whether the target has no record, and none was deleted of what the source has, or had behind it."""
        is_empty = self.target_start == self.target_end
        return is_empty and self.target_end in (0, self.source_start)

    def __str__(self) -> str:
        """Return the findings and counts, for the operator."""
        if self.unreadable:
            return f"unreadable: {self.unreadable}"
        if self.not_mirrored:
            return f"not compared: {self.not_mirrored}"
        parts = []
        if self.target_end > self.source_end:
            parts.append(f"target ends at {self.target_end}, source at {self.source_end}")
        parts += self.differences
        start, end = self.common
        if self._seen:
            parts.append(
                f"{self.batches} batches with {self.records} records are equal, of the {end - start} "
                "offsets that both have"
            )
        else:
            parts.append(f"no batch was compared{': ' + self.why_not if self.why_not else ''}")
        if self.target_start > self.source_start:
            parts.append(
                f"target lacks offsets {self.source_start}-{self.target_start - 1}: not compared"
            )
        if self.lag:
            parts.append(f"lag {self.lag}")
        return "; ".join(parts)


def _text(batch: Batch | None) -> str:
    if batch is None:
        return "has none"
    damage = ", damaged" if batch.is_damaged else ""
    return f"offsets {batch.base_offset}-{batch.next_offset - 1} with CRC {batch.info.crc:#010x}{damage}"


def exit_code(
    results: Iterable[Result], *, missing: int = 0, failed_flows: Sequence[str] = ()
) -> ExitCode:
    """Return the first of 4, 1, 5, 3, 0 that applies to one of *results*; without any partition nothing was compared.

    *missing* and *failed_flows* are those of `conclusion`.
    """
    codes = {each.code() for each in results}
    if failed_flows:
        codes.add(ExitCode.UNREADABLE)
    if missing:
        codes.add(ExitCode.LAGGING)
    if not codes:
        return ExitCode.NOT_COMPARED
    return next((code for code in _PRECEDENCE if code in codes), ExitCode.NO_DIFFERENCE)


def conclusion(
    results: Iterable[Result], *, missing: int = 0, failed_flows: Sequence[str] = ()
) -> str:
    """Return the last line: what was compared, and that the rest was not.

    *missing*: partitions that the target lacks; *failed_flows*: names of flows that failed as a whole.
    """
    found = list(results)
    batches, records = sum(each.batches for each in found), sum(each.records for each in found)
    different = sum(bool(each.differences) or each.target_end > each.source_end for each in found)
    offsets = sum(max(0, end - start) for start, end in (each.common for each in found))
    unreadable = sum(bool(each.unreadable) for each in found)
    absent = f", {missing} partitions are not at the target" if missing else ""
    if unreadable:
        absent += f", {unreadable} partitions could not be read"
    if failed_flows:
        absent += f", nothing is known of {', '.join(failed_flows)}"
    if not batches and not different:
        return f"nothing was compared, of {offsets} offsets that both have{absent}"
    state = f"{different} partitions differ" if different else "no difference was found"
    return (
        f"{state} in what was compared: {batches} batches with {records} records, of {offsets} offsets that both "
        f"have{absent}. Records outside of these batches were not compared: kaudit compares all"
    )
