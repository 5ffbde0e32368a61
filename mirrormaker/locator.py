"""When to ask where logs are: after each link's delay, all whose time comes together in one question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError
from mirrormaker.ends import find_ends
from mirrormaker.words import Ends


class Timers:
    """Delayed calls that can all be called off."""

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
        """Call nothing any more."""
        self._stopped = True
        for timer in self._pending:
            timer.cancel()
        self._pending.clear()


class Locator:
    """Finds the `Ends` of partitions; *found* gets (partition, generation, ends or what is wrong)."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        timers: Timers,
        copies: Mapping[TopicPartition, TopicPartition],
        *,
        found: Callable[[TopicPartition, int, Ends | KafkaError], None],
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

    def ask(self, tp: TopicPartition, generation: int, delay: float) -> None:
        """Ask for *tp* after *delay* seconds; the answer carries *generation*."""

        def due() -> None:
            if not self._due:
                self._timers.later(0, self._ask_now)
            self._due[tp] = generation

        self._timers.later(delay, due)

    def _ask_now(self) -> None:
        asked, self._due = self._due, {}
        pairs = {tp: self._copies[tp] for tp in asked if tp in self._copies}

        def answered(result: dict[TopicPartition, Ends | KafkaError] | Failure) -> None:
            for tp in pairs:
                answer = kafka_error(result) if isinstance(result, Failure) else result[tp]
                self._found(tp, asked[tp], answer)
            self._all_found()

        question = Deferred.fromCoroutine(find_ends(self._source, self._target, pairs))
        question.addBoth(answered).addErrback(self._defect)


def kafka_error(failure: Failure) -> KafkaError:
    """Return what went wrong as a KafkaError; anything else is a defect of ours and is raised."""
    problem = failure.value
    if isinstance(problem, KafkaError):
        return problem
    failure.raiseException()
    raise AssertionError  # pragma: no cover
