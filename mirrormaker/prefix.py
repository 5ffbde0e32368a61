"""Is the target a prefix of the source? Judged by where both logs are and the batch at the seam. Pure."""

from __future__ import annotations

from mirrormaker.words import Cause, Ends, Gap, Problem


def target_ahead(ends: Ends) -> Problem | None:
    """Say whether the target has offsets that the source does not (yet, or no longer) have."""
    if ends.target_end <= ends.source_end:
        return None
    return Problem(
        Cause.TARGET_AHEAD,
        f"the source ends at offset {ends.source_end}, the target at {ends.target_end}",
    )


def mismatch(ends: Ends, *, compacted: bool) -> Problem | None:
    """Say in what the target is not a prefix of the source.

    A batch that compaction rewrote has another CRC: of *compacted* topics only the offsets count.
    """
    source, target = ends.source_tail, ends.target_tail
    if source is None:
        return None
    if source.next_offset != ends.target_end:
        return Problem(
            Cause.STRADDLES, f"the target ends at {ends.target_end}, the source has {source}"
        )
    if target is None or compacted:
        return None
    if (source.base_offset, source.crc) == (target.base_offset, target.crc):
        return None
    return Problem(Cause.DIVERGED, f"source {source}, target {target}")


def aged_out(ends: Ends) -> Gap | None:
    """Return what the source deleted after something was copied and before the rest could be."""
    never_written = ends.target_end == 0
    if never_written or ends.target_end >= ends.source_start:
        return None
    return Gap(ends.target_end, ends.source_start, Cause.RETENTION)
