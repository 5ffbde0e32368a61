"""From what was counted to one word and one exit code.

Precedence of verdicts: ERROR > DIVERGED > INCOMPLETE > LAGGING > CONSISTENT. An exit code is chosen from all that
apply, the first of 70, 4, 1, 5, 3, 0, so that a script never takes "could not look" for "is the same".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from spark_jobs.findings import FindingClass


class Verdict(Enum):
    """What the report says first."""

    ERROR = "ERROR"
    DIVERGED = "DIVERGED"
    INCOMPLETE = "INCOMPLETE"
    LAGGING = "LAGGING"
    CONSISTENT = "CONSISTENT"


class ExitCode(IntEnum):
    """What the process ends with; fixed, because scripts depend on it."""

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
    """Everything the verdict depends on. Records unless said."""

    in_scope: int
    """Offsets below the cut on the source, aged-out ones included."""
    verified: int
    """Offsets below the cut that were read on both sides and compared."""
    lagging: int = 0
    """Offsets the source holds at the cut that the target had not received yet."""
    aged_out: int = 0
    """Offsets below the cut that one side has removed by retention: they can never be compared."""
    findings: dict[FindingClass, int] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    """Why a side or a partition of it could not be read, one sentence each."""

    @property
    def coverage(self) -> float:
        """Verified part of what is in scope; 1.0 where nothing is in scope."""
        return self.verified / self.in_scope if self.in_scope else 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the caller tolerates."""

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
    """Return the outcome of one run."""
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
