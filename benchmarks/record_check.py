"""The CPU of the record check of a leader, without a broker: docs/design/record-validation.md."""

from __future__ import annotations

import time

from kbroker.config.log import LogConfig
from kbroker.log.log_validator import RecordValidation
from kclient.wire.batches import parse
from kclient.wire.record_writer import Record, encode_batch

RECORDS = 8_000
"""In a batch: about what librdkafka sends of 100 bytes in 1 MB."""

BATCHES = 200


def seconds_per_million(record_bytes: int) -> float:
    """Return the CPU seconds that the check of a million uncompressed records of *record_bytes* takes."""
    now_ms = int(time.time() * 1000)
    records = [Record(n, now_ms + n, None, bytes(record_bytes)) for n in range(RECORDS)]
    batch = encode_batch(records, base_offset=0)
    info, config = parse(batch), LogConfig()
    before = time.process_time()
    for _ in range(BATCHES):
        validation = RecordValidation(batch, info, config, now_ms)
        validation.run_briefly()
        validation.result("t-0")
    return (time.process_time() - before) / (BATCHES * RECORDS) * 1e6
