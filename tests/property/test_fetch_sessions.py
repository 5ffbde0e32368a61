"""Both sides of a fetch session with any order of events: the fetcher has the state that a full fetch would return."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kbroker.replica.core.fetch_session import CachedPartition, FetchSession, FetchSessionCache
from kclient.net import fetch_session as fetching
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartition, FetchPartitionResponse, FetchResponse, FetchTopic
from kclient.wire.fetch import FetchTopicResponse as TopicResponse
from tests.kit.property_tests import examples

pytestmark = pytest.mark.timeout(300)

PARTITIONS = range(6)
TOPIC = "t"
NUMBERS = count(1)
"""Session ids; like random ones they do not repeat."""


@dataclass
class Log:
    """A partition at the leader, with records of one byte each."""

    start: int = 0
    end: int = 0
    high_watermark: int = 0
    error: int = 0


@dataclass
class Received:
    """The fetcher's state of one partition."""

    offset: int = 0
    state: tuple[int, int, int] = (0, -1, -1)
    """Error, high watermark, log start."""


@dataclass
class Leader:
    """What `kbroker.apis.api01_fetch` does with the machines, without files, waits and wire."""

    logs: dict[int, Log] = field(default_factory=lambda: {index: Log() for index in PARTITIONS})

    def __post_init__(self) -> None:
        self.sessions = FetchSessionCache(
            2,
            NUMBERS.__next__,
            lambda _session: None,
            notifies_followers_of_high_watermark=False,
        )
        self.now = 0.0

    def happened(self, index: int) -> None:
        for _ in self.sessions.log_end_advanced((TOPIC, index)):
            pass
        self.sessions.high_watermark_advanced((TOPIC, index))

    def read(self, asked: FetchPartition, room: int) -> tuple[FetchPartitionResponse, bool]:
        log = self.logs[asked.partition]
        if log.error:
            return FetchPartitionResponse(asked.partition, log.error), False
        size = max(min(room, log.end - asked.fetch_offset), 0)
        answer = FetchPartitionResponse(
            asked.partition, 0, log.high_watermark, log.high_watermark, log.start
        )
        answer.records_size = size
        return answer, asked.fetch_offset >= log.end

    def fetch(self, request_data: fetching.FetchRequestData, room: int) -> FetchResponse:
        self.now += 1
        session = self.sessions.get(request_data.session_id)
        if request_data.session_epoch == 0:
            if session is not None:
                self.sessions.remove(session)
            return self.full(request_data, room)
        if session is None:
            return FetchResponse([], error_code=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        if session.epoch != request_data.session_epoch:
            return FetchResponse([], error_code=int(ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        session.accepted(self.now)
        added, removed = session.update(request_data.topics, request_data.forgotten)
        self.watch(added)
        self.sessions.unwatch(removed)
        if not session.partitions:
            self.sessions.remove(session)
            return FetchResponse([])
        answers = []
        for partition in list(session.due):
            answer, is_caught_up = self.read(partition.request, room)
            room -= answer.records_size
            if session.was_read(partition, answer, is_caught_up=is_caught_up):
                session.sent(partition, answer, is_caught_up=is_caught_up)
                answers.append(answer)
        topics = [TopicResponse(TOPIC, answers)] if answers else []
        return FetchResponse(topics, session_id=session.id)

    def full(self, request_data: fetching.FetchRequestData, room: int) -> FetchResponse:
        asked = [each for topic in request_data.topics for each in topic.partitions]
        found = []
        for each in asked:
            found.append(self.read(each, room))
            room -= found[-1][0].records_size
        session = None
        if asked:
            session = self.sessions.maybe_create(
                None, len(asked), uses_topic_ids=False, now=self.now
            )
        if session is not None:
            added, _ = session.update([FetchTopic(TOPIC, asked)], ())
            self.watch(added)
            for answer, is_caught_up in found:
                session.sent(
                    session.partitions[TOPIC, answer.partition], answer, is_caught_up=is_caught_up
                )
        answers = [answer for answer, _ in found]
        return FetchResponse(
            [TopicResponse(TOPIC, answers)], session_id=session.id if session else 0
        )

    def watch(self, added: list[CachedPartition]) -> None:
        for partition in added:
            self.sessions.watch(partition, (TOPIC, partition.request.partition))


class SessionsAgree(RuleBasedStateMachine):
    """A fetcher and its leader."""

    def __init__(self) -> None:
        super().__init__()
        self.leader = Leader()
        self.session = fetching.FetchSessionHandler()
        self.received: dict[int, Received] = {}
        """The fetched partitions."""
        self.former: dict[int, Received] = {}
        """Partitions that were removed; their state is kept."""

    def of_leader(self) -> FetchSession | None:
        return self.leader.sessions.get(self.session._id)

    # -- events at the leader ------------------------------------------------------------------

    @rule(index=st.sampled_from(PARTITIONS), records=st.integers(1, 4))
    def append(self, index: int, records: int) -> None:
        self.leader.logs[index].end += records
        self.leader.happened(index)

    @rule(index=st.sampled_from(PARTITIONS))
    def commit(self, index: int) -> None:
        log = self.leader.logs[index]
        log.high_watermark = log.end
        self.leader.happened(index)

    @rule(index=st.sampled_from(PARTITIONS))
    def delete(self, index: int) -> None:
        log = self.leader.logs[index]
        log.start = log.high_watermark
        self.leader.happened(index)

    @rule(index=st.sampled_from(PARTITIONS), error=st.sampled_from([0, 6]))
    def fail(self, index: int, error: int) -> None:
        self.leader.logs[index].error = error
        self.leader.happened(index)

    @rule()
    def restart(self) -> None:
        logs = self.leader.logs
        self.leader = Leader(logs)

    # -- actions of the fetcher ----------------------------------------------------------------

    @rule(index=st.sampled_from(PARTITIONS))
    def follow(self, index: int) -> None:
        if index not in self.received:
            self.received[index] = self.former.pop(index, Received())
            self.want(index)

    def want(self, index: int) -> None:
        self.session.add(TOPIC, FetchPartition(index, self.received[index].offset, 1000))

    @rule(index=st.sampled_from(PARTITIONS))
    def unfollow(self, index: int) -> None:
        if index in self.received:
            self.former[index] = self.received.pop(index)
            self.session.remove(TOPIC, index)

    @rule(room=st.integers(1, 6), max_new_partitions=st.sampled_from([None, 1, 2]))
    def fetch(self, room: int, max_new_partitions: int | None = 1) -> None:
        known = set(self.session._known)
        full = self.session.is_full
        request_data = self.session.request(max_new_partitions)
        named = {
            (topic.name, one.partition) for topic in request_data.topics for one in topic.partitions
        }
        if max_new_partitions is not None and not self.session._has_no_room:
            assert len(named - (set() if full else known)) <= max_new_partitions
        self.take(self.leader.fetch(request_data, room))

    @rule(room=st.integers(1, 6))
    def lose_an_answer(self, room: int) -> None:
        self.leader.fetch(self.session.request(), room)
        self.session.lost()

    @rule(index=st.sampled_from(PARTITIONS), room=st.integers(1, 6))
    def drop_an_answer(self, index: int, room: int) -> None:
        """A consumer that has called seek drops the response of one partition, and fetches it again."""
        response = self.leader.fetch(self.session.request(), room)
        if index in self.received:
            for topic in response.topics:
                topic.partitions = [each for each in topic.partitions if each.partition != index]
            self.received[index] = Received(self.received[index].offset)
            self.want(index)
            self.session.repeat(TOPIC, index)
        self.take(response)

    @rule()
    def lose_a_request(self) -> None:
        self.session.request()
        self.session.lost()

    @rule()
    def others_take_all_slots(self) -> None:
        self.leader.now += 1000
        for _ in range(3):
            self.leader.sessions.maybe_create((7, str(self.leader.now)), 9, uses_topic_ids=False,
                                       now=self.leader.now)  # fmt: skip
            self.leader.now += 1000

    def take(self, response: FetchResponse) -> None:
        self.session.answered(response)
        if response.error_code:
            return
        for topic in response.topics:
            for answer in topic.partitions:
                received = self.received[answer.partition]
                received.state = (answer.error_code, answer.high_watermark, answer.log_start_offset)
                if answer.records_size:
                    received.offset += answer.records_size
                    self.want(answer.partition)

    # -- invariants ----------------------------------------------------------------------------

    @invariant()
    def partitions_that_are_not_due_have_no_changes(self) -> None:
        session = self.of_leader()
        if session is None or self.session.is_full:
            return
        for (_, index), partition in session.partitions.items():
            repeated = (TOPIC, index) in self.session._again
            if partition not in session.due and index in self.received and not repeated:
                answer, _ = self.leader.read(partition.request, 1000)
                assert not answer.records_size
                current = (answer.error_code, answer.high_watermark, answer.log_start_offset)
                assert current == self.received[index].state

    def teardown(self) -> None:
        """Without further events both sides settle, and the fetcher has the current state."""
        for _ in range(200):
            self.fetch(3)
        for index, received in self.received.items():
            log = self.leader.logs[index]
            if log.error:
                assert received.state[0] == log.error
            else:
                assert received.state == (0, log.high_watermark, log.start)
                assert received.offset >= log.end
        session = self.of_leader()
        if session is not None and self.received:
            failed = {index for index in self.received if self.leader.logs[index].error}
            assert {partition.request.partition for partition in session.due} == failed
            assert set(session.partitions) == {(TOPIC, index) for index in self.received}


TestSessionsAgree = SessionsAgree.TestCase
TestSessionsAgree.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
