"""The fetch session of partitions that are caught up: an idle one costs nothing, and no change is lost."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.net.fetch_session import FetchRequestData
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from mirrormaker.link_state import PartitionFetch
from mirrormaker.tail_session import TailSession
from tests.kit.property_tests import examples

ID = UUID(int=7)
SESSION = 42


def fetch(partition: int = 0, offset: int = 10, generation: int = 0) -> PartitionFetch:
    return PartitionFetch(TopicPartition("t", partition), generation, offset, 1000, topic_id=ID)


def response(*partitions: int, error: int = 0, session: int = SESSION) -> FetchResponse:
    """Return a response that names *partitions*."""
    answers = [FetchPartitionResponse(each, high_watermark=20) for each in partitions]
    topics = [FetchTopicResponse("", answers, topic_id=ID)] if answers else []
    return FetchResponse(topics, error_code=error, session_id=session)


def named(request: FetchRequestData) -> list[int]:
    return [each.partition for topic in request.topics for each in topic.partitions]


def forgotten(request: FetchRequestData) -> list[int]:
    return [each for topic in request.forgotten for each in topic.partitions]


def begun(*fetches: PartitionFetch) -> TailSession:
    """Return a session of which the leader knows *fetches*; all but the first full response's are in it again."""
    session = TailSession()
    for each in fetches:
        session.add(each, 3)
    assert named(session.request()) == [each.tp.partition for each in fetches]
    found = session.answered(response(*(each.tp.partition for each in fetches)), 1.0)
    assert [asked for asked, _ in found] == list(fetches)
    for each in fetches:
        session.add(each, 3)
    return session


def test_an_idle_partition_costs_no_bytes() -> None:
    session = begun(fetch(0), fetch(1))
    for _ in range(3):
        request = session.request()
        assert (named(request), forgotten(request)) == ([], [])
        assert session.answered(response(), 5.0) == []
    assert len(session) == 2
    assert session.answered_at == 5.0


def test_a_partition_in_the_response_leaves_and_is_named_with_its_next_offset() -> None:
    session = begun(fetch(0), fetch(1))
    session.request()
    [(asked, answer)] = session.answered(response(1), 2.0)
    assert asked == fetch(1)
    assert answer is not None
    assert TopicPartition("t", 1) not in session
    session.add(fetch(1, offset=12), 3)
    request = session.request()
    assert (named(request), forgotten(request)) == ([1], [])


def test_a_partition_that_is_not_added_again_is_forgotten() -> None:
    session = begun(fetch(0), fetch(1))
    session.request()
    session.answered(response(1), 2.0)
    request = session.request()
    assert (named(request), forgotten(request)) == ([], [1])


def test_the_response_to_a_discarded_fetch_is_ignored_and_the_fetch_is_sent_again() -> None:
    session = begun(fetch(0), fetch(1))
    session.request()
    session.discard(TopicPartition("t", 1))
    session.add(fetch(1, generation=1), 3)
    assert session.answered(response(1), 2.0) == []
    assert named(session.request()) == [1], "the same offset: the leader takes the change for sent"
    [(asked, _)] = session.answered(response(1), 3.0)
    assert asked.generation == 1


def test_a_topic_that_was_created_again_replaces_the_fetch_of_the_former_one() -> None:
    session = begun(fetch(0))
    session.request()
    session.add(replace(fetch(0), topic_id=UUID(int=8)), 3)
    assert session.answered(response(0), 2.0) == []
    request = session.request()
    assert [topic.topic_id for topic in request.topics] == [UUID(int=8)]
    assert forgotten(request) == [0]


def test_a_lost_response_empties_the_session_and_the_next_fetch_is_full() -> None:
    session = begun(fetch(0), fetch(1))
    session.request()
    assert session.lost() == [fetch(0), fetch(1)]
    assert len(session) == 0
    session.add(fetch(0), 3)
    request = session.request()
    assert (request.session_id, request.session_epoch, named(request)) == (SESSION, 0, [0])


def test_after_a_session_error_all_partitions_are_named_again() -> None:
    session = begun(fetch(0), fetch(1))
    session.request()
    error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert session.answered(response(error=error, session=0), 2.0) == []
    request = session.request()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert sorted(named(request)) == [0, 1]


