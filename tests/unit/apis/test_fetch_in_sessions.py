"""Fetches in a session: what their responses have, when they are woken, and when the session is refused (KIP-227)."""

from __future__ import annotations

from typing import Any
from uuid import uuid5

import pytest

from kbroker.apis.api01_fetch import LOOKED_AT_ONCE
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartition, ForgottenTopic
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from kclient.wire.versions import ApiKey
from tests.kit.logs import batch_of
from tests.kit.one_broker import CLUSTER
from tests.unit.apis.kit import ApiBroker


def want(partition: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(partition, offset, 1 << 20)


def partitions_in(response: Any) -> dict[int, tuple[int, int]]:
    """Return partition -> (bytes of records, high watermark)."""
    return {
        each.partition: (each.records_size, each.high_watermark)
        for topic in response.topics
        for each in topic.partitions
    }


class Fetcher:
    """A consumer with a session of partitions 0..count-1 of topic t."""

    def __init__(self, broker: ApiBroker, count: int, version: int = 12) -> None:
        self.broker = broker
        self.version = version
        self.epoch = self.id = 0
        self.full = self.fetch(*(want(index) for index in range(count)))
        self.id = self.full.session_id

    def fetch(self, *changed: FetchPartition, forget: list[int] | None = None, **more: Any) -> Any:
        epoch, self.epoch = self.epoch, self.epoch + 1
        return self.broker.fetch(
            *changed,
            version=self.version,
            topic_id=uuid5(CLUSTER, "t") if self.version > 12 else None,
            session_id=self.id,
            session_epoch=epoch,
            forgotten=[ForgottenTopic("t", forget)] if forget else [],
            **more,
        )


BATCH = len(batch_of(1000))


@pytest.mark.parametrize("version", [7, 12, 13, 16])
def test_only_partitions_with_changes_are_in_a_response(broker: ApiBroker, version: int) -> None:
    broker.fill(0, 0, 0)
    fetcher = Fetcher(broker, 3, version)
    assert fetcher.id > 0
    assert partitions_in(fetcher.full) == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    assert partitions_in(fetcher.fetch()) == {}
    broker.replica_manager.partition("t", 1).append(batch_of(1000), 1, 1000)
    assert partitions_in(fetcher.fetch()) == {1: (BATCH, 1)}
    assert partitions_in(fetcher.fetch(want(1, 1))) == {}


def test_records_that_were_not_taken_come_again(broker: ApiBroker) -> None:
    broker.fill(1, 0)
    fetcher = Fetcher(broker, 2)
    assert partitions_in(fetcher.full)[0] == (BATCH, 1)
    assert partitions_in(fetcher.fetch()) == partitions_in(fetcher.fetch()) == {0: (BATCH, 1)}


def test_partitions_come_and_go(broker: ApiBroker) -> None:
    broker.fill(1, 1, 1)
    fetcher = Fetcher(broker, 1)
    assert partitions_in(fetcher.fetch(want(2), forget=[0])) == {2: (BATCH, 1)}
    assert partitions_in(fetcher.fetch(want(2, 1))) == {}
    assert fetcher.fetch(forget=[2]).session_id == 0
    assert fetcher.fetch().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_log_start_that_moved_is_in_the_response(broker: ApiBroker) -> None:
    broker.fill(3)
    fetcher = Fetcher(broker, 1)
    fetcher.fetch(want(0, 3))
    assert partitions_in(fetcher.fetch()) == {}
    broker.replica_manager.partition("t", 0).delete_records(2)
    (answer,) = fetcher.fetch().topics[0].partitions
    assert answer.log_start_offset == 2


def test_an_error_is_in_every_response_until_it_is_over(broker: ApiBroker) -> None:
    broker.fill(3)
    fetcher = Fetcher(broker, 1)
    for _ in range(2):
        (answer,) = fetcher.fetch(want(0, 9), max_wait_ms=5000).topics[0].partitions
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert partitions_in(fetcher.fetch(want(0, 3))) == {0: (0, 3)}


def test_a_fetch_that_waits_is_woken_by_what_it_does_not_name(broker: ApiBroker) -> None:
    broker.fill(0, 0)
    fetcher = Fetcher(broker, 2)
    waiting = fetcher.fetch(max_wait_ms=500)
    broker.clock.advance(0.1)
    assert not waiting.called
    broker.replica_manager.partition("t", 1).append(batch_of(1000), 1, 1000)
    broker.clock.advance(0)
    assert partitions_in(waiting.result) == {1: (BATCH, 1)}
    empty = fetcher.fetch(want(1, 1), max_wait_ms=500)
    broker.clock.advance(0.5)
    assert partitions_in(empty.result) == {}


def test_waiting_in_a_session_watches_no_partition_by_itself(broker: ApiBroker) -> None:
    broker.fill(*[0] * 20)
    fetcher = Fetcher(broker, 20)
    waiting = fetcher.fetch(max_wait_ms=500)
    assert not waiting.called
    assert len(broker.replica_manager.purgatory.high_watermarks) == 0
    waiting.addErrback(lambda _: None)
    waiting.cancel()
    broker.replica_manager.partition("t", 1).append(batch_of(1000), 1, 1000)
    broker.clock.advance(0)
    assert partitions_in(fetcher.fetch()) == {1: (BATCH, 1)}


def test_a_request_of_another_epoch_is_refused_and_the_right_one_is_not(broker: ApiBroker) -> None:
    broker.fill(0)
    fetcher = Fetcher(broker, 1)
    fetcher.epoch = 7
    assert fetcher.fetch().error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    fetcher.epoch = 1
    assert fetcher.fetch().error_code == 0


def test_a_fetch_that_is_overtaken_gets_an_error(broker: ApiBroker) -> None:
    broker.fill(1)
    fetcher = Fetcher(broker, 1)
    fetcher.fetch(want(0, 1))
    waiting = fetcher.fetch(max_wait_ms=500)
    assert fetcher.fetch().error_code == 0
    assert waiting.result.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_names_and_ids_are_not_mixed_in_a_session(broker: ApiBroker) -> None:
    broker.fill(0)
    fetcher = Fetcher(broker, 1, version=12)
    fetcher.version = 13
    assert fetcher.fetch().error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_full_fetch_closes_the_session_that_it_names(broker: ApiBroker) -> None:
    broker.fill(0)
    fetcher = Fetcher(broker, 1)
    fetcher.epoch = -1
    assert fetcher.fetch(want(0)).session_id == 0
    fetcher.epoch = 1
    assert fetcher.fetch().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_of_thousands_that_have_records_an_answer_has_some_and_the_next_one_the_others(
    broker: ApiBroker,
) -> None:
    count = LOOKED_AT_ONCE + 20
    broker.fill(*[0] * count)
    fetcher = Fetcher(broker, count)
    for index in range(count):
        broker.replica_manager.partition("t", index).append(batch_of(1000), 1, 1000)
    first = partitions_in(fetcher.fetch())
    assert len(first) == LOOKED_AT_ONCE
    second = partitions_in(fetcher.fetch(*(want(index, 1) for index in first)))
    assert second.keys() == set(range(count)) - first.keys()


def test_thousands_of_partitions_without_changes_are_read_some_at_a_time(broker: ApiBroker) -> None:
    count = LOOKED_AT_ONCE + 20
    broker.fill(*[0] * count)
    fetcher = Fetcher(broker, count)
    handler: Any = broker.pipeline.handler(ApiKey.FETCH)
    session = handler.sessions.get(fetcher.id)
    for each in session.partitions.values():
        session.due[each] = None
    assert partitions_in(fetcher.fetch(max_wait_ms=500)) == {}
    assert [each.request.partition for each in session.due] == list(range(LOOKED_AT_ONCE, count))
    assert not fetcher.fetch(max_wait_ms=500).called
    assert not session.due


def test_partitions_that_fail_again_and_again_do_not_starve_the_others(broker: ApiBroker) -> None:
    broker.fill(*[0] * (LOOKED_AT_ONCE + 1))
    fetcher = Fetcher(broker, LOOKED_AT_ONCE + 1)
    fetcher.fetch(*(want(index, 99) for index in range(LOOKED_AT_ONCE)))
    broker.replica_manager.partition("t", LOOKED_AT_ONCE).append(batch_of(1000), 1, 1000)
    assert partitions_in(fetcher.fetch()).keys() | partitions_in(fetcher.fetch()).keys() >= {
        0,
        LOOKED_AT_ONCE,
    }


# -- followers -------------------------------------------------------------------------------------


def take(broker: ApiBroker, epoch: int, isr: list[int]) -> None:
    states = [
        LeaderAndIsrPartitionState(index, 1, 1, epoch, isr, 0, [1, 2, 3]) for index in range(2)
    ]
    broker.become_leader_or_follower(
        LeaderAndIsrRequest(
            controller_epoch=1,
            topic_states=[LeaderAndIsrTopicState("t", uuid5(CLUSTER, "t"), states)],
        )
    )


@pytest.fixture
def leader(broker: ApiBroker) -> ApiBroker:
    """Broker 1 leads t-0 and t-1, brokers 2 and 3 follow and are alive."""
    take(broker, 0, [1, 2, 3])
    broker.cache.brokers[2] = broker.cache.brokers[3] = broker.cache.brokers[1]
    return broker


class Follower(Fetcher):
    """Broker *replica*, in a session with both partitions."""

    def __init__(self, broker: ApiBroker, replica: int) -> None:
        self.replica = replica
        super().__init__(broker, 2)

    def fetch(self, *changed: FetchPartition, **more: Any) -> Any:
        for each in changed:
            each.current_leader_epoch = 0
        return super().fetch(*changed, replica_id=self.replica, **more)


def test_fetches_of_followers_commit_and_their_next_response_has_the_high_watermark(
    leader: ApiBroker,
) -> None:
    two, three = Follower(leader, 2), Follower(leader, 3)
    waiting = two.fetch(max_wait_ms=500)
    leader.replica_manager.partition("t", 1).append(batch_of(1000), 1, 1000)
    leader.clock.advance(0)
    assert partitions_in(waiting.result) == partitions_in(three.fetch()) == {1: (BATCH, 0)}
    waiting = two.fetch(want(1, 1), max_wait_ms=500)
    assert partitions_in(three.fetch(want(1, 1))) == {1: (0, 1)}
    leader.clock.advance(0)
    assert not waiting.called
    leader.clock.advance(0.5)
    assert partitions_in(waiting.result) == {1: (0, 1)}
    assert leader.replica_manager.partition("t", 1).high_watermark == 1


def test_a_follower_that_is_idle_in_its_session_is_not_late_with_the_next_record(
    leader: ApiBroker,
) -> None:
    two, three = Follower(leader, 2), Follower(leader, 3)
    for _ in range(100):
        leader.clock.advance(1.0)
        assert partitions_in(two.fetch()) == partitions_in(three.fetch()) == {}
    partition = leader.replica_manager.partition("t", 0)
    partition.append(batch_of(1000), 1, 1000)
    written = leader.isr_writes.submitted
    written.clear()
    partition.maybe_shrink_isr()
    assert written == []
    leader.clock.advance(31.0)
    partition.maybe_shrink_isr()
    assert [write.isr for write in written] == [frozenset({1})]


def test_every_fetch_of_one_that_is_not_in_the_isr_is_an_attempt_to_join(leader: ApiBroker) -> None:
    written = leader.isr_writes.submitted
    written.clear()
    take(leader, 1, [1, 3])
    two = Follower(leader, 2)
    assert written == []  # it named another epoch
    for each in (want(0), want(1)):
        each.current_leader_epoch = 1
        Fetcher.fetch(two, each, replica_id=2)
    assert [write.isr for write in written] == [frozenset({1, 2, 3})] * 2
    for index in range(2):
        partition = leader.replica_manager.partition("t", index)
        assert partition.leader_state is not None
        assert partition.leader_state.pending == {1, 2, 3}
        partition.leader_state._adopt(frozenset({1, 3}), 5)
        partition.isr_write_failed()
    two.fetch()
    assert len(written) == 4


def test_while_its_isr_write_is_under_way_a_follower_costs_nothing(leader: ApiBroker) -> None:
    take(leader, 1, [1, 3])
    two = Follower(leader, 2)
    for each in (want(0), want(1)):
        each.current_leader_epoch = 1
        Fetcher.fetch(two, each, replica_id=2)
    two.fetch()
    handler: Any = leader.pipeline.handler(ApiKey.FETCH)
    assert not handler.sessions.get(two.id).due


def test_a_waiting_fetch_of_a_follower_ends_when_the_leader_epoch_changes(
    leader: ApiBroker,
) -> None:
    two = Follower(leader, 2)
    waiting = two.fetch(max_wait_ms=500)
    take(leader, 1, [1, 2, 3])
    leader.clock.advance(0)
    errors = {each.error_code for each in waiting.result.topics[0].partitions}
    assert errors == {ErrorCode.FENCED_LEADER_EPOCH}


@pytest.mark.parametrize("replica", [-1, 3])
@pytest.mark.parametrize("session_epoch", [0, 1, -1])
def test_the_session_of_a_follower_is_used_and_closed_by_that_follower_only(
    leader: ApiBroker, replica: int, session_epoch: int
) -> None:
    two = Follower(leader, 2)
    guess = {"session_id": two.id, "session_epoch": session_epoch, "replica_id": replica}
    forget = [ForgottenTopic("t", [0, 1])] if session_epoch > 0 else []
    answer = leader.fetch(topics=[], forgotten=forget, **guess)
    unknown = session_epoch > 0
    assert answer.error_code == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND if unknown else 0)
    handler: Any = leader.pipeline.handler(ApiKey.FETCH)
    assert len(handler.sessions.get(two.id).partitions) == 2
    leader.replica_manager.partition("t", 1).append(batch_of(1000), 1, 1000)
    assert partitions_in(two.fetch()) == {1: (BATCH, 0)}
