"""Walk over the batches of a segment file: headers only, or whole batches with their CRC.

A position in here is a byte of the segment file, whatever buffer the bytes came in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kbroker.log.slices import SegmentFile
from kclient.wire.batches import HEADER_SIZE, BatchInfo, check_crc, parse
from kclient.wire.errors import CorruptMessage, KafkaError

_HEADER_CHUNK: Final = 4096
_BATCH_CHUNK: Final = 1 << 20


def headers(file: SegmentFile, position: int, end: int) -> Iterator[tuple[int, BatchInfo]]:
    """Yield (position, header) of the whole batches from *position* up to byte *end*.

    A batch that reaches beyond *end* ends the walk. Raise CorruptMessage, naming file and byte,
    where no batch header lies, and where offsets do not grow.
    """
    buf = b""
    buf_start = position
    next_offset = -1
    while end - position >= HEADER_SIZE:
        at = position - buf_start
        if at + HEADER_SIZE > len(buf):
            buf = file.pread(_HEADER_CHUNK, position)
            buf_start, at = position, 0
        info = _parse(buf, at, file.path, position)
        if info.base_offset < next_offset or info.last_offset_delta < 0:
            raise CorruptMessage(
                f"{file.path}: offset {info.base_offset} at byte {position} follows {next_offset}"
            )
        size = info.size
        if position + size > end:
            return
        yield position, info
        next_offset = info.next_offset
        position += size


def whole_batches(file: SegmentFile, position: int, end: int) -> Iterator[tuple[int, BatchInfo]]:
    """Yield (position, header) of the batches with a right CRC; stop before a partial one.

    Raise CorruptMessage for the first batch that is not what was written.
    """
    for _, info in checked_batches(file, position, end):
        yield position, info
        position += info.size


def checked_batches(
    file: SegmentFile, position: int, end: int, *, chunk_bytes: int = _BATCH_CHUNK
) -> Iterator[tuple[bytes, BatchInfo]]:
    """Yield (buffer, header in it) of the batches with a right CRC; stop before a partial one.

    Raise CorruptMessage for the first batch that is not what was written. Reads *chunk_bytes* at a time, or one batch
    where that is larger; never more than the file holds.
    """
    buf = b""
    buf_start = position
    while end - position >= HEADER_SIZE:
        at = position - buf_start
        if at + HEADER_SIZE > len(buf):
            buf = file.pread(min(chunk_bytes, end - position), position)
            buf_start, at = position, 0
        info = _parse(buf, at, file.path, position)
        size = info.size
        if position + size > end:
            return
        if at + size > len(buf):
            buf = file.pread(max(size, min(chunk_bytes, end - position)), position)
            buf_start, at = position, 0
            info = _parse(buf, at, file.path, position)
        check_crc(buf, info)
        yield buf, info
        position += size


def header_at(file: SegmentFile, position: int) -> BatchInfo:
    """Return the batch header at *position*; raise CorruptMessage when there is none."""
    return _parse(file.pread(HEADER_SIZE, position), 0, file.path, position)


def _parse(buf: bytes, at: int, path: str, position: int) -> BatchInfo:
    try:
        return parse(buf, at)
    except KafkaError as error:
        raise CorruptMessage(f"{path}: byte {position}: {error.message}") from error
