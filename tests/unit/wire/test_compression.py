import random
import zlib

import cramjam
import pytest

from kclient.wire.compression import Codec, codec_of, compress, decompress
from kclient.wire.errors import (
    CorruptMessage,
    KafkaError,
    MessageTooLarge,
    UnsupportedCompressionType,
)

TEXT = b"".join(b"user-%d,click,page/%d\n" % (n, n * 7 % 1000) for n in range(400))
CODECS = list(Codec)
REAL = [codec for codec in Codec if codec]


def xerial(*blocks, magic=b"\x82SNAPPY\x00"):
    """Snappy as Java frames it."""
    framed = b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    return magic + b"\x00\x00\x00\x01" * 2 + framed


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(3 << 20)], ids=["0", "1", "text", "3M"])
def test_what_was_compressed_comes_back(codec, data):
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(data)))) == data


@pytest.mark.parametrize("codec", REAL)
def test_a_bomb_is_refused_at_the_bound(codec):
    small = compress(codec, bytes(100_000))
    assert len(decompress(codec, small, max_size=100_000)) == 100_000
    with pytest.raises(MessageTooLarge, match="more than 99999 bytes"):
        decompress(codec, small, max_size=99_999)


@pytest.mark.long
@pytest.mark.parametrize("codec", REAL)
def test_a_large_bomb_is_refused(codec):
    with pytest.raises(MessageTooLarge):
        decompress(codec, compress(codec, bytes(80 << 20)), max_size=8 << 20)


def test_uncompressed_records_are_bounded_too():
    with pytest.raises(MessageTooLarge):
        decompress(Codec.NONE, b"12345", max_size=4)


@pytest.mark.parametrize("codec", REAL)
@pytest.mark.parametrize("kept", [0, 1, 5, 10, 0.5, -1])
def test_a_stream_that_is_cut_off_is_corrupt(codec, kept):
    whole = bytes(compress(codec, TEXT))
    cut = whole[: int(len(whole) * kept) if isinstance(kept, float) else kept]
    with pytest.raises(CorruptMessage):
        decompress(codec, cut)


@pytest.mark.parametrize("codec", REAL)
def test_large_incompressible_records_that_are_cut_off_are_corrupt(codec):
    whole = bytes(compress(codec, random.Random(1).randbytes(1 << 20)))
    with pytest.raises(CorruptMessage):
        decompress(codec, whole[:-3])


@pytest.mark.parametrize("claimed", REAL)
@pytest.mark.parametrize("codec", REAL)
def test_the_wrong_codec_flag_is_corrupt_not_a_crash(codec, claimed):
    if codec != claimed:
        with pytest.raises(KafkaError):
            decompress(claimed, compress(codec, TEXT))


@pytest.mark.parametrize("codec", [-1, 5, 7])
def test_an_unassigned_codec_is_unsupported(codec):
    for act in (lambda: compress(codec, TEXT), lambda: decompress(codec, TEXT)):
        with pytest.raises(UnsupportedCompressionType):
            act()
    with pytest.raises(UnsupportedCompressionType):
        codec_of(codec)


def test_codecs_are_found_by_the_names_of_compression_type():
    names = ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [Codec.named(name) for name in names] == CODECS
    with pytest.raises(UnsupportedCompressionType, match="one of none, gzip, snappy, lz4, zstd"):
        Codec.named("brotli")


def test_lz4_frames_are_such_as_java_reads():
    # FLG: version 01, blocks independent, no content size, no content checksum.
    for data in (TEXT, bytes(1 << 20)):
        flags = compress(Codec.LZ4, data)[4]
        assert flags & 0b1110_1100 == 0b0110_0000


def test_lz4_frames_with_linked_blocks_are_read():
    linked = bytes(cramjam.lz4.compress(TEXT * 20))
    assert not linked[4] & 0x20
    assert decompress(Codec.LZ4, linked) == TEXT * 20


def test_both_snappy_framings_are_read():
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert decompress(Codec.SNAPPY, raw) == TEXT
    assert decompress(Codec.SNAPPY, xerial(raw)) == TEXT
    assert decompress(Codec.SNAPPY, xerial(raw, raw)) == TEXT * 2


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\0"])
def test_a_xerial_block_with_an_impossible_length_is_corrupt(length):
    with pytest.raises(CorruptMessage):
        decompress(Codec.SNAPPY, xerial() + length)


def test_xerial_blocks_are_bounded_together():
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    with pytest.raises(MessageTooLarge):
        decompress(Codec.SNAPPY, xerial(raw, raw), max_size=len(TEXT) * 2 - 1)


def test_snappy_that_claims_far_more_than_it_can_hold_is_corrupt():
    with pytest.raises(CorruptMessage, match="declared size"):
        decompress(Codec.SNAPPY, b"\x80\x80\x80\x08" + b"x" * 20)  # 16 MiB in 20 bytes


def test_gzip_of_several_members_is_read_but_not_of_thousands():
    member = zlib.compress(TEXT, wbits=31)
    assert decompress(Codec.GZIP, member * 3) == TEXT * 3
    with pytest.raises(CorruptMessage, match="members"):
        decompress(Codec.GZIP, zlib.compress(b"", wbits=31) * 5000)


def test_zstd_frames_without_a_content_size_are_read():
    stream = cramjam.zstd.Compressor(level=3)
    stream.compress(TEXT * 100)
    assert decompress(Codec.ZSTD, bytes(stream.finish())) == TEXT * 100


def test_two_zstd_frames_in_a_row_are_read():
    frame = bytes(compress(Codec.ZSTD, TEXT))
    assert decompress(Codec.ZSTD, frame * 2) == TEXT * 2
    with pytest.raises(MessageTooLarge):
        decompress(Codec.ZSTD, frame * 2, max_size=len(TEXT) * 2 - 1)


def test_a_zstd_bomb_behind_a_small_frame_is_refused():
    hidden = bytes(compress(Codec.ZSTD, TEXT)) + bytes(compress(Codec.ZSTD, bytes(80 << 20)))
    with pytest.raises(MessageTooLarge):
        decompress(Codec.ZSTD, hidden, max_size=1 << 20)
