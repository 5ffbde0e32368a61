"""One client's connection: frames are answered one after the other, in order, within limits.

Theory of operation
===================
A frame is given to the `Service`; while its answer is awaited nothing else of this connection is
processed, and reading is paused as soon as more arrives (Kafka mutes the channel likewise). So a client
may pipeline as it likes and holds at most one read's worth of our memory, a small one where it would only wait.
Frames that are answered at once are processed in a loop, a bounded number per turn of the reactor, and their
answers leave together. A frame that does not end in its first read asks `RequestMemory` for the rest.

What the peer has not taken yet holds it back, too: the next frame waits until the queue is short.

Invariants:
1. Answers leave in the order of the requests; every request is answered once, or the connection closes.
2. At most one request is being answered.
3. Every close has a deadline, after which the connection is aborted (twisted#7926).
4. What outlives a turn of the reactor is counted in `RequestMemory`: the frame under way, the frame being answered
   if its handler keeps a part of it, and the frames behind that, which all came with one read.

In: bytes of the peer, answers of the service.   Out: frames to the service, parts to the transport.
Owner: the reactor's thread.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.network.core.request_memory import SMALL_READ, Reservation, slowness
from kbroker.network.service import Answer, HeldAnswer, Part, Peer, RequestRefusedError
from kbroker.network.transport import RecordTransport, release
from kclient.wire.errors import FrameTooLarge, ProtocolError
from kclient.wire.framing import FrameReader

if TYPE_CHECKING:
    from kbroker.network.socket_server import Listener

log = Logger()

FRAMES_PER_TURN = 64
"""Requests answered for one connection before the others get their turn."""

TURN_SECONDS = 0.02
"""And how long they may take together."""

UNSENT_MAX = 512 * 1024
"""Bytes the peer may leave untaken before its next request waits."""

FIRST_GROWTH = 16 * 1024
"""Bytes that a frame's buffer has at least, where memory is not short."""

