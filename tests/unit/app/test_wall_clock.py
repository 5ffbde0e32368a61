"""A broker asks for the time of day in one place, its World; all else goes by the monotonic clock (S35)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kbroker

ROOT = Path(kbroker.__file__).parent
NO_BROKER = {"cli", "demo", "local"}
"""Rooms of which nothing runs within a broker."""

ALLOWED = {"app/world.py", "app/logs.py"}
"""The World's own clock, and the time that stands before a line of the log."""

WALL_CLOCK = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime", "clock_gettime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


def uses_of_the_wall_clock(source: str) -> list[str]:
    """Return what *source* takes from the modules of the time of day, and by which line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if node.attr in WALL_CLOCK.get(name, ()):
                found.append(f"{node.lineno}: {name}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            taken = {alias.name for alias in node.names} & WALL_CLOCK["time"]
            found += [f"{node.lineno}: from time import {name}" for name in sorted(taken)]
        elif isinstance(node, ast.Import):
            found += [
                f"{node.lineno}: {alias.name} as {alias.asname}"
                for alias in node.names
                if alias.name in ("time", "datetime") and alias.asname
            ]
    return found


@pytest.mark.long
def test_only_the_world_reads_the_time_of_day() -> None:
    found = {}
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name.partition("/")[0] not in NO_BROKER and (
            uses := uses_of_the_wall_clock(path.read_text())
        ):
            found[name] = uses
    assert found.keys() == ALLOWED, found


def test_every_way_to_the_wall_clock_is_seen() -> None:
    source = """
import time
import time as t
from time import time_ns, monotonic
a = time.time()
b = datetime.datetime.now()
c = datetime.now(tz=UTC)
d = date.today()
e = time.monotonic() + self.reactor.seconds()
"""
    assert [use.partition(": ")[2] for use in uses_of_the_wall_clock(source)] == [
        "time as t",
        "from time import time_ns",
        "time.time",
        "datetime.now",
        "datetime.now",
        "date.today",
    ]
