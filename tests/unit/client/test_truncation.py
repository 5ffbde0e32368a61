"""A new leader's log may be another one (KIP-320): positions are checked before anything is fetched from it."""

import pytest

from kclient.errors import LogTruncated
from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.errors import ErrorCode, UnsupportedVersion
from kclient.wire.schema.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kclient.wire.versions import ApiKey
from tests.kit.consumer_fixture import ConsumerFixture
from tests.kit.scripted_cluster import HELD, ScriptedCluster, batch_of, part
from tests.unit.client.test_fetcher import Fetching

T0 = TopicPartition("t", 0)
EPOCH = ApiKey.OFFSET_FOR_LEADER_EPOCH


def log_ends(end_offset, leader_epoch=0, code=0):
    answer = EpochEndOffset(
        error_code=code, partition=0, leader_epoch=leader_epoch, end_offset=end_offset
    )
    return OffsetForLeaderEpochResponse(
        topics=[OffsetForLeaderTopicResult(topic="t", partitions=[answer])]
    )


class Reading(Fetching):
    """Reads t-0 from offset 0: ten records in epoch 0, *taken* of them handed out; then the leader changes."""

    def __init__(self, taken=10, **settings):
        super().__init__(ScriptedCluster({"t": 1}, brokers=2), **settings)
        self.start(p0=0)
        for n in range(10):
            self.answer(part(0, batch_of(n, b"x")))
        for n in range(taken):
            self.state().take()
            self.state().position = n + 1
            self.state().leader_epoch = 0
        self.scripted.leaders[T0] = (2, 1)
        self.cluster.update_soon()
        self.scripted.pass_time(0.2)
        self.answer(part(0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.scripted.pass_time(0.2)

    def ends(self, *answer, **more):
        self.scripted.one(EPOCH).answer(log_ends(*answer, **more))
        self.scripted.turn()


def test_nothing_is_fetched_from_a_new_leader_before_the_position_was_checked():
    it = Reading()
    assert it.scripted.waiting(ApiKey.FETCH) == []
    asked = it.scripted.one(EPOCH)
    (place,) = asked.message.topics[0].partitions
    assert (asked.node, place.current_leader_epoch, place.leader_epoch) == (2, 1, 0)
    assert asked.message.replica_id == -1
    it.ends(10)
    assert it.asked() == [("t", 0, 10)]
    assert it.scripted.one(ApiKey.FETCH).node == 2
    it.answer(part(0))
    assert it.scripted.waiting(EPOCH) == [], "once per epoch"


def test_a_log_that_was_cut_off_before_the_position_is_read_from_the_cut():
    it = Reading(auto_offset_reset="latest")
    it.ends(6)
    assert it.asked() == [("t", 0, 6)]
    assert it.state().position == 6
    assert it.out_of_range == []


def test_what_was_only_fetched_ahead_is_dropped_in_silence():
    it = Reading(taken=4)
    assert len(it.state().buffered) == 6
    it.ends(6)
    assert (it.state().position, list(it.state().buffered)) == (4, [])
    it.ends(6)
    assert it.asked() == [("t", 0, 4)]


def test_a_consumer_that_has_seen_nothing_starts_where_it_would_have():
    it = Reading(taken=0, auto_offset_reset="none")
    it.ends(6)
    assert it.asked() == [("t", 0, 0)]
    assert it.state().problem is None


def test_without_a_policy_the_caller_decides():
    it = Reading(auto_offset_reset="none")
    it.ends(6)
    assert isinstance(it.state().problem, LogTruncated)
    assert (it.state().problem.position, it.state().problem.divergent_offset) == (10, 6)
    assert "truncated to offset 6, below the position 10" in str(it.state().problem)
    it.scripted.pass_time(1.0)
    assert it.scripted.waiting(ApiKey.FETCH) == []
    it.state().seek(6)
    it.fetcher.send_fetches()
    assert it.asked() == [("t", 0, 6)]


def test_a_leader_that_knows_nothing_of_the_epoch_leaves_it_to_the_policy():
    it = Reading(auto_offset_reset="earliest")
    it.ends(-1, leader_epoch=-1)
    assert it.out_of_range == [T0]


def test_a_request_for_the_epoch_end_that_failed_is_sent_again():
    it = Reading()
    it.ends(-1, code=ErrorCode.UNKNOWN_LEADER_EPOCH)
    assert it.scripted.waiting(EPOCH) == []
    it.scripted.pass_time(0.3)
    it.scripted.one(EPOCH).fail()
    it.scripted.pass_time(0.3)
    it.ends(10)
    assert it.asked() == [("t", 0, 10)]
    assert it.reported == []


def test_a_broker_without_the_api_is_read_without_validation():
    it = Reading()
    it.scripted.one(EPOCH).fail(UnsupportedVersion("before KIP-320"))
    it.scripted.turn()
    assert it.asked() == [("t", 0, 10)]


def test_a_seek_ends_the_validation():
    it = Reading(auto_offset_reset="none")
    it.state().seek(3)
    it.ends(1)
    assert it.state().problem is None
    it.fetcher.send_fetches()
    assert it.asked() == [("t", 0, 3)]


def test_closing_during_a_validation_reports_nothing():
    it = Reading(auto_offset_reset="none")
    it.fetcher.close()
    it.ends(1)
    assert it.state().problem is None


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_poll_continues_or_raises_log_truncated(policy):
    it = ConsumerFixture(1, group_id="g", auto_offset_reset=policy)
    it.produce(0, b"0", b"1", b"2")
    it.committed[T0] = 0
    it.assign(0)
    assert it.records(2) == {0: [b"0", b"1", b"2"]}
    it.scripted.answers[EPOCH] = lambda _: log_ends(1)
    it.scripted.leaders[T0] = (1, 5)
    it.log[T0] = [(0, 0, batch_of(0, b"0")), (1, 1, batch_of(1, b"new", leader_epoch=5))]
    it.ends[T0] = (0, 2)
    it.consumer.cluster.update_soon()
    it.scripted.pass_time(1.0)
    if policy == "earliest":
        assert it.records(2) == {0: [b"new"]}
    else:
        for _ in range(2):
            with pytest.raises(LogTruncated):
                it.poll()
        it.consumer.seek(T0, 1)
        assert it.records(2) == {0: [b"new"]}


def give_commits_an_epoch(it):
    """Answer OffsetFetch with leader epoch 0 for the first partition."""
    serve = it.scripted.answers[ApiKey.OFFSET_FETCH]

    def with_epoch(request):
        answer = serve(request)
        answer.groups[0].topics[0].partitions[0].committed_leader_epoch = 0
        return answer

    it.scripted.answers[ApiKey.OFFSET_FETCH] = with_epoch


def test_a_commit_with_an_epoch_is_checked_before_it_is_used():
    it = ConsumerFixture(1, group_id="g")
    it.produce(0, b"0", b"1", b"2")
    give_commits_an_epoch(it)
    it.committed[T0] = 2
    it.scripted.answers[EPOCH] = lambda _: HELD
    it.assign(0)
    assert it.records(2) == {}
    it.scripted.one(EPOCH).answer(log_ends(3))
    assert it.records(2) == {0: [b"2"]}


@pytest.mark.parametrize("to_committed", [False, True])
def test_a_seek_to_an_offset_with_an_epoch_is_checked_before_it_is_used(to_committed):
    """After an unclean election other records may be below that offset: they must not be skipped in silence."""
    it = ConsumerFixture(1, group_id="g", auto_offset_reset="none", enable_auto_commit=False)
    it.produce(0, b"0", b"1", b"2")
    give_commits_an_epoch(it)
    it.scripted.leaders[T0] = (1, 5)
    it.committed[T0] = 2
    it.scripted.answers[EPOCH] = lambda _: log_ends(1)
    it.consumer.assign([T0], {T0: 0})
    it.records()
    if to_committed:
        assert it.run(it.consumer.seek_to_committed()) == {T0: 2}
    else:
        it.consumer.seek(T0, OffsetAndMetadata(2, "", 0))
    with pytest.raises(LogTruncated):
        it.records(3)


def test_batches_after_a_part_of_one_are_not_fetched_from_a_new_leader_before_the_check():
    it = ConsumerFixture(1)
    it.produce(0, b"0", b"1", b"2")
    it.assign(0)
    it.poll()
    assert it.poll(most=1) == {0: [b"0"]}
    it.scripted.leaders[T0] = (1, 1)
    it.consumer.cluster.update_soon()
    it.scripted.pass_time(0.2)
    before = it.scripted.count(EPOCH)
    it.run(it.consumer.poll_batches())
    it.scripted.pass_time(0.6)
    asked = [each for each in it.scripted.requests if each.api == EPOCH][before:]
    assert [each.message.topics[0].partitions[0].leader_epoch for each in asked] == [0]
