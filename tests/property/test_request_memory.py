"""Invariants 1 to 4 of `kbroker.network.core.request_memory`, with senders of every speed."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.network.core.request_memory import (
    CLOSED_PER_TICK,
    MEDIUM,
    SMALL,
    STALL_SECONDS,
    TICK_SECONDS,
    RequestMemory,
    Reservation,
)
from tests.kit.property_tests import examples

MIB = 1 << 20
STEP = TICK_SECONDS
SOCKET = 256 * 1024
"""Bytes that the kernel keeps for a sender that is not read."""


@dataclass
class Sender:
    """Sends one frame: *rate* times its minimum rate, and at once what lies below *burst* of it."""

    size: int
    rate: float
    burst: float
    start: int
    answered_after: int
    broker_reads: bool = True
    """False: its connection answers another request first, for ten seconds."""
    credit: float = 0.0
    unread: int = 0
    sent: int = 0
    received: int = 0
    reservation: Reservation | None = None
    outcome: str = ""
    done_at: int = -1

    @property
    def is_honest(self) -> bool:
        return self.rate >= 1.01

    def send(self) -> None:
        """Put into the socket what its speed allows, as far as there is room."""
        least = self.reservation.rate if self.reservation else 0.0
        self.credit += least * self.rate * STEP
        wanted = max(int(self.credit), int(self.burst * self.size) - self.sent)
        count = min(wanted, self.size - self.sent, SOCKET - self.unread)
        self.credit = max(0.0, self.credit - wanted)
        self.sent += count
        self.unread += count


@dataclass
class World:
    """A broker's reads, asks and ticks over the senders; checks what must hold after every change."""

    memory: RequestMemory
    largest: int
    senders: list[Sender]
    now: float = 100.0
    step: int = 0
    held: int = 0
    closed: list[Sender] = field(default_factory=list)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += STEP
            self.step += 1
            for sender in self.senders:
                if self.turn(sender):
                    self.check()
            if self.memory.waiting:
                self.tick()
                self.check()
            if all(sender.outcome and sender.done_at < self.step for sender in self.senders):
                return

    def turn(self, sender: Sender) -> bool:
        """Let one sender and its connection work; return whether the memory was asked for anything."""
        if sender.outcome == "answering" and self.step >= sender.done_at:
            sender.outcome = "answered"
            self.held -= sender.size
            self.resume(self.memory.exchange(sender.size, 0))
            return True
        if sender.outcome or self.step < sender.start:
            return False
        if begins := sender.reservation is None:
            sender.received = min(100, sender.size - 1)
            sender.sent = sender.received
            sender.reservation = self.memory.begin(sender, sender.size, sender.received, self.now)
            if not sender.broker_reads:
                self.memory.pause(sender.reservation, self.now)
        if self.step == sender.start + 100 and not sender.broker_reads:
            self.memory.resume(sender.reservation, self.now)
            sender.broker_reads = True
        sender.send()
        return self.read(sender) or begins

    def read(self, sender: Sender) -> bool:
        frame, memory = sender.reservation, self.memory
        assert frame is not None
        if frame.is_waiting or not (sender.unread and sender.broker_reads):
            return False
        while sender.unread and sender.broker_reads and not frame.is_waiting:
            if sender.received == frame.room:
                factor = 4 if frame.room < MIB else 2
                if not memory.try_allocate(frame, min(sender.size, factor * frame.room), self.now):
                    memory.pause(frame, self.now)
                    return True
            count = min(frame.room - sender.received, sender.unread)
            sender.received += count
            sender.unread -= count
            memory.received(frame, count, self.now)
        if sender.size == sender.received:
            sender.outcome, sender.done_at = "answering", self.step + sender.answered_after
            self.held += sender.size
            self.resume(memory.exchange(0, sender.size))
            self.resume(memory.end(frame))
        return True

    def resume(self, frames: object) -> None:
        for frame in frames:  # type: ignore[attr-defined]
            assert not frame.is_waiting
            self.memory.resume(frame, self.now)

    def tick(self) -> None:
        frames = [s.reservation for s in self.senders if s.reservation and not s.outcome]
        kept = {id(each): each.room * each.overdue(self.now) for each in frames}
        allocated, slow = self.memory.tick(self.now)
        assert len(slow) <= CLOSED_PER_TICK
        most = sorted(kept.values(), reverse=True)[: len(slow)]
        assert [kept[id(each)] for each in slow] == most, (
            "5: those that hold most for longest first"
        )
        self.resume(allocated)
        for frame in slow:
            sender = frame.owner
            assert isinstance(sender, Sender)
            assert not sender.is_honest, "3: a frame with the minimum rate is not closed"
            assert sender.broker_reads
            sender.outcome = "closed"
            self.closed.append(sender)

    def check(self) -> None:
        memory = self.memory
        frames = [s.reservation for s in self.senders if s.reservation and not s.outcome]
        unconditional = self.held
        for frame in frames:
            if frame.size <= SMALL or not frame.is_allocated:
                unconditional += frame.room
            assert not (frame.size <= SMALL and frame.is_waiting), "2"
        assert memory.used == sum(frame.room for frame in frames) + self.held
        if memory.limit >= 0:
            allocated = memory.used - unconditional
            assert allocated <= memory.limit + self.largest, "1"


