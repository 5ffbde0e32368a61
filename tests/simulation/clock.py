"""Time that only moves when there is nothing left to do, and processes that run in it.

`Scheduler` is one heap of calls; the earliest due call runs first; calls of equal times run in the order of
scheduling. A `Process` is what a broker takes for its reactor and its machine's threads: its calls die with it when it
is killed, wait while it is paused, and come all at once when it goes on. What a thread would do happens in one piece,
a moment later.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from heapq import heappop, heappush
from random import Random
from typing import Any, Literal

from twisted.internet.error import AlreadyCalled, AlreadyCancelled

EPOCH = 1_700_000_000.0
"""What the wall clocks show at the beginning, those of ZooKeeper's servers too."""
DISK_SECONDS = (0.0005, 0.02)
"""How long work in the disk's pool takes."""

WAITS, CALLED, CANCELLED = range(3)
"""States of a `Call`."""


class Call:
    """A delayed call: the part of Twisted's IDelayedCall that is used."""

    __slots__ = (
        "args",
        "arrival",
        "function",
        "process",
        "scheduler",
        "state",
        "time",
    )

    def __init__(
        self,
        scheduler: Scheduler,
        time: float,
        process: Process | None,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        arrival: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.time = time
        self.process = process
        self.function = function
        self.args = args
        self.arrival = arrival
        """Whether it comes from outside of the process, and not from a timer of its own."""
        self.state = WAITS

    def __lt__(self, other: Call) -> bool:
        return False  # the heap's entries differ before it comes to this

    def active(self) -> bool:
        return self.state == WAITS

    def cancel(self) -> None:
        if self.state == CALLED:
            raise AlreadyCalled
        if self.state == CANCELLED:
            raise AlreadyCancelled
        self.state = CANCELLED

    def getTime(self) -> float:  # noqa: N802
        return self.time

    def reset(self, seconds: float) -> None:
        self.cancel()
        self.state = WAITS
        self.time = self.scheduler.now + seconds
        self.scheduler.push(self)


class Scheduler:
    """The one clock, and everything that will happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Call]] = []
        self._number = 0

    def push(self, call: Call) -> None:
        self._number += 1
        heappush(self._heap, (call.time, self._number, call))

    def at(
        self,
        time: float,
        function: Callable[..., Any],
        *args: Any,
        process: Process | None = None,
        arrival: bool = False,
    ) -> Call:
        """Call at *time*, in *process*."""
        if time < self.now:
            time = self.now
        call = Call(self, time, process, function, args, arrival)
        self._number += 1
        heappush(self._heap, (time, self._number, call))
        return call

    def after(self, seconds: float, function: Callable[..., Any], *args: Any) -> Call:
        """Call later, outside of any process."""
        return self.at(self.now + seconds, function, *args)

    def step(self, until: float) -> Process | Literal[False] | None:
        """Make the next call that is due by *until*, and return its process; False if there is none."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            time, number, call = heappop(heap)
            if call.state or call.time != time:
                continue
            process = call.process
            if process is not None:
                if not process.alive:
                    continue
                if process.paused:
                    process.held.append((number, call))
                    continue
            self.now = time
            self.steps += 1
            call.state = CALLED
            call.function(*call.args)
            return process
        self.now = max(self.now, until)
        return False


class Process:
    """One run of one process; serves as the reactor, and as the thread pools, of what runs in it."""

    running = True

    def __init__(self, scheduler: Scheduler, name: str, rng: Random) -> None:
        self.scheduler = scheduler
        self.name = name
        self.alive = True
        self.paused = False
        self.resumed_at = scheduler.now
        """When it last began, or went on after a pause."""
        self.held: list[tuple[int, Call]] = []
        """What came due while it was paused."""
        self._rng = rng

    # -- what a reactor does

    def seconds(self) -> float:
        return self.scheduler.now

    def callLater(self, delay: float, function: Callable[..., Any], *args: Any, **kw: Any) -> Call:  # noqa: N802
        if kw:
            function, args = _with_keywords(function, args, kw), ()
        scheduler = self.scheduler
        time = scheduler.now + delay
        call = Call(scheduler, time, self, function, args)
        scheduler._number += 1
        heappush(scheduler._heap, (time, scheduler._number, call))
        return call

    def callFromThread(self, function: Callable[..., Any], *args: Any, **kw: Any) -> None:  # noqa: N802
        self.callLater(0, function, *args, **kw)

    def getThreadPool(self) -> Process:  # noqa: N802
        return self

    def callInThreadWithCallback(  # noqa: N802
        self, done: Callable[[bool, Any], None], function: Callable[..., Any], *args: Any, **kw: Any
    ) -> None:
        """Do what twisted.internet.threads asks of its pool."""

        def work() -> None:
            done(True, function(*args, **kw))

        self.callLater(self._rng.uniform(*DISK_SECONDS), work)

    # -- pause, resume and end

    def arrives(self, time: float, function: Callable[..., Any], *args: Any) -> None:
        """Have something reach the process from outside at *time*."""
        scheduler = self.scheduler
        if time < scheduler.now:
            time = scheduler.now
        call = Call(scheduler, time, self, function, args, True)
        scheduler._number += 1
        heappush(scheduler._heap, (time, scheduler._number, call))

    def kill(self) -> None:
        """End it, between two steps of its own."""
        self.alive = False
        self.held.clear()

    def pause(self) -> None:
        """Stop it where it is (SIGSTOP)."""
        self.paused = True

    def resume(self) -> None:
        """Let it go on: what it missed happens now, its timers or what arrived first."""
        if not self.paused:
            return
        self.paused = False
        self.resumed_at = self.scheduler.now
        held, self.held = self.held, []
        held.sort(key=lambda entry: (entry[1].time, entry[0]))
        order = self._rng.randrange(3)
        if order:
            held.sort(key=lambda entry: entry[1].arrival is (order == 1))
        for _, call in held:
            if call.active():
                call.time = self.scheduler.now
                self.scheduler.push(call)


class DiskPool(Executor):
    """The threads that do what is slow on a disk: each piece of work at once, some time later.

    What *is_late* returns true for takes longer than the simulation.
    """

    def __init__(
        self, process: Process, rng: Random, is_late: Callable[[object], bool] = lambda _work: False
    ) -> None:
        self._process = process
        self._rng = rng
        self._is_late = is_late
        self._waiting: dict[int, Callable[[], None]] = {}
        self._number = 0
        self._is_shut_down = False

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._number += 1
        number = self._number

        def run() -> None:
            if self._waiting.pop(number, None) is None:
                return
            try:
                result = work(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._waiting[number] = run
        if not self._is_late(work):
            self._process.callLater(self._rng.uniform(*DISK_SECONDS), run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Finish what was begun."""
        self._is_shut_down = True
        for run in list(self._waiting.values()):
            run()


def _with_keywords(
    function: Callable[..., Any], args: tuple[Any, ...], kw: dict[str, Any]
) -> Callable[[], Any]:
    return lambda: function(*args, **kw)
