"""One client's connection: frames are answered one after the other, in order, within limits.

Theory of operation
===================
A frame is given to the `Service`; while its answer is awaited nothing else of this connection is
processed, and reading is paused as soon as more arrives (Kafka mutes the channel likewise). So a client
may pipeline as it likes and holds at most one read's worth of our memory. Frames that are answered at
once are processed in a loop, a bounded number per turn of the reactor, and their answers leave together.

What the peer has not taken yet holds it back, too: the next frame waits until the queue is short.

Invariants:
1. Answers leave in the order of the requests; every request is answered once, or the connection closes.
2. At most one request is being answered.
3. Every close has a deadline, after which the connection is aborted (twisted#7926).
4. Memory reserved from the budget is given back: when the frame was answered, or the connection is lost.

In: bytes of the peer, answers of the service.   Out: frames to the service, parts to the transport.
Owner: the reactor's thread.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.net.service import Answer, HeldAnswer, Part, Peer, RequestRefusedError
from kbroker.net.transport import RecordTransport, release
from kclient.wire.errors import FrameTooLarge, ProtocolError
from kclient.wire.framing import FrameReader

if TYPE_CHECKING:
    from kbroker.net.listener import Listener

log = Logger()

FRAMES_PER_TURN = 64
"""Requests answered for one connection before the others get their turn."""

TURN_SECONDS = 0.02
"""And how long they may take together."""

UNSENT_MAX = 512 * 1024
"""Bytes the peer may leave untaken before its next request waits."""

_LENGTH = struct.Struct(">i")
_NO_REASON = Failure(ConnectionDone())


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a peer may do nothing, in seconds."""

    idle: float
    write_stall: float
    request_stall: float
    """Where others wait for memory, the longest silence in the middle of a large request."""


def escaped(text: str) -> str:
    """Return *text* of unknown origin in printable ASCII, shortened: it goes into a log line."""
    return ascii(text if len(text) <= 300 else text[:300] + "...")[1:-1]