sizes = st.one_of(st.integers(2, SMALL), st.integers(SMALL, MEDIUM), st.integers(MEDIUM, 4 * MIB))
senders = st.builds(
    Sender,
    size=sizes,
    rate=st.one_of(st.just(0.0), st.floats(0.0, 1.0), st.floats(1.01, 500.0)),
    burst=st.one_of(st.just(0.0), st.floats(0.0, 0.999)),
    start=st.integers(0, 60),
    answered_after=st.integers(0, 40),
    broker_reads=st.booleans() | st.just(True),
)


@settings(deadline=None)
@given(
    limit=st.sampled_from([-1, 4 * MIB, 5 * MIB, 8 * MIB]),
    crowd=st.lists(senders, min_size=1, max_size=12),
)
def test_memory_is_bounded_and_senders_that_keep_the_rate_are_served(
    limit: int, crowd: list[Sender]
) -> None:
    world = World(RequestMemory(limit, 4 * MIB), 4 * MIB, crowd)
    longest = max(sender.size for sender in crowd) / (64 * 1024)
    world.run(int(len(crowd) * (longest + STALL_SECONDS + 5 + 10) / STEP))
    for sender in crowd:
        if sender.is_honest:
            assert sender.outcome == "answered", "4: it was not served in time"
    assert not world.memory.waiting
    if limit < 0:
        assert not world.closed


@settings(max_examples=examples(30), deadline=None)
@given(stallers=st.integers(3, 6), part=st.floats(0.5, 0.99), rate=st.floats(0, 0.2))
def test_frames_that_stall_are_closed_when_a_large_one_needs_their_memory(
    stallers: int, part: float, rate: float
) -> None:
    crowd = [Sender(4 * MIB, rate, part, 0, 0) for _ in range(stallers)]
    honest = Sender(4 * MIB, 1000.0, 0.0, 60, 0)
    small = [Sender(size, 50.0, 0.0, 55 + n, 0) for n, size in enumerate([SMALL, 90_000, 300_000])]
    world = World(RequestMemory(5 * MIB, 4 * MIB), 4 * MIB, [*crowd, *small, honest])
    world.run(1000)
    assert honest.outcome == "answered"
    assert honest.done_at <= 60 + stallers * (STALL_SECONDS / 0.8 + 1) / STEP
    for sender in small:
        assert sender.outcome == "answered"
        assert sender.done_at - sender.start <= 1.5 / STEP


