"""Writes what a mirror has copied into a topic of the target, as evidence for kaudit.

Theory of operation
===================
`read` hashes the batch headers of a fetched run, `appended` those of the same bytes when the target has acknowledged
them. `mirrormaker.copied_extents` makes extents of both. Every ``emit.evidence.interval.seconds`` the extents that have
grown are written, acknowledged by all in-sync replicas. The copy never waits for them: what a kill or an unreachable
topic costs is evidence, and kaudit then reports that it has none.

In: runs, acknowledged appends   Out: records of the evidence topic   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kclient.mirror_evidence import CopiedTopic, encode, hashed_batches, header_hash
from kclient.net.cluster import Cluster
from kclient.net.waiting import sleep
from kclient.types import TopicPartition
from mirrormaker.copied_extents import Copied, CopiedExtents, Place
from mirrormaker.internal_topic import InternalTopic, WriteReports
from mirrormaker.lineage import text_of
from mirrormaker.link_state import Append
from mirrormaker.runs import Run

MOST_WAITING = 100_000
"""Extents that wait for an unreachable topic: about 20 MB."""


class Evidence:
    """The evidence *topic* at *target*. *source_id* returns the cluster id of the source."""

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
        self._target = target
        self.topic = topic
        self._source_id = source_id
        self._interval = interval
        self._extents = CopiedExtents(MOST_WAITING)
        self._records = InternalTopic(
            target, topic, replication_factor=replication_factor, compact_existing=True
        )
        self._reports = WriteReports(f"evidence {topic}", report)

    def read(self, run: Run) -> Run:
        """Return *run* with the hashes of its batches, which were just read."""
        return replace(run, hashed=hashed_batches(run.data))

    def appended(self, copy: TopicPartition, append: Append, source_topic_id: str) -> None:
        """Add an append to *copy* that the target acknowledged."""
        run = append.run
        target_id = text_of(self._target.metadata.topic_id(copy.topic))
        place = Place(copy, CopiedTopic(self._source_id(), source_topic_id, target_id))
        batches = [
            (base_offset, hashed, header_hash(run.data, position))
            for position, base_offset, hashed in run.hashed
        ]
        self._extents.appended(place, append.expected_log_end, batches, run.next_offset)

    def removed(self, copy: TopicPartition) -> None:
        """Handle that the mirror no longer copies to *copy*."""
        self._extents.removed(copy)

    async def run(self) -> None:
        """Write what has grown, every ``emit.evidence.interval.seconds``."""
        while True:
            await sleep(self._target.reactor, self._interval)
            await self.write()

    async def write(self) -> None:
        """Write what has grown since the last write. An error is reported, and the extents are written later."""
        left = self._extents.due()
        try:
            problem = await self._records.append_each(left, _encoded)
        finally:
            self._extents.not_written(left)
        self._reports.written(problem)
        dropped = self._extents.dropped
        self._reports.dropped(
            dropped, f"{dropped} extents were dropped: kaudit has no evidence of them"
        )


def _encoded(copied: Copied) -> tuple[bytes, bytes]:
    return encode(copied.place.tp, copied.place.topic, copied.extent)
