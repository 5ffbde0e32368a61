"""Apache Kafka's DumpLogSegments reads a log file made of our batches, with every codec."""

import base64
import re
import subprocess
from pathlib import Path

import pytest

from kclient.wire import batches
from kclient.wire.records import COMMIT, Record, encode_batch, encode_transaction_marker
from tests.kit.apache_kafka import java, with_kafka
from tests.kit.record_batches import NOW_MS

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    with_kafka,
]


def dumped(log: Path) -> str:
    """What DumpLogSegments prints of *log*."""
    result = subprocess.run(
        [
            *java("256m", "kafka.tools.DumpLogSegments"),
            *("--files", str(log), "--print-data-log", "--deep-iteration"),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return result.stdout + result.stderr


def filler(offset):
    """A value larger than a snappy or lz4 block now and then, half of it without any pattern."""
    noise = base64.b64encode(offset.to_bytes(4, "big") * 3).decode()
    return (
        f"value-{offset}-" + noise * (1 + offset % 5) * (600 if offset % 50 == 7 else 1)
    ).encode()


def test_java_reads_every_codec_headers_and_nulls(tmp_path):
    log = tmp_path / f"{0:020}.log"
    offset = 0
    sent = []
    with log.open("wb") as file:
        for codec in range(5):
            records = [
                Record(n, NOW_MS + n, b"key-%d" % n, filler(n), [("n", b"%d" % n), ("no", None)])
                for n in range(offset, offset + 100)
            ]
            records[3] = records[3]._replace(key=None)
            records[4] = records[4]._replace(value=None)
            sent += records
            file.write(encode_batch(records, codec=codec, base_offset=offset, leader_epoch=5))
            offset += len(records)
        file.write(
            encode_transaction_marker(
                COMMIT,
                producer_id=7,
                producer_epoch=1,
                coordinator_epoch=3,
                timestamp=NOW_MS,
                base_offset=offset,
                leader_epoch=5,
            )
        )
        last = encode_batch(sent[:2], codec=3)
        file.write(
            batches.with_log_append_time(
                batches.stamp(batches.parse(last), offset + 1, 6) + last[16:],
                batches.parse(last),
                NOW_MS + 999,
            )
        )

    output = dumped(log)

    heads = re.findall(r"^baseOffset: (\d+) .*compresscodec: (\w+) .*isvalid: (\w+)", output, re.M)
    assert heads == [
        *((str(n * 100), codec, "true") for n, codec in enumerate(CODECS)),
        ("500", "none", "true"),
        ("501", "lz4", "true"),
    ]
    read = re.findall(
        r"^\| offset: (\d+) CreateTime: (\d+) keySize: (-?\d+) valueSize: (-?\d+) "
        r"sequence: -1 headerKeys: \[n,no\](?: key: (\S+))?(?: payload: (\S+))?$",
        output,
        re.M,
    )
    assert read[:500] == [
        (
            str(record.offset),
            str(record.timestamp),
            str(-1 if record.key is None else len(record.key)),
            str(-1 if record.value is None else len(record.value)),
            (record.key or b"").decode(),
            (record.value or b"").decode(),
        )
        for record in sent
    ]
    assert "endTxnMarker: COMMIT coordinatorEpoch: 3" in output
    assert f"LogAppendTime: {NOW_MS + 999}" in output
    assert "Found" not in output  # how it begins what it has to complain about
