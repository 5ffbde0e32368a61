"""One client's connection: its requests are answered one after the other, in order, within limits.

Theory of operation
===================
A frame is passed to the `Service`. Until its response is there, no other request of this connection is processed.
Reading pauses as soon as more arrives; Kafka mutes the channel likewise. So a client may pipeline requests, and holds
at most one read of memory, a small one where it would only wait. Requests that are answered at once are processed in a
loop, a bounded number per turn of the reactor, and their responses leave together. A frame that does not end in its
first read asks `RequestMemory` for the rest.

Unsent responses hold the connection back, too: the next request waits until the outgoing queue is short. A response
may throttle its client (`Peer.throttle_seconds`): the connection is muted for that time after it, as in Kafka.

Invariants:
1. Responses leave in the order of the requests; every request is answered once, or the connection closes.
2. At most one request is being answered.
3. Every close has a deadline, after which the connection is aborted (twisted#7926).
4. What outlives a turn of the reactor is counted in `RequestMemory`. That is the incomplete frame, and the frame being
   answered if its handler keeps a part of it. It is also the frames behind that, which all came with one read.

In: bytes of the peer, responses of the service.   Out: frames to the service, parts to the transport.
Owner: the reactor's thread.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from typing import Protocol as Interface

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
from kbroker.network.core.request_memory import (
    SMALL_READ,
    RequestMemory,
    Reservation,
    slowness,
)
from kbroker.network.service import Answer, HeldResponse, Part, Peer, RequestRefusedError, Service
from kbroker.network.transport import Transport, release
from kclient.wire.errors import FrameTooLarge, ProtocolError
from kclient.wire.framing import FrameReader

log = Logger()

FRAMES_PER_TURN = 64
"""Requests answered for one connection in one turn of the reactor."""

TURN_SECONDS = 0.02
"""How long these may take together."""

UNSENT_MAX = 512 * 1024
"""Unsent bytes above which the next request waits."""

FIRST_GROWTH = 16 * 1024
"""The smallest buffer of a frame, in bytes, where memory is not short."""

_LENGTH = struct.Struct(">i")
_NOWHERE = memoryview(b"")
_NO_REASON = Failure(ConnectionDone())


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a peer may be idle, or not read its responses, in seconds."""

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


class Acceptance(Interface):
    """What a connection needs of the listener that accepted it."""

    reactor: Clock
    service: Service
    memory: RequestMemory
    scratch: bytearray
    """The buffer that all connections read into while no frame's length is known."""
    max_frame: int
    close_timeout: float
    """Seconds from a close to an abort."""

    def now(self) -> float:
        """Return the time, in seconds of a monotonic clock."""

    def opened(self, connection: Connection, /) -> None:
        """Add a new connection."""

    def closed(self, connection: Connection, /) -> None:
        """Remove a connection that is lost."""

    def refused(self, peer: Peer, cause: str, /) -> None:
        """Log that the connection of *peer* is closed because of what it sent."""

    def watch_memory(self) -> None:
        """Check the frames that wait for memory, until none waits."""

    def may_proceed(self, frames: Sequence[Reservation], /) -> None:
        """Continue to read *frames*: memory was allocated to them."""

    def check_unsent(self) -> None:
        """Abort the slowest readers if the unsent responses use too much memory."""


