"""The differences of Avro fields as text and as JSON, per finding and summed over all findings.

Text from a record cannot control the terminal: characters that are not printable are shown as escapes.

In: `FindingDiff`s.  Out: lines, a JSON document.  Pure.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from spark_jobs.avro_fields import (
    ArrayNode,
    Comparison,
    Decoded,
    Default,
    Difference,
    Leaf,
    MapNode,
    Node,
    Undecoded,
)
from spark_jobs.avro_logical import meaning, name_of
from spark_jobs.finding_places import more_records
from spark_jobs.record_text import printable

SCHEMA_VERSION = 1

_ROOT = "(the value)"


class Status(Enum):
    """How far the records of a finding could be compared."""

    COMPARED = "compared"
    UNDECODABLE = "undecodable"
    """A value cannot be decoded as Avro."""
    ABSENT = "absent"
    """A record is no longer in its log, or its batch cannot be decoded."""


@dataclass(frozen=True, slots=True)
class FindingDiff:
    """The records of one finding."""

    finding: Mapping[str, Any]
    status: Status
    comparison: Comparison | None = None
    """None if there were not two records."""
    reasons: Sequence[str] = ()
    """Why there were not two records."""
    other_fields: Sequence[str] = ()
    """Parts of the record other than the value that differ: timestamp, key, headers."""
    changed_since: Sequence[str] = ()
    """Clusters in which the record has changed since the audit."""
    titles: tuple[str, str] = ("source", "target")


@dataclass(frozen=True, slots=True)
class Diff:
    """All findings that were chosen."""

    run_id: str
    diffs: Sequence[FindingDiff]
    left_out: int = 0
    """Findings above the limit."""
    one_side: int = 0
    """Findings that name one record only; they are not among *diffs*."""
    found: int = 0
    """Findings of the audit."""
    written: int = 0
    """Those of them in findings.jsonl, which is a sample of many."""

    @property
    def of_many_records(self) -> int:
        """How many of *diffs* have more records than the first; only that one is compared."""
        return sum(more_records(each.finding) is not None for each in self.diffs)


def plain(node: Node) -> Any:
    """Return *node* as JSON. Bytes are {"hex": ...}, and numbers that JSON lacks are texts."""
    match node:
        case Leaf(bytes() as value):
            return {"hex": value.hex()}
        case Leaf(float() as value) if not math.isfinite(value):
            return str(value)
        case Leaf(value):
            return value
        case ArrayNode(items):
            return [plain(each) for each in items]
        case MapNode(parts):
            return {name: plain(each) for name, each in parts.items()}
        case Default(inner):
            return plain(inner)
        case record:
            return {name: plain(each) for name, each in record.fields.items()}


def _side(node: Node | None) -> dict[str, Any]:
    """Return one side of a difference as JSON: a value, a default, or absent."""
    if node is None:
        return {"absent": True}
    return {"default" if isinstance(node, Default) else "value": plain(node)}


def fields_that_differ(diff: FindingDiff) -> list[str]:
    """Return the paths of the fields that differ, without those that are equal by default or stored alike."""
    return [
        each.path or _ROOT
        for each in _differences(diff)
        if not (each.equal_by_default or each.stored_alike)
    ]


def fields_read_differently(diff: FindingDiff) -> list[str]:
    """Return the paths of the fields that are stored alike, and have logical types that read them differently."""
    return [each.path or _ROOT for each in _differences(diff) if each.stored_alike]


def _differences(diff: FindingDiff) -> Sequence[Difference]:
    return () if diff.comparison is None else diff.comparison.differences


def totals(
    diffs: Sequence[FindingDiff],
    fields: Callable[[FindingDiff], list[str]] = fields_that_differ,
) -> dict[str, int]:
    """Return in how many findings each field is, the most frequent first. Items of arrays are counted together."""
    counted: Counter[str] = Counter()
    for diff in diffs:
        counted.update({_without_numbers(path) for path in fields(diff)})
    return dict(sorted(counted.items(), key=lambda each: (-each[1], each[0])))


def _without_numbers(path: str) -> str:
    parts = path.split("[")
    return "[".join(
        f"]{each.partition(']')[2]}" if number and each.partition("]")[0].isdigit() else each
        for number, each in enumerate(parts)
    )


def json_text(diff: Diff) -> str:
    """Return *diff* as one line of printable ASCII: text from a record cannot control the terminal."""
    return json.dumps(json_document(diff)).replace("\x7f", "\\u007f")


def json_document(diff: Diff) -> dict[str, Any]:
    """Return *diff* as one JSON object."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": diff.run_id,
        "findings_left_out": diff.left_out,
        "findings_of_one_side": diff.one_side,
        "findings_of_many_records": diff.of_many_records,
        "findings_found": diff.found,
        "findings_written": diff.written,
        "fields": totals(diff.diffs),
        "fields_read_differently": totals(diff.diffs, fields_read_differently),
        "findings": [_finding_json(each) for each in diff.diffs],
    }


def _finding_json(diff: FindingDiff) -> dict[str, Any]:
    known = [
        "seq",
        "class",
        "topic",
        "partition",
        "src_offset",
        "dst_offset",
        "records",
        "last_offset",
    ]
    found: dict[str, Any] = {
        **{name: diff.finding[name] for name in known},
        "status": diff.status.value,
        "reasons": list(diff.reasons),
        "changed_since_audit": list(diff.changed_since),
        "other_fields": list(diff.other_fields),
    }
    if diff.comparison is None:
        return found
    sides = {"source": diff.comparison.source, "target": diff.comparison.target}
    found["writers"] = {
        name: {"schema": each.writer}
        if isinstance(each, Decoded)
        else {"undecodable": each.problem}
        for name, each in sides.items()
    }
    found["same_bytes"] = diff.comparison.same_bytes
    found["differences"] = [
        {
            "field": each.path,
            "source": _side(each.source),
            "target": _side(each.target),
            "equal_by_default": each.equal_by_default,
            "stored_alike": each.stored_alike,
        }
        for each in diff.comparison.differences
    ]
    return found


