"""Numbers as Java prints them. Pure."""

from __future__ import annotations

import math


def double(value: float) -> str:
    """Return Double.toString() of *value*.

    >>> double(1024), double(1e7), double(12345678.5), double(0.0001)
    ('1024.0', '1.0E7', '1.23456785E7', '1.0E-4')
    """
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    digits = repr(abs(float(value))).partition("e")[0].replace(".", "").strip("0")
    exponent = math.floor(math.log10(abs(value)))
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"
