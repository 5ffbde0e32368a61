"""Decodes the records of many batches into numpy arrays, without a Python object per field.

Theory of operation
===================
The records of several batches are joined into one buffer. One loop follows the records' lengths, because each record's
place depends on the one before. All other numbers are read for all records at once: an array of places in, arrays of
values and of the places after them out.

A record's *body* is its encoding from the key's length to its end: key, value and headers. The body does not depend on
the record's offset, time, batch or codec. So equal bodies are equal records if every number is encoded in its shortest
form. Encoders do that, but the format does not require it. A chunk with anything unusual is therefore decoded by
`kclient.wire.record_reader`, encoded again, and read from there. That decoder also judges invalid records, so its
errors are the only errors.

Invariants (property tests cite the numbers):
 1. the arrays hold what `decode_columns` returns, in order;
 2. two records have equal bodies if and only if their keys, values and headers are equal;
 3. records that `decode_columns` rejects are rejected with its error. Only a header's key may be any bytes.

In: headers and decompressed records.  Out: RecordArrays.  Owner: a Spark task; pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kclient.wire.batches import CODEC_MASK, HEADER_SIZE, LENGTH_END, BatchInfo, Buffer
from kclient.wire.errors import InvalidRecord
from kclient.wire.record_cursor import SMALLEST_RECORD, record_starts
from kclient.wire.record_reader import decode_columns
from kclient.wire.record_writer import encode_record

Integers: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_SAFE_TIMESTAMP = 1 << 61
_INT64_END = 1 << 63
_MOST_HEADERS = 64
"""Headers of a record that are read array-wise; a record with more makes its chunk unusual."""


class Piece(NamedTuple):
    """The records of one batch, decompressed, in a chunk of several."""

    group: int
    """A number of the caller's, for example which offset range the batch belongs to."""
    info: BatchInfo
    records: Buffer
    is_aborted: bool = False


class RecordArrays(NamedTuple):
    """Records as arrays of the same length; places are positions in `raw`."""

    raw: bytes
    groups: Integers
    offsets: Integers
    timestamps: Integers
    timestamp_types: Integers
    """Bit 0: LogAppendTime; bit 1: a control record (a transaction marker)."""
    body_at: Integers
    ends: Integers
    key_at: Integers
    key_size: Integers
    """-1 for a null key."""
    value_at: Integers
    value_size: Integers
    """-1 for a null value."""
    headers_at: Integers
    """The place of the number of headers."""
    header_counts: Integers
    aborted: Integers
    """1 for a record of an aborted transaction, as far as the reader knows it, else 0."""

    @property
    def sizes(self) -> Integers:
        """Bytes of key and value together."""
        return np.maximum(self.key_size, 0) + np.maximum(self.value_size, 0)

    def where(self, chosen: npt.NDArray[np.bool_]) -> RecordArrays:
        """Return the *chosen* records."""
        return RecordArrays(self.raw, *(column[chosen] for column in self[1:]))


class HeaderArrays(NamedTuple):
    """The headers of records as arrays of the same length, in order; places are positions in `RecordArrays.raw`."""

    key_at: Integers
    key_size: Integers
    value_at: Integers
    value_size: Integers
    """-1 for a null value."""


def header_arrays(records: RecordArrays) -> HeaderArrays:
    """Return the headers of *records*; each record has `header_counts` of them."""
    counts = records.header_counts
    found = HeaderArrays(*(np.zeros(int(counts.sum()), np.int64) for _ in range(4)))
    buffer = np.frombuffer(records.raw, np.uint8)
    firsts = np.cumsum(counts) - counts
    left = np.flatnonzero(counts)
    at = _varints(buffer, records.headers_at[left])[1]
    number = 0
    while left.size:
        here = firsts[left] + number
        found.key_size[here], key_at = _sizes(buffer, at)
        found.key_at[here] = key_at
        found.value_size[here], value_at = _sizes(buffer, key_at + found.key_size[here])
        found.value_at[here] = value_at
        at = value_at + np.maximum(found.value_size[here], 0)
        number += 1
        more = counts[left] > number
        left, at = left[more], at[more]
    return found


