"""The first screen: at most 40 lines, verdict first, every number with its denominator, the next command last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_jobs.report.document import Document

_WORST_SHOWN = 8


def first_screen(
    document: Document, *, report: str, findings: Sequence[dict[str, Any]] = ()
) -> str:
    """Return the screen as plain text; *report* is the path of the page, *findings* the first ones."""
    totals = document["totals"]
    meta = document["meta"]
    found = totals["findings"]
    source, target = document["source"], document["target"]
    lines = [
        f"VERDICT  {document['verdict']:<12}  {source['name']} -> {target['name']}   "
        f"run {meta['run_id']}   cut {meta['started_at']}   exit {document['exit_code']}",
        f"verified {_percent(totals['verified'], totals['in_scope'])}  "
        f"({_n(totals['verified'])} of {_n(totals['in_scope'])} offsets)   "
        f"lag {_n(totals['lagging'])} rec   aged out {_n(totals['aged_out'])}",
        "   ".join(f"{name} {_n(count)}" for name, count in found.items()),
    ]
    lines += [f"unreadable  {reason}" for reason in totals["unreadable"][:4]]
    lines.append(f"proven equal up to:  {_proven(document)}")
    drift = document["drift"]
    lines.append(f"drift: configs {len(drift)}{_drift(drift)}")
    if any(found.values()):
        lines += ["", f"{'worst':<8}{'topic':<20}{'p':>4}  {'class':<10}{'n':>7}  first offset"]
        lines += _worst(document)
    if findings:
        lines += ["", "first findings"]
        lines += [_finding(each) for each in findings[:_WORST_SHOWN]]
    roots, read = document["roots"], document["read"]
    lines += [
        "",
        f"roots   source {roots['source']}   target {roots['target']}   self-test {meta['self_test']}",
        f"read    {_n(read['records'])} records, {_size(read['bytes'])} in {meta['total_seconds']:.1f} s   "
        f"windows {_n(read['windows'])}, drilled {_n(read['windows_drilled'])}",
        f"report  {report}",
    ]
    return "\n".join(lines)


def _worst(document: Document) -> list[str]:
    rows = [
        (count, topic["topic"], partition["partition"], name, partition["first_of_class"][name])
        for topic in document["topics"]
        for partition in topic["partitions"]
        for name, count in partition["findings"].items()
    ]
    rows.sort(key=lambda row: (-row[0], row[1:4]))
    lines = [
        f"{'':<8}{topic:<20}{partition:>4}  {name:<10}{_n(count):>7}  {_n(first)}"
        for count, topic, partition, name, first in rows[:_WORST_SHOWN]
    ]
    if len(rows) > _WORST_SHOWN:
        lines.append(f"{'':<8}and {len(rows) - _WORST_SHOWN} more rows in the report")
    return lines


def _finding(finding: dict[str, Any]) -> str:
    where = f"{finding['topic']} p{finding['partition']}"
    what = {
        "missing": f"source offset {finding['src_offset']} is not in the target",
        "extra": f"target offset {finding['dst_offset']} is not in the source",
        "duplicate": f"target offset {finding['dst_offset']} repeats {finding['first_dst_offset']}",
        "corrupt": f"offset {finding['dst_offset']} differs in {finding['field']}",
        "reordered": f"source offset {finding['src_offset']} is at target offset {finding['dst_offset']}",
    }[finding["class"]]
    return f"        #{finding['seq']:<4} {finding['class']:<10} {where}: {what}"


def _proven(document: Document) -> str:
    parts = []
    for topic in document["topics"]:
        bad = [p for p in topic["partitions"] if p["first_bad_offset"] is not None]
        if not bad:
            parts.append(f"{topic['topic']} 100 %")
            continue
        first = bad[0]
        more = f" (+{len(bad) - 1} partitions)" if len(bad) > 1 else ""
        parts.append(f"{topic['topic']} p{first['partition']} -> {_n(first['proven_up_to'])}{more}")
    shown = parts[:6]
    return "   ".join(shown) + (f"   and {len(parts) - 6} more" if len(parts) > 6 else "")


def _drift(drift: Sequence[dict[str, Any]]) -> str:
    if not drift:
        return ""
    first = drift[0]
    return (
        f" ({first['topic']}: {first['config']} {first['source']} / {first['target']}"
        f"{', ...' if len(drift) > 1 else ''})"
    )


def _n(number: int | None) -> str:
    return "-" if number is None else f"{number:,}".replace(",", " ")


def _percent(part: int, whole: int) -> str:
    if not whole:
        return "100 %"
    if part < whole:
        # Never rounded up to "100 %" while something was not verified.
        return f"{min(99.99, int(10_000 * part / whole) / 100):.2f} %"
    return "100 %"


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.1f} {unit}" if unit != "B" else f"{size} B"
        size /= 1000
    raise AssertionError("unreachable")
