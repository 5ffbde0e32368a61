"""The differences of Avro fields as text and as JSON, per finding and summed over all findings.

Text from a record cannot control the terminal: characters that are not printable are shown as escapes.

In: `FindingDiff`s.  Out: lines, a JSON document.  Pure.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
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
    logical_type,
)
from spark_jobs.record_text import printable

SCHEMA_VERSION = 1

_ROOT = "(the value)"
_MOST_SCALE = 100
"""Digits behind the point of a decimal that are written out."""
_UNITS = {"millis": 1000, "micros": 1_000_000, "nanos": 1_000_000_000}


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
    """Return the paths of the fields that differ, without those that are equal by default."""
    if diff.comparison is None:
        return []
    found = [each for each in diff.comparison.differences if not each.equal_by_default]
    return [each.path or _ROOT for each in found]


def totals(diffs: Sequence[FindingDiff]) -> dict[str, int]:
    """Return how many findings each field differs in, the most frequent first. Items of arrays are counted together."""
    counted: Counter[str] = Counter()
    for diff in diffs:
        counted.update({_without_numbers(path) for path in fields_that_differ(diff)})
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
        "fields": totals(diff.diffs),
        "findings": [_finding_json(each) for each in diff.diffs],
    }


def _finding_json(diff: FindingDiff) -> dict[str, Any]:
    known = ("seq", "class", "topic", "partition", "src_offset", "dst_offset")
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
    if diff.one_side:
        lines.append(
            f"{diff.one_side} more findings name one record only; `kaudit explain` prints them"
        )
    if diff.left_out:
        lines.append(f"{diff.left_out} more findings were left out: --limit")
    for path, count in totals(diff.diffs).items():
        lines.append(f"  {printable(path)}: differs in {count}")
    return "\n".join(lines)


def _finding_lines(diff: FindingDiff, max_chars: int, max_lines: int) -> list[str]:
    finding = diff.finding
    lines = [
        f"finding {finding['seq']}: {finding['class']}, {printable(finding['topic'])} "
        f"partition {finding['partition']}"
    ]
    lines += [f"  {each}" for each in diff.titles]
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
    if not any(not each.equal_by_default for each in found.differences):
        bytes_of = "the bytes are equal" if found.same_bytes else "the bytes of the values differ"
        lines.append(f"no field differs; {bytes_of}")
    return lines


def difference_line(difference: Difference, max_chars: int) -> str:
    """Return one difference as `field: source -> target`."""
    left, right = _shown(difference.source), _shown(difference.target)
    path = printable(difference.path or _ROOT)
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
        meaning = _meaning(node)
        return f"{shown} ({meaning})" if meaning else shown
    return _json(plain(node))


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))


def _cut(shown: str, most: int) -> str:
    return shown if len(shown) <= most else f"{shown[:most]}... {len(shown) - most:,} more"


def _meaning(leaf: Leaf) -> str | None:
    """Return a value of a logical type for people; None if it has none."""
    name, value = logical_type(leaf), leaf.value
    try:
        if name == "decimal" and isinstance(value, bytes) and leaf.logical is not None:
            unscaled = Decimal(int.from_bytes(value, "big", signed=True)).as_tuple()
            scale = int(leaf.logical.get("scale", 0))
            number = Decimal(
                (unscaled.sign, unscaled.digits, -scale)
            )  # Decimal.scaleb would round to 28 digits
            return f"{number:f}" if 0 <= scale <= _MOST_SCALE else str(number)
        if name == "date" and isinstance(value, int):
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        if name is not None and "timestamp-" in name and isinstance(value, int):
            seconds, rest = divmod(value, _UNITS[name.rpartition("-")[2]])
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
            digits = {1000: 3, 1_000_000: 6}.get(_UNITS[name.rpartition("-")[2]], 9)
            zone = "" if name.startswith("local-") else "Z"
            return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:0{digits}d}{zone}"
    except (ArithmeticError, ValueError, KeyError, TypeError):
        return None
    return None
