"""Memory of requests that are received or answered, all connections together: queued.max.request.bytes (KIP-72).

Theory of operation
===================
A frame gets memory as its bytes arrive (`begin`, `try_allocate`), never for the length that it announces.
`try_allocate` allocates more while the rest of the frame fits, too: so the frame with the last allocation can always be
completed. A frame that is refused memory by `try_allocate` waits, unread, until memory is given back. While a frame
waits, `tick` closes those below the minimum rate, the worst first. The rate is kept as the time at which the frame is
overdue. Bytes move it on, up to `STALL_SECONDS` ahead. While the broker does not read it stands still.
`docs/design/request-memory.md` has the attacks and the proof.

Two sums are kept: *large* counts what was allocated to frames over `MEDIUM` bytes, *other* everything else. Small
frames get memory in any case, medium ones have a quarter of the limit to themselves. Large ones have one frame of
socket.request.max.bytes beyond the limit.

Invariants:
1. Allocations keep large + other <= limit + largest frame. Beyond that come only small frames, the first read of a
   frame, and frames that are being answered. Above half of the reserve (`tight_above`) a first read is `SMALL_READ`
   bytes.
2. A frame of at most `SMALL` bytes never waits.
3. A frame that brings its minimum rate in every `STALL_SECONDS` in which the broker reads it is never closed.
4. When the frames that are answered have given their memory back, one frame or more can go on, or is overdue in time.

In: frames, their bytes and the time.   Out: the frames that may go on and those to be closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

SMALL = 16 * 1024
"""Bytes of a frame that never waits: heartbeats, fetches of followers and most other requests."""

MEDIUM = 1024 * 1024
"""Bytes of a frame that uses the reserve: message.max.bytes of most clusters."""

SMALL_READ = 4 * 1024
"""Bytes of one read where more would only wait, or the reserve is half used."""

MIN_RATE = 64 * 1024
"""Bytes per second of a frame that is not overdue."""

LONGEST_SECONDS = 60.0
"""A frame that takes longer is overdue: most clients give a request up after 30 s."""

STALL_SECONDS = 5.0
"""Seconds without a byte after which a frame is overdue."""

PATIENCE_SECONDS = 1.0
"""A frame that waits longer goes before all of its class without an allocation."""

TICK_SECONDS = 0.1
"""How often to call `tick` while a frame waits."""

LATE_SECONDS = 0.5
"""A tick so late is the broker's own delay, which no frame is charged for."""

CLOSED_PER_TICK = 100
LOOKAHEAD = 32
"""Waiting frames looked at when memory is given back; a tick looks at all."""


class Reservation:
    """The memory of one frame that is being received."""

    __slots__ = ("due", "is_allocated", "owner", "paused_at", "rate", "room", "size", "wanted")

    def __init__(self, owner: object, size: int, room: int, now: float) -> None:
        self.owner = owner
        self.size = size
        """Bytes of the whole frame."""
        self.room = room
        """Bytes that it holds."""
        self.is_allocated = False
        """Whether it holds more than its first read brought."""
        self.rate = max(MIN_RATE, size / LONGEST_SECONDS)
        self.due = now + STALL_SECONDS
        """When it is overdue if no more bytes arrive."""
        self.paused_at: float | None = None
        """Since when the broker does not read it."""
        self.wanted: tuple[int, float] | None = None
        """The room that it waits for, and since when."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for memory."""
        return self.wanted is not None

    def overdue(self, now: float) -> float:
        """Return for how many seconds it is below its rate; 0 if it is not, or the broker does not read it."""
        return max(0.0, now - self.due) if self.paused_at is None else 0.0


