"""Record timestamps as text. A producer may set any 64-bit number, also one that is no date."""

from __future__ import annotations

from datetime import UTC, datetime


def minute(timestamp_ms: int) -> str:
    """Return the UTC minute of *timestamp_ms*; the number itself if it is outside of the years 1 to 9999."""
    return _text(timestamp_ms, "%Y-%m-%d %H:%M")


def moment(timestamp_ms: int, step_ms: int) -> str:
    """Return *timestamp_ms* as precisely as steps of *step_ms* need it."""
    if step_ms >= 60_000:
        return minute(timestamp_ms)
    return second(timestamp_ms) if step_ms >= 1000 else millisecond(timestamp_ms)


def second(timestamp_ms: int) -> str:
    """Return the UTC second of *timestamp_ms*; the number itself if it is outside of the years 1 to 9999."""
    return _text(timestamp_ms, "%Y-%m-%d %H:%M:%S")


def millisecond(timestamp_ms: int) -> str:
    """Return the UTC time of *timestamp_ms*; the number itself if it is outside of the years 1 to 9999."""
    return _text(timestamp_ms, f"%Y-%m-%d %H:%M:%S.{timestamp_ms % 1000:03d}")


def _text(timestamp_ms: int, pattern: str) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, tz=UTC).strftime(pattern)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
