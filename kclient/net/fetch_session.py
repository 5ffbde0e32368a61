"""The fetching side of an incremental fetch session (KIP-227): what to say, so that the broker knows what is wanted.

Theory of operation
===================
The owner says what it wants of every partition (`add`) and what it wants no more (`remove`); `request` gives what the
broker has to be told: everything in a full fetch, later only the differences. A broker that has no room answers in
full with session id 0, and is asked in full every time. After an answer that did not come, or an error of the session,
we cannot tell what the broker knows: the next fetch is full, and closes the former session.

Who wants thousands may have some of them named at a time: what a request leaves out is named by the next ones
(`is_behind`), even if the first is a full one; unless the broker has no room.

Invariants:
1. What the broker knows of a session is `_known`, if it accepted the request built last.
2. A request costs what changed since the last one, not what is wanted altogether; a full one excepted.
3. What is wanted is what the broker was told, or it is among those to be looked at for the next request.

In: what is wanted, answers   Out: what to put into a fetch   Owner: whoever fetches from one broker
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
"""A topic's id, or its name in versions that go by it; None: an id that is not known."""


class FetchRequestData(NamedTuple):
    """What a fetch has to carry for the session."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]


class FetchSessionHandler:
    """The session with one broker; to be begun anew with every connection."""

    __slots__ = ("_again", "_changed", "_epoch", "_has_no_room", "_id", "_known", "_wanted")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = INITIAL_SESSION_EPOCH
        self._wanted: dict[tuple[Topic, int], FetchPartition] = {}
        self._known: dict[tuple[Topic, int], FetchPartition] = {}
        """What the broker was told last."""
        self._changed: dict[tuple[Topic, int], None] = {}
        """Those where what is wanted may be something else."""
        self._again: set[tuple[Topic, int]] = set()
        """Those to be named whatever the broker knows."""
        self._has_no_room = False
        """Whether the broker kept no session the last time: every fetch has to name everything."""

    def __len__(self) -> int:
        return len(self._wanted)

    @property
    def is_full(self) -> bool:
        """Whether the next request names everything."""
        return self._epoch == INITIAL_SESSION_EPOCH

    @property
    def is_behind(self) -> bool:
        """Whether the request built last left something out."""
        return bool(self._changed)

    def add(self, topic: Topic, asked: FetchPartition) -> None:
        """Ask for *asked* of *topic* from now on; in a full fetch behind all others."""
        key = (topic, asked.partition)
        self._wanted.pop(key, None)
        self._wanted[key] = asked
        self._changed[key] = None

    def repeat(self, topic: Topic, partition: int) -> None:
        """Name a partition that is wanted in the next request, though it be known: an answer was not taken."""
        self._again.add((topic, partition))
        self._changed[topic, partition] = None

    def reset(self) -> None:
        """Want nothing any more, and close the session with the next request."""
        self._wanted.clear()
        self._known.clear()
        self._changed.clear()
        self._again.clear()
        self.lost()

    def remove(self, topic: Topic, partition: int) -> None:
        """Ask for a partition no more."""
        key = (topic, partition)
        if self._wanted.pop(key, None) is not None:
            self._changed[key] = None

    def request(self, max_new_partitions: int | None = None) -> FetchRequestData:
        """Return what the next request carries. Then comes `answered`, or `lost`.

        It names no more than *newcomers* partitions that the broker does not know yet; None: all.
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
        """Take the answer to the request built last."""
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
        """Return what closes the session, if the broker keeps one for us."""
        return FetchRequestData(self._id, FINAL_SESSION_EPOCH, [], []) if self._id else None

    def lost(self) -> None:
        """Handle a request that got no answer: the next one begins a session, and closes this."""
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
    """Return how a request calls *topic*: its name, partitions to come, its id."""
    return (topic, [], None) if isinstance(topic, str) else ("", [], topic)
