"""Statistics of many schedules: progress lines while they run, a page at the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.group_events import ENDS
from tests.simulation.simulation import Result

WORK = (
    "again", "commit", "create", "crash", "delete", "freeze", "groups", "leave", "member", "misproduce",
    "move", "offsets", "produce", "read", "resync", "solo", "transact", "transactions", "trim", "txnbegin",
    "txnoffsets", "txnread",
)  # fmt: skip
"""Verbs of the clients and the administrator; all others are faults, or the end of one."""

COLUMNS = 4


@dataclass
class Tally:
    """Sums over results."""

    wanted: int
    """How many seeds there are to play."""
    done: int = 0
    steps: int = 0
    acknowledged: int = 0
    consumed: int = 0
    committed: int = 0
    fetched: int = 0
    simulated: float = 0.0
    """Seconds."""
    slowest: float = 0.0
    """The longest time, in simulated seconds, that a cluster took to be whole after the healing."""
    last: int = 0
    """The seed that was played last."""
    verbs: Counter[str] = field(default_factory=Counter)
    """How often each line of a script was played."""
    failed: dict[str, list[int]] = field(default_factory=dict)
    """By predicate: the seeds that broke it."""

    def take(self, result: Result) -> None:
        """Add one schedule."""
        self.done += 1
        self.steps += result.steps
        self.acknowledged += result.acknowledged
        self.consumed += result.consumed
        self.committed += result.committed
        self.fetched += result.fetched
        self.simulated += result.seconds
        self.slowest = max(self.slowest, result.whole_after)
        self.last = result.script.seed
        for event in result.script.events:
            if event.time <= result.seconds and (event.verb, event.words) != ("zktrail", ()):
                self.verbs[event.verb] += 1
        if result.failure is not None:
            self.failed.setdefault(result.kind, []).append(result.script.seed)

    @property
    def failures(self) -> int:
        """How many seeds broke something."""
        return sum(map(len, self.failed.values()))

    def line(self, seconds: float) -> str:
        """Return the progress after so many seconds."""
        rate = self.done / seconds
        left = (self.wanted - self.done) / rate / 60
        return (
            f"{self.done} of {self.wanted} seeds, at seed {self.last}: {rate:.1f} a second,"
            f" {left:.0f} minutes left, {self.failures} failed"
        )

    def page(self, seconds: float) -> str:
        """Return the result after so many seconds."""
        verbs = self.verbs
        return "\n".join(
            [
                f"{self.done} seeds in {seconds:.0f} s ({self.done / seconds:.1f} seeds/s),"
                f" {self.failures} failed",
                f"steps            {self.steps} ({self.steps / seconds:.0f} a second)",
                f"simulated        {self.simulated / 3600:.1f} hours",
                f"acknowledged     {self.acknowledged} batches; consumed: {self.consumed} fetches",
                f"commits          {self.committed} acknowledged; offsets fetched: {self.fetched}",
                f"whole again      {self.slowest:g} s after the last fault at most",
                "faults",
                *_columns({v: n for v, n in verbs.items() if v not in WORK and v not in ENDS}),
                "work",
                *_columns({v: n for v, n in verbs.items() if v in WORK}),
                "failures" if self.failed else "failures: none",
                *(
                    f"    {kind:20} {len(seeds)}: seeds {', '.join(map(str, seeds[:10]))}"
                    f"{', ...' if len(seeds) > 10 else ''}"
                    for kind, seeds in sorted(self.failed.items())
                ),
            ]
        )


def _columns(counts: dict[str, int]) -> list[str]:
    cells = [f"{name:12}{count:8}" for name, count in sorted(counts.items())]
    return ["    " + "    ".join(cells[at : at + COLUMNS]) for at in range(0, len(cells), COLUMNS)]
