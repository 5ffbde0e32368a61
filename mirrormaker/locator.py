"""Schedules reads of log ends: after each link's delay; all that are due in one reactor turn share the requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError
from mirrormaker.link_state import LogEnds
from mirrormaker.log_ends import read_log_ends


class Timers:
    """Delayed calls that `stop` cancels together."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._pending: set[Any] = set()
        self._stopped = False

    def later(self, delay: float, call: Callable[[], None]) -> None:
        """Call *call* after *delay* seconds, unless `stop` comes first."""
        if self._stopped:
            return

        def run() -> None:
            self._pending.discard(timer)
            call()

        timer = self._reactor.callLater(delay, run)
        self._pending.add(timer)

    def stop(self) -> None:
        """Cancel all pending calls and accept no new ones."""
        self._stopped = True
        for timer in self._pending:
            timer.cancel()
        self._pending.clear()


def add_due(due: dict[TopicPartition, int], tp: TopicPartition, generation: int) -> None:
    """Note in *due* that the log ends of *tp* are wanted by *generation*.

    A removed link may still have a request under way: a later generation is that of its successor, and is kept.
    """
    due[tp] = max(generation, due.get(tp, generation))


class ReadsLogEnds(Protocol):
    """Reads the `LogEnds` of partitions, and gives them to the flow."""

    def request(self, tp: TopicPartition, generation: int, delay: float) -> None:
        """Read the log ends of *tp* after *delay* seconds; the answer carries *generation*."""


class Locator:
    """Reads the `LogEnds` of partitions; *found* gets (partition, generation, ends or KafkaError)."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        timers: Timers,
        copies: Mapping[TopicPartition, TopicPartition],
        *,
        found: Callable[[TopicPartition, int, LogEnds | KafkaError], None],
        all_found: Callable[[], None],
        defect: Callable[[Failure], None],
    ) -> None:
        self._source = source
        self._target = target
        self._timers = timers
        self._copies = copies
        self._found = found
        self._all_found = all_found
        self._defect = defect
        self._due: dict[TopicPartition, int] = {}

    def request(self, tp: TopicPartition, generation: int, delay: float) -> None:
        """Read the log ends of *tp* after *delay* seconds; the answer carries *generation*."""

        def mark_due() -> None:
            if not self._due:
                self._timers.later(0, self._read_now)
            add_due(self._due, tp, generation)

        self._timers.later(delay, mark_due)

    def _read_now(self) -> None:
        due, self._due = self._due, {}
        pairs = {tp: self._copies[tp] for tp in due if tp in self._copies}

        def answered(result: dict[TopicPartition, LogEnds | KafkaError] | Failure) -> None:
            for tp in pairs:
                answer = kafka_error(result) if isinstance(result, Failure) else result[tp]
                self._found(tp, due[tp], answer)
            self._all_found()

        reading = Deferred.fromCoroutine(read_log_ends(self._source, self._target, pairs))
        reading.addBoth(answered).addErrback(self._defect)


def kafka_error(failure: Failure) -> KafkaError:
    """Return the KafkaError in *failure*; raise any other exception, because it is a bug in the mirror."""
    problem = failure.value
    if isinstance(problem, KafkaError):
        return problem
    failure.raiseException()
    raise AssertionError  # pragma: no cover
