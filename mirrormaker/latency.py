"""Writes how long the copies of a mirror took into a topic of the target, for `kaudit latency`.

Theory of operation
===================
`appended` adds each acknowledged run to the histograms of its topic (`mirrormaker.measured_latency`). Every
``emit.latency.interval.seconds`` they are written, acknowledged by all in-sync replicas, and new ones begin. The copy
never waits for them. A record that was perhaps appended is appended again under its key, and counts once.

In: acknowledged runs   Out: records of the latency topic   Owner: the reactor's thread
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from kclient.mirror_latency import encode
from kclient.net.cluster import Cluster
from kclient.net.waiting import sleep
from kclient.types import TopicPartition
from mirrormaker.internal_topic import InternalTopic
from mirrormaker.measured_latency import MeasuredLatency
from mirrormaker.runs import Run

MOST_WAITING = 10_000
"""Intervals of topics that wait for an unreachable topic: about 50 MB."""


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
        self._topic = topic
        self._source_id = source_id
        self._interval = interval
        self._report = report
        self._measured = MeasuredLatency(MOST_WAITING, lambda: secrets.token_hex(8), _now_ms())
        self._records = InternalTopic(
            target,
            topic,
            replication_factor=replication_factor,
            compact_existing=False,
            cleanup_policy="delete",
        )
        self._reported = ""

    def appended(self, copy: TopicPartition, run: Run) -> None:
        """Add a run of *copy* that the target has acknowledged now."""
        self._measured.appended(copy, run, _now_ms())

    async def run(self) -> None:
        """Write what was measured, every ``emit.latency.interval.seconds``."""
        while True:
            await sleep(self._reactor, self._interval)
            await self.write()

    async def write(self) -> None:
        """Write what was measured since the last time. An error is reported, and the rest is written later."""
        due = self._measured.due(self._source_id(), _now_ms())
        try:
            problem = await self._records.append_each(due, encode)
        finally:
            self._measured.not_written(due)
        text = "" if problem is None else f"cannot be written: {problem}"
        if self._measured.dropped:
            text += f" the latency of {self._measured.dropped} records was dropped"
        if text != self._reported:
            self._report(f"latency {self._topic}", text.strip() or "is written again")
        self._reported = text


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
