"""A consumer in a group, on scripted brokers: the listener, and what is committed when."""

import pytest
from twisted.internet.defer import Deferred

from kclient.consumer.client import RebalanceListener
from kclient.errors import ConsumerLeftGroup
from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.errors import (
    ErrorCode,
    IllegalGeneration,
    KafkaError,
    NotCoordinator,
    RebalanceInProgress,
)
from kclient.wire.versions import ApiKey
from tests.kit.consumer_fixture import ConsumerFixture
from tests.kit.scripted_broker import Outcome
from tests.kit.scripted_cluster import commit_answer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
EAGER = {"partition_assignment_strategy": "range"}
COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}


class Listener(RebalanceListener):
    """Records its calls; *during* runs inside."""

    def __init__(self):
        self.events = []
        self.during = None

    async def _record(self, what, partitions):
        self.events.append((what, [tp.partition for tp in partitions]))
        if self.during is not None:
            await self.during(what)

    async def on_partitions_revoked(self, partitions):
        await self._record("revoked", partitions)

    async def on_partitions_assigned(self, partitions):
        await self._record("assigned", partitions)

    async def on_partitions_lost(self, partitions):
        await self._record("lost", partitions)


def member(*share, partitions=2, records=3, fresh=False, **settings):
    """A consumer that was assigned *share*, and its listener; each partition has some records, fetched already.

    A *fresh* one has not polled since it was assigned them.
    """
    it = ConsumerFixture(
        partitions,
        group_id="g",
        heartbeat_interval_ms=1000,
        session_timeout_ms=10_000,
        **{**EAGER, **settings},
    )
    for number in range(partitions):
        if records:
            it.produce(number, *[b"%d" % n for n in range(records)])
    it.share = [TopicPartition("t", n) for n in share]
    it.listener = Listener()
    it.consumer.subscribe(["t"], listener=it.listener)
    it.poll()
    it.scripted.pass_time(0.3)
    if not fresh:
        it.poll()
        it.scripted.pass_time(0.3)
    return it


# --- the listener


def test_the_listener_is_called_before_the_records_of_its_partitions_are_returned():
    it = member(0, 1, fresh=True)
    order = []

    async def note(what):
        order.append((what, it.consumer.next_offset(T0)))
        it.consumer.seek(T0, 2)

    it.listener.during = note
    assert it.poll() == {}
    assert order == [("assigned", None)]
    assert it.records() == {0: [b"2"], 1: [b"0", b"1", b"2"]}, "the listener's seek counts"


def test_the_listener_runs_in_polls_only():
    it = member(0, fresh=True)
    it.scripted.pass_time(3.0)
    assert it.listener.events == []
    it.poll()
    assert it.listener.events == [("assigned", [0])]


def test_a_rebalance_reports_revoked_then_assigned_partitions():
    it = member(0)
    it.poll()
    it.rebalance(1)
    it.poll()
    it.scripted.pass_time(0.3)
    it.poll()
    assert it.listener.events == [("assigned", [0]), ("revoked", [0]), ("assigned", [1])]
    assert it.consumer.assignment() == {T1}


def test_a_cooperative_rebalance_reports_moving_partitions_only():
    it = member(0, 1, **COOPERATIVE)
    it.poll()
    it.rebalance(0)
    it.poll()
    it.scripted.pass_time(0.3)
    assert it.consumer.assignment() == {T0}
    it.poll()
    assert it.listener.events[:3] == [("assigned", [0, 1]), ("revoked", [1]), ("assigned", [])]


def test_group_metadata_has_the_consumers_identity_in_its_group():
    it = member(0, group_instance_id="i")
    generation, member_id = it.consumer.group_metadata()[1:3]
    assert (generation, bool(member_id)) == (it.generation, True)
    assert it.consumer.group_metadata() == ("g", generation, member_id, "i")
    it.rebalance(1)
    it.poll()
    it.scripted.pass_time(0.3)
    assert it.consumer.group_metadata().generation_id == it.generation == generation + 1
    alone = ConsumerFixture(1, group_id="g")
    assert alone.consumer.group_metadata() == ("g", -1, "", None)
    with pytest.raises(KafkaError, match=r"group\.id"):
        ConsumerFixture(1).consumer.group_metadata()


