"""Invariants 1 to 4 of `kclient.wire.framing`."""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.wire.errors import FrameTooLarge
from kclient.wire.framing import FIRST_GROWTH, FrameReader, framed

MAX_FRAME = 1 << 20
messages = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.integers(0, 400_000).map(lambda size: (b"0123456789abcdef" * (size // 16 + 1))[:size]),
    ),
    max_size=6,
)
impossible = st.sampled_from([b"", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"GET / HTTP/1.1"])


def pieces(data, cuts):
    points = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(points)]


def by_feed(reader, piece, frames):
    frames += reader.feed(piece)


def by_buffer(reader, piece, frames):
    while piece:
        with reader.get_buffer(len(piece)) as buffer:
            count = min(len(buffer), len(piece))
            buffer[:count] = piece[:count]
        piece = piece[count:]
        frames += reader.buffer_updated(count)
        if reader.broken:
            break


@pytest.mark.parametrize("receive", [by_feed, by_buffer])
@given(messages=messages, tail=impossible, cuts=st.lists(st.integers(0, 1 << 22), max_size=12))
def test_any_cut_of_the_stream_gives_the_same_frames_then_the_same_error(
    receive, messages, tail, cuts
):
    stream = b"".join(map(framed, messages)) + tail
    reader = FrameReader(MAX_FRAME)
    frames = []
    for piece in pieces(stream, cuts):
        with contextlib.suppress(FrameTooLarge):
            receive(reader, piece, frames)
        if reader.broken:
            break
    assert list(map(bytes, frames)) == messages
    assert (reader.broken is not None) == bool(tail)
    if tail:
        with pytest.raises(FrameTooLarge):
            reader.feed(framed(b"too late"))


@given(messages=messages)
def test_byte_by_byte_gives_the_same_frames(messages):
    messages = [message[:300] for message in messages]
    reader = FrameReader(MAX_FRAME)
    stream = b"".join(map(framed, messages))
    frames = [frame for byte in stream for frame in reader.feed(bytes([byte]))]
    assert list(map(bytes, frames)) == messages


@given(first=messages, second=messages)
def test_a_frame_once_returned_does_not_change(first, second):
    scratch = bytearray(64 * 1024)
    one, other = FrameReader(MAX_FRAME, scratch), FrameReader(MAX_FRAME, scratch)
    frames: list[memoryview] = []
    by_buffer(one, b"".join(map(framed, first)), frames)
    by_buffer(other, b"".join(map(framed, second)), [])
    by_buffer(one, b"".join(map(framed, second)), [])
    assert list(map(bytes, frames)) == first


@given(announced=st.integers(0, MAX_FRAME), sent=st.integers(0, MAX_FRAME))
def test_an_announced_frame_gets_no_memory_before_its_bytes_arrive(announced, sent):
    reader = FrameReader(MAX_FRAME)
    sent = min(sent, max(announced - 1, 0))
    by_buffer(reader, framed(bytes(announced))[: 4 + sent], [])
    if announced:
        assert (reader.announced, reader.received) == (announced, sent)
        assert len(reader._frame) <= min(announced, max(FIRST_GROWTH, 4 * sent))
