"""Compression of a batch's records: codec ids 0-4, implemented by libraries.

Constraints of each codec, so that every client can read it:

gzip    one member is written, any number is read
snappy  one raw block is written; raw blocks and xerial's framing (Java, kafka-python) are read
lz4     a frame of independent blocks without content checksum: Java's reader rejects linked blocks
zstd    KIP-110: Produce v7 and Fetch v10 or above

The decompressed size of a batch is unknown. `decompress` returns at most *max_size* bytes and does not allocate much
more. If the codec's worst ratio keeps the result below max_size, it decompresses at once, else into buffers that grow
up to max_size. Invalid bytes raise CorruptMessage, a decompression bomb MessageTooLarge.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

import cramjam

from kclient.wire.batches import Buffer
from kclient.wire.errors import CorruptMessage, MessageTooLarge, UnsupportedCompressionType

MAX_DECOMPRESSED: Final = 64 << 20
"""Default limit of a batch's decompressed size, in bytes."""

_GZIP_WBITS = 31
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16  # magic, version, compatible version
_LZ4_WORST_RATIO = 256
_SNAPPY_WORST_RATIO = 64
_MAX_GZIP_MEMBERS = 16  # each further member costs a copy of the rest
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK = 128 << 10  # the largest output of a zstd block


class Codec(IntEnum):
    """The codec ids of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, compression_type: str) -> Codec:
        """Return the codec for a compression.type such as "lz4"."""
        try:
            return cls[compression_type.upper()]
        except KeyError:
            raise UnsupportedCompressionType(
                f"compression.type {compression_type!r} is unknown",
                hint="it is one of none, gzip, snappy, lz4, zstd",
            ) from None


def codec_name(codec: int) -> str:
    """Return the name of a codec id, such as "lz4"; of an unassigned id its number."""
    return Codec(codec).name.lower() if codec in set(Codec) else str(codec)


def codec_of(codec: int) -> Codec:
    """Return the codec of an id; raise UnsupportedCompressionType for unassigned ids."""
    try:
        return Codec(codec)
    except ValueError:
        raise UnsupportedCompressionType(
            f"compression codec {codec} is unknown; codecs are 0 (none) to 4 (zstd)"
        ) from None


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compress the records of a batch; *level* None is the codec's default."""
    if codec == Codec.NONE:
        return data
    if codec == Codec.LZ4:
        # Level 1 is six times as fast as the library's default, for 2-3 % more bytes.
        frame = cramjam.lz4.Compressor(
            level=1 if level is None else level, content_checksum=False, block_linked=False
        )
        frame.compress(data if isinstance(data, bytes) else bytes(data))
        return memoryview(frame.finish())
    if codec == Codec.ZSTD:
        return memoryview(cramjam.zstd.compress(data, level=3 if level is None else level))
    if codec == Codec.SNAPPY:
        return memoryview(cramjam.snappy.compress_raw(data))
    if codec == Codec.GZIP:
        return zlib.compress(data, 6 if level is None else level, wbits=_GZIP_WBITS)
    raise UnsupportedCompressionType(f"compression codec {codec} is unknown")


def decompress(codec: int, data: Buffer, max_size: int = MAX_DECOMPRESSED) -> memoryview:
    """Return the decompressed records of a batch, at most *max_size* bytes."""
    kind = codec_of(codec)
    view = memoryview(data)
    try:
        if kind is Codec.LZ4:
            return _lz4(view, max_size)
        if kind is Codec.ZSTD:
            return _zstd(view, max_size)
        if kind is Codec.SNAPPY:
            return _snappy(view, max_size)
        if kind is Codec.GZIP:
            return _gzip(view, max_size)
    except (cramjam.DecompressionError, zlib.error) as problem:
        raise CorruptMessage(
            f"{kind.name.lower()} records cannot be decompressed: {problem}"
        ) from problem
    if len(view) > max_size:
        raise _bomb(kind, max_size)
    return view


def _lz4(view: memoryview, max_size: int) -> memoryview:
    if len(view) * _LZ4_WORST_RATIO <= max_size:
        return memoryview(cramjam.lz4.decompress(view))
    return _grow(Codec.LZ4, view, max_size)