def text(diff: Diff, *, max_chars: int, max_lines: int) -> str:
    """Return *diff* for a terminal: *max_chars* of each value, *max_lines* differences of each finding."""
    lines = [f"findings of run {diff.run_id}, field by field"]
    for each in diff.diffs:
        lines += ["", *_finding_lines(each, max_chars, max_lines)]
    lines.append("")
    statuses = Counter(each.status for each in diff.diffs)
    counted = ", ".join(f"{statuses[each]} {each.value}" for each in Status if statuses[each])
    lines.append(f"{len(diff.diffs)} findings: {counted or 'none'}")
    if diff.of_many_records:
        lines.append(
            f"{diff.of_many_records} of them have more than one record: only the first one was compared"
        )
    if diff.one_side:
        lines.append(
            f"{diff.one_side} more findings name one record only; `kaudit explain` prints them"
        )
    if diff.left_out:
        lines.append(f"{diff.left_out} more findings were left out: --limit")
    if diff.found > diff.written:
        lines.append(
            f"the audit found {diff.found:,} findings, and wrote {diff.written:,} of them: the others were not compared"
        )
    for path, count in totals(diff.diffs).items():
        lines.append(f"  {printable(path)}: differs in {count}")
    for path, count in totals(diff.diffs, fields_read_differently).items():
        lines.append(f"  {printable(path)}: stored alike, read differently in {count}")
    return "\n".join(lines)


def _finding_lines(diff: FindingDiff, max_chars: int, max_lines: int) -> list[str]:
    finding = diff.finding
    lines = [
        f"finding {finding['seq']}: {finding['class']}, {printable(finding['topic'])} "
        f"partition {finding['partition']}"
    ]
    lines += [f"  {each}" for each in diff.titles]
    if others := more_records(finding):
        lines.append(f"  {others}")
    lines += [f"  not compared: {printable(each)}" for each in diff.reasons]
    lines += [f"  CHANGED since the audit in {each}" for each in diff.changed_since]
    if diff.comparison is not None:
        lines += [f"  {each}" for each in _comparison_lines(diff.comparison, max_chars, max_lines)]
    if diff.other_fields:
        lines.append(f"  beside the value, these differ: {', '.join(diff.other_fields)}")
    return lines


def _comparison_lines(found: Comparison, max_chars: int, max_lines: int) -> list[str]:
    sides = (("source", found.source), ("target", found.target))
    undecoded = [(name, each) for name, each in sides if isinstance(each, Undecoded)]
    if undecoded:
        lines = [f"not decoded: {name}: {printable(each.problem)}" for name, each in undecoded]
        return [*lines, f"the values have {'the same' if found.same_bytes else 'different'} bytes"]
    lines = []
    writers = [each.writer for _, each in sides if isinstance(each, Decoded)]
    if writers[0] != writers[1]:
        lines.append(f"written with: {writers[0]} -> {writers[1]}")
    shown = found.differences[:max_lines]
    lines += [difference_line(each, max_chars) for each in shown]
    if len(shown) < len(found.differences):
        lines.append(f"... {len(found.differences) - len(shown)} more differences")
    if all(each.equal_by_default or each.stored_alike for each in found.differences):
        bytes_of = "the bytes are equal" if found.same_bytes else "the bytes of the values differ"
        what = "stored value" if any(each.stored_alike for each in found.differences) else "field"
        lines.append(f"no {what} differs; {bytes_of}")
    return lines


def difference_line(difference: Difference, max_chars: int) -> str:
    """Return one difference as `field: source -> target`."""
    left, right = _shown(difference.source), _shown(difference.target)
    path = printable(difference.path or _ROOT)
    if difference.stored_alike:
        left, right = _read(difference.source), _read(difference.target)
        return f"{path}: stored alike, read differently: {_cut(left, max_chars)} -> {_cut(right, max_chars)}"
    if difference.equal_by_default:
        return f"{path}: {_cut(left, max_chars)} = {_cut(right, max_chars)}"
    line = f"{path}: {_cut(left, max_chars)} -> {_cut(right, max_chars)}"
    at = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    at = min(len(left), len(right)) if at is None else at
    if at < max_chars:
        return line
    low, high = max(0, at - 8), at + 24
    return f"{line} (first difference at character {at:,}: {left[low:high]} -> {right[low:high]})"


def _shown(node: Node | None) -> str:
    if node is None:
        return "(not in the schema, or absent)"
    if isinstance(node, Default):
        return f"{_shown(node.node)} (default, not written)"
    if isinstance(node, Leaf):
        value = node.value
        shown = f"hex {value.hex()}" if isinstance(value, bytes) else _json(plain(node))
        for_people = meaning(value, node.logical)
        return f"{shown} ({for_people})" if for_people else shown
    return _json(plain(node))


def _read(node: Node | None) -> str:
    """Return what the logical type of a leaf makes of it."""
    assert isinstance(node, Leaf)
    for_people = meaning(node.value, node.logical)
    if for_people is not None:
        return for_people
    return f"{_shown(node)} ({printable(name_of(node.logical) or 'no logical type')})"


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))


def _cut(shown: str, most: int) -> str:
    return shown if len(shown) <= most else f"{shown[:most]}... {len(shown) - most:,} more"