class RequestMemory:
    """A budget of *limit* bytes (-1: none) for frames of at most *largest* bytes."""

    def __init__(self, limit: int, largest: int) -> None:
        self.limit = limit
        self._largest = largest
        self._reserve = limit // 4
        self.large = 0
        """Bytes of frames above `MEDIUM`, from their first allocation on."""
        self.other = 0
        """Bytes of all other frames."""
        self.tight_above = limit // 8 if limit >= 0 else float("inf")
        """Where `other` is above, half of the reserve is used, and a read of unknown content is to be small."""
        self._frames: dict[Reservation, None] = {}
        self._waiting: dict[Reservation, None] = {}
        self._first_large: Reservation | None = None  # waits for longer than PATIENCE_SECONDS
        self._first_medium: Reservation | None = None
        self._next_tick = 0.0

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self.large + self.other

    @property
    def waiting(self) -> int:
        """How many frames wait."""
        return len(self._waiting)

    @property
    def is_roomy(self) -> bool:
        """Whether a frame may have memory before its bytes arrive."""
        return self.limit < 0 or 2 * self.used <= self.limit

    # -- a frame that is received ----------------------------------------------------------------

    def begin(self, owner: object, size: int, received: int, now: float) -> Reservation:
        """Return the reservation of a frame of *size* bytes, of which *received* are in memory."""
        frame = Reservation(owner, size, received, now)
        self.other += received
        self._frames[frame] = None
        return frame

    def try_allocate(self, frame: Reservation, room: int, now: float) -> bool:
        """Return whether *frame* may hold *room* bytes; if not it waits until they are allocated."""
        if self._may_go_on(frame):
            self._allocate(frame, room)
            return True
        if not self._waiting:
            self._next_tick = now + TICK_SECONDS
        frame.wanted = room, now
        self._waiting[frame] = None
        return False

    def received(self, frame: Reservation, count: int, now: float) -> None:
        """Note that *count* more bytes of *frame* arrived."""
        due = frame.due + count / frame.rate
        latest = now + STALL_SECONDS
        frame.due = due if due < latest else latest

    def pause(self, frame: Reservation, now: float) -> None:
        """Note that the broker stops reading *frame*."""
        if frame.paused_at is None:
            frame.paused_at = now

    def resume(self, frame: Reservation, now: float) -> None:
        """Note that the broker reads *frame* again."""
        if frame.paused_at is not None:
            frame.due += now - frame.paused_at
            frame.paused_at = None

    def end(self, frame: Reservation) -> Sequence[Reservation]:
        """Give the memory of *frame* back: it is whole, or its connection ends. Return those that may go on."""
        if frame not in self._frames:
            return ()
        del self._frames[frame]
        self._stop_waiting(frame)
        if frame.is_allocated and frame.size > MEDIUM:
            self.large -= frame.room
        else:
            self.other -= frame.room
        return self._serve(LOOKAHEAD)

    # -- frames that are answered ----------------------------------------------------------------

    def exchange(self, before: int, after: int) -> Sequence[Reservation]:
        """Count *after* bytes in place of *before*, kept for one request; return the frames that may go on."""
        if before > MEDIUM:
            self.large -= before
        else:
            self.other -= before
        if after > MEDIUM:
            self.large += after
        else:
            self.other += after
        return self._serve(LOOKAHEAD) if self._waiting and before else ()

    # -- time --------------------------------------------------------------------------------------

    def tick(self, now: float) -> tuple[Sequence[Reservation], Sequence[Reservation]]:
        """Return the frames that may go on, and those to be closed, with their memory released already."""
        late = now - self._next_tick
        self._next_tick = now + TICK_SECONDS
        self._find_first(now)
        allocated = list(self._serve(len(self._waiting)))
        if late > LATE_SECONDS:
            self.forgive(late)
            return allocated, ()
        if not self._waiting:
            return allocated, ()
        slow: list[Reservation] = []
        for frame in self._slowest(now):
            if not self._waiting:
                break
            allocated += self.end(frame)
            slow.append(frame)
        return allocated, slow

    def forgive(self, seconds: float) -> None:
        """Charge no frame for *seconds* in which the broker itself did nothing."""
        for frame in self._frames:
            frame.due += seconds

    def _slowest(self, now: float) -> list[Reservation]:
        """Return the overdue frames, first those that hold most for longest."""
        overdue = [
            (frame.room * seconds, frame)
            for frame in self._frames
            if (seconds := frame.overdue(now)) > 0
        ]
        overdue.sort(key=lambda each: -each[0])
        return [frame for _, frame in overdue[:CLOSED_PER_TICK]]

    def _find_first(self, now: float) -> None:
        """Find the frames that have waited too long; the oldest waits first in `_waiting`."""
        self._first_large = self._first_medium = None
        for frame in self._waiting:
            if frame.wanted is None or now - frame.wanted[1] <= PATIENCE_SECONDS:
                break
            if frame.size > MEDIUM:
                self._first_large = self._first_large or frame
            else:
                self._first_medium = self._first_medium or frame

    # -- decisions -----------------------------------------------------------------------------------

    def _may_go_on(self, frame: Reservation) -> bool:
        """Return whether *frame* could be completed now.

        For a frame with an earlier allocation the answer stays yes as long as only this frame allocates more and others
        give back. Invariant 4 rests on that.
        """
        size = frame.size
        if self.limit < 0 or size <= SMALL:
            return True
        if size > MEDIUM:
            if frame.is_allocated:
                other, rest = self.other, size - frame.room
            elif self._first_large not in (None, frame):
                return False
            else:
                other, rest = self.other - frame.room, size
            return self.large + max(other, self._reserve) + rest <= self.limit + self._largest
        rest = size - frame.room
        if not frame.is_allocated and self._first_medium not in (None, frame):
            return False
        if self.other + rest <= self._reserve:
            return True
        may_use_all = frame.is_allocated or self._first_large is None
        return may_use_all and self.large + self.other + rest <= self.limit

    def _allocate(self, frame: Reservation, room: int) -> None:
        if frame.size <= MEDIUM:
            self.other += room - frame.room
        elif frame.is_allocated:
            self.large += room - frame.room
        else:
            self.other -= frame.room
            self.large += room
        frame.room = room
        frame.is_allocated = True

    def _serve(self, most: int) -> Sequence[Reservation]:
        """Allocate what the first *most* waiting frames wait for, as far as they may go on; return these."""
        if not self._waiting:
            return ()
        allocated = []
        for frame in list(islice(self._waiting, most)):
            if frame.wanted is not None and self._may_go_on(frame):
                self._allocate(frame, frame.wanted[0])
                self._stop_waiting(frame)
                allocated.append(frame)
        return allocated

    def _stop_waiting(self, frame: Reservation) -> None:
        if frame.wanted is None:
            return
        frame.wanted = None
        del self._waiting[frame]
        if frame is self._first_large:
            self._first_large = None
        if frame is self._first_medium:
            self._first_medium = None


def slowness(frame: Reservation, now: float) -> str:
    """Return why *frame* is closed, for the log."""
    return (
        f"its request of {frame.size} bytes is {frame.overdue(now):.1f} s behind {frame.rate:.0f} bytes/s"
        f" and holds {frame.room} bytes, while others wait for memory"
    )
