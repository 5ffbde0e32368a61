"""The check of produced records against readers: what passes is read by all of them, and the same.

The brute-force reader is `decode_batch`, which makes an object of every record. kafka-python's parser is another's
opinion of what passed.
"""

from __future__ import annotations

import warnings
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.config.log import LogConfig
from kbroker.log.log_validator import RecordValidation
from kclient.wire import batches
from kclient.wire.batches import HEADER_SIZE
from kclient.wire.compression import compress
from kclient.wire.errors import KafkaError
from kclient.wire.records import Record, decode_batch, encode_batch
from tests.kit.property_tests import examples
from tests.kit.record_batches import NOW_MS, codecs, plain, rebuilt, record_lists, whole_batches
from tests.kit.record_cursors import BOTH

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # how it loads its schemas
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonReader

SMALL = 1 << 20
bytes_that_matter = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)


def validated(batch: bytes) -> bytes | None:
    """The batch that a leader appends, or None: it refuses."""
    try:
        info = batches.check_produced(batch, max_batch_bytes=SMALL)
        validation = RecordValidation(batch, info, LogConfig(), NOW_MS)
        validation.run_briefly()
        return bytes(validation.result("t-0")[0])
    except KafkaError:
        return None


def read(batch: bytes) -> list[Record] | None:
    try:
        info = batches.parse(batch)
        batches.check_crc(batch, info)
        return [plain(record) for record in decode_batch(batch, info, contiguous=True)]
    except KafkaError:
        return None


def read_by_kafka_python(batch: bytes) -> list[Record]:
    reader = KafkaPythonReader(bytearray(batch))
    assert reader.validate_crc()
    return [Record(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in reader]


def agrees(batch: bytes) -> None:
    """Assert that what the leader accepts can be read, and that all readers agree on it."""
    appended = validated(batch)
    records = read(batch)
    if appended is None:
        return
    assert records is not None
    assert read(appended) == records
    assert batches.parse(appended).max_timestamp == max(-1, *(each.timestamp for each in records))
    if not batches.parse(batch).codec:
        assert read_by_kafka_python(appended) == records


@given(made=whole_batches())
@settings(max_examples=examples(30), deadline=None)
def test_what_a_producer_writes_is_accepted_as_it_is(made: tuple[bytes, list[Record]]) -> None:
    batch, records = made
    appended = validated(batch)
    assert appended == batch
    if not batches.parse(batch).codec:
        assert read_by_kafka_python(appended) == records


@given(records=record_lists, codec=codecs, data=st.data())
@settings(max_examples=examples(50), deadline=None)
def test_a_damaged_byte_of_the_records_is_refused_or_every_reader_reads_the_same(
    records: list[Record], codec: int, data: st.DataObject
) -> None:
    raw = bytearray(encode_batch(records)[HEADER_SIZE:])
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(bytes_that_matter)
    whole = encode_batch(records, codec=codec)
    damaged = whole[:HEADER_SIZE] + bytes(compress(codec, bytes(raw)))
    damaged = rebuilt(damaged, length=len(damaged) - 12)
    agrees(damaged)


@given(made=whole_batches(), data=st.data())
@settings(max_examples=examples(50), deadline=None)
def test_a_damaged_byte_of_a_compressed_batch_is_refused_or_read_the_same(
    made: tuple[bytes, list[Record]], data: st.DataObject
) -> None:
    batch = bytearray(made[0])
    batch[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] = data.draw(bytes_that_matter)
    agrees(rebuilt(bytes(batch)))


@given(
    noise=st.binary(max_size=60) | st.lists(bytes_that_matter, max_size=40).map(bytes),
    count=st.integers(0, 6),
    base=st.sampled_from([0, NOW_MS, (1 << 63) - 1, -(1 << 63)]),
    step=st.integers(1, 4),
)
@settings(max_examples=examples(50), deadline=None)
def test_compiled_and_interpreted_code_find_the_same(
    noise: bytes, count: int, base: int, step: int
) -> None:
    def outcome(module: Any) -> Any:
        try:
            check = module.RecordCheck(
                noise, count, base, earliest=0, latest=NOW_MS, needs_key=True
            )
            while not check.run(step):
                pass
        except KafkaError as error:
            return str(error)
        return check.max_timestamp, check.errors, check.error_count

    assert len({repr(outcome(module)) for module in BOTH}) == 1
