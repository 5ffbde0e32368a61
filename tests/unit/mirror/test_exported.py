"""What `kmirror exported` prints of an export with a damaged batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kclient.types import TopicPartition
from kclient.wire.records import Record, encode_batch
from mirrormaker.divergence import read_batches
from mirrormaker.export_manifest import Manifest
from mirrormaker.exported import show_exported
from mirrormaker.tail_export import (
    BadExport,
    PartitionExport,
    begin,
    directory_of,
    write_manifest,
)


def batch(offset: int, value: bytes) -> bytes:
    return offset.to_bytes(8, "big") + encode_batch([Record(0, 1, None, value)])[8:]


@pytest.mark.parametrize(
    ("at", "changed"),
    [
        (-2, "a value"),
        (22, "the attributes: it seems to be a control batch"),
    ],
)
def test_a_batch_with_a_wrong_crc_is_named_and_not_printed(
    tmp_path: Path, at: int, changed: str
) -> None:
    """Before, `kmirror exported` printed the changed value as a good one, and ended with 0."""
    damaged = bytearray(batch(1, b"paid 100"))
    damaged[at] ^= 0x20
    directory = directory_of(tmp_path, "t", "id")
    begin(directory)
    export = PartitionExport(directory, TopicPartition("t", 0), other_start=0, with_head=False)
    for each in read_batches(batch(0, b"first") + damaged + batch(2, b"third")):
        export.add(each, False)
    exported = export.finish(log_start=0, log_end=3)
    (file,) = exported.files
    assert (file.batches, file.records, file.undecoded_batches) == (3, 3, 1)
    write_manifest(directory, Manifest("t", "id", "W", "E", "other", 1, 1, (exported,)))

    lines: list[str] = []
    with pytest.raises(BadExport, match=r"^1 batches have a wrong CRC .*batch 1: wrong CRC"):
        show_exported(tmp_path, "all", lines.append)
    assert [json.loads(line)["value"] for line in lines] == ["first", "third"]
