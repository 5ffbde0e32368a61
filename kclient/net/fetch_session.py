"""The client side of incremental fetch sessions (KIP-227), as Kafka's FetchSessionHandler: what a fetch has to name.

Theory of operation
===================
The owner sets the wanted fetch of each partition (`add`) and removes partitions (`remove`). `request` returns the
content of the next fetch: every partition in a full fetch, otherwise only the differences since the last one. A broker
without a free session slot answers with session id 0; then every fetch is full. After a lost response or a session
error the broker's state is unknown: the next fetch is full and closes the former session.

An owner with thousands of partitions may limit how many new ones a request names. Later requests name the rest
(`is_behind`), also after a full one; without a session slot the limit does not apply.

Invariants:
1. `_known` is the broker's state of the session, if the broker accepted the last request.
2. The size of a request depends on the changes since the last one, not on the number of partitions; except when full.
3. Every wanted fetch equals what the broker knows, or the next request considers it.

In: wanted fetches, responses   Out: the content of a fetch   Owner: the fetcher of one broker
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple, TypeAlias
from uuid import UUID

from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    FetchPartition,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    next_session_epoch,
)

Topic: TypeAlias = UUID | str | None
"""A topic id, or a topic name in versions without topic ids; None is an unknown id."""


class FetchRequestData(NamedTuple):
    """The part of a fetch request that the session determines."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]


class FetchSessionHandler:
    """The fetch session with one broker; every new connection needs a new one."""

    __slots__ = ("_again", "_changed", "_epoch", "_has_no_room", "_id", "_known", "_wanted")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = INITIAL_SESSION_EPOCH
        self._wanted: dict[tuple[Topic, int], FetchPartition] = {}
        self._known: dict[tuple[Topic, int], FetchPartition] = {}
        """What the last requests named: the broker's state of the session."""
        self._changed: dict[tuple[Topic, int], None] = {}
        """Partitions with a wanted fetch that may differ from `_known`."""
        self._again: set[tuple[Topic, int]] = set()
        """Partitions to name even if unchanged."""
        self._has_no_room = False
        """Whether the broker had no free session slot: then every fetch is full."""

    def __len__(self) -> int:
        return len(self._wanted)

    @property
    def is_full(self) -> bool:
        """Whether the next request names all partitions."""
        return self._epoch == INITIAL_SESSION_EPOCH

    @property
    def is_behind(self) -> bool:
        """Whether the last request left out a changed partition."""
        return bool(self._changed)

    def add(self, topic: Topic, asked: FetchPartition) -> None:
        """Fetch *asked* of *topic* from now on; in a full fetch it comes last."""
        key = (topic, asked.partition)
        self._wanted.pop(key, None)
        self._wanted[key] = asked
        self._changed[key] = None

    def repeat(self, topic: Topic, partition: int) -> None:
        """Name a partition in the next request even if unchanged, because its last response was dropped."""
        self._again.add((topic, partition))
        self._changed[topic, partition] = None

    def reset(self) -> None:
        """Remove all partitions, and close the session with the next request."""
        self._wanted.clear()
        self._known.clear()
        self._changed.clear()
        self._again.clear()
        self.lost()

    def remove(self, topic: Topic, partition: int) -> None:
        """Stop fetching a partition."""
        key = (topic, partition)
        if self._wanted.pop(key, None) is not None:
            self._changed[key] = None

    def request(self, max_new_partitions: int | None = None) -> FetchRequestData:
        """Return the content of the next request. Call `answered` or `lost` after it.

        It names at most *max_new_partitions* partitions that the broker does not know yet; None: no limit.
        """
        room = (
            len(self._wanted)
            if max_new_partitions is None or self._has_no_room
            else max_new_partitions
        )
        changed, self._changed = self._changed, {}
        again, self._again = self._again, set()
        topics: dict[Topic, FetchTopic] = {}
        if self.is_full:
            self._known = dict(islice(self._wanted.items(), room))
            for (topic, _), asked in self._known.items():
                _put(topics, topic, asked)
            self._changed = dict.fromkeys(islice(self._wanted, room, None))
            return FetchRequestData(self._id, self._epoch, list(topics.values()), [])
        forgotten: dict[Topic, ForgottenTopic] = {}
        for key in changed:
            wanted, known = self._wanted.get(key), self._known.get(key)
            if wanted is not None and known is None and not room:
                self._changed[key] = None
            elif wanted is not None and (wanted != known or key in again):
                room -= known is None
                self._known[key] = wanted
                _put(topics, key[0], wanted)
            elif wanted is None and known is not None:
                del self._known[key]
                _forget(forgotten, key[0], key[1])
        return FetchRequestData(
            self._id, self._epoch, list(topics.values()), list(forgotten.values())
        )

    def answered(self, response: FetchResponse) -> None:
        """Handle the response to the last request."""
        error = response.error_code
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id = 0
            self._epoch = INITIAL_SESSION_EPOCH
        elif error:
            self.lost()
        elif response.session_id == 0:
            self._id, self._epoch = 0, INITIAL_SESSION_EPOCH
            self._has_no_room = True
        else:
            self._has_no_room = False
            self._id = response.session_id
            self._epoch = next_session_epoch(self._epoch)

    def close_request(self) -> FetchRequestData | None:
        """Return the request that closes the session, if the broker has one."""
        return FetchRequestData(self._id, FINAL_SESSION_EPOCH, [], []) if self._id else None

    def lost(self) -> None:
        """Handle a lost response: the next request is full and closes the former session."""
        self._epoch = INITIAL_SESSION_EPOCH


def _put(topics: dict[Topic, FetchTopic], topic: Topic, asked: FetchPartition) -> None:
    found = topics.get(topic)
    if found is None:
        found = topics[topic] = FetchTopic(*_called(topic))
    found.partitions.append(asked)


def _forget(forgotten: dict[Topic, ForgottenTopic], topic: Topic, index: int) -> None:
    found = forgotten.get(topic)
    if found is None:
        name, _, topic_id = _called(topic)
        found = forgotten[topic] = ForgottenTopic(name, [], topic_id)
    found.partitions.append(index)


def _called(topic: Topic) -> tuple[str, list[FetchPartition], UUID | None]:
    """Return the topic fields of a request: name, empty partition list, topic id."""
    return (topic, [], None) if isinstance(topic, str) else ("", [], topic)