def test_a_commit_in_on_partitions_revoked_is_accepted():
    it = member(0, enable_auto_commit="false")
    it.records(1)

    async def commit(what):
        if what == "revoked":
            await it.consumer.commit()

    it.listener.during = commit
    it.rebalance(1)
    it.poll(1000)
    assert it.committed[T0] == 3
    sent = [a.message for a in it.scripted.requests if a.api is ApiKey.OFFSET_COMMIT]
    assert [m.generation_id_or_member_epoch for m in sent] == [1]


def test_what_a_listener_raises_poll_raises_and_the_rebalance_goes_on():
    it = member(0)
    it.poll()

    async def fail(what):
        raise RuntimeError(f"in {what}")

    it.listener.during = fail
    it.rebalance(1)
    with pytest.raises(RuntimeError, match="in revoked"):
        it.poll()
    it.scripted.pass_time(0.3)
    with pytest.raises(RuntimeError, match="in assigned"):
        it.poll()
    assert it.consumer.assignment() == {T1}


def test_lost_partitions_are_reported_as_lost_and_not_committed():
    it = member(0)
    it.records(1)
    it.heartbeat_code = ErrorCode.UNKNOWN_MEMBER_ID
    it.scripted.pass_time(1.2)
    commits = len(it.commits())
    it.poll()
    assert it.listener.events[1] == ("lost", [0])
    assert len(it.commits()) == commits


def test_partitions_lost_during_their_revocation_are_reported_as_lost():
    it = member(0)
    it.records(1)
    it.rebalance(1)
    it.heartbeat_code = ErrorCode.UNKNOWN_MEMBER_ID
    it.scripted.pass_time(1.2)
    commits = len(it.commits())
    it.poll()
    assert it.listener.events[1] == ("lost", [0])
    assert len(it.commits()) == commits


def test_closing_commits_calls_the_listener_and_leaves():
    it = member(0)
    it.records(1)
    it.run(it.consumer.close())
    assert it.listener.events == [("assigned", [0]), ("revoked", [0])]
    assert it.committed[T0] == 3
    apis = [a.api for a in it.scripted.requests]
    assert apis.index(ApiKey.OFFSET_COMMIT) < apis.index(ApiKey.LEAVE_GROUP)


def test_closing_after_a_lost_membership_reports_lost_and_commits_nothing():
    it = member(0)
    it.poll()
    it.rebalance(1)
    it.heartbeat_code = ErrorCode.UNKNOWN_MEMBER_ID
    it.scripted.pass_time(1.2)
    commits = it.commits()
    it.run(it.consumer.close())
    assert it.listener.events[-1] == ("lost", [0])
    assert it.commits() == commits


def test_unsubscribing_commits_calls_the_listener_and_leaves():
    it = member(0)
    it.records(1)
    it.run(it.consumer.unsubscribe())
    assert it.listener.events == [("assigned", [0]), ("revoked", [0])]
    assert it.committed[T0] == 3
    assert it.scripted.count(ApiKey.LEAVE_GROUP) == 1
    assert it.consumer.assignment() == set()
    assert it.consumer.subscription() == set()
    asked = it.scripted.count(ApiKey.JOIN_GROUP)
    it.scripted.pass_time(20.0)
    assert it.scripted.count(ApiKey.JOIN_GROUP) == asked


def test_unsubscribing_leaves_even_if_the_last_commit_fails():
    it = member(0)
    it.records(1)
    it.refuse_commits(ErrorCode.UNKNOWN_MEMBER_ID)
    it.run(it.consumer.unsubscribe())
    assert it.scripted.count(ApiKey.LEAVE_GROUP) == 1
    assert it.consumer.assignment() == set()


def test_a_caller_that_exceeds_max_poll_interval_gets_the_reason_in_its_next_poll():
    it = member(0, max_poll_interval_ms=5000)
    it.poll()
    it.scripted.pass_time(7.0)
    with pytest.raises(ConsumerLeftGroup, match=r"max\.poll\.interval\.ms"):
        it.poll()
    it.poll()
    it.scripted.pass_time(0.5)
    it.poll()
    assert it.listener.events == [("assigned", [0]), ("lost", [0]), ("assigned", [0])]


def test_a_fatal_error_of_the_group_is_raised_by_every_poll():
    it = member(0, group_instance_id="i")
    it.poll()
    it.heartbeat_code = ErrorCode.FENCED_INSTANCE_ID
    it.scripted.pass_time(1.2)
    for _ in range(3):
        with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
            it.poll()


