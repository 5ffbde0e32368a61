"""The demo damages exactly the records that it reports; nothing else of the log changes."""

from __future__ import annotations

import random
from pathlib import Path

from kbroker.demo.damage import Counts, damage_log
from kclient.wire.batches import check_crc, iterate
from kclient.wire.records import Record, decode_batch, encode_batch
from spark_jobs.align import align
from spark_jobs.findings import RecordDigest


def stored_log(directory: Path) -> Path:
    log = directory / "flights-0"
    log.mkdir()
    offset, batches = 0, []
    for _ in range(20):
        records = [
            Record(offset + n, 1000 + offset + n, b"k", b"v%d" % (offset + n)) for n in range(12)
        ]
        batches.append(encode_batch(records, base_offset=offset, codec=2))
        offset += 12
    (log / "00000000000000000000.log").write_bytes(b"".join(batches))
    (log / "00000000000000000000.index").touch()
    return log


def read(log: Path) -> list[RecordDigest]:
    data = (log / "00000000000000000000.log").read_bytes()
    records = []
    for info in iterate(data):
        check_crc(data, info)
        records += decode_batch(data, info)
    return [
        RecordDigest(
            r.offset,
            hash((r.key, r.value, r.timestamp)),
            hash(r.key),
            hash(r.value),
            0,
            r.timestamp,
        )
        for r in records
    ]


def test_an_alignment_finds_exactly_what_was_done(tmp_path: Path) -> None:
    log = stored_log(tmp_path)
    before = read(log)
    deeds = damage_log(log, "flights", 0, random.Random(5), Counts(2, 3, 2, 1))
    found = {
        (f.finding_class.value, f.source_offset, f.target_offset, f.field)
        for f in align("flights", 0, before, read(log)).findings
    }
    assert found == {(d.finding_class, d.source_offset, d.target_offset, d.field) for d in deeds}
    assert len(deeds) == 8


def test_the_indexes_are_left_to_the_broker_to_rebuild(tmp_path: Path) -> None:
    log = stored_log(tmp_path)
    damage_log(log, "flights", 0, random.Random(1), Counts())
    assert not (log / "00000000000000000000.index").exists()
