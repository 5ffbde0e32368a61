"""Reads the log of one partition batch by batch, up to its high watermark: open and aborted transactions included.

The mirror's own reader (`mirrormaker.source`) stops at the last stable offset and at a damaged batch. A comparison
needs both.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

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
    batch with a negative last offset delta is not found at the begin of a segment. No CRC covers the base offset: one
    that contradicts the other batches is CorruptMessage. One that is too low is not found at the begin of a segment.
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
        await self._check_offsets(found)
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
            fetched = await _fetched(
                self._cluster, self._tp, offset, max_bytes=max_bytes, end=self._end
            )
        except OffsetNotAvailable as problem:
            if last is None or not last.is_damaged:
                raise
            raise self._unknown(last) from problem
        self._check_order(fetched)
        new = [
            each
            for each in fetched.holding(offset)
            if last is None or each.base_offset > last.base_offset
        ]
        if not new and last is not None and fetched.is_cut:
            raise self._unknown(last)
        return new

    async def _check_offsets(self, found: list[Batch]) -> None:
        """Raise CorruptMessage if a batch of *found* behind a hole has a base offset that is too high.

        Then another one has offsets of the hole, or of this batch. A broker answers with the batches of one segment.
        """
        before = self._last
        for each in found:
            end = self._offset if before is None else before.next_offset
            if end < min(each.base_offset, self._end) and not (before and before.is_damaged):
                for until in (each.base_offset, each.next_offset):
                    at = min(until, self._end) - 1
                    if at < end:
                        continue
                    size = len(each.data) + FETCH_BYTES
                    fetched = await _fetched(
                        self._cluster, self._tp, at, max_bytes=size, end=self._end
                    )
                    self._check_order(fetched)
                    # This one was read after the batch, so the batch was committed below it.
                    if each.base_offset >= fetched.high_watermark:
                        raise self._contradicts(each)
                    for other in fetched.holding(at):
                        if other.base_offset < until and other.base_offset != each.base_offset:
                            raise self._contradicts(each)
            before = each

    def _check_order(self, fetched: _Fetched) -> None:
        """Raise CorruptMessage if the offsets of the batches contradict each other."""
        for before, each in pairwise(fetched.batches):
            least = before.base_offset + 1 if before.is_damaged else before.next_offset
            if each.base_offset < least:
                raise self._contradicts(each)

    def _contradicts(self, batch: Batch) -> CorruptMessage:
        return CorruptMessage(
            f"the base offset {batch.base_offset} of a batch of {self._tp} contradicts those of the others: its header "
            "is damaged"
        )

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
    fetched = await _fetched(cluster, tp, offset, max_bytes=max_bytes, end=end)
    return fetched.holding(offset)


@dataclass(frozen=True, slots=True)
class _Fetched:
    """The answer to one fetch."""

    batches: list[Batch]
    """The whole ones."""
    is_cut: bool
    """Whether it ends within a batch."""
    high_watermark: int

    def holding(self, offset: int) -> list[Batch]:
        """Return the batch that holds *offset*, or the first one above it, and those behind it."""
        return [each for each in self.batches if each.is_damaged or each.next_offset > offset]


async def _fetched(
    cluster: Cluster, tp: TopicPartition, offset: int, *, max_bytes: int, end: int
) -> _Fetched:
    """Return the answer to a fetch at *offset*, with a batch for it if *offset* is below *end*. Raise KafkaError."""

    async def attempt() -> _Fetched:
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
        is_cut = sum(len(each.data) for each in whole) < len(answer.record_set)
        fetched = _Fetched(whole, is_cut, answer.high_watermark)
        found = fetched.holding(offset)
        if not found and answer.high_watermark > offset:
            raise OffsetNotAvailable(f"{tp} has no batch to fetch at offset {offset} yet")
        if not found and offset < end:
            raise OffsetNotAvailable(f"{tp} ends at {answer.high_watermark}, not at {end}")
        return fetched

    return await cluster.retrying(attempt, timeout=TIMEOUT, what=f"reading {tp}")
