"""The prefix check: is the target a prefix of the source? Compares log ends and the last common batch. Pure."""

from __future__ import annotations

from mirrormaker.link_state import Cause, Gap, LogEnds, Problem


def target_ahead(ends: LogEnds) -> Problem | None:
    """Return a problem if the target has offsets that the source does not have yet, or has lost."""
    if ends.target_end <= ends.source_end:
        return None
    return Problem(
        Cause.TARGET_AHEAD,
        f"the source ends at offset {ends.source_end}, the target at {ends.target_end}",
    )


def mismatch(ends: LogEnds, *, compacted: bool) -> Problem | None:
    """Return how the target differs from a prefix of the source; None if it is one.

    Compaction rewrites batches with another CRC: for *compacted* topics only offsets are compared.
    """
    source, target = ends.source_last_batch, ends.target_last_batch
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


def aged_out(ends: LogEnds) -> Gap | None:
    """Return the offsets that retention deleted at the source before they were copied, if any."""
    never_written = ends.target_end == 0
    if never_written or ends.target_end >= ends.source_start:
        return None
    return Gap(ends.target_end, ends.source_start, Cause.RETENTION)
