"""The sessions of caught-up partitions: when a partition leaves one, the order on the channel, and failures."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.errors import KafkaError
from kclient.types import TopicPartition
from kclient.wire.fetch import FINAL_SESSION_EPOCH, FetchPartitionResponse
from kclient.wire.versions import ApiKey
from mirrormaker.fetch_budget import FetchBudget
from mirrormaker.link_state import PartitionFetch
from mirrormaker.settings import LinkSettings
from mirrormaker.source import BULK_CHANNEL, TAIL_CHANNEL, Fetched, Outcome
from mirrormaker.tail_fetches import TailFetches
from tests.kit.scripted_cluster import ScriptedCluster

LEADER = 1
CHANNEL = (LEADER, TAIL_CHANNEL)
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


class Tails:
    """Both partitions of a topic in the session with their leader."""

    def __init__(self) -> None:
        self.scripted = ScriptedCluster({"t": 2})
        settings = LinkSettings()
        self.budget = FetchBudget(settings, now=0.0)
        self.outcomes: list[tuple[PartitionFetch, Outcome]] = []
        self.failures: list[tuple[int, list[TopicPartition]]] = []
        self.tails = TailFetches(
            self.scripted.cluster(CommonConfig.load({"bootstrap.servers": "a:1"})),
            settings,
            self.budget,
            answered=self.outcomes.extend,
            failed=self._failed,
            defect=lambda failure: failure.raiseException(),
        )
        for tp in (ZERO, ONE):
            self.add(tp)

    def add(self, tp: TopicPartition, offset: int = 10) -> None:
        fetch = PartitionFetch(tp, 0, offset, 1000, topic_id=self.scripted.topic_id("t"))
        self.tails.add(LEADER, fetch)

    def _failed(self, leader: int, _: KafkaError, fetches: list[PartitionFetch]) -> None:
        self.failures.append((leader, [each.tp for each in fetches]))

    def answer(self, *tps: TopicPartition) -> None:
        named = [(tp, FetchPartitionResponse(tp.partition, high_watermark=10)) for tp in tps]
        self.scripted.one(ApiKey.FETCH).answer(self.scripted.fetched(*named, session_id=7))


@pytest.fixture
def tails() -> Tails:
    return Tails()


def test_a_partition_leaves_its_session_with_the_answer_that_names_it(tails: Tails) -> None:
    tails.tails.send()
    tails.answer(ZERO, ONE)
    tails.outcomes.clear()
    tails.add(ZERO)
    tails.add(ONE)
    tails.tails.send()
    tails.answer(ONE)
    assert [fetch.tp for fetch, _ in tails.outcomes] == [ONE]
    assert isinstance(tails.outcomes[0][1], Fetched)
    assert (ZERO in tails.tails, ONE in tails.tails) == (True, False)
    assert tails.tails.fetch_of(ONE) is None


def test_a_session_has_one_fetch_in_flight_and_reserves_memory_for_it(tails: Tails) -> None:
    tails.tails.send()
    tails.tails.send()
    tails.tails.send_first()
    assert tails.scripted.count(ApiKey.FETCH) == 1
    assert tails.budget.in_flight(CHANNEL)
    tails.answer(ZERO, ONE)
    assert not tails.budget.in_flight(CHANNEL)


def test_a_session_is_first_only_after_a_fetch_without_one(tails: Tails) -> None:
    tails.tails.send_first()
    assert tails.scripted.count(ApiKey.FETCH) == 0
    tails.tails.sent_without_session(LEADER)
    tails.tails.send_first()
    assert tails.scripted.count(ApiKey.FETCH) == 1
    tails.answer()
    tails.add(ZERO)
    tails.tails.send_first()
    assert tails.scripted.count(ApiKey.FETCH) == 1, "it had its turn"


def test_a_failed_fetch_takes_every_partition_out_of_the_session(tails: Tails) -> None:
    tails.tails.send()
    tails.scripted.one(ApiKey.FETCH).fail()
    assert tails.failures == [(LEADER, [ZERO, ONE])]
    assert (ZERO in tails.tails, ONE in tails.tails) == (False, False)
    assert not tails.budget.in_flight(CHANNEL)


def test_a_connection_that_is_closed_between_two_fetches_takes_them_out_too(tails: Tails) -> None:
    tails.scripted.down.add(LEADER)
    assert [fetch.tp for fetch in tails.tails.send()] == [ZERO, ONE]
    assert not tails.tails.supports(LEADER)
    assert (tails.failures, tails.scripted.count(ApiKey.FETCH)) == ([], 0)


def test_a_discarded_partition_gets_no_outcome(tails: Tails) -> None:
    tails.tails.send()
    tails.tails.discard(ZERO)
    tails.answer(ZERO, ONE)
    assert [fetch.tp for fetch, _ in tails.outcomes] == [ONE]


def test_sessions_are_closed_at_their_leaders_without_waiting_behind_the_long_poll(
    tails: Tails,
) -> None:
    tails.tails.send()
    tails.answer(ZERO, ONE)
    tails.add(ZERO)
    tails.tails.send()
    (long_poll,) = tails.scripted.waiting(ApiKey.FETCH)
    closing = Deferred.fromCoroutine(tails.tails.close(1.0))
    (asked,) = [each for each in tails.scripted.waiting(ApiKey.FETCH) if each is not long_poll]
    assert (asked.message.session_id, asked.message.session_epoch) == (7, FINAL_SESSION_EPOCH)
    assert asked.channel == BULK_CHANNEL
    assert not closing.called
    asked.fail()
    assert closing.called, "a leader that does not answer is no error"


def test_without_a_session_or_a_connection_nothing_is_closed(tails: Tails) -> None:
    assert Deferred.fromCoroutine(tails.tails.close(1.0)).called
    assert tails.scripted.count(ApiKey.FETCH) == 0
    tails.tails.send()
    tails.answer(ZERO)
    tails.scripted.down.add(LEADER)
    assert Deferred.fromCoroutine(tails.tails.close(1.0)).called
    assert tails.scripted.waiting(ApiKey.FETCH) == []