def test_without_a_session_slot_every_fetch_is_full_and_complete() -> None:
    session = TailSession()
    for number in (0, 1):
        session.add(fetch(number), 3)
    for _ in range(2):
        assert sorted(named(session.request())) == [0, 1]
        found = dict(session.answered(response(1, session=0), 2.0))
        assert found[fetch(0)] is None, "a full response contains all partitions"
        assert found[fetch(1)] is not None
        for number in (0, 1):
            session.add(fetch(number), 3)


class Leader:
    """A leader with one session: it sends a change of a partition once, unless the partition is named again."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = dict.fromkeys(range(3), 0)
        self.fetches: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        self.epoch = 0

    def answer(self, request: FetchRequestData) -> FetchResponse:
        full = request.session_epoch == 0
        if not full and request.session_epoch != self.epoch:
            return response(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session=0)
        if full:
            self.fetches, self.sent, self.epoch = {}, {}, 0
        self.epoch += 1
        for each in forgotten(request):
            del self.fetches[each]
        for topic in request.topics:
            for one in topic.partitions:
                self.fetches[one.partition] = one.fetch_offset
                self.sent.pop(one.partition, None)
        changed = []
        for number, offset in self.fetches.items():
            end = self.ends[number]
            if full or end > offset or self.sent.get(number) != end:
                self.sent[number] = end
                changed.append(number)
        answers = [FetchPartitionResponse(n, high_watermark=self.ends[n]) for n in changed]
        topics = [FetchTopicResponse("", answers, topic_id=ID)] if answers else []
        return FetchResponse(topics, session_id=SESSION)


class Mirror:
    """A flow with one session, and its leader."""

    def __init__(self) -> None:
        self.session = TailSession()
        self.leader = Leader()
        self.known = dict.fromkeys(range(3), -1)
        """The log end of each partition that the session has shown."""
        self._generation = 0

    def append(self, number: int) -> None:
        self.leader.ends[number] += 1

    def discard(self, number: int) -> None:
        self.session.discard(TopicPartition("t", number))

    def add(self, number: int) -> None:
        self._generation += 1
        self.session.add(fetch(number, max(0, self.known[number]), self._generation), 3)

    def exchange(self, number: int = -1, *, adds: bool = False) -> None:
        """Send a request; discard *number*, and add it again if asked, while it is in flight."""
        request = self.session.request()
        if number >= 0:
            self.discard(number)
        answered = self.leader.answer(request)
        if adds:
            self.add(number)
        for asked, answer in self.session.answered(answered, 1.0):
            assert answer is not None
            self.known[asked.tp.partition] = answer.high_watermark
            self.add(asked.tp.partition)

    def replace(self, number: int) -> None:
        self.exchange(number, adds=True)

    def lose(self, _: int) -> None:
        self.leader.answer(self.session.request())
        self.session.lost()

    def forget(self, _: int) -> None:
        """The leader loses the session."""
        self.leader.epoch = -1


EVENTS = ("append", "discard", "add", "exchange", "replace", "lose", "forget")


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 2)), max_size=40))
def test_every_partition_that_is_fetched_gets_the_end_of_its_log(
    events: list[tuple[str, int]],
) -> None:
    mirror = Mirror()
    for what, number in events:
        getattr(mirror, what)(number)
    for _ in range(3):
        mirror.exchange()
    for number in range(3):
        if TopicPartition("t", number) in mirror.session:
            assert mirror.known[number] == mirror.leader.ends[number]


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR])
def test_a_failed_fetch_is_followed_by_a_full_one(error: ErrorCode) -> None:
    session = begun(fetch(0))
    session.request()
    assert session.answered(response(error=error), 2.0) == []
    assert named(session.request()) == [0]


def test_a_partition_with_an_error_is_named_again() -> None:
    session = begun(fetch(0), fetch(1))
    session.request()
    failed = FetchPartitionResponse(1, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    answered = FetchResponse([FetchTopicResponse("", [failed], topic_id=ID)], session_id=SESSION)
    assert session.answered(answered, 2.0) == [(fetch(1), failed)]
    session.add(fetch(1), 3)
    assert named(session.request()) == [1]
