"""The latencies of one mirror's copies since the last time they were written. Pure: the time is an argument.

A batch counts when the target has acknowledged it, with the time since its newest record timestamp
(`kclient.mirror_latency`). Control batches do not count: no consumer gets their records.

Invariants (tests cite the numbers):
 1. each record of an acknowledged batch is in exactly one `Measured`, or was dropped and counted as that;
 2. two `Measured` of one topic never have the same key.

In: acknowledged batches   Out: latencies to write   Owner: `mirrormaker.latency`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kclient.mirror_latency import Histogram, Interval, Measured
from kclient.types import TopicPartition
from kclient.wire.batches import CONTROL, BatchInfo


class MeasuredLatency:
    """Latencies that wait to be written, at most *most* intervals of topics. *new_name* returns a random name."""

    def __init__(self, most: int, new_name: Callable[[], str], now_ms: int) -> None:
        self._most = most
        self._new_name = new_name
        self._process = new_name()
        self._from_ms = now_ms
        self._of_topic: dict[str, Histogram] = {}
        self._waiting: list[Measured] = []
        """What could not be written."""
        self.dropped = 0
        """Records without a figure, because too many intervals waited."""

    def appended(self, copy: TopicPartition, batches: Iterable[BatchInfo], now_ms: int) -> None:
        """Add batches that the target has acknowledged at *now_ms*."""
        found = self._of_topic.get(copy.topic)
        if found is None:
            found = self._of_topic[copy.topic] = Histogram()
        for batch in batches:
            if batch.attributes & CONTROL or not batch.record_count:
                continue
            if batch.max_timestamp < 0:
                found.without_timestamp += batch.record_count
            else:
                latency = now_ms - batch.max_timestamp
                found.add(latency, records=batch.record_count, partition=copy.partition)

    def due(self, source_cluster_id: str, now_ms: int) -> list[Measured]:
        """Return what is to be written, and begin the next interval."""
        until_ms = max(now_ms, self._from_ms)
        due = self._waiting
        for topic, found in self._of_topic.items():
            if found.records or found.without_timestamp:
                at = Interval(source_cluster_id, topic, self._process, self._from_ms, until_ms)
                due.append(Measured(at, found))
        if now_ms <= self._from_ms:
            # The clock went back: the next intervals may begin when earlier ones did.
            self._process = self._new_name()
        self._waiting, self._of_topic, self._from_ms = [], {}, now_ms
        return due

    def not_written(self, left: Iterable[Measured]) -> None:
        """Return *left* of what was due: it is due again. The oldest are dropped if too many wait."""
        self._waiting = [*left, *self._waiting]
        if len(self._waiting) > self._most:
            dropped = self._waiting[: -self._most]
            del self._waiting[: -self._most]
            self.dropped += sum(
                each.latencies.records + each.latencies.without_timestamp for each in dropped
            )
