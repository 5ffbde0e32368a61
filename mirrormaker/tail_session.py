"""The fetch session with one leader of the source (KIP-227) for the partitions that are caught up. Pure.

Theory of operation
===================
The flow adds a partition once. The leader then keeps its fetch, and names the partition only in a response with
records, an error, or another high watermark. So an idle partition costs neither bytes nor time, on both sides. A named
partition has left the session; the flow adds it again with its next offset, or fetches it in another way.

A response belongs to the fetches that the leader knew when the request was sent. A fetch that was discarded or replaced
since then gets no outcome. The leader has sent that change, and would not repeat it. So the next request names such a
partition even if its fetch is the same. The same applies after an error.

Invariants:
1. `answered` returns a fetch at most once, and only one that is in the session now.
2. The work of `request` and `answered` depends on the changes, not on the number of partitions; except after `lost`.
3. A full response gives every partition of the request an outcome; a missing one has the answer None.

In: fetches of partitions with topic ids, responses   Out: the content of a fetch, answers   Owner: the flow
"""

from __future__ import annotations

from uuid import UUID

from kclient.net.fetch_session import FetchRequestData, FetchSessionHandler
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import (
    INITIAL_SESSION_EPOCH,
    FetchPartition,
    FetchPartitionResponse,
    FetchResponse,
)
from mirrormaker.link_state import PartitionFetch

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""The errors of a leader that does not have the session in this state; the next fetch is full."""

_Key = tuple[UUID | None, int]
"""Topic id and partition."""

Answer = tuple[PartitionFetch, FetchPartitionResponse | None]


class TailSession:
    """The partitions that are fetched from one leader in one long poll."""

    def __init__(self) -> None:
        self._session = FetchSessionHandler()
        self._fetches: dict[TopicPartition, PartitionFetch] = {}
        self._named: dict[_Key, PartitionFetch] = {}
        """The leader's state: the fetches of the last request and of those before it."""
        self._changed: dict[_Key, PartitionFetch] = {}
        """Fetches that were added, discarded or answered since the last request."""
        self._dropped: set[_Key] = set()
        """Partitions with a discarded or failed fetch: the next request names them, if they are added again."""
        self._full = True
        self.answered_at = 0.0
        """The time of the last successful response."""

    def __len__(self) -> int:
        return len(self._fetches)

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._fetches

    def fetch_of(self, tp: TopicPartition) -> PartitionFetch | None:
        """Return the fetch of a partition in the session, else None."""
        return self._fetches.get(tp)

    def add(self, fetch: PartitionFetch, current_leader_epoch: int) -> None:
        """Fetch a partition from now on, in place of its former fetch. It must have a topic id."""
        self.discard(fetch.tp)
        key = _key(fetch)
        self._fetches[fetch.tp] = fetch
        self._changed[key] = fetch
        self._session.add(
            fetch.topic_id,
            FetchPartition(
                fetch.tp.partition,
                fetch.offset,
                fetch.max_bytes,
                current_leader_epoch=current_leader_epoch,
                last_fetched_epoch=fetch.last_epoch,
            ),
        )
        if key in self._dropped:
            self._session.repeat(fetch.topic_id, fetch.tp.partition)

    def discard(self, tp: TopicPartition) -> None:
        """Stop the fetch of a partition; a response to it is ignored."""
        fetch = self._fetches.pop(tp, None)
        if fetch is not None:
            self._changed[_key(fetch)] = fetch
            self._dropped.add(_key(fetch))

    def request(self) -> FetchRequestData:
        """Return the content of the next fetch. Call `answered` or `lost` after it."""
        for key, fetch in self._changed.items():
            if self._fetches.get(fetch.tp) is fetch:
                self._named[key] = fetch
            else:
                self._named.pop(key, None)
                self._session.remove(*key)
        self._changed.clear()
        self._dropped.clear()
        asked = self._session.request()
        self._full = asked.session_epoch == INITIAL_SESSION_EPOCH
        return asked

    def answered(self, response: FetchResponse, now: float) -> list[Answer]:
        """Return the fetches with a change and their responses; they have left the session.

        A response with an error has none; the next request is full.
        """
        self._session.answered(response)
        if response.error_code:
            return []
        self.answered_at = now
        answers: dict[_Key, FetchPartitionResponse | None] = {}
        if self._full:
            answers = dict.fromkeys(self._named)
        for topic in response.topics:
            for answer in topic.partitions:
                answers[topic.topic_id, answer.partition] = answer
        found: list[Answer] = []
        for key, each in answers.items():
            fetch = self._named.get(key)
            if fetch is not None and self._fetches.get(fetch.tp) is fetch:
                del self._fetches[fetch.tp]
                self._changed[key] = fetch
                if each is None or each.error_code:
                    self._dropped.add(key)
                found.append((fetch, each))
        return found

    def close_request(self) -> FetchRequestData | None:
        """Return the request that closes the session, if the leader has one."""
        return self._session.close_request()

    def lost(self) -> list[PartitionFetch]:
        """Handle a lost response: return all fetches, which have left the session."""
        every = list(self._fetches.values())
        self._fetches.clear()
        self._named.clear()
        self._changed.clear()
        self._dropped.clear()
        self._session.reset()
        return every


def _key(fetch: PartitionFetch) -> _Key:
    return fetch.topic_id, fetch.tp.partition
