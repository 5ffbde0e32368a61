"""What a consumer's fetches say to one broker: an incremental fetch session (KIP-227), in a consumer's terms.

Theory of operation
===================
The fetcher says every time all that it wants of a broker now. What the broker knows already is left out of the request
(`kclient.net.fetch_session`), what the fetcher does not want any more (it is paused, its buffer is full, it failed a
moment ago, it is not assigned) is forgotten, and the answer names only partitions that have something to say. So idle
partitions cost no bytes, whatever their number.

A session goes by topic ids or by names, never by both: where that changes another one is begun.

Invariants:
1. A partition whose position was set anew, or that was assigned anew, is named again even if the offset is the same:
what was answered in between was dropped, and the broker would not repeat it.
2. A full request names partitions in the order given: the first may exceed max.partition.fetch.bytes (KIP-74).

In: what is wanted, answers   Out: what to put into a fetch   Owner: the fetcher
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from kclient.consumer.partitions import PartitionState
from kclient.net.fetch_session import FetchRequestData, FetchSessionHandler, Topic
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartition, FetchResponse

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""What a broker answers that does not know the session, or knows it otherwise: ask for everything again."""


class RequestedPartition(NamedTuple):
    """One partition as it was when it was asked for."""

    state: PartitionState
    epoch: int
    offset: int
    leader_epoch: int
    topic_id: UUID | None


class ConsumerFetchSession:
    """The session of one consumer with one broker."""

    def __init__(self, partition_max_bytes: int) -> None:
        self._session = FetchSessionHandler()
        self._partition_max_bytes = partition_max_bytes
        self._by_id = True
        self._requested: dict[tuple[Topic, int], RequestedPartition] = {}
        """What the last request wanted."""

    @property
    def is_full(self) -> bool:
        """Whether the next request names everything, and its answer, too."""
        return self._session.is_full

    def request(self, wanted: Iterable[RequestedPartition], *, by_id: bool) -> FetchRequestData:
        """Return what a request for exactly *wanted* carries. Then comes `answered`, or `lost`."""
        session, said = self._session, self._requested
        if by_id is not self._by_id:
            session.reset()
            said, self._by_id = {}, by_id
        full = session.is_full
        now: dict[tuple[Topic, int], RequestedPartition] = {}
        for asked in wanted:
            tp = asked.state.tp
            key = (asked.topic_id if by_id else tp.topic, tp.partition)
            former = said.pop(key, None)
            now[key] = asked
            if full or former != asked:
                session.add(key[0], self._fetch_partition(asked))
                if former is not None and former[:2] != asked[:2]:
                    session.repeat(*key)
        for topic, partition in said:
            session.remove(topic, partition)
        self._requested = now
        return session.request()

    def _fetch_partition(self, asked: RequestedPartition) -> FetchPartition:
        return FetchPartition(
            partition=asked.state.tp.partition,
            fetch_offset=asked.offset,
            partition_max_bytes=self._partition_max_bytes,
            current_leader_epoch=asked.leader_epoch,
        )

    def answered(self, response: FetchResponse) -> None:
        """Take the answer to the request built last."""
        self._session.answered(response)

    def close_request(self) -> FetchRequestData | None:
        """Return what closes the session, if the broker keeps one for us (KAFKA-14365)."""
        return self._session.close_request()

    def lost(self) -> None:
        """Handle a request that got no answer: the next one is full."""
        self._session.lost()
