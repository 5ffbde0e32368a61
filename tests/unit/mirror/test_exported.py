"""What `kmirror exported` prints of an export with a damaged batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kclient.types import TopicPartition
from kclient.wire.records import Record, encode_batch
from mirrormaker import failback_stage
from mirrormaker.divergence import read_batches
from mirrormaker.export_manifest import ExportedPartition, Manifest
from mirrormaker.exported import show_exported
from mirrormaker.tail_export import (
    BadExport,
    PartitionExport,
    begin,
    directory_of,
    write_manifest,
)


def batch(offset: int, *values: bytes) -> bytes:
    records = [Record(n, 1, None, value) for n, value in enumerate(values)]
    return offset.to_bytes(8, "big") + encode_batch(records)[8:]


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


_DELTA_AT, _BASE_TIMESTAMP_AT, _MAX_TIMESTAMP_AT, _COUNT_AT = 23, 27, 35, 57


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(
    ("changes", "records"),
    [
        ({61: b"!"}, 3),
        ({_COUNT_AT: (-3).to_bytes(4, "big", signed=True)}, 3),
        ({_COUNT_AT: (2**31 - 1).to_bytes(4, "big")}, 3),
        ({_COUNT_AT: bytes(4)}, 3),
        ({_DELTA_AT: (2**31 - 1).to_bytes(4, "big")}, 3),
        ({_DELTA_AT: (-9).to_bytes(4, "big", signed=True)}, 3),
        ({_DELTA_AT: (2**31 - 1).to_bytes(4, "big"), _COUNT_AT: (2**31 - 1).to_bytes(4, "big")}, 3),
        ({_COUNT_AT: (2).to_bytes(4, "big")}, 2),
        ({_BASE_TIMESTAMP_AT: (2**62).to_bytes(8, "big")}, 3),
        ({_MAX_TIMESTAMP_AT: (2**62).to_bytes(8, "big")}, 3),
    ],
)
def test_the_header_of_a_damaged_batch_counts_within_its_offsets_and_has_no_timestamps(
    tmp_path: Path, changes: dict[int, bytes], records: int, is_last: bool
) -> None:
    """The number went into the RPO as it was: -3, or 2,147,483,647. A timestamp made it 146 million years."""
    damaged = bytearray(batch(10, b"a", b"b", b"c"))
    for at, data in changes.items():
        damaged[at : at + len(data)] = data
    directory = directory_of(tmp_path, "t", "id")
    begin(directory)
    export = PartitionExport(directory, TopicPartition("t", 0), other_start=10, with_head=False)
    for each in read_batches(damaged):
        assert each.is_damaged
        export.add(each, False)
    if not is_last:
        (equal,) = read_batches(batch(13, b"equal"))
        export.add(equal, True)
    exported = export.finish(log_start=10, log_end=13 + (not is_last))
    (file,) = exported.files
    assert (file.records, file.undecoded_batches) == (records, 1)
    assert (file.first, file.until, file.kind) == (10, 13, "tail" if is_last else "differing")
    assert (file.oldest_ms, file.newest_ms) == (None, None)
    manifest = Manifest("t", "id", "W", "E", "other", 1, 1, (exported,))
    record = failback_stage.FailbackReport("east->west", "E", "W", {"t": manifest})
    document = record.document(began_ms=0, ended_ms=1)
    assert (document["rpo_records"], document["rpo_seconds"]) == (records, None)
    lines = "".join(failback_stage.summary(manifest, "DIR"))
    assert lines.endswith("; not verified: the number of records in 1 damaged batches")


def test_a_damaged_batch_does_not_change_what_the_others_count(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, "t", "id")
    begin(directory)
    export = PartitionExport(directory, TopicPartition("t", 0), other_start=0, with_head=False)
    damaged = bytearray(batch(2, b"c", b"d"))
    damaged[_COUNT_AT : _COUNT_AT + 4] = b"\xff" * 4
    for each in read_batches(batch(0, b"a", b"b") + damaged + damaged[:7] + b"\4" + damaged[8:]):
        export.add(each, False)
    (file,) = export.finish(log_start=0, log_end=6).files
    assert (file.batches, file.records, file.undecoded_batches) == (3, 6, 2)
    assert (file.first, file.until) == (0, 6)
    assert (file.oldest_ms, file.newest_ms) == (1, 1)


@pytest.mark.parametrize("delta", [-9, 0, 1, 2, 3, 2**31 - 1])
@pytest.mark.parametrize("with_head", [False, True])
@pytest.mark.parametrize("at", [0, 5, 8])
def test_a_damaged_batch_below_the_other_logs_start_is_a_head(
    tmp_path: Path, at: int, with_head: bool, delta: int
) -> None:
    """It was no head when it was counted, and one in the manifest: refused for ever. Or heads behind it were lost."""
    exported = head_and_tail(tmp_path, at, delta, with_head=with_head)
    assert exported.head_batches == 3
    heads = [(each.first, each.batches) for each in exported.files if each.kind == "head"]
    assert heads == ([(0, 3)] if with_head else [])
    assert [(each.first, each.batches) for each in exported.files if each.kind == "tail"] == [
        (10, 1)
    ]
    manifest = Manifest("t", "id", "W", "E", "other", 1, 1, (exported,))
    assert manifest.has_unexported_head is not with_head


def test_a_damaged_batch_across_the_other_logs_start_is_no_head(tmp_path: Path) -> None:
    exported = head_and_tail(tmp_path, 8, 2**31 - 1, with_head=False, other_start=9)
    assert exported.head_batches == 2
    assert [(each.first, each.kind, each.records) for each in exported.files] == [(8, "tail", 4)]


def head_and_tail(
    out: Path, damaged_at: int, delta: int, *, with_head: bool, other_start: int = 10
) -> ExportedPartition:
    """Export batches at 0, 5, 8 and 10, without an equal one, of which one has a damaged header."""
    data = bytearray()
    for at, count in ((0, 5), (5, 3), (8, 2), (10, 2)):
        each = bytearray(batch(at, *[b"v"] * count))
        if at == damaged_at:
            each[-1] ^= 1
            each[_DELTA_AT : _DELTA_AT + 4] = delta.to_bytes(4, "big", signed=True)
        data += each
    directory = directory_of(out, "t", "id")
    begin(directory)
    tp = TopicPartition("t", 0)
    export = PartitionExport(directory, tp, other_start=other_start, with_head=with_head)
    for found in read_batches(data):
        export.add(found, False)
    return export.finish(log_start=0, log_end=12)
