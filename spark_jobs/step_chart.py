"""A picture of sums over record time as PNG: step lines, and the gap between two of them shaded.

Lines do not differ by colour alone: the second is dashed, and each has its name below the picture. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from spark_jobs.raster import Canvas, Colour, text_width

MOST_STEPS = 400
"""Steps across the picture. With more buckets, neighbours are added up."""

_LINES: tuple[Colour, ...] = ((36, 71, 107), (201, 147, 10))
_GAP: Colour = (205, 145, 154)
_INK: Colour = (40, 40, 40)
_AXIS: Colour = (190, 190, 190)
_WIDTH, _HEIGHT, _LEFT, _TOP, _PITCH = 1040, 150, 190, 30, 240
_THICK = 2


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: a line for each of *lines* (name -> start of the bucket in ms -> sum)."""

    title: str
    bucket_ms: int
    lines: Mapping[str, Mapping[int, int]]
    shaded: bool = False
    """Whether the gap between the two lines is shaded."""


class Steps(NamedTuple):
    """The sums of each line per step."""

    start_ms: int
    width_ms: int
    sums: dict[str, list[int]]


def steps(panel: Panel) -> Steps:
    """Add the buckets of *panel* up to at most `MOST_STEPS`."""
    starts = [start for line in panel.lines.values() for start in line]
    if not starts:
        return Steps(0, panel.bucket_ms, {name: [0] for name in panel.lines})
    low, high = min(starts), max(starts)
    width = panel.bucket_ms * -(-((high - low) // panel.bucket_ms + 1) // MOST_STEPS)
    count = (high - low) // width + 1
    sums = {name: [0] * count for name in panel.lines}
    for name, line in panel.lines.items():
        for start, size in line.items():
            sums[name][(start - low) // width] += size
    return Steps(low, width, sums)


def chart(panels: Sequence[Panel]) -> bytes:
    """Return all *panels*, one below the other, as a PNG file."""
    canvas = Canvas(_LEFT + _WIDTH + 20, _PITCH * max(1, len(panels)))
    for n, panel in enumerate(panels):
        _draw(canvas, panel, n * _PITCH)
    return canvas.png()


def _draw(canvas: Canvas, panel: Panel, top: int) -> None:
    start, width, sums = steps(panel)
    highest = max(1, *(max(line) for line in sums.values()))
    base = top + _TOP + _HEIGHT
    count = len(next(iter(sums.values())))
    edges = [_LEFT + _WIDTH * n // count for n in range(count + 1)]
    lines = {
        name: [base - _HEIGHT * size // highest for size in line] for name, line in sums.items()
    }
    canvas.text(_LEFT, top + 8, panel.title, _INK)
    canvas.rectangle(_LEFT, base, _LEFT + _WIDTH, base + 1, _AXIS)
    canvas.rectangle(_LEFT, base - _HEIGHT, _LEFT + _WIDTH, base - _HEIGHT + 1, _AXIS)
    if panel.shaded:
        first, second = lines.values()
        for n, (one, other) in enumerate(zip(first, second, strict=True)):
            canvas.rectangle(edges[n], min(one, other), edges[n + 1], max(one, other), _GAP)
    for n, line in enumerate(lines.values()):
        _draw_line(canvas, edges, line, _LINES[n], dashed=n > 0)
    for text, y in ((f"{highest:,}", base - _HEIGHT), ("0", base - 7)):
        canvas.text(_LEFT - 10 - text_width(text), y - 7, text, _INK)
    ends = _time(start), _time(start + width * count)
    canvas.text(_LEFT, base + 10, ends[0], _INK)
    canvas.text(_LEFT + _WIDTH - text_width(ends[1]), base + 10, ends[1], _INK)
    _draw_legend(canvas, list(lines), base + 34, shaded=panel.shaded)


def _draw_line(
    canvas: Canvas, edges: Sequence[int], line: Sequence[int], colour: Colour, *, dashed: bool
) -> None:
    for n, y in enumerate(line):
        canvas.rectangle(edges[n], y - _THICK, edges[n + 1], y, colour, dashed=dashed)
        if n and line[n - 1] != y:
            low, high = sorted((line[n - 1], y))
            canvas.rectangle(edges[n], low - _THICK, edges[n] + _THICK, high, colour, dashed=dashed)


def _draw_legend(canvas: Canvas, names: Sequence[str], y: int, *, shaded: bool) -> None:
    x = _LEFT
    for n, name in enumerate(names):
        canvas.rectangle(x, y + 6, x + 30, y + 6 + _THICK, _LINES[n], dashed=n > 0)
        canvas.text(x + 38, y, name, _INK)
        x += 38 + text_width(name) + 30
    if shaded:
        canvas.rectangle(x, y, x + 30, y + 14, _GAP)
        canvas.text(x + 38, y, "difference", _INK)


def _time(ms: int) -> str:
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{ms} ms"
