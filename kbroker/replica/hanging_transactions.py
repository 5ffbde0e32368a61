"""HangingTransactions: aborts transactions that are open in a log, and that no coordinator has (KIP-664).

Theory of operation
===================
A marker may be lost by an unclean election, and a promoted mirror may have transactions of another cluster. The last
stable offset would not move again. A transaction that began in this leadership has a number: its coordinator ends it.
So a look over the partitions that this broker leads collects the others. Most of these end by themselves. For one that
is unchanged at the next look, all znodes of transactional ids are read. A znode lists a partition from before the first
batch until its leader has acknowledged the marker. If none lists it, the leader appends ABORT.

| | |
|---|---|
| ZooKeeper cannot be read, or a znode cannot be decoded | nothing is aborted; the next look asks again |
| a coordinator is loading, or not known | does not matter: its znodes are read |
| the producer appended, or a marker arrived, during the reads | not aborted: the look that follows sees another state |
| the leader epoch changed during the reads | not aborted |
| the topic is a mirror | never touched: its markers come from the source |

In: looks   Out: reads of ZooKeeper, ABORT markers   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.replica.partition import Partition
from kbroker.replica.partition_transactions import UnknownTransaction

log = Logger()

LOOK_SECONDS: Final = 60.0
"""Between two looks. A transaction that did not change between them is looked up among those of the coordinators."""

StoredTransactions = Callable[[], Awaitable[Container[tuple[int, TopicPartition]]]]
"""Reads the (producer id, partition) of all transactions that are open or not completed; fails if any is not known."""


class HangingTransactions:
    """The timer over all hosted *partitions*."""

    def __init__(
        self, reactor: Any, partitions: Iterable[Partition], stored: StoredTransactions
    ) -> None:
        self._reactor = reactor
        self._partitions = partitions
        self._stored = stored
        self._seen: dict[tuple[TopicPartition, int], UnknownTransaction] = {}
        """The transactions of the last look."""
        self._is_reading = self._is_stopped = False
        self._timer: Any = None

    def start(self) -> None:
        """Start the timer."""
        self._timer = self._reactor.callLater(LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """Abort nothing more: the logs are closed next."""
        self._is_stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _look(self) -> None:
        self.start()
        found = {
            (partition.key, each.producer_id): (partition, each)
            for partition in self._partitions
            for each in partition.unknown_transactions()
        }
        unchanged = [found[key] for key in found if self._seen.get(key) == found[key][1]]
        self._seen = {key: each for key, (_, each) in found.items()}
        if unchanged and not self._is_reading:
            self._is_reading = True
            reading = Deferred.fromCoroutine(self._abort_those_not_stored(unchanged))
            reading.addErrback(
                lambda failure: log.warn(
                    "it is not known whether {count} open transactions have a coordinator: {error}",
                    count=len(unchanged), error=failure.value,
                )
            )  # fmt: skip
            reading.addBoth(self._read)

    def _read(self, _result: object) -> None:
        self._is_reading = False

    async def _abort_those_not_stored(
        self, unchanged: list[tuple[Partition, UnknownTransaction]]
    ) -> None:
        stored = await self._stored()
        for partition, each in unchanged:
            if not self._is_stopped and (each.producer_id, partition.key) not in stored:
                partition.abort_hanging_transaction(each)
