"""A consumer's incremental fetch session with one broker (KIP-227).

Theory of operation
===================
The fetcher passes all partitions that it wants to fetch from the broker now. The session names only changes in the
request (`kclient.net.fetch_session`). A partition that is no longer wanted (paused, buffer full, backing off after an
error, not assigned) is forgotten. The response names only partitions with new data or errors. So idle partitions cost
no bytes.

A session uses either topic ids or topic names; a change between them starts a new session.

Invariants:
1. A partition with a new position or a new assignment is named again even at the same offset. Its last response was
   dropped, and the broker would not repeat it.
2. A full request names partitions in the given order, because the first may exceed max.partition.fetch.bytes (KIP-74).

In: wanted partitions, responses   Out: the content of a fetch   Owner: the fetcher
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
"""The errors of a broker that does not have the session in this state; the next fetch is full."""


class RequestedPartition(NamedTuple):
    """A partition's state at the time of the request."""

    state: PartitionState
    epoch: int
    offset: int
    leader_epoch: int
    topic_id: UUID | None


class ConsumerFetchSession:
    """The fetch session of one consumer with one broker."""

    def __init__(self, partition_max_bytes: int) -> None:
        self._session = FetchSessionHandler()
        self._partition_max_bytes = partition_max_bytes
        self._by_id = True
        self._requested: dict[tuple[Topic, int], RequestedPartition] = {}
        """The partitions of the last request."""

    @property
    def is_full(self) -> bool:
        """Whether the next request, and so its response, names all partitions."""
        return self._session.is_full

    def request(self, wanted: Iterable[RequestedPartition], *, by_id: bool) -> FetchRequestData:
        """Return the content of a fetch of exactly *wanted*. Call `answered` or `lost` after it."""
        session, previous = self._session, self._requested
        if by_id is not self._by_id:
            session.reset()
            previous, self._by_id = {}, by_id
        full = session.is_full
        now: dict[tuple[Topic, int], RequestedPartition] = {}
        for asked in wanted:
            tp = asked.state.tp
            key = (asked.topic_id if by_id else tp.topic, tp.partition)
            former = previous.pop(key, None)
            now[key] = asked
            if full or former != asked:
                session.add(key[0], self._fetch_partition(asked))
                if former is not None and former[:2] != asked[:2]:
                    session.repeat(*key)
        for topic, partition in previous:
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
        """Handle the response to the last request."""
        self._session.answered(response)

    def close_request(self) -> FetchRequestData | None:
        """Return the request that closes the session, if the broker has one (KAFKA-14365)."""
        return self._session.close_request()

    def lost(self) -> None:
        """Handle a lost response: the next request is full."""
        self._session.lost()
