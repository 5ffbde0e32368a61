"""Batches and records to test with: a plain one, a way to break one field, strategies."""

from typing import Any

from hypothesis import strategies as st

from kclient.wire import batches
from kclient.wire.batches import BatchInfo, Buffer
from kclient.wire.records import Record, encode_batch

NOW_MS = 1_700_000_000_000
CODECS = range(5)


def some_records(count: int = 3) -> list[Record]:
    """Records as an ordinary producer sends them."""
    return [Record(n, NOW_MS + n, b"key-%d" % n, b"value-%d" % n) for n in range(count)]


def plain(record: Record) -> Record:
    """The record with its headers as a list, to compare with ==."""
    return record._replace(headers=[(name, value) for name, value in record.headers])


def rebuilt(batch: bytes, **changes: Any) -> bytes:
    """*batch* with header fields replaced and the CRC right again (or replaced too)."""
    info = batches.parse(batch)._replace(**changes)
    records = batch[batches.HEADER_SIZE :]
    fields = {name: getattr(info, name) for name in _CHECKED}
    whole = bytearray(batches.build(records, base_offset=info.base_offset, **fields))
    if "length" in changes:
        whole[8:12] = info.length.to_bytes(4, "big", signed=True)
    if "magic" in changes:
        whole[16] = info.magic & 0xFF
    if "crc" in changes:
        whole[17:21] = info.crc.to_bytes(4, "big")
    return bytes(whole)


_CHECKED = (
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
    "leader_epoch",
)

maybe_bytes = st.none() | st.binary(max_size=40) | st.sampled_from([b"", b"x" * 127, b"y" * 9000])
header_lists = st.lists(st.tuples(st.text(max_size=6), maybe_bytes), max_size=3)
timestamps = st.integers(-1, 1 << 45) | st.sampled_from([-1, 0, NOW_MS, (1 << 61)])
record_lists = st.lists(
    st.builds(Record, st.just(0), timestamps, maybe_bytes, maybe_bytes, header_lists),
    min_size=1,
    max_size=20,
).map(lambda records: [record._replace(offset=n) for n, record in enumerate(records)])
codecs = st.sampled_from(CODECS)


@st.composite
def whole_batches(draw: st.DrawFn) -> tuple[bytes, list[Record]]:
    """(batch, the records in it)."""
    records = draw(record_lists)
    return encode_batch(records, codec=draw(codecs)), records


def info_of(batch: Buffer) -> BatchInfo:
    """The header of a batch, its CRC checked."""
    info = batches.parse(batch)
    batches.check_crc(batch, info)
    return info
