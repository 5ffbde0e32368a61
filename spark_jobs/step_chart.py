"""A picture of numbers over time as PNG: step lines, the gap between two of them shaded, and a limit.

Lines do not differ by colour alone: the second is dashed, the third thin, and each has its name below the picture.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from spark_jobs.raster import Canvas, Colour, text_width

MOST_STEPS = 400
"""Steps across the picture. With more buckets, neighbours are combined."""


class _Style(NamedTuple):
    colour: Colour
    dashed: bool = False
    thick: int = 2


_LINES = (
    _Style((36, 71, 107)),
    _Style((201, 147, 10), dashed=True),
    _Style((60, 130, 90), thick=1),
)
_LIMIT = _Style((190, 30, 45), thick=1)
_GAP: Colour = (205, 145, 154)
_INK: Colour = (40, 40, 40)
_AXIS: Colour = (190, 190, 190)
_WIDTH, _HEIGHT, _LEFT, _TOP, _PITCH = 1040, 150, 190, 30, 240


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: a line for each of *lines* (name -> start of the bucket in ms -> number), three at most."""

    title: str
    bucket_ms: int
    lines: Mapping[str, Mapping[int, int]]
    shaded: bool = False
    """Whether the gap between the two lines is shaded."""
    largest: bool = False
    """Whether a step has the largest of its buckets and, without a bucket, no line. Else it has their sum, or 0."""
    limit: tuple[str, int] | None = None
    """Name and height of a line across the picture."""


class Steps(NamedTuple):
    """The number of each line per step, None for no line."""

    start_ms: int
    width_ms: int
    numbers: dict[str, list[int | None]]


def steps(panel: Panel) -> Steps:
    """Combine the buckets of *panel* to at most `MOST_STEPS`."""
    nothing = None if panel.largest else 0
    starts = [start for line in panel.lines.values() for start in line]
    if not starts:
        return Steps(0, panel.bucket_ms, {name: [nothing] for name in panel.lines})
    low, high = min(starts), max(starts)
    width = panel.bucket_ms * -(-((high - low) // panel.bucket_ms + 1) // MOST_STEPS)
    count = (high - low) // width + 1
    numbers: dict[str, list[int | None]] = {name: [nothing] * count for name in panel.lines}
    for name, line in panel.lines.items():
        for start, number in line.items():
            step = (start - low) // width
            before = numbers[name][step]
            if before is None:
                numbers[name][step] = number
            else:
                numbers[name][step] = max(before, number) if panel.largest else before + number
    return Steps(low, width, numbers)


def chart(panels: Sequence[Panel]) -> bytes:
    """Return all *panels*, one below the other, as a PNG file."""
    canvas = Canvas(_LEFT + _WIDTH + 20, _PITCH * max(1, len(panels)))
    for n, panel in enumerate(panels):
        _draw(canvas, panel, n * _PITCH)
    return canvas.png()


def _draw(canvas: Canvas, panel: Panel, top: int) -> None:
    start, width, numbers = steps(panel)
    known = [number for line in numbers.values() for number in line if number is not None]
    highest = max([1, *known, *([] if panel.limit is None else [panel.limit[1]])])
    base = top + _TOP + _HEIGHT

    def y_of(number: int) -> int:
        return base - _HEIGHT * number // highest

    count = len(next(iter(numbers.values())))
    edges = [_LEFT + _WIDTH * n // count for n in range(count + 1)]
    lines = {
        name: [None if number is None else y_of(number) for number in line]
        for name, line in numbers.items()
    }
    canvas.text(_LEFT, top + 8, panel.title, _INK)
    canvas.rectangle(_LEFT, base, _LEFT + _WIDTH, base + 1, _AXIS)
    canvas.rectangle(_LEFT, base - _HEIGHT, _LEFT + _WIDTH, base - _HEIGHT + 1, _AXIS)
    if panel.shaded:
        first, second = lines.values()
        for n, (one, other) in enumerate(zip(first, second, strict=True)):
            if one is not None and other is not None:
                canvas.rectangle(edges[n], min(one, other), edges[n + 1], max(one, other), _GAP)
    legend = dict(zip(lines, _LINES[: len(lines)], strict=True))
    for name, style in legend.items():
        _draw_line(canvas, edges, lines[name], style)
    if panel.limit is not None:
        name, number = panel.limit
        legend[name] = _LIMIT
        _draw_line(canvas, [_LEFT, _LEFT + _WIDTH], [y_of(number)], _LIMIT)
    for text, y in ((f"{highest:,}", base - _HEIGHT), ("0", base - 7)):
        canvas.text(_LEFT - 10 - text_width(text), y - 7, text, _INK)
    ends = _time(start), _time(start + width * count)
    canvas.text(_LEFT, base + 10, ends[0], _INK)
    canvas.text(_LEFT + _WIDTH - text_width(ends[1]), base + 10, ends[1], _INK)
    _draw_legend(canvas, legend, base + 34, shaded=panel.shaded)


def _draw_line(
    canvas: Canvas, edges: Sequence[int], line: Sequence[int | None], style: _Style
) -> None:
    colour, dashed, thick = style
    before = None
    for n, y in enumerate(line):
        if y is not None:
            canvas.rectangle(edges[n], y - thick, edges[n + 1], y, colour, dashed=dashed)
            if before is not None and before != y:
                low, high = sorted((before, y))
                canvas.rectangle(
                    edges[n], low - thick, edges[n] + thick, high, colour, dashed=dashed
                )
        before = y


def _draw_legend(canvas: Canvas, lines: Mapping[str, _Style], y: int, *, shaded: bool) -> None:
    x = _LEFT
    for name, (colour, dashed, thick) in lines.items():
        canvas.rectangle(x, y + 6, x + 30, y + 6 + thick, colour, dashed=dashed)
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
