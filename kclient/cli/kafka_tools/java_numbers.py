"""Numbers as Java prints them. Pure."""

from __future__ import annotations

import math
import re
from decimal import Decimal


def integer(text: str) -> int:
    """Return Integer.parseInt() of *text*; raise ValueError with Java's message.

    >>> integer("+7"), integer("-1")
    (7, -1)
    """
    if re.fullmatch(r"[+-]?[0-9]+", text) is None:
        raise ValueError(f'For input string: "{text}"')
    return int(text)


def double(value: float) -> str:
    """Return Double.toString() of *value*.

    >>> double(1024), double(1e7), double(12345678.5), double(0.0001)
    ('1024.0', '1.0E7', '1.23456785E7', '1.0E-4')
    """
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    shortest = Decimal(repr(float(value)))
    sign = "-" if value < 0 else ""
    digits = "".join(map(str, shortest.as_tuple().digits)).rstrip("0")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{shortest.adjusted()}"
