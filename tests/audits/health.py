"""The logs of brokers: no traceback and no unhandled error, under any fault."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from tests.audits.problem import Problem

_BAD = re.compile(
    r"Traceback \(most recent call last\)|Unhandled error|\bFATAL\b|was never retrieved"
)
_SHOWN = 25


def audit_log_lines(path: Path, allowed: Collection[str] = ()) -> list[Problem]:
    """Return lines that no broker's log should have; *allowed* are patterns that a test provokes."""
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines()
    found = []
    for number, line in enumerate(lines):
        if _BAD.search(line):
            around = "\n".join(lines[max(0, number - 2) : number + _SHOWN])
            if not any(re.search(pattern, around) for pattern in allowed):
                found.append(Problem("log-line", f"{path.parent.name}:{number + 1}", around))
    return found
