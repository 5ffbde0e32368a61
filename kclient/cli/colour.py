"""Colours on a terminal: of headings, and of words such as running or failed.

`click.echo` removes them when the output is no terminal. `off` removes them everywhere, for --no-color and for NO_COLOR
(https://no-color.org), which counts if it is not empty.
"""

from __future__ import annotations

import os

import click


def heading(text: str) -> str:
    """Return *text* as the heading of a table."""
    return click.style(text, bold=True)


def good(text: str) -> str:
    """Return *text* as a word for what is right."""
    return click.style(text, fg="green")


def warning(text: str) -> str:
    """Return *text* as a word for what needs a look."""
    return click.style(text, fg="yellow")


def bad(text: str) -> str:
    """Return *text* as a word for what is wrong."""
    return click.style(text, fg="red", bold=True)


def off(context: click.Context) -> None:
    """Print no colours from now on."""
    level: click.Context | None = context
    while level is not None:
        level.color = False
        level = level.parent


def is_unwanted() -> bool:
    """Return whether the environment asks for no colours: NO_COLOR, or a terminal that has none."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
