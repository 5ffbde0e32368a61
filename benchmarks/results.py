"""Figures: medians over rounds, ratios, and the table of benchmarks/README.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

_START, _END = "<!-- results: written by make bench -->", "<!-- end of results -->"


@dataclass
class Figure:
    """One measured figure: a value per contender and round."""

    name: str
    unit: str
    higher_is_better: bool = True
    goal: str = ""
    """The goal: a ratio of ours to the first other contender, as text."""
    goal_ratio: float | None = None
    goal_value: float | None = None
    """An absolute goal for ours, if there is one."""
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, contender: str, value: float) -> None:
        """Add the value of one round."""
        self.values.setdefault(contender, []).append(value)

    def median(self, contender: str) -> float:
        """Return the median over rounds."""
        return statistics.median(self.values[contender])

    def ratio(self) -> float | None:
        """Return ours over the best other contender (the first other if the goal requires it)."""
        others = [name for name in self.values if name != "ours"]
        if "ours" not in self.values or not others or not self.median(others[0]):
            return None
        return self.median("ours") / self.median(others[0])

    def met(self) -> str:
        """Return yes, no, or an empty string without a goal."""
        reached = None
        if self.goal_ratio is not None and (ratio := self.ratio()) is not None:
            reached = (
                ratio >= self.goal_ratio if self.higher_is_better else ratio <= self.goal_ratio
            )
        elif self.goal_value is not None and "ours" in self.values:
            ours = self.median("ours")
            reached = ours >= self.goal_value if self.higher_is_better else ours <= self.goal_value
        return "" if reached is None else ("yes" if reached else "**no**")


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 10 else f"{value:.3f}"


def rows(figures: Iterable[Figure]) -> list[tuple[str, str, str, str, str, str]]:
    """Return (figure, ours, others, ratio, goal, met) as text."""
    table = []
    for figure in figures:
        ratio = figure.ratio()
        others = ", ".join(
            f"{name} {_number(figure.median(name))}" for name in figure.values if name != "ours"
        )
        ours = _number(figure.median("ours")) if "ours" in figure.values else "-"
        table.append(
            (
                f"{figure.name} ({figure.unit})",
                ours,
                others or "-",
                "-" if ratio is None else f"{ratio:.2f} x",
                figure.goal or "-",
                figure.met(),
            )
        )
    return table


def as_text(figures: Iterable[Figure]) -> str:
    """Return an aligned table for the terminal."""
    head = ("figure", "ours", "others", "ratio", "goal", "met")
    table = [head, *rows(figures)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


@dataclass
class SuiteResult:
    """The result of one run of one suite, and its machine."""

    suite: str
    date: str
    machine: str
    rounds: int
    load_before: float
    """Load average of the last minute before the suite: other load on the machine."""
    figures: list[Figure]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return all values of all rounds."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "figures": [
                {
                    **asdict(figure),
                    "ratio": figure.ratio(),
                    "met": figure.met().strip("*") or None,
                }
                for figure in self.figures
            ],
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> SuiteResult:
        """Build from the output of `to_json`."""
        figures = [
            Figure(**{field.name: item[field.name] for field in fields(Figure)})
            for item in found["figures"]
        ]
        return cls(**{name: found[name] for name in _PLAIN}, figures=figures)


_PLAIN = ("suite", "date", "machine", "rounds", "load_before", "notes")


def newest(folder: Path) -> dict[str, SuiteResult]:
    """Return the newest result of every suite in *folder*."""
    found: dict[str, SuiteResult] = {}
    for path in sorted(folder.glob("*.json")):
        for name, item in json.loads(path.read_text()).items():
            found[name] = SuiteResult.from_json(item)
    return found


def write(path: Path, results: Iterable[SuiteResult]) -> Path:
    """Write *results* to the day's file; results of other suites in it stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = json.loads(path.read_text()) if path.exists() else {}
    document.update({result.suite: result.to_json() for result in results})
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def write_table(path: Path, results: Iterable[SuiteResult]) -> None:
    """Replace the results in benchmarks/README.md."""
    lines: list[str] = []
    for result in results:
        lines += [
            f"### {result.suite}",
            "",
            f"{result.date}, {result.machine}; medians of {result.rounds} rounds; "
            f"load average before it began: {result.load_before:.1f}.",
            "",
            "| figure | ours | others | ratio | goal | met |",
            "|---|---|---|---|---|---|",
            *("| " + " | ".join(row) + " |" for row in rows(result.figures)),
            "",
            *(f"- {note}" for note in result.notes),
            "",
        ]
    text = path.read_text() if path.exists() else f"{_START}\n{_END}\n"
    before, _, rest = text.partition(_START)
    _, _, after = rest.partition(_END)
    path.write_text("\n".join([before + _START, "", *lines, _END + after]))
