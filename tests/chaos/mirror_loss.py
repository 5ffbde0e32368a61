"""What a lost cluster had alone: its acknowledged records, compared with what `kmirror failback` exported."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

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