class _Unusual(Exception):
    """The chunk needs the decoder of kclient: a number is not in its shortest form, or a record is invalid."""


def decode_arrays(pieces: Sequence[Piece]) -> RecordArrays:
    """Return the records of *pieces* in order; raise InvalidRecord as `decode_columns` does."""
    try:
        return _decode(pieces)
    except (_Unusual, IndexError):
        return _decode([_encoded_again(piece) for piece in pieces], most_headers=None)


def parts(piece: Piece, most: int) -> Iterator[Piece]:
    """Divide *piece* after every *most* records; bytes without a record belong to the last part.

    The parts are valid if the piece is, but not the other way round: see `valid_parts`.
    """
    raw, left, begin = bytes(piece.records), piece.info.record_count, 0
    while left > most:
        end = record_starts(raw, begin, len(raw), most, [])
        if end < 0:
            break
        yield piece._replace(
            info=piece.info._replace(record_count=most), records=memoryview(raw)[begin:end]
        )
        left, begin = left - most, end
    yield piece._replace(
        info=piece.info._replace(record_count=left), records=memoryview(raw)[begin:]
    )


def valid_parts(piece: Piece, most: int) -> Iterator[Piece]:
    """Decode *piece* in parts and then yield them; raise InvalidRecord, before the first, if any part is invalid."""
    last = -1
    for part in parts(piece, most):
        offsets = decode_arrays([part]).offsets
        if offsets.size and offsets[0] <= last:
            raise InvalidRecord(f"offset {offsets[0]} does not follow {last}")
        last = int(offsets[-1]) if offsets.size else last
    return parts(piece, most)


def _encoded_again(piece: Piece) -> Piece:
    """Return *piece* in its shortest encoding, with timestamps instead of timestamp deltas."""
    info = piece.info
    plain = info._replace(
        position=0,
        length=len(piece.records) + HEADER_SIZE - LENGTH_END,
        attributes=info.attributes & ~CODEC_MASK,
    )
    columns = decode_columns(bytes(HEADER_SIZE) + bytes(piece.records), plain)
    records = b"".join(
        encode_record(offset - info.base_offset, timestamp, key, value, headers)
        for offset, timestamp, key, value, headers in zip(*columns, strict=True)
    )
    return piece._replace(info=info._replace(base_timestamp=0), records=records)


