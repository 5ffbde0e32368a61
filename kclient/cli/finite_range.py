"""Numbers on command lines that are finite: NaN and infinity are none of a range, nor a time to wait."""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A range of numbers. NaN and infinity are in none: each comparison with NaN is false, so it would pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return *value* as a number; fail if it is outside of the range, or not finite."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number
