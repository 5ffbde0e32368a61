"""The health of a mirrored partition, judged from both logs alone, and the exit code of ``kmirror status``. Pure.

The judgement is that of a link before its first append: lineage, prefix check, retention. A running mirror is not
asked. So a cause that no log shows (a rejected batch, a damaged one, no mirror running) appears as BEHIND. The target
did not advance between two readings although the source had records for it.

In: two readings of both logs   Out: a `Finding` per partition, an exit code   Owner: the command
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mirrormaker.lineage import Lineage
from mirrormaker.link_state import GapPolicy, LogEnds, Problem
from mirrormaker.prefix import judgement


class Health(Enum):
    """The states of a partition; operators read the value."""

    IN_SYNC = "in sync"
    STARTS_LATER = "starts later"
    """No lag, but the target's log starts above the source's. Segments end elsewhere, so retention does this, too."""
    COPYING = "copying"
    SKIPPED = "skipped"
    """A topic that needs no copy: it would be a loop, or a second copy of the same origin."""
    EMPTIED = "emptied"
    """The target has no record left, and the source has those that the target had."""
    OPEN = "open transaction"
    BEHIND = "no progress"
    LAGGING = "lag over the limit"
    MISSING = "not at the target"
    UNREADABLE = "unreadable"
    STOPPED = "STOPPED"


EXIT_CODES = {
    Health.IN_SYNC: 0,
    Health.STARTS_LATER: 0,
    Health.COPYING: 0,
    Health.SKIPPED: 0,
    Health.EMPTIED: 4,
    Health.OPEN: 4,
    Health.BEHIND: 4,
    Health.LAGGING: 4,
    Health.MISSING: 4,
    Health.UNREADABLE: 3,
    Health.STOPPED: 5,
}
"""Of several, the first of 5, 3, 4, 0 is the exit code."""

_WORST_FIRST = (5, 3, 4, 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """The health of a partition, and why; "" if the numbers show it."""

    health: Health
    detail: str = ""


def problem_of(
    ends: LogEnds, lineage: Lineage, policy: GapPolicy, *, compacted: bool
) -> Problem | None:
    """Return why a link with these log ends stops, if it does."""
    judged = judgement(ends, lineage, policy, compacted=compacted)
    return judged if isinstance(judged, Problem) else None


def judge(
    before: LogEnds,
    now: LogEnds,
    problem: Problem | None,
    *,
    max_lag: int | None,
    compacted: bool = False,
) -> Finding:
    """Return the health of a partition without *problem*, from two readings of its logs."""
    if problem is not None:
        return Finding(Health.STOPPED, str(problem))
    found = _progress(before, now, max_lag)
    first, until = now.lacking
    is_emptied = first < until and now.target_start == now.target_end
    # The log start of a compacted topic is no record's: its cleaner may have removed what was there.
    if first == until or (compacted and not is_emptied):
        return found
    lacks = f"the target lacks {until - first} offsets from {first} on, which the source has"
    if is_emptied and EXIT_CODES[found.health] == 0:
        return Finding(Health.EMPTIED, lacks)
    health = Health.STARTS_LATER if found.health is Health.IN_SYNC else found.health
    return Finding(health, "; ".join(text for text in (found.detail, lacks) if text))


def _progress(before: LogEnds, now: LogEnds, max_lag: int | None) -> Finding:
    """Return the health as far as the ends of both logs show it."""
    advanced = now.target_end > before.target_end or before.lag == 0
    if max_lag is not None and now.lag > max_lag:
        return Finding(Health.LAGGING, f"at most {max_lag} allowed")
    if now.lag == 0:
        return Finding(Health.IN_SYNC)
    if now.open_records and now.target_end >= now.source_end:
        detail = f"{now.open_records} records from offset {now.source_end} on are not readable yet"
        still = now.source_end == before.source_end and before.open_records > 0
        return Finding(Health.OPEN if still else Health.COPYING, detail)
    return Finding(Health.COPYING if advanced else Health.BEHIND)


def exit_code(found: Iterable[Health]) -> int:
    """Return the exit code for partitions and topics of these states."""
    codes = {EXIT_CODES[health] for health in found}
    return next((code for code in _WORST_FIRST if code in codes), 0)