@given(count=st.integers(1, 300))
def test_frames_of_which_little_arrived_delay_no_other(count: int) -> None:
    memory = RequestMemory(256 * MIB, 100 * MIB)
    for _ in range(count):
        frame = memory.begin(None, 90 * MIB, 1, 0.0)
        assert memory.try_allocate(frame, 16 * 1024, 0.0)
    honest = memory.begin(None, 90 * MIB, 1, 0.0)
    assert memory.try_allocate(honest, 90 * MIB, 0.0)


def test_the_oldest_waiting_frame_is_not_passed_for_ever() -> None:
    memory = RequestMemory(8 * MIB, 4 * MIB)
    size = 6 * MIB // 5
    running = [memory.begin(None, size, 1, 0.0) for _ in range(7)]
    assert all(memory.try_allocate(frame, size, 0.0) for frame in running)
    oldest = memory.begin(None, 4 * MIB, 1, 0.0)
    assert not memory.try_allocate(oldest, 4 * MIB, 0.0)
    now = 0.0
    while oldest.is_waiting and now < 5:
        now += TICK_SECONDS
        memory.end(running.pop(0))
        running.append(memory.begin(None, size, 1, now))
        memory.try_allocate(running[-1], size, now)
        memory.tick(now)
    assert now < 3


def test_a_small_frame_does_not_wait_where_nothing_is_left() -> None:
    memory = RequestMemory(8 * MIB, 4 * MIB)
    while memory.try_allocate(memory.begin(None, 4 * MIB, 1, 0.0), 4 * MIB, 0.0):
        pass
    while memory.try_allocate(memory.begin(None, SMALL + 1, 1, 0.0), SMALL + 1, 0.0):
        pass
    assert memory.try_allocate(memory.begin(None, SMALL, 1, 0.0), SMALL, 0.0)


def test_a_frame_that_the_broker_does_not_read_is_not_overdue() -> None:
    memory = RequestMemory(8 * MIB, 4 * MIB)
    frames = [memory.begin(None, 4 * MIB, 1, 0.0) for _ in range(3)]
    assert [memory.try_allocate(frame, 4 * MIB, 0.0) for frame in frames] == [True, True, False]
    for frame in frames:
        memory.pause(frame, 1.0)
    now = 0.1
    while now < 30.0:
        assert memory.tick(now) == ([], [])
        now += TICK_SECONDS
    memory.resume(frames[0], now)
    for _ in range(int(3.9 / TICK_SECONDS)):
        assert memory.tick(now) == ([], [])
        now += TICK_SECONDS
    closed: list[Reservation] = []
    for _ in range(4):
        closed += memory.tick(now)[1]
        now += TICK_SECONDS
    assert closed == frames[:1]


def test_the_frame_that_kept_most_for_longest_is_closed_first_and_no_other_than_is_needed() -> None:
    memory = RequestMemory(8 * MIB, 4 * MIB)
    slowest = memory.begin(None, 4 * MIB, 1, 0.0)
    assert memory.try_allocate(slowest, 64 * 1024, 0.0)
    less, most = (memory.begin(None, 4 * MIB, 1, 1.0) for _ in range(2))
    assert memory.try_allocate(less, 3 * MIB, 1.0)
    assert memory.try_allocate(most, 4 * MIB, 1.0)
    waiting = memory.begin(None, 4 * MIB, 1, 6.5)
    assert not memory.try_allocate(waiting, 2 * MIB, 6.5)
    memory.pause(waiting, 6.5)
    assert [each.overdue(6.6) > 0 for each in (slowest, less, most)] == [True] * 3
    assert memory.tick(6.6) == ([waiting], [most])


def test_a_broker_that_stood_still_closes_no_connection() -> None:
    memory = RequestMemory(4 * MIB, 4 * MIB)
    frames = [memory.begin(None, 4 * MIB, 100, 0.0) for _ in range(4)]
    allocated = [memory.try_allocate(frame, 3 * MIB, 0.0) for frame in frames]
    assert allocated[0]
    assert not allocated[-1]
    assert memory.tick(60.0) == ([], ())
    assert memory.tick(60.1) == ([], [])
