"""The report's pictures as HTML with inline SVG: no script, no network, the same bytes for the same run.

Each shows one thing: where is it bad (`heatmap`), when did it begin (`timeline`), is it still growing (`cumulative`).
`coverage` shows how far each partition is proven. Colour never stands alone: every mark has a title.

Text is HTML and keeps its size; only areas and lines are SVG, stretched to the width of the page. Colours are names of
CSS (`palette`), one for light and one for dark pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from spark_jobs import ranges
from spark_jobs.report.document import Document
from spark_jobs.report.times import moment

PALETTE = {
    # name: (on a light page, on a dark one)
    "equal": ("#cfe8d5", "#2c5a3c"),
    "unread": ("#ffffff", "#12161b"),
    "moved": ("#f2c14e", "#d9a520"),
    "content": ("#e4572e", "#f0754f"),
    "count": ("#9b2335", "#e0566b"),
    "missing": ("#9b2335", "#e0566b"),
    "extra": ("#5b3a8c", "#ab8ae0"),
    "duplicate": ("#3a6ea5", "#6fa8e0"),
    "corrupt": ("#e4572e", "#f0754f"),
    "reordered": ("#c9930a", "#e6b93f"),
    "truncated": ("#7a1526", "#c9455c"),
    "gap": ("#5c0f1c", "#a83a4c"),
    "shifted": ("#8a6d1a", "#c4a545"),
    "misrouted": ("#2f8f83", "#4fc0b2"),
    "visibility": ("#a3477f", "#d98bbb"),
    "undecodable": ("#222222", "#d8d8d8"),
    "proven": ("#5a9e6f", "#4c9263"),
    "unproven": ("#e4a08f", "#a85a47"),
    "lagging": ("#f2e2b3", "#7d6f3d"),
    "aged": ("#bbbbbb", "#5a6068"),
    "source": ("#24476b", "#7fb2e5"),
    "target": ("#c9930a", "#e6b93f"),
    "difference": ("#9b2335", "#e0566b"),
}
"""Also the names of the marks' classes in CSS."""
_WORDS = {
    "equal": "equal",
    "unread": "not read, at least in part",
    "moved": "same records at other offsets, or aborted in one log only",
    "content": "other content",
    "count": "other number of records",
}
_UNPROVEN = "not proven: behind the first difference or unread offset"
_MAX_COLUMNS = 240
_TICKS = 5
_CELL = 10
_BAR = 16
_WIDTH = 1000
_HEIGHT = 120

Links = Mapping[tuple[str, int, int], str]
"""What a window of a partition links to: (topic, partition, number of the window) -> fragment."""


def palette() -> str:
    """Return the CSS of all colours."""
    light, dark = (
        "".join(f"--{name}:{each[at]};" for name, each in PALETTE.items()) for at in (0, 1)
    )
    marks = "".join(
        f".{name}{{fill:var(--{name});background:var(--{name});}}.line.{name}{{fill:none;stroke:var(--{name});}}\n"
        for name in PALETTE
    )
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{marks}"


def anchor(kind: str, topic: str, partition: int) -> str:
    """Return the id of what the page has of a partition; topics have letters, digits, dots, - and _ only."""
    return f"{kind}-{re.sub(r'[^A-Za-z0-9._-]', '_', topic)}-{partition}"


