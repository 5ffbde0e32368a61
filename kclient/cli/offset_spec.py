"""Start and end offsets for `consume`: the offset syntax of rpk and kcat.

    start | beginning | end | stored       the whole log, only new records, from the group's committed offsets
    47      from offset 47                  +2 / -3     two after the start / three before the end
    47:99   from 47 to before 99            :end        from the start to the present end
    @ts     from a time                     @ts1:ts2    between two times
    times: 13-digit ms, 10-digit s, ISO dates and datetimes, -1h (also s, m, d, w: before now), end

Pure: parses a text into two bounds; the caller looks up their offsets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from kclient.cli.time_spec import parse_datetime

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"-(\d+)(ms|s|m|h|d|w)")


class Anchor(Enum):
    """The reference of a bound."""

    START = "start"
    END = "end"
    STORED = "stored"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Bound:
    """An offset (OFFSET), a time in ms (TIME), or a record count from START or END."""

    anchor: Anchor
    number: int = 0


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """From *first* on, up to before *last* (None: no end)."""

    first: Bound
    last: Bound | None = None


def parse_offsets(text: str, *, now_ms: int) -> OffsetSpec:
    """Parse an offset specification; raise ValueError with the problem."""
    if text.startswith("@"):
        return _times(text[1:], now_ms)
    first, separator, last = text.partition(":")
    if not separator:
        return OffsetSpec(_offset(first, text))
    return OffsetSpec(
        _offset(first, text) if first else Bound(Anchor.START),
        _offset(last, text) if last else None,
    )


def _offset(part: str, whole: str) -> Bound:
    if part in ("start", "beginning", "earliest", "oldest"):
        return Bound(Anchor.START)
    if part in ("end", "latest", "newest"):
        return Bound(Anchor.END)
    if part == "stored":
        return Bound(Anchor.STORED)
    if re.fullmatch(r"\d+", part):
        return Bound(Anchor.OFFSET, int(part))
    if re.fullmatch(r"[+-]\d+", part):
        number = int(part)
        return Bound(Anchor.START if part[0] == "+" else Anchor.END, number)
    where = "" if part == whole else f" in {whole!r}"
    raise ValueError(
        f"{part!r}{where} is not an offset: expected start, end, stored, 47, +2, -3, 47:99, :end or @time"
    )


def _times(text: str, now_ms: int) -> OffsetSpec:
    """Parse one or two times; ISO times contain colons themselves, so every colon is tried as the separator."""
    try:
        return OffsetSpec(_time(text, now_ms))
    except ValueError as problem:
        for border in [match.start() for match in re.finditer(":", text)]:
            try:
                last = text[border + 1 :].removeprefix("@")
                return OffsetSpec(_time(text[:border], now_ms), _time(last, now_ms))
            except ValueError:
                continue
        raise problem


def _time(text: str, now_ms: int) -> Bound:
    if text == "end":
        return Bound(Anchor.END)
    if re.fullmatch(r"\d{13}", text):
        return Bound(Anchor.TIME, int(text))
    if re.fullmatch(r"\d{10}", text):
        return Bound(Anchor.TIME, int(text) * 1000)
    duration = _DURATION.fullmatch(text)
    if duration:
        return Bound(Anchor.TIME, now_ms - int(duration[1]) * _UNITS_MS[duration[2]])
    try:
        return Bound(Anchor.TIME, parse_datetime(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: expected 13-digit ms, 10-digit s, an ISO date or datetime, or -1h"
        ) from None
