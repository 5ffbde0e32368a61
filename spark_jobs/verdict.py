"""Decides the verdict and the exit code of one run from its counts.

Precedence of verdicts: ERROR > DIVERGED > INCOMPLETE > LAGGING > CONSISTENT. The exit code is the first that applies
of 70, 4, 1, 5, 3, 0, so that a script never takes "not compared" for "equal".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from spark_jobs.findings import FindingClass


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
    """The input of the verdict, in records unless a field names another unit."""

    in_scope: int
    """Source offsets below the cut, including those that aged out."""
    verified: int
    """Offsets below the cut that were read on both sides and compared."""
    lagging: int = 0
    """Source offsets that the target had not received when the cut was frozen."""
    aged_out: int = 0
    """Offsets below the cut that retention deleted on one side: they can never be compared."""
    findings: dict[FindingClass, int] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    """Why a cluster or a partition could not be read, one sentence each."""

    @property
    def coverage(self) -> float:
        """The verified share of the scope, 0.0 to 1.0; 1.0 for an empty scope."""
        return self.verified / self.in_scope if self.in_scope else 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Differences that the caller accepts: *max_lag* in records, *min_coverage* from 0.0 to 1.0."""

    max_lag: int = 0
    min_coverage: float = 1.0
    fail_on: frozenset[FindingClass] = frozenset(FindingClass)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict, the exit code, and every exit code that applied."""

    verdict: Verdict
    exit_code: ExitCode
    applicable: tuple[ExitCode, ...]


def decide(counts: Counts, limits: Limits = Limits(), *, self_test_failed: bool = False) -> Outcome:
    """Return verdict and exit code for *counts*."""
    applicable = [ExitCode.CONSISTENT]
    diverged = any(counts.findings.get(finding_class, 0) for finding_class in limits.fail_on)
    incomplete = counts.coverage < limits.min_coverage
    lagging = counts.lagging > limits.max_lag
    if self_test_failed:
        applicable.append(ExitCode.INTERNAL)
    if counts.unreadable:
        applicable.append(ExitCode.UNREADABLE)
    if diverged:
        applicable.append(ExitCode.DIVERGED)
    if counts.aged_out:
        applicable.append(ExitCode.AGED_OUT)
    if lagging or (incomplete and not counts.aged_out):
        applicable.append(ExitCode.NO_VERDICT_YET)
    if self_test_failed or counts.unreadable:
        verdict = Verdict.ERROR
    elif diverged:
        verdict = Verdict.DIVERGED
    elif incomplete or counts.aged_out:
        verdict = Verdict.INCOMPLETE
    elif lagging:
        verdict = Verdict.LAGGING
    else:
        verdict = Verdict.CONSISTENT
    return Outcome(verdict, first_of(applicable), tuple(ordered(applicable)))


def ordered(codes: Iterable[ExitCode]) -> list[ExitCode]:
    """Return *codes* by precedence, the decisive one first."""
    return sorted(set(codes), key=_PRECEDENCE.index)


def first_of(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the decisive one of several exit codes."""
    return ordered(codes)[0]
