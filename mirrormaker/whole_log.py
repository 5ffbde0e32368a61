"""Reads the log of one partition batch by batch, up to its high watermark: open and aborted transactions included.

The mirror's own reader (`mirrormaker.source`) stops at the last stable offset and at a damaged batch. A comparison
needs both.
"""

from __future__ import annotations

from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.errors import CorruptMessage, LeaderNotAvailable, OffsetNotAvailable, for_code
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.versions import ApiKey
from mirrormaker.divergence import Batch, read_batches

FETCH_BYTES = 4 << 20
TIMEOUT = 30.0
"""Seconds for one fetch, retries included."""
_LAST_VERSION_BY_NAME = 12
_CHANNEL = "mirror-compare"


class LogReader:
    """Reads the batches of *tp* that hold the offsets [*start*, *end*), in order.

    The header of a damaged batch does not show where the next one begins. A broker goes by that header. So a damaged
    batch with a negative last offset delta is not found at the begin of a segment.
    """

    def __init__(self, cluster: Cluster, tp: TopicPartition, start: int, end: int) -> None:
        self._cluster = cluster
        self._tp = tp
        self._offset = start
        self._end = end
        self._last: Batch | None = None

    async def read(self) -> list[Batch] | None:
        """Return the next batches; None at the end. Raise KafkaError, also if the log ends before *end*.

        The first batch may begin below *start*. None begins at or above *end*. A damaged header behind which there may
        be batches that cannot be fetched is CorruptMessage.
        """
        last = self._last
        if last is not None and last.is_damaged and self._offset < self._end:
            found = await self._behind(last)
            if not found:
                self._offset = min(last.next_offset, self._end)
        else:
            found = []
        if not found:
            if self._offset >= self._end:
                return None
            found = await self._new(self._offset)
            if not found:
                raise CorruptMessage(f"a fetch of {self._tp} at {self._offset} has what is below")
            if last is not None and found[0].base_offset > self._offset:
                # A hole. Or the broker does not find the next batch, because its last offset delta is negative.
                size = max(FETCH_BYTES, len(found[0].data))
                found = await self._new(last.base_offset, len(last.data) + size) or found
        self._last = found[-1]
        after = self._last.base_offset + 1 if self._last.is_damaged else self._last.next_offset
        self._offset = max(self._offset, after)
        return [each for each in found if each.base_offset < self._end]

    async def _behind(self, damaged: Batch) -> list[Batch]:
        """Return the batches behind *damaged*; none if the next one is at the end that its header states, or above.

        The broker answers with *damaged* for each offset up to that end, unless another segment begins below. Raise
        CorruptMessage in this case: what else is below cannot be fetched.
        """
        size = len(damaged.data) + FETCH_BYTES
        found = await self._new(self._offset, size)
        until = min(damaged.next_offset, self._end)
        if not found and (until <= self._offset or await self._new(until - 1, size)):
            raise self._unknown(damaged)
        return found

    async def _new(self, offset: int, max_bytes: int = FETCH_BYTES) -> list[Batch]:
        """Return the batches behind the last one that are fetched at *offset*.

        Raise CorruptMessage if there is none, and the answer ends within one or the last one is damaged.
        """
        last = self._last
        try:
            found, is_cut = await _fetched(
                self._cluster, self._tp, offset, max_bytes=max_bytes, end=self._end
            )
        except OffsetNotAvailable as problem:
            if last is None or not last.is_damaged:
                raise
            raise self._unknown(last) from problem
        new = [each for each in found if last is None or each.base_offset > last.base_offset]
        if not new and last is not None and is_cut:
            raise self._unknown(last)
        return new

    def _unknown(self, batch: Batch) -> CorruptMessage:
        return CorruptMessage(
            f"the header of the batch of {self._tp} at offset {batch.base_offset} is damaged, or of the next one: what "
            "follows cannot be read"
        )


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
    found, _ = await _fetched(cluster, tp, offset, max_bytes=max_bytes, end=end)
    return found


async def _fetched(
    cluster: Cluster, tp: TopicPartition, offset: int, *, max_bytes: int, end: int
) -> tuple[list[Batch], bool]:
    """Return `batches_at`, and whether the answer ends within a batch. Raise KafkaError."""

    async def attempt() -> tuple[list[Batch], bool]:
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
        whole = read_batches(answer.record_set)
        found = [each for each in whole if each.is_damaged or each.next_offset > offset]
        if not found and answer.high_watermark > offset:
            raise OffsetNotAvailable(f"{tp} has no batch to fetch at offset {offset} yet")
        if not found and offset < end:
            raise OffsetNotAvailable(f"{tp} ends at {answer.high_watermark}, not at {end}")
        return found, sum(len(each.data) for each in whole) < len(answer.record_set)

    return await cluster.retrying(attempt, timeout=TIMEOUT, what=f"reading {tp}")