def _decode(pieces: Sequence[Piece], most_headers: int | None = _MOST_HEADERS) -> RecordArrays:
    raw = b"".join(piece.records for piece in pieces)
    starts: list[int] = []
    end = 0
    for piece in pieces:
        begin, end = end, end + len(piece.records)
        count = piece.info.record_count
        if not 0 <= count * SMALLEST_RECORD <= end - begin:
            raise _Unusual
        if record_starts(raw, begin, end, count, starts) != end:
            raise _Unusual
    buffer = np.frombuffer(raw, np.uint8)
    infos = [piece.info for piece in pieces]
    counts = _integers([info.record_count for info in infos])

    def per_record(values: list[int]) -> Integers:
        return np.repeat(_integers(values), counts)

    begins = _integers(starts)
    if not begins.size:
        nothing = np.zeros(0, np.int64)
        return RecordArrays(raw, *[nothing] * 13)
    length, at = _varints(buffer, begins)
    ends = at + (length >> 1)
    since, at = _varints(buffer, at + 1)  # after the attributes, which format 2 does not use
    delta, body_at = _varints(buffer, at)
    _check_batches(infos)
    _check_deltas(delta >> 1, counts, infos)
    if ((length | delta) & 1).any():
        raise _Unusual
    since = (since.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(since & 1)
    bases = [info.base_timestamp for info in infos]
    if any(bases) and (since.max() > _SAFE_TIMESTAMP or since.min() < -_SAFE_TIMESTAMP):
        raise _Unusual
    timestamps = per_record(bases) + since
    types = per_record([info.log_append_time | info.is_control << 1 for info in infos])
    if (types & 1).any():
        latest = per_record([info.max_timestamp for info in infos])
        timestamps = np.where(types & 1, latest, timestamps)
    key_size, key_at = _sizes(buffer, body_at)
    value_size, value_at = _sizes(buffer, key_at + np.maximum(key_size, 0))
    headers_at = value_at + np.maximum(value_size, 0)
    header_counts, after = _skip_headers(buffer, headers_at, most_headers)
    if not np.array_equal(after, ends):
        raise _Unusual
    return RecordArrays(
        raw,
        per_record([piece.group for piece in pieces]),
        per_record([info.base_offset for info in infos]) + (delta >> 1),
        timestamps,
        types,
        body_at,
        ends,
        key_at,
        key_size,
        value_at,
        value_size,
        headers_at,
        header_counts,
        per_record([piece.is_aborted for piece in pieces]),
    )


def _integers(values: list[int]) -> Integers:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise _Unusual from None


def _check_batches(infos: Sequence[BatchInfo]) -> None:
    for info in infos:
        if (
            info.base_offset < 0
            or info.last_offset >= _INT64_END
            or not -_SAFE_TIMESTAMP < info.base_timestamp < _SAFE_TIMESTAMP
        ):
            raise _Unusual


def _check_deltas(deltas: Integers, counts: Integers, infos: Sequence[BatchInfo]) -> None:
    """Raise unless the offset deltas increase inside each batch, up to the last one of its header."""
    lasts = np.cumsum(counts) - 1
    held = counts > 0
    limits = _integers([info.last_offset_delta for info in infos])
    if (deltas < 0).any() or (deltas[lasts[held]] > limits[held]).any():
        raise _Unusual
    grows = np.diff(deltas) > 0
    grows[lasts[held][:-1]] = True  # the next record begins another batch
    if not grows.all():
        raise _Unusual


def _sizes(buffer: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """Return the sizes of the nullable fields at *at*, -1 for null, and the places after the sizes."""
    encoded, at = _varints(buffer, at)
    odd = (encoded & 1).astype(bool)
    if (odd & (encoded != 1)).any() or (encoded < 0).any() or encoded.max() >> 1 > buffer.size:
        raise _Unusual
    return np.where(odd, -1, encoded >> 1), at


def _skip_headers(buffer: Bytes, at: Integers, most: int | None) -> tuple[Integers, Integers]:
    """Return the numbers of headers at *at*, and the places after the headers."""
    encoded, at = _varints(buffer, at)
    counts = encoded >> 1
    with_headers = np.flatnonzero(encoded)
    if not with_headers.size:
        return counts, at
    if (encoded & 1).any() or counts.min() < 0 or counts.max() > (most or buffer.size):
        raise _Unusual
    for number in range(int(counts.max())):
        here = with_headers[counts[with_headers] > number]
        name_size, place = _sizes(buffer, at[here])
        if name_size.min() < 0:
            raise _Unusual
        value_size, place = _sizes(buffer, place + name_size)
        at[here] = place + np.maximum(value_size, 0)
    return counts, at


def _varints(buffer: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """Return the varints at *at*, still zigzag-encoded, and the places after them.

    A place past the end reads the last byte. The caller then ends up past the end too, and notices.
    """
    value = buffer.take(at, mode="clip").astype(np.int64)
    longer = value > 127
    after = at + 1
    if not longer.any():
        return value, after
    second = buffer.take(after, mode="clip").astype(np.int64)
    if (longer & (second == 0)).any():
        raise _Unusual
    after += longer
    value = np.where(longer, value & 127 | second << 7, value)
    rest = np.flatnonzero(longer & (second > 127))
    if rest.size:
        value[rest], after[rest] = _long_varints(buffer, value[rest] & 0x3FFF, after[rest])
    return value, after


def _long_varints(buffer: Bytes, value: Integers, at: Integers) -> tuple[Integers, Integers]:
    """Continue varints after their second byte."""
    open_ = np.arange(value.size)
    for shift in range(14, 70, 7):
        byte = buffer.take(at[open_], mode="clip").astype(np.int64)
        if (byte == 0).any() or (shift == 63 and (byte > 1).any()):
            raise _Unusual
        value[open_] |= (byte & 127) << shift
        at[open_] += 1
        open_ = open_[byte > 127]
        if not open_.size:
            return value, at
    raise _Unusual