# --- what is committed when


def test_polls_commit_what_the_polls_before_handed_out():
    it = member(0, auto_commit_interval_ms=1000)
    it.scripted.turn(1.1)
    it.poll(most=2)
    assert it.committed == {T0: 0}
    it.scripted.turn(1.1)
    it.poll()
    assert it.committed == {T0: 2}


def test_a_poll_that_waits_commits_what_the_polls_before_handed_out():
    it = member(0, auto_commit_interval_ms=1000)
    it.scripted.turn(0.5)
    it.poll()
    assert it.committed == {T0: 0}
    waiting = Outcome(it.consumer.poll(timeout=60))
    it.scripted.pass_time(1.0)
    assert it.committed == {T0: 3}
    commits = it.commits()
    it.scripted.pass_time(30.0)
    assert it.commits() == commits
    it.produce(0, b"more")
    it.scripted.pass_time(1.0)
    assert [len(records) for records in waiting.value.values()] == [1]
    it.scripted.pass_time(5.0)
    assert it.committed == {T0: 3}


def test_nothing_is_committed_between_polls():
    it = member(0, auto_commit_interval_ms=1000)
    it.poll()
    commits = it.commits()
    it.scripted.pass_time(10.0)
    assert it.commits() == commits


def test_nothing_is_committed_twice():
    it = member(0, auto_commit_interval_ms=1000)
    it.records(9)
    assert it.commits() == [{("t", 0): 0}, {("t", 0): 3}]


def test_a_rebalance_commits_only_once_the_caller_polls_again():
    it = member(0)
    it.poll()
    it.rebalance(1)
    it.scripted.pass_time(3.0)
    assert it.committed.get(T0, 0) == 0, "the caller may still be at work on what it got"
    it.poll()
    it.scripted.turn()
    assert it.committed == {T0: 3}


def test_partitions_assigned_by_hand_are_committed_too():
    it = ConsumerFixture(group_id="g", auto_commit_interval_ms=1000)
    it.produce(0, b"0", b"1")
    it.assign(0)
    it.records(2)
    it.run(it.consumer.close())
    assert it.committed == {T0: 2}


def test_an_automatic_commit_that_fails_is_not_repeated_behind_a_later_one():
    it = member(0, auto_commit_interval_ms=1000)
    it.poll(most=1)
    it.scripted.answers[ApiKey.OFFSET_COMMIT] = lambda _: NotCoordinator("moved")
    it.scripted.turn(1.1)
    before = len(it.commits())
    it.poll(most=1)
    assert it.commits()[before:] == [{("t", 0): 1}]
    it.scripted.serve_commits(it.committed)
    it.run(it.consumer.commit())
    it.scripted.pass_time(5.0)
    assert it.committed == {T0: 2}
    assert it.commits()[-1] == {("t", 0): 2}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the topic is new, and the coordinator does not know it yet
    ],
)
def test_a_commit_that_the_coordinator_cannot_store_now_is_sent_again(code):
    it = member(0, enable_auto_commit="false")
    it.records(1)
    it.refuse_commits(code)
    waiting = it.consumer.commit()
    it.scripted.turn()
    assert not waiting.called
    it.scripted.serve_commits(it.committed)
    it.scripted.pass_time(1.0)
    it.run(waiting)
    assert it.committed == {T0: 3}
    assert it.listener.events == [("assigned", [0])]


def test_leaving_by_an_error_commits_only_what_was_followed_by_another_poll():
    it = ConsumerFixture(group_id="g")
    it.produce(0, b"0", b"1", b"2")
    it.assign(0)

    async def work():
        async with it.consumer as consumer:
            while not (await consumer.poll(timeout=0.1, max_records=1)):
                pass
            await consumer.poll(timeout=0, max_records=1)
            raise RuntimeError("at the second record")

    done = Deferred.fromCoroutine(work())
    it.scripted.pass_time(1.0)
    with pytest.raises(RuntimeError):
        it.run(done)
    assert it.committed == {T0: 1}


def test_an_error_after_a_poll_that_found_nothing_more_commits_all_before_it():
    it = ConsumerFixture(group_id="g")
    it.produce(0, b"0", b"1", b"2")
    it.assign(0)
    it.scripted.turn()

    async def work():
        async with it.consumer as consumer:
            while await consumer.poll(timeout=0.1):
                pass
            raise RuntimeError("after the last record")

    done = Deferred.fromCoroutine(work())
    it.scripted.pass_time(1.0)
    with pytest.raises(RuntimeError):
        it.run(done)
    assert it.committed == {T0: 3}


