"""A byte stream -> frames: messages with a four-byte length prefix, which is checked before anything is allocated.

Theory of operation
===================
Bytes arrive in a *scratch* buffer while no length is known. Complete frames in it are slices of one copy of the chunk.
A frame that continues beyond the chunk gets a buffer of its own, and the rest is received directly into it. Such a
buffer is allocated when more bytes are to be received, and grows with the bytes that arrive: fourfold, above `DOUBLING`
twofold. So announcing a large frame costs the peer more memory than it costs this side. The largest complete frame of a
stream (up to `MOST_TRUSTED`) is later allocated at once. Large frames come in series and growing copies each of them. A
caller that rations memory checks `is_full` before `get_buffer`, and calls `grow` with the allocated size.

Invariants:
1. Any partition of the same stream into chunks gives the same frames, then the same error.
2. A returned frame belongs to the caller: its bytes never change again.
3. A frame never gets more memory than four times its received bytes, *first_growth*, or the largest complete frame
   before it, of at most `MOST_TRUSTED`.
4. After `FrameTooLarge` the stream is unreadable: every later call raises it again.

In: bytes, by `feed` or by `get_buffer` (for recv_into) and `buffer_updated`.
Out: frames without their length, as read-only or writable memoryviews.   Owner: one connection.
"""

import struct

from kclient.wire.errors import FrameTooLarge

LENGTH_SIZE = 4
SCRATCH_SIZE = 64 * 1024
FIRST_GROWTH = 128 * 1024
"""Default of the bytes that are allocated at once for a frame beyond its first chunk."""

DOUBLING = 1024 * 1024
"""Bytes above which a frame's buffer grows twofold."""

MOST_TRUSTED = 16 * 1024 * 1024
"""The largest frame in bytes that is allocated at once because an earlier one was as large."""

_LENGTH = struct.Struct(">i")
_MISTAKEN = (
    (b"\x16\x03", "a TLS handshake on a listener without TLS"),
    (b"\x15\x03", "a TLS alert: the peer uses TLS, this side does not"),
    (b"GET ", "an HTTP request"),
    (b"POST", "an HTTP request"),
    (b"HEAD", "an HTTP request"),
    (b"HTTP", "an HTTP response"),
    (b"SSH-", "an SSH banner"),
    (b"PROX", "a PROXY protocol header"),
)


class FrameReader:
    """Splits one stream into frames of at most *max_frame* bytes.

    *first_growth* is allocated at once for a frame beyond its first chunk: little for unknown peers. A client allocates
    whole responses of its brokers, which avoids copies. All readers of a thread may share *scratch*, if
    `buffer_updated` directly follows its `get_buffer`.
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
        self._trusted = 0  # the largest complete frame, of at most MOST_TRUSTED
        self.broken: FrameTooLarge | None = None
        """The error that ended the stream; check it after handling the frames before it."""
        self.announced = 0
        """The length of the current frame, 0 without one."""
        self.received = 0
        """The received bytes of the current frame."""
        self._scratch = scratch
        self._head = b""  # 0 to 3 bytes of an incomplete length
        # The current frame, if `announced`: first the bytes that came with others, then its own buffer.
        self._frame: bytearray | bytes | memoryview = b""

    @property
    def is_full(self) -> bool:
        """Whether the current frame has no buffer for its next byte."""
        return self.received == len(self._frame)

    def next_size(self, *, trusting: bool = True) -> int:
        """Return the size of the current frame's next buffer.

        *trusting*: allocate the size of an earlier frame of the stream at once.
        """
        least = max(self._first_growth, self._trusted) if trusting else self._first_growth
        factor = 4 if self.received < DOUBLING else 2
        return min(self.announced, max(least, factor * self.received))

    def grow(self, size: int) -> None:
        """Give the current frame a buffer of *size* bytes, more than have been received."""
        frame = self._frame
        # Below DOUBLING a copy costs less than the zeros that `_resized` appends.
        if isinstance(frame, bytearray) and len(frame) >= DOUBLING and self._resized(frame, size):
            return
        grown = bytearray(size)
        grown[: self.received] = frame
        self._frame = grown

    @staticmethod
    def _resized(frame: bytearray, size: int) -> bool:
        """Enlarge *frame* where it is; return False if a caller still has a view of it.

        The allocator moves the pages of a large block. So the old and the new buffer never take memory together, and no
        turn copies what was received.
        """
        try:
            frame.extend(bytes(size - len(frame)))
        except BufferError:
            return False
        return True

    def abandon(self) -> None:
        """Drop the current frame and free its memory: the stream will not be read again."""
        self.announced = self.received = 0
        self._frame = self._head = b""

    def get_buffer(self, hint: int = -1) -> memoryview:
        """Return the buffer for the next bytes; never empty. *hint* is part of asyncio's interface."""
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
        """Handle *count* bytes in the last `get_buffer`; return the frames that are now complete."""
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
        """Handle *data* received elsewhere; return the frames that are now complete.

        Raise FrameTooLarge if the first new length is invalid. Complete frames before it are returned; then `broken` is
        set, and the next call raises.
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
        """Return the current frame if it is complete."""
        if self.received < self.announced:
            return []
        self._trusted = max(self._trusted, min(self.announced, MOST_TRUSTED))
        whole = memoryview(self._frame)
        self._frame = b""
        self.announced = self.received = 0
        return [whole]

    def _cut(self, chunk: bytes, raise_now: bool = True) -> list[memoryview]:
        """Return the complete frames of *chunk*, which starts with a length; keep the rest."""
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
        """Keep the *first* bytes of a frame of *length* bytes; its buffer is allocated when more are received."""
        self.announced, self.received = length, len(first)
        # A small part of a chunk must not keep the whole chunk in memory.
        self._frame = bytes(first) if 2 * len(first) < chunk_size else first

    def _impossible(self, length: int, raw: bytes) -> FrameTooLarge:
        for prefix, what in _MISTAKEN:
            if raw.startswith(prefix):
                return FrameTooLarge(f"this is not Kafka's protocol but {what}", hint="")
        return FrameTooLarge(f"a frame of {length} bytes, the limit is {self.max_frame}")


def frame_length(size: int) -> bytes:
    """Return the four-byte length prefix of a message of *size* bytes."""
    return _LENGTH.pack(size)


def framed(message: bytes) -> bytes:
    """Return *message* with its length prefix."""
    return _LENGTH.pack(len(message)) + message
