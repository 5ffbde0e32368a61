"""The prefix check: is the target a prefix of the source? Compares log ends and the last common batch. Pure.

`judgement` is the whole decision of a link before its first append, and of ``kmirror status``.
"""

from __future__ import annotations

from mirrormaker.lineage import Lineage, interruption, refused, unproven
from mirrormaker.link_state import Cause, Gap, GapPolicy, LogEnds, Problem


def judgement(
    ends: LogEnds, lineage: Lineage, policy: GapPolicy, *, compacted: bool
) -> Problem | Gap | None:
    """Return why the target cannot be continued, or the gap behind which it is continued, if there is one."""
    if ends.problem is not None:
        return ends.problem
    skip = policy is GapPolicy.SKIP
    interrupted = interruption(lineage, ends)
    problem = (
        (refused(interrupted, ends, skip=skip) if interrupted is not None else None)
        or target_ahead(ends)
        or mismatch(ends, compacted=compacted)
        or unproven(lineage, ends)
    )
    missing = interrupted or aged_out(ends)
    if problem is not None or missing is None or skip:
        return problem or missing
    detail = (
        f"offsets {missing.first}-{missing.until - 1} are deleted, the source starts at "
        f"{ends.starts}; gap.policy=skip continues there"
    )
    return Problem(missing.cause, detail, missing)


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
    """Return the offsets that retention deleted at the source before they were copied, if any.

    None are missing if the source's log starts inside a batch that begins where the target ends.
    """
    never_written = ends.target_end == 0
    if never_written or ends.target_end >= ends.copied_from:
        return None
    return Gap(ends.target_end, ends.copied_from, Cause.RETENTION)
