"""Reads the log of one partition batch by batch, up to its high watermark: open and aborted transactions included.

The mirror's own reader (`mirrormaker.source`) stops at the last stable offset and at a damaged batch. A comparison
needs both.
"""

from __future__ import annotations

from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.errors import LeaderNotAvailable, OffsetNotAvailable, for_code
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.versions import ApiKey
from mirrormaker.divergence import Batch, read_batches

FETCH_BYTES = 4 << 20
TIMEOUT = 30.0
"""Seconds for one fetch, retries included."""
_LAST_VERSION_BY_NAME = 12
_CHANNEL = "mirror-compare"


class LogReader:
    """Reads the batches of *tp* that hold the offsets [*start*, *end*), in order."""

    def __init__(self, cluster: Cluster, tp: TopicPartition, start: int, end: int) -> None:
        self._cluster = cluster
        self._tp = tp
        self._offset = start
        self._end = end

    async def read(self) -> list[Batch] | None:
        """Return the next batches; None at the end. Raise KafkaError, also if the log ends before *end*.

        The first batch may begin below *start*. None begins at or above *end*.
        """
        if self._offset >= self._end:
            return None
        found = await batches_at(self._cluster, self._tp, self._offset, end=self._end)
        self._offset = found[-1].next_offset
        return [each for each in found if each.base_offset < self._end]


async def batches_at(
    cluster: Cluster,
    tp: TopicPartition,
    offset: int,
    *,
    max_bytes: int = FETCH_BYTES,
    end: int = 0,
) -> list[Batch]:
    """Return the batch that holds *offset*, or the first one above it, and batches after it.

    Empty if there is none below the high watermark. *end* is a high watermark that was read before: up to it, the
    answer of a leader with a lower one is retried. A new leader begins with that of its last fetch as a follower. Raise
    KafkaError.
    """

    async def attempt() -> list[Batch]:
        leader = cluster.metadata.leader(tp)
        if leader is None:
            raise LeaderNotAvailable(f"{tp} has no leader")
        connection = await cluster.connection(leader, _CHANNEL)
        wanted = FetchPartition(tp.partition, offset, max_bytes, cluster.metadata.leader_epoch(tp))
        request = FetchRequest(0, 0, [FetchTopic(tp.topic, [wanted])], max_bytes=max_bytes)
        version = min(_LAST_VERSION_BY_NAME, connection.version_for(ApiKey.FETCH))
        response = await connection.request(ApiKey.FETCH, version, request)
        answer = response.topics[0].partitions[0] if response.topics else None
        code = response.error_code or (answer.error_code if answer else 0)
        if code:
            raise for_code(code)(f"fetch of {tp} at offset {offset}")
        if answer is None:
            raise LeaderNotAvailable(f"the response to a fetch of {tp} does not contain it")
        found = [each for each in read_batches(answer.record_set) if each.next_offset > offset]
        if not found and answer.high_watermark > offset:
            raise OffsetNotAvailable(f"{tp} has no batch to fetch at offset {offset} yet")
        if not found and offset < end:
            raise OffsetNotAvailable(f"{tp} ends at {answer.high_watermark}, not at {end}")
        return found

    return await cluster.retrying(attempt, timeout=TIMEOUT, what=f"reading {tp}")