class Connection(Protocol):
    """The protocol of one accepted connection."""

    transport: Transport  # type: ignore[assignment]  # more than Twisted's ITransport

    def __init__(self, listener: Acceptance, peer: Peer) -> None:
        self._listener = listener
        self.peer = peer
        self._memory = listener.memory
        self._reader = FrameReader(listener.max_frame, listener.scratch, first_growth=FIRST_GROWTH)
        self._under_way: Reservation | None = None
        self._frames: deque[memoryview] = deque()
        self._answering: Deferred[Answer] | None = None
        self._held = 0  # bytes of the frame being answered that its handler keeps
        self._queued = 0  # bytes of the read that the waiting frames came with
        self._paused = False
        self._in_loop = False
        self._closing = False
        self._resumption: Any = None
        """The delayed call that continues: with the frames left over, or when the throttle time is over."""
        self._deadline: Any = None
        self._last_activity = listener.now()
        """When something was last received or, as far as `check` knows, sent."""
        self._behind_since = self._last_activity
        """When the peer was last known to have received all responses."""
        self._sent_before = 0
        self._last_progress = self._last_activity

    # -- receiving -----------------------------------------------------------------------------

    def connectionMade(self) -> None:  # noqa: N802
        """Report the connection to its listener."""
        self._listener.opened(self)

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into; empty if the incomplete frame has to wait for memory."""
        frame = self._under_way
        if frame is not None:
            if self._reader.is_full and not self._grow(frame):
                return _NOWHERE
        elif self._answering is not None or self._memory.other > self._memory.tight_above:
            return self._reader.get_buffer()[:SMALL_READ]
        return self._reader.get_buffer()

    def _grow(self, frame: Reservation) -> bool:
        """Enlarge the buffer of the incomplete frame; return whether there is memory for that."""
        reader, memory = self._reader, self._memory
        if frame.room <= reader.received:
            size = reader.next_size(trusting=memory.is_roomy)
            if not memory.try_allocate(frame, size, self._listener.now()):
                self._pause()
                self._listener.watch_memory()
                return False
        reader.grow(frame.room)
        return True

    def buffer_updated(self, count: int) -> bool:
        """Process *count* received bytes; return whether to read again at once, for a large frame."""
        now = self._last_activity = self._listener.now()
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
            frames.clear()  # an answered frame must have no other references
            if self._answering is None and not self._in_loop and self._resumption is None:
                self._process()
            else:
                self._pause()
                self._send_held()
                self._count(self._held)
            if under_way is not None:
                self._listener.may_proceed(self._memory.end(under_way))
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

    def proceed(self) -> None:
        """Continue to read, unless a request is being answered or the incomplete frame waits for memory."""
        under_way = self._under_way
        if (
            self._paused
            and not self._closing
            and not self._frames
            and self._answering is None
            and self._resumption is None
            and (under_way is None or not under_way.is_waiting)
            and self.transport.connected
        ):
            self._paused = False
            if under_way is not None:
                self._memory.resume(under_way, self._listener.now())
            self.transport.startReading()

    def too_slow(self, now: float) -> None:
        """Close: the incomplete frame is below the minimum rate, and others wait for memory."""
        if self._under_way is not None:
            self.refuse(slowness(self._under_way, now))

    # -- answering -----------------------------------------------------------------------------

    def _process(self) -> None:
        """Answer the frames received, as long as responses come at once and the peer reads them."""
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
                self._send_held()
            return
        if self.peer.throttle_seconds:
            self._mute()
            return
        if self._frames:
            self._pause()
            if self.transport.unsent <= UNSENT_MAX:
                self._resumption = self._listener.reactor.callLater(0, self._proceed)
            return  # else `drained` continues
        if self._reader.broken is not None:
            self.refuse(str(self._reader.broken))
            return
        self.proceed()

    def _mute(self) -> None:
        """Neither read nor answer until the throttle time is over."""
        seconds, self.peer.throttle_seconds = self.peer.throttle_seconds, 0.0
        self._pause()
        self._resumption = self._listener.reactor.callLater(seconds, self._proceed)

    def _answer_frames(self) -> int:
        """Answer frames until one has to wait; return how many of its bytes stay in memory."""
        transport, frames, peer = self.transport, self._frames, self.peer
        count = 0
        while frames and not self._closing and transport.connected:
            if count == FRAMES_PER_TURN or transport.unsent > UNSENT_MAX or peer.throttle_seconds:
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
        """Count what stays in memory after this turn: *held* bytes of a request, and the frames that wait."""
        if held != self._held:
            before, self._held = self._held, held
            self._listener.may_proceed(self._memory.exchange(before, held))
        queued = len(cast(bytes, self._frames[0].obj)) if self._frames else 0
        if queued != self._queued:
            before, self._queued = self._queued, queued
            self._listener.may_proceed(self._memory.exchange(before, queued))

    def _proceed(self) -> None:
        self._resumption = None
        if self.transport.connected and self._answering is None and not self._in_loop:
            self._process()

    def drained(self) -> None:
        """Continue with the frames that waited for the peer to read its responses."""
        if self._frames and self._resumption is None:
            self._proceed()

    def _ask(self, frame: memoryview) -> bool:
        """Pass *frame* to the service; return whether it is answered."""
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
        """Wait for *answer*; return whether it was there at once."""
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

    def _send_held(self) -> None:
        """Have a held response sent now: another request waits behind it."""
        answering = self._answering
        if isinstance(answering, HeldResponse):
            answering.send_now()

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
            self._behind_since = self._last_activity
        self.transport.send(joined)

    def byte_seconds_unsent(self, now: float) -> float:
        """Return the unsent bytes, times the seconds since the peer had received everything."""
        return self.transport.unsent_memory * (now - self._behind_since)

    # -- the end -------------------------------------------------------------------------------

    def refuse(self, cause: str) -> None:
        """Close because of what the peer sent, with one log line that names it and the cause."""
        if not self._closing:
            self._listener.refused(self.peer, cause)
        self.close()

    def _failed(self, failure: Failure) -> None:
        """Close because of an error in this broker."""
        log.failure("answering {peer} failed", failure, peer=str(self.peer))
        self.close()

    def close(self) -> None:
        """Send what is queued, then close; abort after kbroker.close.timeout.ms."""
        if self._closing or not self.transport.connected:
            return
        self._closing = True
        self._drop_frames(self._held)
        self.transport.flush()
        self.transport.loseConnection()
        self._deadline = self._listener.reactor.callLater(self._listener.close_timeout, self._abort)

    def _drop_frames(self, held: int) -> None:
        """Drop the requests that are not answered; *held* bytes stay counted."""
        self._frames.clear()
        self._reader.abandon()
        self._count(held)
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            self._listener.may_proceed(self._memory.end(under_way))

    def abort(self) -> None:
        """End the connection at once; what is queued is not sent."""
        self._closing = True
        self._drop_frames(self._held)
        self.transport.abortConnection()

    def _abort(self) -> None:
        self._deadline = None
        self.abort()

    def check(self, now: float, limits: Limits) -> None:
        """Close if the peer is idle, or does not read its responses.

        What was sent since the last check counts as activity of now, as in Kafka. A response may have taken longer than
        an idle peer is kept. A peer that is not read from is not idle: its requests may wait in the socket.
        """
        transport = self.transport
        if transport.total_sent != self._sent_before:
            self._sent_before = transport.total_sent
            self._last_progress = self._last_activity = now
        elif not transport.unsent:
            self._last_progress = now
        elif now - self._last_progress > limits.write_stall:
            log.info("aborting {peer}: it read none of {unsent} bytes for {seconds:.0f} s",
                     peer=str(self.peer), unsent=transport.unsent,
                     seconds=now - self._last_progress)  # fmt: skip
            self.abort()
            return
        silent = now - self._last_activity
        if (
            self._answering is None
            and not self._paused
            and not transport.unsent
            and silent > limits.idle
        ):
            log.debug(
                "closing {peer}: idle for {seconds:.0f} s", peer=str(self.peer), seconds=silent
            )
            self.close()

    def connectionLost(self, reason: Failure = _NO_REASON) -> None:  # noqa: N802
        """Release everything: memory, the request being answered, the connection's place in the quotas."""
        self._closing = True
        for call in (self._deadline, self._resumption):
            if call is not None:
                call.cancel()
        self._deadline = self._resumption = None
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.cancel()
        self._drop_frames(0)
        self._listener.closed(self)
