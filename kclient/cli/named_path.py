"""Paths on command lines that may not exist yet, and have a name."""

from __future__ import annotations

import os
from typing import Any

import click


class NamedPath(click.Path):
    """A path that may not exist yet. An empty text, as of a variable that is not set, is none: `Path("")` is `.`."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Return *value* as a path; fail if it is empty."""
        if not os.fspath(value):
            self.fail("the name is missing", param, ctx)
        return super().convert(value, param, ctx)