def heatmap(document: Document, links: Links | None = None) -> str:
    """Draw partitions down, offset windows across; a cell is as bad as the worst window it stands for.

    A cell that differs links to the first finding of its windows in *links*, or else to the row of its partition.
    """
    size = document["windows"]["offsets"]
    rows = _partitions(document)
    begin = min((p["low"] // size for _, p in rows), default=0)
    last = max(((max(p["high"], p["target_end"], 1) - 1) // size for _, p in rows), default=begin)
    per_cell = (last - begin) // _MAX_COLUMNS + 1
    columns = (last - begin) // per_cell + 1
    worst = _worst(document["windows"]["states"], begin, per_cell)
    to: dict[tuple[str, int, int], str] = {}
    for (topic, number, window), fragment in sorted((links or {}).items()):
        to.setdefault((topic, number, (window - begin) // per_cell), fragment)
    drawn = []
    for topic, partition in rows:
        number = partition["partition"]
        label = f"{topic} p{number}"
        row = anchor("where", topic, number)
        if partition["high"] == partition["low"] and partition["target_end"] <= partition["low"]:
            drawn.append(_row(label, _nothing(partition), row))
            continue
        first = (partition["low"] // size - begin) // per_cell
        end = ((max(partition["high"], partition["target_end"]) - 1) // size - begin) // per_cell
        marks = []
        for column in range(first, end + 1):
            low = (begin + column * per_cell) * size
            state, title = _cell(
                worst.get((topic, number, column)),
                ranges.intersect(partition["unread_ranges"], low, low + per_cell * size),
                f"offsets {low} to {low + per_cell * size - 1}",
            )
            mark = (
                f'<rect class="{state}" x="{column * _CELL}" y="0" width="{_CELL - 1}" height="{_BAR}">'
                f"<title>{escape(label)}: {title}</title></rect>"
            )
            if state not in ("equal", "unread"):
                there = to.get((topic, number, column), anchor("partition", topic, number))
                mark = f'<a href="#{there}">{mark}</a>'
            marks.append(mark)
        drawn.append(_row(label, _svg(columns * _CELL, _BAR, marks, "bar"), row))
    axis = _axis([f"offset {begin * size:,}", f"{(begin + columns * per_cell) * size:,}"])
    return _figure(drawn, axis, list(_WORDS.items()))


def _nothing(partition: Mapping[str, Any]) -> str:
    """Return what stands in place of the windows of a partition without any."""
    word = "not read" if partition["unreadable"] else "nothing to compare"
    return f'<span class="faint">{word}</span>'


def _partitions(document: Document) -> list[tuple[str, Mapping[str, Any]]]:
    return [
        (topic["topic"], partition)
        for topic in document["topics"]
        for partition in topic["partitions"]
    ]


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


def timeline(document: Document, topic: str) -> str:
    """Draw records per time bucket of one topic, source against target, the difference shaded."""
    line = document["timeline"]
    found = [line[side].get(topic, []) for side in ("source", "target")]
    none = [0] * max(1, *map(len, found))  # of a topic that one cluster does not have
    source, target = (each or none for each in found)
    top = max(*source, *target, 1)

    def points(series: Sequence[int]) -> list[tuple[float, float]]:
        step = _WIDTH / len(series)
        steps = []
        for index, count in enumerate(series):
            y = _HEIGHT * (1 - count / top)
            steps += [(index * step, y), ((index + 1) * step, y)]
        return steps

    def path(series: Sequence[int]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in points(series))

    gap = path(source) + " " + " ".join(f"{x:.1f},{y:.1f}" for x, y in reversed(points(target)))
    lacking = sum(max(0, here - there) for here, there in zip(source, target, strict=True))
    added = sum(max(0, there - here) for here, there in zip(source, target, strict=True))
    title = f"difference: {lacking} records fewer, {added} more in the target"
    marks = [
        f'<polygon class="difference" points="{gap}" opacity="0.55"><title>{title}</title></polygon>',
        f'<polyline class="line source" points="{path(source)}"/>',
        f'<polyline class="line target dashed" points="{path(target)}"/>',
    ]
    # Few records of many are no visible area: every bucket with a difference has a mark at its foot, too.
    marks += [
        f'<rect class="difference" x="{_WIDTH * n / len(source):.1f}" y="{_HEIGHT - 8}" '
        f'width="{_WIDTH / len(source):.1f}" height="8">'
        f"<title>{here} records in the source, {there} in the target</title></rect>"
        for n, (here, there) in enumerate(zip(source, target, strict=True))
        if here != there
    ]
    legend = [("source", "source"), ("target", "target (dashed)"), ("difference", title)]
    return _plot(
        marks, f"up to {top:,} records in {_span(line['bucket_ms'])}", line, len(source), legend
    )


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
    buckets = len(next(iter(series.values())))
    begin = first_and_last(document)
    assert begin is not None
    x = _WIDTH * (begin[0] - line["first_ms"]) / (line["bucket_ms"] * buckets)
    marks = [
        f'<line class="begin" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{_HEIGHT}">'
        "<title>the first finding</title></line>"
    ]
    for name, total in totals.items():
        step = _WIDTH / len(total)
        path = " ".join(
            f"{(index + 1) * step:.1f},{_HEIGHT * (1 - count / top):.1f}"
            for index, count in enumerate(total)
        )
        marks.append(
            f'<polyline class="line {name}" points="0,{_HEIGHT} {path}">'
            f"<title>{name}: {total[-1]}</title></polyline>"
        )
    legend = [(name, f"{name} {total[-1]:,}") for name, total in totals.items()]
    drawn = _plot(marks, f"up to {top:,} of a class", line, buckets, legend)
    timed = sum(map(sum, series.values()))
    found = sum(document["totals"]["findings"].values())
    if timed < found:
        drawn += (
            f'<p class="faint">{found - timed:,} of {found:,} have no timestamp and are '
            f"not in the picture</p>"
        )
    return drawn


def first_and_last(document: Document) -> tuple[int, int] | None:
    """Return where the first and the last bucket with a finding begin, in ms; None without one."""
    line = document["timeline"]
    with_one = [
        n for counts in line["findings"].values() for n, count in enumerate(counts) if count
    ]
    if not with_one:
        return None
    first, last = (line["first_ms"] + n * line["bucket_ms"] for n in (min(with_one), max(with_one)))
    return first, last


def coverage(document: Document) -> str:
    """Draw per partition the offsets that aged out, are equal or explained, follow the first difference, and lag."""
    rows = _partitions(document)
    begin = min((p["start"] for _, p in rows), default=0)
    renumbered = document["limits"]["renumbered"]
    ends = (max(p["source_end"], 0 if renumbered else p["target_end"]) for _, p in rows)
    longest = max((end - begin for end in ends), default=1) or 1
    drawn = []
    for topic, p in rows:
        label = f"{topic} p{p['partition']}"
        top = _end_of_compared(p) if renumbered else max(p["high"], p["target_end"])
        marks = []
        for start, end, name, word in (
            (p["start"], p["low"], "aged", "aged out"),
            (
                p["low"],
                p["proven_up_to"],
                "proven",
                "equal or explained" if p["explained"] else "equal",
            ),
            (p["proven_up_to"], top, "unproven", _UNPROVEN),
            (top, p["source_end"], "lagging", "lagging"),
        ):
            if end > start:
                marks.append(
                    f'<rect class="{name}" x="{_WIDTH * (start - begin) / longest:.1f}" y="0" '
                    f'width="{max(1.5, _WIDTH * (end - start) / longest):.1f}" height="{_BAR}">'
                    f"<title>{escape(label)}: {word}, offsets {start} to {end - 1}</title></rect>"
                )
        drawn.append(_row(label, _svg(_WIDTH, _BAR, marks, "bar") if marks else _nothing(p)))
    legend = [("proven", "equal or explained"), ("unproven", _UNPROVEN)]
    legend += [("lagging", "lagging"), ("aged", "aged out")]
    return _figure(drawn, _axis([f"offset {begin:,}", f"{begin + longest:,}"]), legend)


def _end_of_compared(partition: Mapping[str, Any]) -> int:
    """Return the end of the source's offsets that do not lag, of a renumbered target."""
    others = partition["findings"] or partition["unread_ranges"] or partition["explained"]
    end: int = partition["high" if others or not partition["lagging"] else "proven_up_to"]
    return end


def _running(counts: Sequence[int]) -> list[int]:
    total, running = 0, []
    for count in counts:
        total += count
        running.append(total)
    return running


def _span(ms: int) -> str:
    """Return a duration for people."""
    for name, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= length:
            return f"{ms / length:.3g} {name}"
    return f"{ms} ms"


def _plot(
    marks: Sequence[str],
    top: str,
    line: Mapping[str, Any],
    buckets: int,
    legend: Sequence[tuple[str, str]],
) -> str:
    """Return a picture over record time; the first and the last bucket also have all earlier and later records."""
    width = line["bucket_ms"]
    moments = [
        moment(line["first_ms"] + round(width * buckets * tick / (_TICKS - 1)), width)
        for tick in range(_TICKS)
    ]
    plot = f'<p class="top faint">{top}</p>{_svg(_WIDTH, _HEIGHT, marks, "plot")}'
    return f'<figure class="over-time">{plot}{_axis(moments)}{_legend(legend)}</figure>'


def _row(label: str, drawn: str, row_id: str = "") -> str:
    named = f' id="{row_id}"' if row_id else ""
    return f'<div class="row"{named}><span class="label">{escape(label)}</span>{drawn}</div>\n'


def _figure(rows: Sequence[str], axis: str, legend: Sequence[tuple[str, str]]) -> str:
    below = f'<div class="row"><span class="label"></span>{axis}</div>'
    return f"<figure>\n{''.join(rows)}{below}{_legend(legend)}</figure>"


def _axis(labels: Sequence[str]) -> str:
    return f'<div class="axis">{"".join(f"<span>{each}</span>" for each in labels)}</div>'


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    items = "".join(
        f'<li><i class="{name}"></i>{escape(word)}</li>' for name, word in dict(entries).items()
    )
    return f'<ul class="legend">{items}</ul>'


def _svg(width: float, height: float, marks: Sequence[str], kind: str) -> str:
    # A picture with links is a group: the parts of an image are hidden from a screen reader.
    role = "group" if any("<a " in mark for mark in marks) else "img"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:.0f} {height:.0f}" preserveAspectRatio="none" role="{role}" '
        'xmlns="http://www.w3.org/2000/svg">' + "".join(marks) + "</svg>"
    )
