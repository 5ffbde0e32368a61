"""Progress of a command that takes longer than 2 s: one line at a terminal, which the next one replaces."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

_FIRST_AFTER_S = 2.0
_EVERY_S = 0.5


class Progress:
    """Shows a line on stderr from the third second on; nothing with -q or without a terminal.

    *seconds* is a monotonic clock.
    """

    def __init__(self, seconds: Callable[[], float], *, quiet: bool) -> None:
        self._seconds = seconds
        self._next = seconds() + _FIRST_AFTER_S
        self._is_on = not quiet and sys.stderr.isatty()
        self._width = 0

    def show(self, text: str) -> None:
        """Show *text*, if it is time for a line."""
        if not self._is_on or self._seconds() < self._next:
            return
        self._next = self._seconds() + _EVERY_S
        click.echo(f"\r{text.ljust(self._width)}", nl=False, err=True)
        self._width = len(text)

    def clear(self) -> None:
        """Remove the line: data follows."""
        if self._width:
            click.echo(f"\r{'':{self._width}}\r", nl=False, err=True)
            self._width = 0


def share_line(what: str, done: int, total: int, elapsed_s: float) -> str:
    """Return "what: 41 %, 12 s left": how much is done, and how long the rest takes at the same rate."""
    if not total or done >= total:
        return f"{what}: 100 %"
    left = f", {elapsed_s * (total - done) / done:.0f} s left" if done else ""
    return f"{what}: {done * 100 // total} %{left}"
