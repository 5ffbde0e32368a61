"""A picture of sums over record time as SVG: step lines, and the gap between two of them shaded.

No script, no font file, the same bytes for the same input. Lines do not differ by colour alone: the second is dashed,
and each has its name in the legend. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape

MOST_STEPS = 400
"""Steps across the picture. With more buckets, neighbours are added up."""

COLOURS = ("#24476b", "#c9930a")
_GAP = "#9b2335"
_WIDTH, _HEIGHT, _LEFT, _TOP, _PITCH = 860.0, 120.0, 150.0, 26.0, 190.0


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: a line for each of *lines* (name -> start of the bucket in ms -> sum)."""

    title: str
    bucket_ms: int
    lines: Mapping[str, Mapping[int, int]]
    shaded: bool = False
    """Whether the gap between the two lines is shaded."""


def steps(panel: Panel) -> tuple[int, int, dict[str, list[int]]]:
    """Return the start in ms, the width of a step in ms, and the sums of each line per step."""
    starts = [start for line in panel.lines.values() for start in line]
    if not starts:
        return 0, panel.bucket_ms, {name: [0] for name in panel.lines}
    low, high = min(starts), max(starts)
    width = panel.bucket_ms * -(-((high - low) // panel.bucket_ms + 1) // MOST_STEPS)
    count = (high - low) // width + 1
    sums = {name: [0] * count for name in panel.lines}
    for name, line in panel.lines.items():
        for start, size in line.items():
            sums[name][(start - low) // width] += size
    return low, width, sums


def chart(panels: Sequence[Panel]) -> str:
    """Return all *panels*, one below the other, as an SVG document."""
    height = _PITCH * max(1, len(panels))
    marks = [mark for n, panel in enumerate(panels) for mark in _marks(panel, n * _PITCH)]
    return (
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + 20:.0f} {height:.0f}" role="img" '
        'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(marks) + "\n</svg>\n"
    )


def _marks(panel: Panel, top: float) -> list[str]:
    low, width, sums = steps(panel)
    highest = max(1, *(max(line) for line in sums.values()))
    base = top + _TOP + _HEIGHT
    count = len(next(iter(sums.values())))

    def points(line: Sequence[int]) -> list[str]:
        found = []
        for n, size in enumerate(line):
            y = base - _HEIGHT * size / highest
            found += [f"{_LEFT + _WIDTH * m / count:.1f},{y:.1f}" for m in (n, n + 1)]
        return found

    marks = [
        f'<text x="{_LEFT}" y="{top + 16:.0f}" font-weight="bold">{escape(panel.title)}</text>'
    ]
    if panel.shaded:
        first, second = sums.values()
        outline = " ".join([*points(first), *reversed(points(second))])
        gap = sum(first) - sum(second)
        marks.append(
            f'<polygon points="{outline}" fill="{_GAP}" opacity="0.5">'
            f"<title>difference: {gap:,}</title></polygon>"
        )
    for n, (name, line) in enumerate(sums.items()):
        dash = ' stroke-dasharray="4 3"' if n else ""
        marks.append(
            f'<polyline points="{" ".join(points(line))}" fill="none" stroke="{COLOURS[n]}" '
            f'stroke-width="1.6"{dash}><title>{escape(name)}</title></polyline>'
        )
    names = [f"{name}{' (dashed)' if n else ''}" for n, name in enumerate(sums)]
    colours = list(COLOURS[: len(names)])
    if panel.shaded:
        names, colours = [*names, "difference (shaded)"], [*colours, _GAP]
    marks += [
        f'<text x="{_LEFT - 8}" y="{base - _HEIGHT + 8:.0f}" text-anchor="end">{highest:,}</text>',
        f'<text x="{_LEFT - 8}" y="{base:.0f}" text-anchor="end">0</text>',
        f'<text x="{_LEFT}" y="{base + 18:.0f}">{_time(low)}</text>',
        f'<text x="{_LEFT + _WIDTH}" y="{base + 18:.0f}" text-anchor="end">'
        f"{_time(low + width * count)}</text>",
        *(
            f'<text x="{_LEFT + 220 + 160 * n}" y="{base + 18:.0f}" fill="{colour}">{escape(name)}</text>'
            for n, (name, colour) in enumerate(zip(names, colours, strict=True))
        ),
    ]
    return marks


def _time(ms: int) -> str:
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{ms} ms"
