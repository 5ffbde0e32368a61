"""What the old active cluster had alone: its acknowledged records, compared with records of kmirror and exports."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mirrormaker.exported import show_exported
from tests.audits.problem import Problem
from tests.chaos.mirror_writers import Place, Written

NEVER_RECEIVED = ("tail", "differing")
"""The kinds of exported records that the other cluster never received."""


class ExportedRecord(NamedTuple):
    """A record in the files of an export."""

    place: Place
    offset: int
    value: bytes


def exported(directory: Path) -> list[ExportedRecord]:
    """Return the records of an export that the other cluster never received."""
    lines: list[str] = []
    for kind in NEVER_RECEIVED:
        show_exported(directory, kind, lines.append)
    found = []
    for each in map(json.loads, lines):
        is_text = each["value_encoding"] != "base64"
        value = each["value"].encode() if is_text else b64decode(each["value"])
        found.append(ExportedRecord((each["topic"], each["partition"]), each["offset"], value))
    return found


def rpo_problems(
    rpo_records: int | None,
    found: Iterable[ExportedRecord],
    alone: Mapping[Place, Mapping[int, Written]],
    placeless: Mapping[Place, Iterable[Written]],
    writers: str,
) -> Iterator[Problem]:
    """Yield where the RPO that was printed is not true.

    *alone* has what the lost cluster acknowledged and the other one never received, *placeless* the same of unknown
    offset. Records that were not acknowledged may be exported, too; names of their *writers* begin their values.
    """
    there = {(each.place, each.offset): each.value for each in found}
    if rpo_records != len(there):
        yield Problem("rpo", "", f"rpo_records {rpo_records}, {len(there)} records were exported")
    for place, written in sorted(alone.items()):
        for offset, one in sorted(written.items()):
            if there.get((place, offset)) != one.value:
                text = f"acknowledged by {one.cluster}, neither copied nor exported: {one.value!s:.100}"
                yield Problem("record-lost", f"{place[0]}-{place[1]}@{offset}", text)
    values = set(there.values())
    for place, nowhere in sorted(placeless.items()):
        for one in nowhere:
            if one.value not in values:
                text = f"acknowledged by {one.cluster}, neither copied nor exported: {one.value!s:.100}"
                yield Problem("record-lost", f"{place[0]}-{place[1]}", text)
    for (place, offset), value in sorted(there.items()):
        if not value.startswith(writers.encode()):
            text = f"exported, and not written since the clusters parted: {value!s:.100}"
            yield Problem("rpo", f"{place[0]}-{place[1]}@{offset}", text)


def promotion_problems(
    record: Mapping[str, Any] | None,
    written: Mapping[Place, Mapping[int, Written]],
    old: str,
    writers: str,
) -> Iterator[Problem]:
    """Yield why a promotion with the source *old* did not lose nothing, or why its record does not show that.

    *record* is that of the last command; None: no command printed one. *written* has the acknowledged records; names of
    their *writers* begin the values of those that were written during the promotion.
    """
    if record is None:
        yield Problem("rpo", "", "no command printed a record: nothing was judged")
        return
    cuts = {(each["topic"], each["partition"]): each["end"] for each in record["partitions"]}
    behind = 0
    for place, records in sorted(written.items()):
        mine = [
            offset
            for offset, one in records.items()
            if one.cluster == old and one.value.startswith(writers.encode())
        ]
        if mine and place not in cuts:
            yield Problem(
                "rpo", "", f"{place[0]}-{place[1]} is not in the record: it was not judged"
            )
        behind += sum(offset >= cuts[place] for offset in mine if place in cuts)
    if record["rpo_records"] is None:
        yield Problem(
            "rpo", "", f"rpo_records null, {behind} acknowledged records are behind the cut"
        )
    elif record["rpo_records"] or behind:
        text = (
            f"rpo_records {record['rpo_records']}, {behind} acknowledged records are behind the cut"
        )
        yield Problem("rpo", "", text)