def test_a_commit_during_a_cooperative_rebalance_is_repeated_as_what_the_member_became():
    it = member(0, 1, **COOPERATIVE, enable_auto_commit="false")
    it.records(1)
    refused = []

    def commit(request):
        if request.generation_id_or_member_epoch == 1:
            refused.append(request)
            return commit_answer(request, ErrorCode.ILLEGAL_GENERATION)
        it.committed[T0] = request.topics[0].partitions[0].committed_offset
        return commit_answer(request)

    it.scripted.answers[ApiKey.OFFSET_COMMIT] = commit
    join = it.scripted.answers.pop(ApiKey.JOIN_GROUP)
    it.rebalance(0, 1)
    waiting = it.consumer.commit({T0: 2})
    it.scripted.turn()
    assert len(refused) == 1
    assert not waiting.called
    asked = it.scripted.one(ApiKey.JOIN_GROUP)
    asked.answer(join(asked.message))
    it.scripted.pass_time(0.5)
    assert it.run(waiting) is None
    assert it.committed == {T0: 2}


def test_a_commit_for_a_partition_that_went_is_refused():
    it = member(0, **COOPERATIVE, enable_auto_commit="false")
    it.records(1)
    it.refuse_commits(ErrorCode.ILLEGAL_GENERATION)
    with pytest.raises(IllegalGeneration):
        it.run(it.consumer.commit())


def test_a_commit_without_a_generation_is_refused_before_it_is_sent():
    it = member(0, enable_auto_commit="false")
    it.records(1)
    it.scripted.answers.pop(ApiKey.JOIN_GROUP)
    it.heartbeat_code = ErrorCode.UNKNOWN_MEMBER_ID
    it.scripted.pass_time(1.2)
    with pytest.raises(RebalanceInProgress, match="not in a generation"):
        it.run(it.consumer.commit({T0: 3}))
    assert it.commits() == []


def test_leader_epoch_nought_is_an_epoch():
    it = member(0, enable_auto_commit="false")
    it.records(1)
    it.run(it.consumer.commit())
    (sent,) = [a.message for a in it.scripted.requests if a.api is ApiKey.OFFSET_COMMIT]
    assert sent.topics[0].partitions[0].committed_leader_epoch == 0


def test_commits_do_not_stand_behind_a_join():
    it = member(0, **COOPERATIVE, enable_auto_commit="false")
    it.records(1)
    it.scripted.answers.pop(ApiKey.JOIN_GROUP)
    it.rebalance(0)
    join = it.scripted.one(ApiKey.JOIN_GROUP)
    it.run(it.consumer.commit())
    (commit,) = [a for a in it.scripted.requests if a.api is ApiKey.OFFSET_COMMIT]
    assert (join.node, commit.node) == (1, 1)
    assert join.channel != commit.channel


def test_commits_go_one_after_the_other():
    it = member(0, enable_auto_commit="false")
    it.records(1)
    commit = it.scripted.answers.pop(ApiKey.OFFSET_COMMIT)
    first = it.consumer.commit_async({T0: 1})
    second = it.consumer.commit({T0: OffsetAndMetadata(2, "note")})
    it.scripted.turn()
    asked = it.scripted.one(ApiKey.OFFSET_COMMIT)
    asked.answer(commit(asked.message))
    it.scripted.turn()
    assert first.called
    assert not second.called
    asked = it.scripted.one(ApiKey.OFFSET_COMMIT)
    asked.answer(commit(asked.message))
    it.run(second)
    assert it.committed == {T0: 2}


def test_a_negative_offset_is_not_committed():
    it = member(0)
    with pytest.raises(ValueError, match="negative"):
        it.run(it.consumer.commit({T0: -1}))


def test_a_pattern_subscribes_to_what_matches_whole_names():
    it = ConsumerFixture(2, group_id="g")
    it.scripted.topics.update({"t-1": 1, "xt": 1})
    it.consumer.subscribe(pattern="t.*")
    it.poll()
    it.scripted.pass_time(0.3)
    assert it.consumer.subscription() == {"t", "t-1"}