def _zstd(view: memoryview, max_size: int) -> memoryview:
    # Skippable frames are rare: anything but one plain frame is decompressed into a growing buffer.
    if _zstd_worst_size(view) <= max_size:
        return memoryview(cramjam.zstd.decompress(view))
    return _grow(Codec.ZSTD, view, max_size)


def _zstd_worst_size(view: memoryview) -> int:
    """Return an upper bound of a zstd frame's size from its blocks (RFC 8878, 3.1.1); else infinity."""
    unknown = 1 << 62
    if len(view) < 8 or view[:4] != _ZSTD_MAGIC:
        return unknown
    descriptor = view[4]
    single_segment = descriptor >> 5 & 1
    content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    position = 5 + 1 - single_segment + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
    blocks = 0
    while position + 3 <= len(view):
        header = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        blocks += 1
        position += 4 if header >> 1 & 3 == 1 else 3 + (header >> 3)  # a run is one byte
        if header & 1:
            position += 4 * (descriptor >> 2 & 1)  # content checksum
            return blocks * _ZSTD_BLOCK if position == len(view) else unknown
    return unknown


def _grow(kind: Codec, view: memoryview, max_size: int) -> memoryview:
    """Decompress into a growing buffer, up to *max_size*."""
    into = cramjam.lz4.decompress_into if kind is Codec.LZ4 else cramjam.zstd.decompress_into
    capacity = min(max_size, max(8 * len(view), 1 << 20))
    while True:
        out = bytearray(capacity)
        try:
            return memoryview(out)[: into(view, out)]
        except cramjam.DecompressionError as problem:
            if "whole buffer" not in str(problem):
                raise
            if capacity >= max_size:
                raise _bomb(kind, max_size) from None
        capacity = min(max_size, capacity * 4)


def _gzip(view: memoryview, max_size: int) -> memoryview:
    out = b""
    rest: Buffer = view
    for _ in range(_MAX_GZIP_MEMBERS):
        member = zlib.decompressobj(_GZIP_WBITS)
        piece = member.decompress(rest, max_size - len(out) + 1)
        out = out + piece if out else piece
        if len(out) > max_size:
            raise _bomb(Codec.GZIP, max_size)
        if not member.eof:
            raise CorruptMessage("gzip records are truncated")
        rest = member.unused_data
        if not rest:
            return memoryview(out)
    raise CorruptMessage(f"gzip records are in more than {_MAX_GZIP_MEMBERS} members")


def _snappy(view: memoryview, max_size: int) -> memoryview:
    if view[:8] != _XERIAL_MAGIC:
        _snappy_size(view, 0, max_size)
        return memoryview(cramjam.snappy.decompress_raw(view))
    blocks = []
    total = 0
    position = _XERIAL_HEADER
    while position < len(view):
        size = int.from_bytes(view[position : position + 4], "big", signed=True)
        end = position + 4 + size
        if size <= 0 or end > len(view):
            raise CorruptMessage(
                f"snappy block of {size} bytes with {len(view) - position - 4} bytes left"
            )
        block = view[position + 4 : end]
        total = _snappy_size(block, total, max_size)
        blocks.append(cramjam.snappy.decompress_raw(block))
        position = end
    if len(blocks) == 1:
        return memoryview(blocks[0])
    return memoryview(b"".join(blocks))


def _snappy_size(block: memoryview, before: int, max_size: int) -> int:
    """Return the size of *before* and *block* together; raise if it is invalid or too large."""
    size = cramjam.snappy.decompress_raw_len(block)
    if before + size > max_size:
        raise _bomb(Codec.SNAPPY, max_size)
    if size > len(block) * _SNAPPY_WORST_RATIO:
        raise CorruptMessage(f"snappy block of {len(block)} bytes has a declared size of {size}")
    return before + size


def _bomb(kind: Codec, max_size: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"{kind.name.lower()} records decompress to more than {max_size} bytes",
        hint="the batch is malicious or far too large; none of it was decoded",
    )
