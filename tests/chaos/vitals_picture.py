"""The resources of a soak as one SVG: a panel for each kind of figure, a line for each process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Series = Sequence[tuple[float, float]]

WIDTH, PANEL, LEFT, TOP, RIGHT, GAP = 900, 130, 80, 30, 170, 34
COLOURS = ("#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6", "#666666")
UNITS = {"rss": (float(1 << 20), "rss, MiB")}


def draw(series: Mapping[tuple[str, str], Series], title: str) -> str:
    """Return the SVG of *series*, by (kind, of what)."""
    kinds = sorted({kind for kind, _ in series})
    height = TOP + len(kinds) * (PANEL + GAP) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    last = max((points[-1][0] for points in series.values() if points), default=1.0)
    for number, kind in enumerate(kinds):
        top = TOP + GAP / 2 + number * (PANEL + GAP)
        of_kind = {of: points for (name, of), points in sorted(series.items()) if name == kind}
        parts += _panel(kind, of_kind, top, max(last, 1.0))
    return "\n".join([*parts, "</svg>", ""])


def _panel(kind: str, of_kind: Mapping[str, Series], top: float, last: float) -> list[str]:
    unit, label = UNITS.get(kind, (1.0, kind))
    values = [value / unit for points in of_kind.values() for _, value in points]
    low, high = min(values), max(values)
    margin = max((high - low) * 0.1, high * 0.02, 1.0)
    low, high = max(0.0, low - margin), high + margin
    wide = WIDTH - LEFT - RIGHT

    def place(at: float, value: float) -> str:
        x = LEFT + wide * at / last
        return f"{x:.1f},{top + PANEL * (high - value / unit) / (high - low):.1f}"

    middle = LEFT + wide / 2
    parts = [
        f'<text x="{LEFT}" y="{top - 5:.0f}">{escape(label)}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{wide}" height="{PANEL}" fill="#fafafa" stroke="#ccc"/>',
        f'<line x1="{middle}" y1="{top}" x2="{middle}" y2="{top + PANEL}" stroke="#ddd"/>',
        f'<text x="{LEFT - 6}" y="{top + 9}" text-anchor="end">{high:.4g}</text>',
        f'<text x="{LEFT - 6}" y="{top + PANEL}" text-anchor="end">{low:.4g}</text>',
        f'<text x="{LEFT + wide}" y="{top + PANEL + 12}" text-anchor="end">{last / 60:.1f} min</text>',
    ]
    for number, (of, points) in enumerate(of_kind.items()):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(place(at, value) for at, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
        y = top + 11 + 14 * number
        if y <= top + PANEL:
            parts.append(
                f'<text x="{WIDTH - RIGHT + 8}" y="{y}" fill="{colour}">{escape(of)}</text>'
            )
    return parts
