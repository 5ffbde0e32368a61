"""Times in options: ISO 8601 datetimes and durations, in milliseconds. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MS, _HOUR_MS, _MINUTE_MS = 86_400_000, 3_600_000, 60_000
_NUMBER = r"([+-]?[0-9]+)"
_DURATION = re.compile(
    rf"(?P<sign>[+-])?P(?:{_NUMBER}D)?"
    rf"(?P<time>T(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:([+-]?)([0-9]+)(?:[.,]([0-9]{{0,9}}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)


def parse_datetime(text: str) -> int:
    """Return an ISO date or datetime in ms since the epoch, UTC without a zone; raise ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Not by timestamp(): its float is a millisecond off for one time in 150.
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def parse_duration(text: str) -> int:
    """Return an ISO duration PnDTnHnMn.nS in ms, rounded down, as Java's Duration.parse; raise ValueError.

    A day has 24 hours. There are no years, months or weeks: how long one is depends on the date.
    """
    found = _DURATION.fullmatch(text)
    days, hours, minutes, sign, seconds, fraction = (
        found.group(2, 4, 5, 6, 7, 8) if found else (None,) * 6
    )
    if found is None or found["time"] in ("T", "t") or not (days or found["time"]):
        raise ValueError(f"{text!r} is not a duration: expected PnDTnHnMnS, as in P1D or PT2H30M")
    seconds_ns = int(seconds or 0) * 10**9 + int((fraction or "").ljust(9, "0"))
    nanoseconds = (
        int(days or 0) * _DAY_MS + int(hours or 0) * _HOUR_MS + int(minutes or 0) * _MINUTE_MS
    ) * 10**6 + (-seconds_ns if sign == "-" else seconds_ns)
    return (-nanoseconds if found["sign"] == "-" else nanoseconds) // 10**6


def time_text(ms: int) -> str:
    """Return a time in ms since the epoch as an ISO datetime in UTC; the number if no datetime is that late."""
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
