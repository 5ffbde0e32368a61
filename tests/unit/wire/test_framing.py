import tracemalloc

import pytest

from kclient.wire.errors import FrameTooLarge
from kclient.wire.framing import FrameReader, frame_length, framed


def test_a_frame_of_the_limit_passes_and_one_byte_more_does_not():
    assert [bytes(f) for f in FrameReader(10).feed(framed(b"x" * 10))] == [b"x" * 10]
    with pytest.raises(FrameTooLarge, match="11 bytes, the limit is 10"):
        FrameReader(10).feed(framed(b"x" * 11))


def test_the_length_is_checked_before_the_body_is_there():
    with pytest.raises(FrameTooLarge):
        FrameReader(100).feed(b"\x7f\xff\xff\xff")


@pytest.mark.parametrize("head", [b"\xff\xff\xff\xff", b"\x80\0\0\0"])
def test_a_negative_length_is_refused(head):
    with pytest.raises(FrameTooLarge):
        FrameReader(100).feed(head)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP request"),
        (b"\x16\x03\x01\x02\x00", "TLS handshake"),
        (b"SSH-2.0-OpenSSH", "SSH banner"),
        (b"PROXY TCP4", "PROXY protocol"),
    ],
)
def test_other_protocols_are_recognised(first, message):
    with pytest.raises(FrameTooLarge, match=message):
        FrameReader(100 * 1024 * 1024).feed(first)


def test_frames_before_an_impossible_length_are_not_lost():
    reader = FrameReader(100)
    frames = reader.feed(framed(b"one") + framed(b"two") + b"\xff\xff\xff\xff")
    assert [bytes(f) for f in frames] == [b"one", b"two"]
    assert reader.broken is not None
    with pytest.raises(FrameTooLarge):
        reader.get_buffer()


def test_an_empty_frame_is_a_frame():
    assert [bytes(f) for f in FrameReader(100).feed(framed(b""))] == [b""]


def test_a_long_frame_is_received_into_its_own_buffer():
    reader = FrameReader(1 << 20)
    assert reader.feed(framed(bytes(100_000))[:50]) == []
    rest = reader.get_buffer()
    assert len(rest) == 100_000 - 46
    rest[:] = b"z" * len(rest)
    (frame,) = reader.buffer_updated(len(rest))
    assert bytes(frame) == bytes(46) + b"z" * len(rest)


def test_only_a_stream_that_sent_large_frames_is_given_room_for_one_at_once():
    reader = FrameReader(1 << 20)
    large = framed(bytes(900_000))
    reader.feed(large[:70_000])
    assert len(reader.get_buffer()) < 4 * 70_000, "memory grows with what the client sends"
    assert [len(frame) for frame in reader.feed(large[70_000:])] == [900_000]
    reader.feed(large[:70_000])
    assert len(reader.get_buffer()) == len(large) - 70_000


def received(frame_size: int, chunk: int) -> memoryview:
    """Return a frame of *frame_size* bytes that came in chunks of at most *chunk*."""
    reader = FrameReader(frame_size)
    reader.feed(frame_length(frame_size) + bytes(100))
    frames: list[memoryview] = []
    while not frames:
        count = min(chunk, len(reader.get_buffer()))
        frames = reader.buffer_updated(count)
    return frames[0]


def test_a_frame_that_grows_takes_its_own_memory_and_no_second_buffer():
    size = 80 << 20
    tracemalloc.start()
    try:
        frame = received(size, 1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(frame) == size
    assert peak < 1.5 * size, "the buffer of 64 MiB and that of 80 MiB were there together"


def test_a_buffer_with_a_view_that_is_still_held_is_copied_instead():
    reader = FrameReader(16 << 20)
    reader.feed(frame_length(16 << 20) + bytes(100))
    size, held = 100, reader.get_buffer()
    while size < 4 << 20:  # then the buffers are resized where they are, unless a view is left
        held = reader.get_buffer()
        held[:] = b"x" * len(held)
        size += len(held)
        assert reader.buffer_updated(len(held)) == []
    rest = reader.get_buffer()
    assert len(rest) > 0
    assert bytes(held[-1:]) == b"x"
