"""Committed offsets as CSV, in the two formats of kafka-consumer-groups: it reads what is written here. Pure.

    topic,partition,offset           of one group
    group,topic,partition,offset     of any number of groups

There is no heading. A name with a comma or a quotation mark is quoted. Kafka's tool cannot read a group name with a
line break; `read_offsets` can.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping

from kclient.types import TopicPartition

GroupOffsets = Mapping[str, Mapping[TopicPartition, int]]
"""The offset of each partition of each group."""

_ONE_GROUP, _GROUPS = "topic,partition,offset", "group,topic,partition,offset"


class OffsetCsvError(ValueError):
    """A file that is not one of the two formats; the text has the line number."""


def read_offsets(text: str, *, group: str | None) -> dict[str, dict[TopicPartition, int]]:
    """Parse *text*; its offsets belong to *group* if they name none. Empty lines are ignored.

    Raise `OffsetCsvError` for a file without offsets, another number of fields than in the first line, and a partition
    that a group has twice. Negative offsets are refused, as by Kafka's tool: none is committed.
    """
    found: dict[str, dict[TopicPartition, int]] = {}
    lines: dict[tuple[str, TopicPartition], int] = {}
    width, begin = 0, 1
    rows = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    while True:
        begin = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error as problem:
            raise OffsetCsvError(f"line {begin}: {problem}") from None
        if not any(field.strip() for field in row):
            continue
        width = width or len(row)
        place = f"line {begin}"
        of_row, tp, offset = _parsed(row, place, width, group)
        first = lines.setdefault((of_row, tp), begin)
        if first != begin:
            raise OffsetCsvError(f"{place}: {tp} of group {of_row!r} is in line {first} already")
        found.setdefault(of_row, {})[tp] = offset
    if not found:
        raise OffsetCsvError(f"there are no offsets; expected lines of {_ONE_GROUP} or {_GROUPS}")
    return found


def _parsed(
    row: list[str], place: str, width: int, group: str | None
) -> tuple[str, TopicPartition, int]:
    if len(row) not in (3, 4) or len(row) != width:
        expected = {3: _ONE_GROUP, 4: _GROUPS}.get(width, f"{_ONE_GROUP} or {_GROUPS}")
        raise OffsetCsvError(f"{place}: expected {expected}, found {','.join(row)[:80]!r}")
    if len(row) == 4:
        group = row[0]
    elif group is None:
        raise OffsetCsvError(
            f"{place} is {_ONE_GROUP} without a group: name exactly one GROUP, or use {_GROUPS}"
        )
    topic, partition, offset = (field.strip() for field in row[-3:])
    if not topic:
        raise OffsetCsvError(f"{place} has no topic")
    if not re.fullmatch(r"[0-9]+", partition):
        raise OffsetCsvError(f"{place}: {partition!r} is not a partition")
    if not re.fullmatch(r"[0-9]+", offset):
        raise OffsetCsvError(f"{place}: {offset!r} is not an offset")
    return group, TopicPartition(topic, int(partition)), int(offset)


def write_offsets(offsets: GroupOffsets, *, with_group: bool) -> str:
    """Return the CSV, by group, topic and partition; without the group's name *offsets* has only one group."""
    return "".join(
        f"{_quoted(group) + ',' if with_group else ''}{_quoted(tp.topic)},{tp.partition},{offset}\n"
        for group, of_group in sorted(offsets.items())
        for tp, offset in sorted(of_group.items())
    )


def _quoted(name: str) -> str:
    # Not by csv.writer: it leaves a carriage return without quotation marks, and cannot read that again.
    return '"' + name.replace('"', '""') + '"' if re.search(r'[",\r\n]', name) else name
