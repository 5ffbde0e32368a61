"""Decides the verdict and the exit code of one run from its counts. Pure.

The verdict is what was found. The limits (`--fail-on`, `--min-coverage`, `--max-lag`) decide the exit code only, except
that lag within its limit is no reason for LAGGING. Precedence of verdicts: ERROR > DIVERGED > INCOMPLETE > LAGGING >
CONSISTENT. The exit code is the first that applies of 70, 4, 1, 5, 3, 0, so that a script never takes "not compared"
for "equal". docs/design/audit.md explains both.

Invariants (tests cite the numbers):
 1. CONSISTENT: no finding, every offset in scope compared and equal, or explained, and lag within its limit;
 2. a run that compared nothing is never CONSISTENT, unless nothing is in scope and both logs of each partition have the
    same end;
 3. a finding makes the verdict DIVERGED or ERROR, whatever the limits are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from spark_jobs.findings import NOT_COMPARABLE, FindingClass


class Verdict(Enum):
    """The verdict, first word of every report."""

    ERROR = "ERROR"
    DIVERGED = "DIVERGED"
    INCOMPLETE = "INCOMPLETE"
    LAGGING = "LAGGING"
    CONSISTENT = "CONSISTENT"


class ExitCode(IntEnum):
    """Exit codes of `kaudit`; stable, because scripts depend on them."""

    CONSISTENT = 0
    DIVERGED = 1
    USAGE = 2
    NO_VERDICT_YET = 3
    UNREADABLE = 4
    AGED_OUT = 5
    INTERNAL = 70
    INTERRUPTED = 130


_PRECEDENCE = (
    ExitCode.INTERNAL,
    ExitCode.UNREADABLE,
    ExitCode.DIVERGED,
    ExitCode.AGED_OUT,
    ExitCode.NO_VERDICT_YET,
    ExitCode.CONSISTENT,
)


@dataclass(frozen=True, slots=True)
class Counts:
    """The input of the verdict: each offset of both logs is in one class. In offsets unless stated otherwise."""

    verified: int = 0
    """A record with the same content at the same offset in both logs."""
    empty: int = 0
    """Read on both sides, and no record on either."""
    explained: int = 0
    """Lacking in a log for a known reason: compaction, an accepted gap, or one of the mirror's ledger. Not compared."""
    aged_out: int = 0
    """Only one log still has the offset: retention or DeleteRecords removed it from the other."""
    not_read: int = 0
    """The broker did not return the offset; `unreadable` has the causes."""
    lagging: int = 0
    """Source offsets that the target had not received when the cut was frozen."""
    different: Mapping[FindingClass, int] = field(default_factory=dict)
    """Offsets that a finding of the class accounts for."""
    findings: Mapping[FindingClass, int] = field(default_factory=dict)
    """Records (for gaps and undecodable batches: offsets) found in each class."""
    unreadable: tuple[str, ...] = ()
    """Why a cluster or a partition could not be read, one sentence each."""
    unknown: int = 0
    """Partitions without a known offset of which a cluster did not return the log: they may have any number of them."""
    unequal_ends: int = 0
    """Partitions without an offset in scope that end at different offsets in the two logs: `PartitionCut.same_end`."""

    @property
    def compared(self) -> int:
        """The offsets that were compared, with either result; without the explained ones."""
        differing = sum(
            count for each, count in self.different.items() if each not in NOT_COMPARABLE
        )
        return self.verified + self.empty + differing

    @property
    def accounted(self) -> int:
        """The offsets that were compared or are explained."""
        return self.compared + self.explained

    @property
    def in_scope(self) -> int:
        """All offsets of both logs except lag."""
        not_comparable = sum(
            count for each, count in self.different.items() if each in NOT_COMPARABLE
        )
        return self.accounted + self.aged_out + self.not_read + not_comparable

    @property
    def coverage(self) -> float | None:
        """The compared share of the scope, 0.0 to 1.0; None for an empty scope, or one that is not known."""
        return self.compared / self.in_scope if self.in_scope and not self.unknown else None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the caller accepts: *max_lag* in offsets, *min_coverage* from 0.0 to 1.0, classes outside *fail_on*.

    *min_coverage* is the share of the scope that must be compared or explained.
    """

    max_lag: int = 0
    min_coverage: float = 1.0
    fail_on: frozenset[FindingClass] = frozenset(FindingClass)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict, the exit code, every exit code that applied, and the findings that did not affect it."""

    verdict: Verdict
    exit_code: ExitCode
    applicable: tuple[ExitCode, ...]
    not_failed_on: Mapping[FindingClass, int] = field(default_factory=dict)
    """Findings of classes outside `--fail-on`: the verdict covers them, the exit code does not."""


def decide(counts: Counts, limits: Limits = Limits(), *, self_test_failed: bool = False) -> Outcome:
    """Return verdict and exit code for *counts*."""
    found = {each: count for each, count in counts.findings.items() if count}
    # With nothing compared there is no proof, whatever lag the caller accepts.
    nothing = not counts.compared and bool(counts.explained or counts.unequal_ends)
    lagging = nothing or counts.lagging > (limits.max_lag if counts.compared else 0)
    verdict = Verdict.CONSISTENT
    if self_test_failed or counts.unreadable or counts.not_read:
        verdict = Verdict.ERROR
    elif found:
        verdict = Verdict.DIVERGED
    elif counts.accounted < counts.in_scope:
        verdict = Verdict.INCOMPLETE
    elif lagging:
        verdict = Verdict.LAGGING
    applicable = _exit_codes(counts, limits, lagging=lagging, self_test_failed=self_test_failed)
    ignored = {each: count for each, count in found.items() if each not in limits.fail_on}
    return Outcome(verdict, first_of(applicable), tuple(ordered(applicable)), ignored)


def _exit_codes(
    counts: Counts, limits: Limits, *, lagging: bool, self_test_failed: bool
) -> list[ExitCode]:
    below = bool(counts.in_scope) and counts.accounted / counts.in_scope < limits.min_coverage
    conditions = {
        ExitCode.CONSISTENT: True,
        ExitCode.INTERNAL: self_test_failed,
        ExitCode.UNREADABLE: bool(counts.unreadable or counts.not_read),
        ExitCode.DIVERGED: any(counts.findings.get(each, 0) for each in limits.fail_on),
        ExitCode.AGED_OUT: below and counts.aged_out > 0,
        ExitCode.NO_VERDICT_YET: lagging or (below and not counts.aged_out),
    }
    return [code for code, applies in conditions.items() if applies]


def ordered(codes: Iterable[ExitCode]) -> list[ExitCode]:
    """Return *codes* by precedence, the decisive one first."""
    return sorted(set(codes), key=_PRECEDENCE.index)


def first_of(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the decisive one of several exit codes."""
    return ordered(codes)[0]
