"""Writes how long the copies of a mirror took into a topic of the target, for `kaudit latency`.

Theory of operation
===================
`appended` adds acknowledged batches to the histograms of its topic (`mirrormaker.measured_latency`). Every
``emit.latency.interval.seconds`` they are written, acknowledged by all in-sync replicas, and new ones begin. The copy
never waits for them. A record that was perhaps appended is appended again under its key, and counts once.

In: acknowledged batches   Out: records of the latency topic   Owner: the reactor's thread
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable

from kclient.mirror_latency import encode
from kclient.net.cluster import Cluster
from kclient.net.waiting import sleep
from kclient.types import TopicPartition
from kclient.wire.batches import BatchInfo
from mirrormaker.internal_topic import InternalTopic, WriteReports
from mirrormaker.measured_latency import MeasuredLatency

MOST_WAITING = 10_000
"""Intervals of topics that wait for an unreachable topic: 50 to 200 MB."""


class Latency:
    """The latency *topic* at *target*. *source_id* returns the cluster id of the source."""

    def __init__(
        self,
        target: Cluster,
        topic: str,
        source_id: Callable[[], str],
        *,
        interval: float,
        replication_factor: int,
        report: Callable[[str, str], None],
    ) -> None:
        self._reactor = target.reactor
        self.topic = topic
        self._source_id = source_id
        self._interval = interval
        self._measured = MeasuredLatency(MOST_WAITING, lambda: secrets.token_hex(8), _now_ms())
        self._records = InternalTopic(
            target,
            topic,
            replication_factor=replication_factor,
            compact_existing=False,
            cleanup_policy="delete",
        )
        self._reports = WriteReports(f"latency {topic}", report)

    def appended(self, copy: TopicPartition, batches: Iterable[BatchInfo]) -> None:
        """Add batches of *copy* that the target has acknowledged now."""
        self._measured.appended(copy, batches, _now_ms())

    async def run(self) -> None:
        """Write what was measured, at each whole multiple of ``emit.latency.interval.seconds`` since the epoch.

        So intervals begin in different time buckets, however long a write takes.
        """
        while True:
            await sleep(self._reactor, self._interval - time.time() % self._interval)
            await self.write()

    async def write(self) -> None:
        """Write what was measured since the last time. An error is reported, and the rest is written later."""
        due = self._measured.due(self._source_id(), _now_ms())
        try:
            problem = await self._records.append_each(due, encode)
        finally:
            self._measured.not_written(due)
        self._reports.written(problem)
        dropped = self._measured.dropped
        self._reports.dropped(
            dropped, f"the latencies of {dropped} records were dropped: too many wait"
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
