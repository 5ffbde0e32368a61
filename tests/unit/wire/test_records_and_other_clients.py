"""Our batches read by kafka-python and aiokafka, and theirs by us: each codec, headers, nulls."""

import warnings

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaReader
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaWriter

from kclient.wire import batches
from kclient.wire.records import Record, decode_batch, encode_batch
from tests.kit.record_batches import NOW_MS, info_of, plain

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # how it loads its schemas
    from kafka import codec as kafka_python_codecs
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonReader
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonWriter

SENT = [
    Record(0, NOW_MS, b"key", b"value", []),
    Record(1, NOW_MS + 5, None, b"no key", []),
    Record(2, NOW_MS - 5, b"tombstone", None, []),
    Record(3, NOW_MS, None, None, [("h", b"1"), ("h", b"2"), ("none", None), ("größe", b"")]),
    Record(4, NOW_MS + 100_000, b"", b"", []),
    # The sizes of their values take one, two and three bytes.
    *(Record(n, NOW_MS + n, b"k" * (n % 300), b"v" * n * 28, []) for n in range(5, 400)),
]
CLIENTS = {
    "kafka-python": (KafkaPythonReader, KafkaPythonWriter),
    "aiokafka": (AiokafkaReader, AiokafkaWriter),
}
NAMES = ["none", "gzip", "snappy", "lz4", "zstd"]


def reads_and_writes(client, name):
    """kafka-python leaves three codecs to packages that may not be there."""
    has = getattr(kafka_python_codecs, f"has_{name}", lambda: True)
    return client != "kafka-python" or has()


each_client_and_codec = pytest.mark.parametrize(
    ("client", "codec"),
    [
        pytest.param(
            client,
            codec,
            marks=pytest.mark.skipif(
                not reads_and_writes(client, name), reason=f"{client} has no library for {name}"
            ),
            id=f"{client}-{name}",
        )
        for client in CLIENTS
        for codec, name in enumerate(NAMES)
    ],
)


@each_client_and_codec
def test_they_read_what_we_write(client, codec):
    batch = encode_batch(SENT, codec=codec, producer_id=4, producer_epoch=1, base_sequence=9)
    reader = CLIENTS[client][0](bytearray(batch))
    assert reader.validate_crc()
    assert (reader.producer_id, reader.producer_epoch, reader.base_sequence) == (4, 1, 9)
    assert reader.next_offset == len(SENT)
    theirs = [Record(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in reader]
    assert theirs == SENT


@each_client_and_codec
def test_we_read_what_they_write(client, codec):
    writer = CLIENTS[client][1](
        magic=2,
        compression_type=codec,
        is_transactional=1,
        producer_id=4,
        producer_epoch=1,
        base_sequence=9,
        batch_size=1 << 30,
    )
    for record in SENT:
        writer.append(
            record.offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    batch = bytes(writer.build())
    info = batches.check_produced(memoryview(batch), max_batch_bytes=1 << 30)
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (4, 1, 9)
    assert info.is_transactional
    assert [plain(record) for record in decode_batch(batch, info, contiguous=True)] == SENT


def test_without_compression_we_write_the_same_bytes():
    writer = KafkaPythonWriter(2, 0, 0, -1, -1, -1, 1 << 30)
    for record in SENT:
        writer.append(
            record.offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    ours = encode_batch(SENT, leader_epoch=0)
    assert ours == bytes(writer.build())
    assert info_of(ours).record_count == len(SENT)
