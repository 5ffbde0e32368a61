"""The report's pictures as inline SVG: no script, no network, the same bytes for the same run.

Each answers one question: where is it bad (`heatmap`), when did it begin (`timeline`), is it still growing
(`cumulative`), how far behind is each partition (`coverage`). Colour never stands alone: every mark has a title
in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from spark_jobs import ranges
from spark_jobs.report.document import Document
from spark_jobs.report.times import minute

_COLOURS = {
    "equal": "#cfe8d5",
    "unread": "#ffffff",
    "moved": "#f2c14e",
    "content": "#e4572e",
    "count": "#9b2335",
    "missing": "#9b2335",
    "extra": "#5b3a8c",
    "duplicate": "#3a6ea5",
    "corrupt": "#e4572e",
    "reordered": "#c9930a",
    "truncated": "#7a1526",
    "gap": "#5c0f1c",
    "shifted": "#8a6d1a",
    "misrouted": "#2f8f83",
    "undecodable": "#222222",
}
_WORDS = {
    "equal": "equal",
    "unread": "not read, at least in part",
    "moved": "same records at other offsets",
    "content": "other content",
    "count": "other number of records",
}
_BORDER = "#9aa5b1"
"""Around white areas."""
_MAX_COLUMNS = 240
_TICKS = 5


def heatmap(document: Document) -> str:
    """Draw partitions down, offset windows across; a cell is as bad as the worst window it stands for."""
    size = document["windows"]["offsets"]
    rows = [
        (topic["topic"], partition)
        for topic in document["topics"]
        for partition in topic["partitions"]
    ]
    begin = min((p["low"] // size for _, p in rows), default=0)
    last = max(((max(p["high"], p["target_end"], 1) - 1) // size for _, p in rows), default=begin)
    per_cell = (last - begin) // _MAX_COLUMNS + 1
    columns = (last - begin) // per_cell + 1
    worst = _worst(document["windows"]["states"], begin, per_cell)
    cell_width = min(26.0, 860 / columns)
    cell_height, left, top = 16, 170, 8
    marks = []
    for row, (topic, partition) in enumerate(rows):
        y = top + row * (cell_height + 2)
        label = escape(f"{topic} p{partition['partition']}")
        marks.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{label}</text>')
        if partition["high"] == partition["low"] and partition["target_end"] <= partition["low"]:
            marks.append(f'<text x="{left}" y="{y + 12}" class="faint">nothing to compare</text>')
            continue
        first = (partition["low"] // size - begin) // per_cell
        end = ((max(partition["high"], partition["target_end"]) - 1) // size - begin) // per_cell
        for column in range(first, end + 1):
            low = (begin + column * per_cell) * size
            state, title = _cell(
                worst.get((topic, partition["partition"], column)),
                ranges.intersect(partition["unread_ranges"], low, low + per_cell * size),
                f"offsets {low} to {low + per_cell * size - 1}",
            )
            marks.append(
                f'<rect x="{left + column * cell_width:.1f}" y="{y}" width="{cell_width - 1:.1f}" '
                f'height="{cell_height}" fill="{_COLOURS[state]}"{_border(state)}>'
                f"<title>{label}: {title}</title></rect>"
            )
    legend_y = top + len(rows) * (cell_height + 2) + 16
    marks.append(_legend(left, legend_y, [(_COLOURS[name], word) for name, word in _WORDS.items()]))
    return _svg(left + 870, legend_y + 10, marks)


_SEVERITY = ("equal", "unread", "moved", "content", "count")


class _Worst(NamedTuple):
    """The worst window of a cell, and its records."""

    state: str
    source: int
    target: int


def _worst(
    states: Iterable[tuple[str, int, int, str, int, int]], begin: int, per_cell: int
) -> dict[tuple[str, int, int], _Worst]:
    """Return the first of the worst windows by topic, partition and column: there may be more windows than memory."""
    found: dict[tuple[str, int, int], _Worst] = {}
    for topic, partition, window, state, source, target in sorted(states):
        place = topic, partition, (window - begin) // per_cell
        each = _Worst(state, source, target)
        before = found.get(place)
        if before is None or _SEVERITY.index(each.state) > _SEVERITY.index(before.state):
            found[place] = each
    return found


def _cell(window: _Worst | None, unread: ranges.Ranges, span: str) -> tuple[str, str]:
    """Return the state of a cell and its title; *window* is its worst one, None if all are equal."""
    if window is None or _SEVERITY.index(window.state) <= _SEVERITY.index(
        "unread" if unread else "equal"
    ):
        state = "unread" if unread else "equal"
        return state, f"{span}: {_WORDS[state]}"
    title = f"{_WORDS[window.state]}, {window.source} records in the source, {window.target} in the target"
    title += f"; {ranges.total(unread)} offsets were not read" if unread else ""
    return window.state, f"{span}: {title}"


def _border(state: str) -> str:
    return f' stroke="{_BORDER}"' if state == "unread" else ""


def timeline(document: Document, topic: str) -> str:
    """Draw records per time bucket of one topic, source against target, the difference shaded."""
    line = document["timeline"]
    found = [line[side].get(topic, []) for side in ("source", "target")]
    none = [0] * max(1, *map(len, found))  # of a topic that one cluster does not have
    source, target = (each or none for each in found)
    top = max(*source, *target, 1)
    width, height, left = 860.0, 120.0, 170.0

    def points(series: Sequence[int]) -> list[tuple[float, float]]:
        step = width / len(series)
        steps = []
        for index, count in enumerate(series):
            y = 10 + height * (1 - count / top)
            steps += [(left + index * step, y), (left + (index + 1) * step, y)]
        return steps

    def path(series: Sequence[int]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in points(series))

    gap = path(source) + " " + " ".join(f"{x:.1f},{y:.1f}" for x, y in reversed(points(target)))
    lacking = sum(max(0, here - there) for here, there in zip(source, target, strict=True))
    added = sum(max(0, there - here) for here, there in zip(source, target, strict=True))
    marks = [
        f'<polygon points="{gap}" fill="#9b2335" opacity="0.55">'
        f"<title>difference: {lacking} records fewer, {added} more in the target</title></polygon>",
        f'<polyline points="{path(source)}" fill="none" stroke="#24476b" stroke-width="1.6"/>',
        f'<polyline points="{path(target)}" fill="none" stroke="#c9930a" stroke-width="1.6" stroke-dasharray="4 3"/>',
        f'<text x="{left - 8}" y="18" text-anchor="end">{top:,}</text>',
        f'<text x="{left - 8}" y="{height + 10:.0f}" text-anchor="end">0</text>',
        *_time_axis(line, len(source), left, width, height),
        _legend(
            left,
            height + 46,
            [("#24476b", "source"), ("#c9930a", "target (dashed)"), ("#9b2335", "difference")],
        ),
    ]
    return _svg(left + width + 10, height + 56, marks)


def cumulative(document: Document) -> str:
    """Draw findings by class, summed along record time; empty where no finding has a timestamp.

    A run of records is drawn at the timestamp of its first one.
    """
    line = document["timeline"]
    series = line["findings"]
    if not series:
        return ""
    totals = {name: _running(counts) for name, counts in series.items()}
    top = max(total[-1] for total in totals.values())
    width, height, left = 860.0, 120.0, 170.0
    marks = [f'<text x="{left - 8}" y="18" text-anchor="end">{top:,}</text>']
    for name, total in totals.items():
        step = width / len(total)
        path = " ".join(
            f"{left + (index + 1) * step:.1f},{10 + height * (1 - count / top):.1f}"
            for index, count in enumerate(total)
        )
        marks.append(
            f'<polyline points="{left:.1f},{10 + height:.1f} {path}" fill="none" stroke="{_COLOURS[name]}" '
            f'stroke-width="2"><title>{name}: {total[-1]}</title></polyline>'
        )
    marks += _time_axis(line, len(next(iter(series.values()))), left, width, height)
    marks.append(_legend(left, height + 46, [(_COLOURS[name], name) for name in totals]))
    timed = sum(map(sum, series.values()))
    found = sum(document["totals"]["findings"].values())
    if timed < found:
        marks.append(
            f'<text x="{left}" y="{height + 64:.0f}">{found - timed:,} of {found:,} have no timestamp and are '
            f"not in the picture</text>"
        )
    return _svg(left + width + 10, height + 74, marks)


def _time_axis(
    line: Mapping[str, Any], buckets: int, left: float, width: float, height: float
) -> list[str]:
    """Return the marks of a time axis: the first and the last bucket also have all earlier and later records."""
    marks = []
    for tick in range(_TICKS):
        share = tick / (_TICKS - 1)
        x = left + width * share
        anchor = ("start", "middle", "end")[(tick > 0) + (tick == _TICKS - 1)]
        moment = line["first_ms"] + round(line["bucket_ms"] * buckets * share)
        marks.append(
            f'<line x1="{x:.1f}" y1="{height + 10:.0f}" x2="{x:.1f}" y2="{height + 15:.0f}" stroke="{_BORDER}"/>'
            f'<text x="{x:.1f}" y="{height + 28:.0f}" text-anchor="{anchor}">{minute(moment)}</text>'
        )
    return marks


def coverage(document: Document) -> str:
    """Draw per partition the offsets that aged out, are proven equal, follow the first difference, and lag."""
    rows = [
        (topic["topic"], partition)
        for topic in document["topics"]
        for partition in topic["partitions"]
    ]
    width, left, bar = 860.0, 170.0, 12
    begin = min((p["start"] for _, p in rows), default=0)
    longest = max((max(p["source_end"], p["target_end"]) - begin for _, p in rows), default=1) or 1
    marks = []
    for row, (topic, p) in enumerate(rows):
        y = 6 + row * (bar + 6)
        label = escape(f"{topic} p{p['partition']}")
        marks.append(f'<text x="{left - 8}" y="{y + 10}" text-anchor="end">{label}</text>')
        top = max(p["high"], p["target_end"])
        for start, end, colour, word in (
            (p["start"], p["low"], "#bbbbbb", "aged out"),
            (p["low"], p["proven_up_to"], "#5a9e6f", "proven equal"),
            (
                p["proven_up_to"],
                top,
                "#e4a08f",
                "not proven: behind the first difference or unread offset",
            ),
            (top, p["source_end"], "#f2e2b3", "lagging"),
        ):
            if end > start:
                marks.append(
                    f'<rect x="{left + width * (start - begin) / longest:.1f}" y="{y}" '
                    f'width="{max(0.5, width * (end - start) / longest):.1f}" height="{bar}" fill="{colour}">'
                    f"<title>{label}: {word}, offsets {start} to {end - 1}</title></rect>"
                )
    y = 6 + len(rows) * (bar + 6) + 14
    marks.append(
        _legend(
            left,
            y,
            [
                ("#5a9e6f", "proven equal"),
                ("#e4a08f", "not proven: behind the first difference or unread offset"),
                ("#f2e2b3", "lagging"),
                ("#bbbbbb", "aged out"),
            ],
        )
    )
    return _svg(left + width + 10, y + 10, marks)


def _running(counts: Sequence[int]) -> list[int]:
    total, running = 0, []
    for count in counts:
        total += count
        running.append(total)
    return running


def _legend(x: float, y: float, entries: Sequence[tuple[str, str]]) -> str:
    parts = []
    for colour, word in entries:
        border = f' stroke="{_BORDER}"' if colour == _COLOURS["unread"] else ""
        parts.append(
            f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10" fill="{colour}"{border}/>'
        )
        parts.append(f'<text x="{x + 14:.0f}" y="{y:.0f}">{escape(word)}</text>')
        x += 30 + 6.6 * len(word)
    return "".join(parts)


def _svg(width: float, height: float, marks: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">'
        + "".join(marks)
        + "</svg>"
    )
