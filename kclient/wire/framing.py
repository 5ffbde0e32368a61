"""A byte stream -> frames: messages behind four bytes of length, checked before anything is kept.

Theory of operation
===================
Bytes arrive in a *scratch* buffer as long as no length is known. Whole frames in it are cut out of
one copy of the chunk; a frame that goes on beyond it gets a buffer of its own, and the rest is
received straight into that. Such a buffer is made when more bytes are to be received and grows as bytes
really arrive (fourfold, above `DOUBLING` twofold), so that announcing a frame costs the announcer more
memory than it costs us. What a stream has already sent in one frame (up to `MOST_TRUSTED`) it is given
at once from then on: large frames come in series, and growing would copy each of them. Who rations
memory looks at `is_full` before `get_buffer`, and calls `grow` with what it grants.

Invariants:
1. Any cut of the same stream into chunks gives the same frames, then the same error.
2. A frame returned is the caller's: its bytes are never touched again.
3. Never more is allocated for a frame than four times what has arrived of it, *first_growth*, or the
   largest frame that came whole before it, of at most `MOST_TRUSTED`.
4. After `FrameTooLarge` the stream is unreadable: every later call raises it again.

In: bytes, by `feed` or by `get_buffer` (for recv_into) and `buffer_updated`.
Out: frames without their length, as read-only or writable memoryviews.   Owner: one connection.
"""

import struct

from kclient.wire.errors import FrameTooLarge

LENGTH_SIZE = 4
SCRATCH_SIZE = 64 * 1024
FIRST_GROWTH = 128 * 1024
"""Bytes given at once to a frame that does not fit the chunk it begins in, if not told otherwise."""

DOUBLING = 1024 * 1024
"""Bytes from which on a frame's buffer grows twofold."""

MOST_TRUSTED = 16 * 1024 * 1024
"""Bytes that a frame may be given at once because an earlier one had as many."""

_LENGTH = struct.Struct(">i")
_MISTAKEN = (
    (b"\x16\x03", "a TLS handshake on a listener without TLS"),
    (b"\x15\x03", "a TLS alert: the peer speaks TLS, we do not"),
    (b"GET ", "an HTTP request"),
    (b"POST", "an HTTP request"),
    (b"HEAD", "an HTTP request"),
    (b"HTTP", "an HTTP response"),
    (b"SSH-", "an SSH banner"),
    (b"PROX", "a PROXY protocol header"),
)


