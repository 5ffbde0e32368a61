"""Reads the log of one partition batch by batch, up to its high watermark: open and aborted transactions included.

The mirror's own reader (`mirrormaker.source`) stops at the last stable offset and at a damaged batch. A comparison
needs both.
"""

from __future__ import annotations

from dataclasses import dataclass

from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.batches import HEADER_SIZE
from kclient.wire.errors import CorruptMessage, LeaderNotAvailable, OffsetNotAvailable, for_code
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.versions import ApiKey
from mirrormaker.divergence import Batch, read_batches

FETCH_BYTES = 4 << 20
TIMEOUT = 30.0
"""Seconds for one fetch, retries included."""
_LAST_VERSION_BY_NAME = 12
_CHANNEL = "mirror-compare"
_BASE_OFFSET_SIZE = 8
"""Bytes of a header."""


class LogReader:
    """Reads the batches of *tp* that hold the offsets [*start*, *end*), in order.

    The header of a damaged batch does not show where the next one begins. A broker goes by that header. So a damaged
    batch with a negative last offset delta is not found at the begin of a segment. No CRC covers the base offset: one
    that contradicts the other batches is CorruptMessage. A batch with one that is too low is not found at the begin of
    a segment, or of the log.
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
        await self._check_last(found)
        self._last = found[-1]
        self._offset = max(self._offset, _least_behind(self._last))
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
            fetched = await self._fetched(offset, max_bytes)
        except OffsetNotAvailable as problem:
            if last is None or not last.is_damaged:
                raise
            raise self._unknown(last) from problem
        self._check_order(fetched)
        if last is not None:
            for each in fetched.batches:
                overlaps = each.base_offset < _least_behind(last) < each.next_offset
                if overlaps and not each.is_damaged:
                    raise self._contradicts(each.base_offset)
        new = [
            each
            for each in fetched.holding(offset)
            if last is None or each.base_offset > last.base_offset
        ]
        if not new and last is not None and fetched.is_cut:
            raise self._unknown(last)
        return new

    async def _check_last(self, found: list[Batch]) -> None:
        """Raise CorruptMessage if the base offset of the last batch of *found* is so high that others are skipped.

        The next fetch would be behind them. Only a batch behind a hole has such a base offset. A batch that is followed
        by another one of its answer needs no fetch: `_check_order` has seen both.
        """
        each = found[-1]
        before = found[-2] if len(found) > 1 else self._last
        end = self._offset if before is None else before.next_offset
        if before is not None and before.is_damaged:
            if each.is_damaged:
                return
        elif end >= min(each.base_offset, self._end):
            return
        # The end that a damaged header states proves nothing: `_behind` looks for what follows.
        until = each.base_offset if each.is_damaged else each.next_offset
        at = min(until, self._end) - 1
        fetched = await self._fetched(at, len(each.data) + HEADER_SIZE)
        if fetched.batches[0].is_damaged:  # a broker takes *at* for one of its offsets
            size = len(fetched.batches[0].data) + len(each.data) + FETCH_BYTES
            fetched = await self._fetched(at, size)
        self._check_order(fetched)
        # The answer is later than the batch, which was committed, so below the high watermark.
        if each.base_offset >= fetched.high_watermark:
            raise self._contradicts(each.base_offset)
        undamaged = [other for other in fetched.holding(at) if not other.is_damaged]
        if each.is_damaged:
            if any(other.base_offset < each.base_offset for other in undamaged):
                raise self._contradicts(each.base_offset)
        elif not undamaged:
            raise self._unknown(fetched.batches[0])
        elif undamaged[0].data != each.data:
            raise self._contradicts(each.base_offset)

    async def _fetched(self, offset: int, max_bytes: int) -> _Fetched:
        return await _fetched(self._cluster, self._tp, offset, max_bytes=max_bytes, end=self._end)

    def _check_order(self, fetched: _Fetched) -> None:
        """Raise CorruptMessage if the base offsets contradict each other, that of a cut batch included."""
        bases = [each.base_offset for each in fetched.batches[1:]]
        if fetched.cut_base_offset is not None:
            bases.append(fetched.cut_base_offset)
        for before, base_offset in zip(fetched.batches, bases, strict=False):
            if base_offset < _least_behind(before):
                raise self._contradicts(base_offset)

    def _contradicts(self, base_offset: int) -> CorruptMessage:
        return CorruptMessage(
            f"the base offset {base_offset} of a batch of {self._tp} contradicts those of the others: a header is "
            "damaged"
        )

    def _unknown(self, batch: Batch) -> CorruptMessage:
        return CorruptMessage(
            f"the header of the batch of {self._tp} at offset {batch.base_offset} is damaged, or of the next one: what "
            "follows cannot be read"
        )


def _least_behind(batch: Batch) -> int:
    """Return the least base offset that the batch behind *batch* may have."""
    return batch.base_offset + 1 if batch.is_damaged else batch.next_offset


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
    cut_base_offset: int | None
    """The base offset of this batch; None if the answer does not have it."""
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
        try:
            whole = read_batches(answer.record_set)
        except CorruptMessage as problem:
            raise CorruptMessage(
                f"fetch of {tp} at offset {offset}: {problem.message}"
            ) from problem
        rest = memoryview(answer.record_set)[sum(len(each.data) for each in whole) :]
        base = bytes(rest[:_BASE_OFFSET_SIZE])
        cut_base_offset = (
            int.from_bytes(base, "big", signed=True) if len(base) == _BASE_OFFSET_SIZE else None
        )
        fetched = _Fetched(whole, len(rest) > 0, cut_base_offset, answer.high_watermark)
        found = fetched.holding(offset)
        if not found and answer.high_watermark > offset:
            raise OffsetNotAvailable(f"{tp} has no batch to fetch at offset {offset} yet")
        if not found and offset < end:
            raise OffsetNotAvailable(f"{tp} ends at {answer.high_watermark}, not at {end}")
        return fetched

    return await cluster.retrying(attempt, timeout=TIMEOUT, what=f"reading {tp}")