class Connection(Protocol):
    """The protocol of one accepted connection."""

    transport: RecordTransport

    def __init__(self, listener: Listener, peer: Peer) -> None:
        self._listener = listener
        self.peer = peer
        self._reader = FrameReader(listener.max_frame, listener.scratch)
        self._frames: deque[memoryview] = deque()
        self._answering: Deferred[Answer] | None = None
        self._reserved = 0  # bytes taken from the budget for the frame under way or being answered
        self._stop_waiting: Callable[[], None] | None = None
        self._paused = False
        self._in_loop = False
        self._closing = False
        self._resumption: Any = None  # delayed call that goes on with the frames left over
        self._deadline: Any = None
        self.last_received = listener.now()
        """When the peer last sent something."""
        self._sent_before = 0
        self._last_progress = self.last_received

    # -- receiving -----------------------------------------------------------------------------

    def connectionMade(self) -> None:  # noqa: N802
        """Join the listener's connections."""
        self._listener.opened(self)

    def get_buffer(self) -> memoryview:
        """Return where the transport is to receive."""
        return self._reader.get_buffer()

    def buffer_updated(self, count: int) -> bool:
        """Take *count* bytes; return whether a large frame wants more of them at once."""
        self.last_received = self._listener.now()
        if self._closing:
            return False
        reader = self._reader
        under_way = reader.announced
        try:
            frames = reader.buffer_updated(count)
        except FrameTooLarge as error:
            self.refuse(str(error))
            return False
        if frames:
            self._frames.extend(frames)
            if under_way and not reader.announced:
                under_way = 0
            if self._answering is None and not self._in_loop and self._resumption is None:
                self._process()
            else:
                self._pause()
                self._hurry()
        if reader.announced and reader.announced != under_way:
            return self._reserve(reader.announced)
        return bool(reader.announced) and not self._paused

    def _reserve(self, size: int) -> bool:
        """Take room for a frame of *size* bytes; pause where there is none. Return whether there is."""
        memory = self._listener.memory
        if memory.reserve(size):
            self._reserved += size
            return not self._paused

        def granted() -> None:
            self._stop_waiting = None
            self._reserved += size
            self._maybe_resume()

        self._pause()
        self._stop_waiting = memory.wait(size, granted)
        return False

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self.transport.stopReading()

    def _maybe_resume(self) -> None:
        """Read again if nothing speaks against it."""
        if (
            self._paused
            and not self._closing
            and not self._frames
            and self._answering is None
            and self._stop_waiting is None
            and self.transport.connected
        ):
            self._paused = False
            self.transport.startReading()

    # -- answering -----------------------------------------------------------------------------

    def _process(self) -> None:
        """Answer the frames that are here, as long as answers come at once and the peer takes them."""
        self._in_loop = True
        transport = self.transport
        frames = self._frames
        count = 0
        now = self._listener.now
        until = now() + TURN_SECONDS
        try:
            while frames and not self._closing and transport.connected:
                if count == FRAMES_PER_TURN or transport.unsent > UNSENT_MAX:
                    break
                if count and now() > until:
                    break
                count += 1
                if not self._ask(frames.popleft()):
                    break
        finally:
            self._in_loop = False
        transport.flush()
        if self._answering is not None or self._closing:
            if frames:
                self._pause()
                self._hurry()
            return
        if frames:
            self._pause()
            if transport.unsent <= UNSENT_MAX:
                self._resumption = self._listener.reactor.callLater(0, self._go_on)
            return  # else `drained` goes on
        if self._reader.broken is not None:
            self.refuse(str(self._reader.broken))
            return
        self._release_memory()
        self._maybe_resume()

    def _go_on(self) -> None:
        self._resumption = None
        if self.transport.connected and self._answering is None and not self._in_loop:
            self._process()

    def drained(self) -> None:
        """Go on with the frames that waited for the peer to take its answers."""
        if self._frames and self._resumption is None:
            self._go_on()

    def _ask(self, frame: memoryview) -> bool:
        """Have *frame* answered; return whether that is done."""
        try:
            answer = self._listener.service(frame, self.peer)
        except (RequestRefusedError, ProtocolError) as error:
            self.refuse(str(error))
            return False
        except Exception:
            self._failed(Failure())
            return False
        if isinstance(answer, Deferred):
            return self._await(answer, len(frame))
        if answer is not None:
            self._send(answer)
        return True

    def _await(self, answer: Deferred[Answer], size: int) -> bool:
        """Wait for *answer*; return whether it was there already."""
        done = False

        def arrived(result: Any) -> None:
            nonlocal done
            done = True
            waited = self._answering is answer
            if waited:
                self._answering = None
            self._arrived(result)
            if waited and not self._in_loop:
                self._process()

        answer.addBoth(arrived)
        if not done:
            self._answering = answer
            if not self._reserved:
                self._reserved = size
                self._listener.memory.take(size)
        return done and not self._closing

    def _hurry(self) -> None:
        """Have an answer that is held back given now: another request waits behind it."""
        answering = self._answering
        if isinstance(answering, HeldAnswer):
            answering.let_go()

    def _arrived(self, result: Any) -> None:
        if isinstance(result, Failure):
            if result.check(RequestRefusedError, ProtocolError):
                self.refuse(str(result.value))
            elif not result.check(CancelledError):
                self._failed(result)
        elif not self.transport.connected:
            release(result or ())
        elif result is not None:
            self._send(result)

    def _send(self, parts: Answer) -> None:
        assert parts is not None
        size = 0
        for part in parts:
            size += len(part)
        first = parts[0]
        prefix = _LENGTH.pack(size)
        joined: list[Part]
        if isinstance(first, bytes) and len(first) < UNSENT_MAX:
            joined = [prefix + first, *parts[1:]]
        else:
            joined = [prefix, *parts]
        self.transport.send(joined)
        self._listener.sent(self)

    def _release_memory(self) -> None:
        """Give back what was reserved, unless a frame is under way."""
        if self._reserved and self._answering is None:
            kept = self._reader.announced if self._stop_waiting is None else 0
            freed, self._reserved = self._reserved - kept, kept
            if freed:
                self._listener.memory.release(freed)

    # -- the end -------------------------------------------------------------------------------

    def refuse(self, cause: str) -> None:
        """Close because of what the peer sent, with one line that names it and the cause."""
        if not self._closing:
            self._listener.refused(self.peer, cause)
        self.close()

    def _failed(self, failure: Failure) -> None:
        """Close because of an error of ours."""
        log.failure("answering {peer} failed", failure, peer=str(self.peer))
        self.close()

    def close(self) -> None:
        """Send what is queued, then close; abort after kbroker.close.timeout.ms."""
        if self._closing or not self.transport.connected:
            return
        self._closing = True
        self._frames.clear()
        self.transport.flush()
        self.transport.loseConnection()
        self._deadline = self._listener.reactor.callLater(self._listener.close_timeout, self._abort)

    def _abort(self) -> None:
        self._deadline = None
        self.transport.abortConnection()

    def check(self, now: float, limits: Limits) -> None:
        """Close if the peer is idle, does not take its answers, or does not finish its request."""
        transport = self.transport
        if transport.total_sent != self._sent_before or not transport.unsent:
            self._sent_before = transport.total_sent
            self._last_progress = now
        elif now - self._last_progress > limits.write_stall:
            log.info("aborting {peer}: it took none of {unsent} bytes for {seconds:.0f} s",
                     peer=str(self.peer), unsent=transport.unsent,
                     seconds=now - self._last_progress)  # fmt: skip
            transport.abortConnection()
            return
        silent = now - self.last_received
        if self._reader.announced and not self._paused and self._listener.memory.waiting:
            if silent > limits.request_stall:
                self.refuse("its request stalled while others wait for memory")
        elif self._answering is None and not transport.unsent and silent > limits.idle:
            log.debug(
                "closing {peer}: idle for {seconds:.0f} s", peer=str(self.peer), seconds=silent
            )
            self.close()

    def connectionLost(self, reason: Failure = _NO_REASON) -> None:  # noqa: N802
        """Give everything back: memory, the request being answered, the place in the limits."""
        self._closing = True
        self._frames.clear()
        for call in (self._deadline, self._resumption):
            if call is not None:
                call.cancel()
        self._deadline = self._resumption = None
        if self._stop_waiting is not None:
            self._stop_waiting()
            self._stop_waiting = None
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.cancel()
        if self._reserved:
            freed, self._reserved = self._reserved, 0
            self._listener.memory.release(freed)
        self._listener.closed(self)