_LENGTH = struct.Struct(">i")
_NOWHERE = memoryview(b"")
_NO_REASON = Failure(ConnectionDone())


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a peer may do nothing, in seconds."""

    idle: float
    write_stall: float


def _is_free(buffer: bytearray) -> bool:
    """Free the memory of *buffer* unless a view of it is left; return whether it is free."""
    try:
        buffer.clear()
    except BufferError:
        return False
    return True


def escaped(text: str) -> str:
    """Return *text* of unknown origin in printable ASCII, shortened: it goes into a log line."""
    return ascii(text if len(text) <= 300 else text[:300] + "...")[1:-1]


class Connection(Protocol):
    """The protocol of one accepted connection."""

    transport: RecordTransport

    def __init__(self, listener: Listener, peer: Peer) -> None:
        self._listener = listener
        self.peer = peer
        self._memory = listener.memory
        self._reader = FrameReader(listener.max_frame, listener.scratch, first_growth=FIRST_GROWTH)
        self._under_way: Reservation | None = None
        self._frames: deque[memoryview] = deque()
        self._answering: Deferred[Answer] | None = None
        self._held = 0  # bytes kept of the frame being answered
        self._queued = 0  # bytes of the read whose frames wait
        self._paused = False
        self._in_loop = False
        self._closing = False
        self._resumption: Any = None  # delayed call that goes on with the frames left over
        self._deadline: Any = None
        self.last_received = listener.now()
        """When the peer last sent something."""
        self._behind_since = self.last_received
        """When the peer was last known to have taken all its answers."""
        self._sent_before = 0
        self._last_progress = self.last_received

    # -- receiving -----------------------------------------------------------------------------

    def connectionMade(self) -> None:  # noqa: N802
        """Join the listener's connections."""
        self._listener.opened(self)

    def get_buffer(self) -> memoryview:
        """Return where the transport is to receive; empty if the frame under way has to wait for memory."""
        frame = self._under_way
        if frame is not None:
            if self._reader.is_full and not self._grow(frame):
                return _NOWHERE
        elif self._answering is not None or self._memory.other > self._memory.tight_above:
            return self._reader.get_buffer()[:SMALL_READ]
        return self._reader.get_buffer()

    def _grow(self, frame: Reservation) -> bool:
        """Make the buffer of the frame under way larger; return whether there is memory for that."""
        reader, memory = self._reader, self._memory
        if frame.room <= reader.received:
            size = reader.next_size(trusting=memory.is_roomy)
            if not memory.ask(frame, size, self._listener.now()):
                self._pause()
                self._listener.watch_memory()
                return False
        reader.grow(frame.room)
        return True

    def buffer_updated(self, count: int) -> bool:
        """Take *count* bytes; return whether a large frame wants more of them at once."""
        now = self.last_received = self._listener.now()
        if self._closing:
            return False
        reader = self._reader
        try:
            frames = reader.buffer_updated(count)
        except FrameTooLarge as error:
            self.refuse(str(error))
            return False
        under_way = self._under_way
        if under_way is not None:
            if not frames:
                self._memory.received(under_way, count, now)
                return not self._paused
            self._under_way = None
        if frames:
            self._frames.extend(frames)
            frames.clear()  # a frame that is answered is to be free
            if self._answering is None and not self._in_loop and self._resumption is None:
                self._process()
            else:
                self._pause()
                self._hurry()
                self._count(self._held)
            if under_way is not None:
                self._listener.may_go_on(self._memory.end(under_way))
        if not reader.announced or self._closing:
            return False
        self._under_way = self._memory.begin(self, reader.announced, reader.received, now)
        if self._paused:
            self._memory.pause(self._under_way, now)
        return not self._paused

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self.transport.stopReading()
            if self._under_way is not None:
                self._memory.pause(self._under_way, self._listener.now())

    def go_on(self) -> None:
        """Read again if nothing speaks against it; called when the frame under way was granted memory, too."""
        under_way = self._under_way
        if (
            self._paused
            and not self._closing
            and not self._frames
            and self._answering is None
            and (under_way is None or not under_way.is_waiting)
            and self.transport.connected
        ):
            self._paused = False
            if under_way is not None:
                self._memory.resume(under_way, self._listener.now())
            self.transport.startReading()

    def too_slow(self, now: float) -> None:
        """Close: the frame under way is below the minimum rate, and others wait for memory."""
        if self._under_way is not None:
            self.refuse(slowness(self._under_way, now))

    # -- answering -----------------------------------------------------------------------------

    def _process(self) -> None:
        """Answer the frames that are here, as long as answers come at once and the peer takes them."""
        self._in_loop = True
        try:
            held = self._answer_frames()
        finally:
            self._in_loop = False
        self._count(held)
        self.transport.flush()
        self._listener.check_unsent()
        if self._answering is not None or self._closing:
            if self._frames:
                self._pause()
                self._hurry()
            return
        if self._frames:
            self._pause()
            if self.transport.unsent <= UNSENT_MAX:
                self._resumption = self._listener.reactor.callLater(0, self._go_on)
            return  # else `drained` goes on
        if self._reader.broken is not None:
            self.refuse(str(self._reader.broken))
            return
        self.go_on()

    def _answer_frames(self) -> int:
        """Have frames answered until one has to wait; return how many bytes stay in memory for its answer."""
        transport, frames = self.transport, self._frames
        count = 0
        while frames and not self._closing and transport.connected:
            if count == FRAMES_PER_TURN or transport.unsent > UNSENT_MAX:
                break
            count += 1
            frame = frames.popleft()
            if not self._ask(frame):
                whole = cast(bytes | bytearray, frame.obj)
                del frame
                if self._answering is None or (frames and frames[0].obj is whole):
                    break  # closed; or counted with the frames behind it
                return 0 if type(whole) is bytearray and _is_free(whole) else len(whole)
        return 0

    def _count(self, held: int) -> None:
        """Count what stays in memory beyond this turn: *held* for an answer, and the frames that wait."""
        if held != self._held:
            before, self._held = self._held, held
            self._listener.may_go_on(self._memory.exchange(before, held))
        queued = len(cast(bytes, self._frames[0].obj)) if self._frames else 0
        if queued != self._queued:
            before, self._queued = self._queued, queued
            self._listener.may_go_on(self._memory.exchange(before, queued))

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
            return self._await(answer)
        if answer is not None:
            self._send(answer)
        return True

    def _await(self, answer: Deferred[Answer]) -> bool:
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
        if not self.transport.unsent:
            self._behind_since = self.last_received
        self.transport.send(joined)

    def untaken(self, now: float) -> float:
        """Return how much of answers the peer has left untaken for how long, in byte seconds."""
        return self.transport.unsent_memory * (now - self._behind_since)

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
        self._forget_frames(self._held)
        self.transport.flush()
        self.transport.loseConnection()
        self._deadline = self._listener.reactor.callLater(self._listener.close_timeout, self._abort)

    def _forget_frames(self, held: int) -> None:
        """Drop what was received and is not answered; *held* bytes stay counted."""
        self._frames.clear()
        self._reader.abandon()
        self._count(held)
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            self._listener.may_go_on(self._memory.end(under_way))

    def abort(self) -> None:
        """End the connection at once; what is queued is not sent."""
        self._closing = True
        self._forget_frames(self._held)
        self.transport.abortConnection()

    def _abort(self) -> None:
        self._deadline = None
        self.abort()

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
            self.abort()
            return
        silent = now - self.last_received
        if self._answering is None and not transport.unsent and silent > limits.idle:
            log.debug(
                "closing {peer}: idle for {seconds:.0f} s", peer=str(self.peer), seconds=silent
            )
            self.close()

    def connectionLost(self, reason: Failure = _NO_REASON) -> None:  # noqa: N802
        """Give everything back: memory, the request being answered, the place in the limits."""
        self._closing = True
        for call in (self._deadline, self._resumption):
            if call is not None:
                call.cancel()
        self._deadline = self._resumption = None
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.cancel()
        self._forget_frames(0)
        self._listener.closed(self)