class FrameReader:
    """Cuts one stream into frames of at most *max_frame* bytes.

    *first_growth* is what a frame that does not fit its chunk is given at once: little to strangers;
    a client gives the brokers it asked all they announce, and spares the copies.
    *scratch* may be shared by all readers of a thread, as long as `buffer_updated` directly follows
    the `get_buffer` it belongs to.
    """

    def __init__(
        self,
        max_frame: int,
        scratch: bytearray | None = None,
        *,
        first_growth: int = FIRST_GROWTH,
    ) -> None:
        self.max_frame = max_frame
        self._first_growth = first_growth
        self._trusted = 0  # the largest frame that came whole, of at most MOST_TRUSTED
        self.broken: FrameTooLarge | None = None
        """Why the stream ended here. Look at it after the frames that came before were handled."""
        self.announced = 0
        """Length of the frame under way, 0 if none is."""
        self.received = 0
        """How many bytes of the frame under way are here."""
        self._scratch = scratch
        self._head = b""  # 0 to 3 bytes of a length that was cut
        # The frame under way, if `announced`: what came of it with other bytes, then a buffer of its own.
        self._frame: bytearray | bytes | memoryview = b""

    @property
    def is_full(self) -> bool:
        """Whether the frame under way has no buffer for its next byte."""
        return self.received == len(self._frame)

    def next_size(self, *, trusting: bool = True) -> int:
        """Return how large the buffer of the frame under way is to be next.

        *trusting*: a frame gets at once what an earlier one of the stream had.
        """
        least = max(self._first_growth, self._trusted) if trusting else self._first_growth
        factor = 4 if self.received < DOUBLING else 2
        return min(self.announced, max(least, factor * self.received))

    def grow(self, size: int) -> None:
        """Give the frame under way a buffer of *size* bytes, more than have been received."""
        grown = bytearray(size)
        grown[: self.received] = self._frame
        self._frame = grown

    def abandon(self) -> None:
        """Forget the frame under way, and free its memory: nothing more is to be read from the stream."""
        self.announced = self.received = 0
        self._frame = self._head = b""

    def get_buffer(self, hint: int = -1) -> memoryview:
        """Return where to receive the next bytes; never empty. *hint* is for asyncio's sake."""
        if self.broken is not None:
            raise self.broken
        if self.announced:
            if self.received == len(self._frame):
                self.grow(self.next_size())
            return memoryview(self._frame)[self.received :]
        if self._scratch is None:
            self._scratch = bytearray(SCRATCH_SIZE)
        return memoryview(self._scratch)

    def buffer_updated(self, count: int) -> list[memoryview]:
        """Take the *count* bytes put into the last `get_buffer`; return the frames now whole."""
        if self.broken is not None:
            raise self.broken
        if self.announced:
            self.received += count
            return self._finished()
        assert self._scratch is not None, "buffer_updated without get_buffer"
        with memoryview(self._scratch) as view:
            chunk = self._head + view[:count]
        self._head = b""
        return self._cut(chunk)

    def feed(self, data: bytes | memoryview) -> list[memoryview]:
        """Take *data*, received elsewhere; return the frames now whole.

        FrameTooLarge if the first new length is impossible. If whole frames come before it they are
        returned, `broken` is set, and the next call raises.
        """
        if self.broken is not None:
            raise self.broken
        frames: list[memoryview] = []
        view = memoryview(data)
        while view and self.announced:
            with self.get_buffer() as buffer:
                part = view[: len(buffer)]
                buffer[: len(part)] = part
            self.received += len(part)
            view = view[len(part) :]
            frames += self._finished()
        if view:
            chunk = self._head + view
            self._head = b""
            frames += self._cut(chunk, raise_now=not frames)
        return frames

    def _finished(self) -> list[memoryview]:
        """Return the frame under way if it is whole."""
        if self.received < self.announced:
            return []
        self._trusted = max(self._trusted, min(self.announced, MOST_TRUSTED))
        whole = memoryview(self._frame)
        self._frame = b""
        self.announced = self.received = 0
        return [whole]

    def _cut(self, chunk: bytes, raise_now: bool = True) -> list[memoryview]:
        """Return the whole frames of *chunk*, which begins at a length; keep what is left over."""
        frames: list[memoryview] = []
        view = memoryview(chunk)
        pos, end = 0, len(chunk)
        while end - pos >= LENGTH_SIZE:
            (length,) = _LENGTH.unpack_from(chunk, pos)
            if not 0 <= length <= self.max_frame:
                self.broken = self._impossible(length, chunk[pos : pos + LENGTH_SIZE])
                if raise_now and not frames:
                    raise self.broken
                return frames
            start = pos + LENGTH_SIZE
            pos = start + length
            if pos > end:
                self._begin(length, view[start:], end)
                return frames
            frames.append(view[start:pos])
        self._head = chunk[pos:]
        return frames

    def _begin(self, length: int, first: memoryview, chunk_size: int) -> None:
        """Keep the *first* bytes of a frame of *length* bytes; it gets a buffer when more are to be received."""
        self.announced, self.received = length, len(first)
        # A small part of a chunk must not keep all of it.
        self._frame = bytes(first) if 2 * len(first) < chunk_size else first

    def _impossible(self, length: int, raw: bytes) -> FrameTooLarge:
        for prefix, what in _MISTAKEN:
            if raw.startswith(prefix):
                return FrameTooLarge(f"this is not Kafka's protocol but {what}", hint="")
        return FrameTooLarge(f"a frame of {length} bytes, the limit is {self.max_frame}")


def frame_length(size: int) -> bytes:
    """Return the four bytes that go before a message of *size* bytes."""
    return _LENGTH.pack(size)


def framed(message: bytes) -> bytes:
    """Return *message* with its length in front."""
    return _LENGTH.pack(len(message)) + message
