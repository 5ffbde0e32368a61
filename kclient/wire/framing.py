"""A byte stream -> frames: messages behind four bytes of length, checked before anything is kept.

Theory of operation
===================
Bytes arrive in a *scratch* buffer as long as no length is known. Whole frames in it are cut out of
one copy of the chunk; a frame that goes on beyond it gets a buffer of its own, and the rest is
received straight into that. Such a buffer starts small and grows fourfold as bytes really arrive,
so that announcing a frame costs the announcer more memory than it costs us. What a stream has already
sent in one frame (up to `MOST_TRUSTED`) it is given at once from then on: large frames come in series, and
growing would copy each of them.

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
        self.broken: FrameTooLarge | None = None
        """Why the stream ended here. Look at it after the frames that came before were handled."""
        self.announced = 0
        """Length of the frame under way, 0 if none is."""
        self.received = 0
        """How many bytes of the frame under way are here."""
        self._scratch = scratch
        self._head = b""  # 0 to 3 bytes of a length that was cut
        self._frame = bytearray()  # the frame under way, if `announced`

    def get_buffer(self, hint: int = -1) -> memoryview:
        """Return where to receive the next bytes; never empty. *hint* is for asyncio's sake."""
        if self.broken is not None:
            raise self.broken
        if self.announced:
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
            return self._grow_or_finish()
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
            part = view[: len(self._frame) - self.received]
            self._frame[self.received : self.received + len(part)] = part
            self.received += len(part)
            view = view[len(part) :]
            frames += self._grow_or_finish()
        if view:
            chunk = self._head + view
            self._head = b""
            frames += self._cut(chunk, raise_now=not frames)
        return frames

    def _grow_or_finish(self) -> list[memoryview]:
        if self.received == self.announced:
            self._first_growth = max(self._first_growth, min(self.announced, MOST_TRUSTED))
            whole = memoryview(self._frame)
            self._frame = bytearray()
            self.announced = self.received = 0
            return [whole]
        if self.received == len(self._frame):
            grown = bytearray(min(self.announced, 4 * self.received))
            grown[: self.received] = self._frame
            self._frame = grown
        return []

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
                self._begin(length, view[start:])
                return frames
            frames.append(view[start:pos])
        self._head = chunk[pos:]
        return frames

    def _begin(self, length: int, first: memoryview) -> None:
        """Give a frame of *length* bytes, of which *first* are here, a buffer of its own."""
        self.announced, self.received = length, len(first)
        self._frame = bytearray(min(length, max(self._first_growth, 4 * len(first))))
        self._frame[: len(first)] = first

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
