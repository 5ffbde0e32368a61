"""A group member on a scripted cluster: join, stay, lose and leave, with any answer of the coordinator."""

from contextlib import contextmanager

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, formatEvent, globalLogPublisher

from kclient.config import ConsumerConfig
from kclient.consumer.membership import GroupMember, MemberCallbacks, MemberState
from kclient.consumer.protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kclient.types import TopicPartition
from kclient.wire.errors import (
    ErrorCode,
    FencedInstanceId,
    GroupAuthorizationFailed,
    IllegalGeneration,
    UnknownMemberId,
)
from kclient.wire.schema.heartbeat import HeartbeatResponse
from kclient.wire.schema.join_group import JoinGroupResponse, JoinGroupResponseMember
from kclient.wire.schema.leave_group import LeaveGroupResponse
from kclient.wire.schema.sync_group import SyncGroupResponse
from kclient.wire.versions import ApiKey
from tests.kit.scripted_cluster import ScriptedCluster, now

JOIN, SYNC = ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP
HEARTBEAT, LEAVE = ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP
SETTINGS = {
    "group_id": "g",
    "session_timeout_ms": 10_000,
    "heartbeat_interval_ms": 1_000,
    "max_poll_interval_ms": 60_000,
    "partition_assignment_strategy": "range",
}


def places(*numbers, topic="t"):
    return [TopicPartition(topic, number) for number in numbers]


class Member:
    """A member on a scripted cluster, its calls to the consumer, and the coordinator's responses."""

    def __init__(self, scripted=None, **settings):
        self.scripted = scripted or ScriptedCluster({"t": 4})
        self.config = ConsumerConfig.load({**SETTINGS, **settings})
        self.cluster = self.scripted.cluster(self.config)
        self.events = []
        self.topics = {"t"}
        self.revoking = None
        self.gives_up_at_once = True
        self.failures = []
        self.unprocessed = {}
        self.member = GroupMember(
            self.cluster,
            self.config,
            MemberCallbacks(
                topics=self._topics,
                partition_counts=self._counts,
                revoked=self._revoked,
                assigned=lambda gained: self.events.append(("assigned", gained)),
                lost=lambda lost: self.events.append(("lost", lost)),
                failed=self.failures.append,
                unprocessed=lambda: self.unprocessed,
            ),
        )

    async def _topics(self):
        return set(self.topics)

    async def _counts(self, topics):
        return {topic: self.scripted.topics.get(topic, 0) for topic in topics}

    async def _revoked(self, gone):
        self.events.append(("revoked", gone))
        if not self.gives_up_at_once:
            self.revoking = Deferred()
            await self.revoking

    def gave_up(self):
        """The consumer's poll came round and gave up what was revoked."""
        self.revoking.callback(None)
        self.scripted.turn()

    # the coordinator's lines

    def start(self):
        self.member.start()
        self.scripted.turn()

    def name(self, member_id="m-1"):
        """Answer the first JoinGroup: join again, under this name."""
        self.scripted.one(JOIN).answer(
            JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        )
        self.scripted.turn()

    def joined(
        self, generation, *, leader="m-0", members=(), code=0, strategy=None, skip_assignment=False
    ):
        """Answer the JoinGroup that waits."""
        asked = self.scripted.one(JOIN)
        strategy = strategy or asked.message.protocols[0].name
        asked.answer(
            JoinGroupResponse(
                error_code=code,
                generation_id=generation,
                member_id=asked.message.member_id,
                protocol_name=strategy,
                leader=leader,
                skip_assignment=skip_assignment,
                members=[JoinGroupResponseMember(member_id=m, metadata=d) for m, d in members],
            )
        )
        self.scripted.turn()

    def synced(self, *assigned, code=0):
        """Answer the SyncGroup that waits."""
        data = encode_assignment(assigned) if not code else b""
        self.scripted.one(SYNC).answer(SyncGroupResponse(error_code=code, assignment=data))
        self.scripted.turn()

    def stable(self, *assigned, generation=1):
        """Go through a whole first join."""
        self.start()
        self.name()
        self.joined(generation)
        self.synced(*assigned)
        assert self.member.state is MemberState.STABLE
        return self

    def heartbeat(self, code=0):
        """Let the next heartbeat come and answer it."""
        for _ in range(40):
            if self.scripted.waiting(HEARTBEAT):
                break
            self.member.polled()
            self.scripted.turn(0.05)
        self.scripted.one(HEARTBEAT).answer(HeartbeatResponse(error_code=code))
        self.scripted.turn()

    def forget_events(self):
        self.events.clear()
        return self


# --- joining


def test_a_member_joins_under_the_name_it_is_given():
    it = Member()
    it.start()
    assert it.scripted.one(JOIN).message.member_id == ""
    it.name("m-7")
    asked = it.scripted.one(JOIN).message
    assert (asked.member_id, asked.protocol_type, asked.group_id) == ("m-7", "consumer", "g")
    assert [p.name for p in asked.protocols] == ["range"]
    assert decode_subscription(asked.protocols[0].metadata).topics == {"t"}
    it.joined(1)
    sync = it.scripted.one(SYNC).message
    assert (sync.generation_id, sync.member_id, sync.assignments) == (1, "m-7", [])
    it.synced(*places(0, 1))
    assert it.events == [("assigned", places(0, 1))]
    assert (it.member.generation_id, it.member.identity.member_id) == (1, "m-7")


def test_a_name_is_kept_when_the_next_join_is_lost():
    it = Member()
    it.start()
    it.name("m-7")
    it.scripted.one(JOIN).fail()
    it.scripted.pass_time(1.0)
    assert it.scripted.one(JOIN).message.member_id == "m-7"


def test_the_leader_assigns_for_all_members():
    it = Member()
    it.start()
    it.name()
    subscription = encode_subscription({"t"}, [], -1)
    it.joined(1, leader="m-1", members=[("m-1", subscription), ("m-2", subscription)])
    shares = {
        a.member_id: decode_assignment(a.assignment)
        for a in it.scripted.one(SYNC).message.assignments
    }
    assert shares == {"m-1": places(0, 1), "m-2": places(2, 3)}


def test_join_waits_as_long_as_others_may_take():
    it = Member(max_poll_interval_ms=300_000)
    it.start()
    assert it.scripted.one(JOIN).message.rebalance_timeout_ms == 300_000


def test_no_heartbeat_goes_out_while_a_join_is_under_way():
    it = Member().stable(*places(0))
    it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    sent = it.scripted.count(HEARTBEAT)
    it.scripted.pass_time(5.0)
    assert it.scripted.count(HEARTBEAT) == sent
    assert it.scripted.one(JOIN)


def test_a_join_that_is_lost_is_repeated_under_the_same_name():
    it = Member()
    it.start()
    it.name()
    it.scripted.one(JOIN).fail()
    it.scripted.pass_time(0.5)
    assert it.scripted.one(JOIN).message.member_id == "m-1"
    it.joined(1)
    it.synced(*places(0))
    assert it.events == [("assigned", places(0))]


def test_a_sync_that_meets_another_rebalance_joins_again():
    it = Member()
    it.start()
    it.name()
    it.joined(1)
    it.synced(code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert it.scripted.one(JOIN).message.member_id == "m-1"
    assert it.events == []


def test_a_coordinator_that_is_loading_is_asked_again():
    it = Member()
    it.start()
    it.name()
    it.joined(-1, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    it.scripted.pass_time(0.5)
    it.joined(1)
    it.synced(*places(0))
    assert it.failures == []


def test_an_unknown_member_joins_with_a_new_member_id():
    it = Member()
    it.start()
    it.name()
    it.joined(-1, code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert it.scripted.one(JOIN).message.member_id == ""


def test_an_error_that_is_not_retriable_is_reported_and_retried_by_the_next_start_only():
    it = Member()
    it.start()
    it.joined(-1, code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert [type(problem) for problem in it.failures] == [GroupAuthorizationFailed]
    it.scripted.pass_time(3.0)
    assert it.scripted.waiting(JOIN) == []
    it.start()
    assert it.scripted.one(JOIN)


def test_an_unknown_strategy_is_reported():
    it = Member()
    it.start()
    it.joined(1, strategy="homemade")
    assert "homemade" in str(it.failures[0])


def test_an_unexpected_cancellation_is_reported():
    it = Member()
    it.start()
    it.scripted.one(JOIN).waiter.cancel()
    it.scripted.turn()
    assert "CancelledError" in str(it.failures[0])
    it.start()
    assert it.scripted.one(JOIN)


# --- eager


def test_the_eager_protocol_gives_up_everything_before_it_joins():
    it = Member().stable(*places(0, 1)).forget_events()
    it.gives_up_at_once = False
    it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert it.events == [("revoked", places(0, 1))]
    assert it.scripted.waiting(JOIN) == []
    it.gave_up()
    assert decode_subscription(it.scripted.one(JOIN).message.protocols[0].metadata).owned == set()
    it.joined(2)
    it.synced(*places(1))
    assert it.events[1:] == [("assigned", places(1))]


def test_heartbeats_go_on_while_the_consumer_takes_its_time_to_give_up():
    it = Member().stable(*places(0))
    it.gives_up_at_once = False
    it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    for _ in range(5):
        it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    it.gave_up()
    it.joined(2)
    it.synced(*places(0))
    it.heartbeat()
    assert it.scripted.waiting(JOIN) == [], "the rebalance that it joined for is over"
    assert it.events[-1] == ("assigned", places(0))


def test_the_generation_stays_good_for_commits_until_the_join_is_answered():
    it = Member().stable(*places(0))
    it.gives_up_at_once = False
    it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert it.member.identity.generation_id == 1
    it.gave_up()
    assert it.member.identity.generation_id == 1


def test_membership_lost_while_giving_up_is_noticed_before_the_join():
    it = Member().stable(*places(0))
    it.gives_up_at_once = False
    it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    it.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert it.member.generation_id == -1, "so that nothing is committed any more"
    it.gave_up()
    assert it.scripted.one(JOIN).message.member_id == ""


# --- cooperative


def cooperative(*assigned, **settings):
    it = Member(partition_assignment_strategy="cooperative-sticky", **settings)
    return it.stable(*assigned).forget_events()


def test_the_cooperative_protocol_joins_with_what_it_owns():
    it = cooperative(*places(0, 1))
    it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert it.events == []
    subscription = decode_subscription(it.scripted.one(JOIN).message.protocols[0].metadata)
    assert (subscription.owned, subscription.generation) == (set(places(0, 1)), 1)


def test_the_cooperative_protocol_gives_up_only_what_it_is_to_give_up_and_joins_once_more():
    it = cooperative(*places(0, 1))
    it.gives_up_at_once = False
    it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    it.joined(2)
    it.synced(*places(0))
    assert it.events == [("revoked", places(1))]
    it.heartbeat()
    assert it.scripted.waiting(JOIN) == []
    it.gave_up()
    assert it.events[1:] == [("assigned", [])]
    subscription = decode_subscription(it.scripted.one(JOIN).message.protocols[0].metadata)
    assert subscription.owned == set(places(0))


def test_the_cooperative_protocol_reports_new_partitions_only():
    it = cooperative(*places(0))
    it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    it.joined(2)
    it.synced(*places(0, 3))
    assert it.events == [("assigned", places(3))]
    assert it.scripted.waiting(JOIN) == []


def test_the_cooperative_protocol_gives_up_what_is_not_subscribed_to_any_more():
    it = cooperative(*places(0), TopicPartition("u", 0))
    it.topics = {"t"}
    it.member.rejoin_soon("the subscription changed")
    it.scripted.turn()
    assert it.events == [("revoked", [TopicPartition("u", 0)])]
    subscription = decode_subscription(it.scripted.one(JOIN).message.protocols[0].metadata)
    assert subscription.owned == set(places(0))


def test_membership_lost_while_giving_up_cooperatively_loses_the_rest_too():
    it = cooperative(*places(0, 1))
    it.gives_up_at_once = False
    it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    it.joined(2)
    it.synced(*places(0))
    it.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    it.gave_up()
    assert it.events == [("revoked", places(1)), ("lost", places(0))]
    assert it.scripted.one(JOIN).message.member_id == ""


def test_a_mix_of_strategies_is_eager():
    assert not Member(partition_assignment_strategy="range,cooperative-sticky").member.cooperative


# --- staying


def test_a_heartbeat_goes_out_every_interval():
    it = Member().stable(*places(0))
    for _ in range(3):
        it.heartbeat()
    assert it.scripted.clock.seconds() == pytest.approx(3.0, abs=0.2)
    sent = it.scripted.requests[-1].message
    assert (sent.generation_id, sent.member_id) == (1, "m-1")


def test_an_unknown_member_loses_its_partitions_and_joins_with_a_new_member_id():
    it = Member().stable(*places(0)).forget_events()
    it.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert it.events == [("lost", places(0))]
    assert it.scripted.one(JOIN).message.member_id == ""
    assert it.member.generation_id == -1


def test_a_member_of_a_past_generation_loses_its_partitions_and_keeps_its_id():
    it = Member().stable(*places(0)).forget_events()
    it.heartbeat(ErrorCode.ILLEGAL_GENERATION)
    assert it.events == [("lost", places(0))]
    assert it.scripted.one(JOIN).message.member_id == "m-1"


def test_a_coordinator_that_moved_is_found_and_the_generation_goes_on():
    scripted = ScriptedCluster({"t": 4}, brokers=2)
    it = Member(scripted).stable(*places(0)).forget_events()
    scripted.coordinator = 2
    it.heartbeat(ErrorCode.NOT_COORDINATOR)
    it.heartbeat()
    assert scripted.requests[-1].node == 2
    assert (it.events, it.member.generation_id) == ([], 1)
    assert scripted.waiting(JOIN) == []


def test_a_coordinator_that_is_away_for_a_while_costs_nothing():
    it = Member().stable(*places(0)).forget_events()
    for _ in range(4):
        it.scripted.pass_time(1.0)
        it.scripted.one(HEARTBEAT).fail()
    it.heartbeat()
    assert (it.events, it.member.generation_id, it.failures) == ([], 1, [])


def test_a_lost_heartbeat_is_repeated_sooner_than_the_next_is_due():
    it = Member().stable(*places(0))
    it.scripted.pass_time(1.0)
    it.scripted.one(HEARTBEAT).fail()
    it.scripted.pass_time(0.1)
    assert it.scripted.one(HEARTBEAT)


def test_a_fenced_instance_stops_for_good():
    it = Member(group_instance_id="i").stable(*places(0)).forget_events()
    it.heartbeat(ErrorCode.FENCED_INSTANCE_ID)
    assert it.events == [("lost", places(0))]
    assert [type(problem) for problem in it.failures] == [FencedInstanceId]
    with pytest.raises(FencedInstanceId):
        it.member.start()
    assert it.scripted.waiting(JOIN) == []


# --- topics


def test_the_leader_joins_again_when_partitions_were_added():
    it = Member()
    it.start()
    it.joined(1, leader="", members=[("", encode_subscription({"t", "u"}, [], -1))])
    it.synced(*places(0))
    counts = {"t": 4, "u": 0}
    it.member.topics_changed({"t"}, counts.__getitem__)
    it.scripted.turn()
    assert it.scripted.waiting(JOIN) == [], "nothing changed, though others subscribe to more"
    counts["u"] = 2
    it.member.topics_changed({"t"}, counts.__getitem__)
    it.scripted.turn()
    assert it.scripted.one(JOIN)


def test_a_static_leader_that_came_back_joins_again_when_partitions_were_added():
    """KIP-814: it assigns nothing, because the group keeps its assignment, and watches the topics all the same."""
    it = Member(group_instance_id="i")
    it.start()
    others = ("m-2", encode_subscription({"u"}, [], 1))
    it.name()
    it.joined(
        1,
        leader="m-1",
        members=[("m-1", encode_subscription({"t"}, [], -1)), others],
        skip_assignment=True,
    )
    assert not it.scripted.one(SYNC).message.assignments
    it.synced(*places(0, 1, 2, 3))
    it.member.topics_changed({"t"}, {"t": 4, "u": 0}.__getitem__)
    it.scripted.turn()
    assert not it.scripted.waiting(JOIN)
    it.member.topics_changed({"t"}, {"t": 8, "u": 0}.__getitem__)
    it.scripted.turn()
    assert it.scripted.waiting(JOIN)


def test_a_follower_leaves_added_partitions_to_the_leader():
    it = Member().stable(*places(0))
    it.member.topics_changed({"t"}, lambda _: 99)
    it.scripted.turn()
    assert it.scripted.waiting(JOIN) == []


def test_any_member_joins_again_when_its_pattern_matches_other_topics():
    it = Member().stable(*places(0))
    it.member.topics_changed({"t", "new"}, lambda _: 4)
    it.scripted.turn()
    assert it.scripted.one(JOIN)


def test_a_subscription_that_changes_during_a_join_is_not_forgotten():
    it = Member()
    it.start()
    it.name()
    it.topics = {"t", "u"}
    it.member.rejoin_soon("the subscription changed")
    it.joined(1)
    it.synced(*places(0))
    again = it.scripted.one(JOIN).message
    assert decode_subscription(again.protocols[0].metadata).topics == {"t", "u"}


# --- leaving


def leave_requests(it):
    return [asked.message for asked in it.scripted.requests if asked.api is LEAVE]


def leave(it):
    it.scripted.answers[LEAVE] = lambda _: LeaveGroupResponse()
    leaving = Deferred.fromCoroutine(it.member.leave())
    it.scripted.turn()
    now(leaving)


def assert_silence(it):
    """Nothing more is sent, whatever was under way."""
    for asked in it.scripted.requests:
        if asked.waits:
            asked.fail()
    sent = len(it.scripted.requests)
    it.scripted.pass_time(20.0)
    assert it.scripted.requests[sent:] == []
    assert it.failures == []


def test_leaving_sends_leave_group():
    it = Member().stable(*places(0))
    leave(it)
    (sent,) = leave_requests(it)
    assert [m.member_id for m in sent.members] == ["m-1"]
    assert_silence(it)


def test_leaving_while_a_heartbeat_is_on_its_way_ends_it():
    it = Member().stable(*places(0))
    it.scripted.pass_time(1.0)
    heartbeat = it.scripted.one(HEARTBEAT)
    leave(it)
    assert len(leave_requests(it)) == 1
    assert not heartbeat.waits, "given up"
    assert_silence(it)


def test_leaving_while_joining_ends_it():
    it = Member()
    it.start()
    it.name()
    leave(it)
    assert [m.member_id for m in leave_requests(it)[0].members] == ["m-1"]
    assert_silence(it)


def test_a_leave_does_not_wait_behind_a_join_that_the_coordinator_holds():
    """A broker answers the requests of a connection in order, and a JoinGroup waits for the other members."""
    it = Member()
    it.start()
    it.name()
    join = it.scripted.one(JOIN)
    leave(it)
    (sent,) = [asked for asked in it.scripted.requests if asked.api is LEAVE]
    assert (sent.node, sent.channel != join.channel) == (join.node, True)


def test_leaving_while_the_consumer_gives_up_partitions_ends_it():
    it = Member().stable(*places(0))
    it.gives_up_at_once = False
    it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    leave(it)
    assert len(leave_requests(it)) == 1
    assert_silence(it)


def test_leaving_while_waiting_after_a_failure_ends_it():
    it = Member()
    it.start()
    it.scripted.one(JOIN).fail()
    it.scripted.turn()
    leave(it)
    assert leave_requests(it) == []
    assert_silence(it)


def test_a_static_member_sends_no_leave_group():
    it = Member(group_instance_id="i").stable(*places(0))
    leave(it)
    assert leave_requests(it) == []
    assert_silence(it)


def test_a_lost_leave_group_is_no_error():
    it = Member().stable(*places(0))
    done = Deferred.fromCoroutine(it.member.leave())
    it.scripted.one(LEAVE).fail()
    assert now(done) is None


def test_a_member_that_does_not_poll_leaves():
    it = Member(max_poll_interval_ms=5_000, rebalance_timeout_ms=5_000).stable(*places(0))
    it.forget_events()
    it.scripted.answers[HEARTBEAT] = lambda _: HeartbeatResponse()
    it.scripted.answers[LEAVE] = lambda _: LeaveGroupResponse()
    it.scripted.pass_time(7.0)
    assert it.events == [("lost", places(0))]
    assert "max.poll.interval.ms (5000 ms)" in it.member.left_because
    assert len(leave_requests(it)) == 1
    beats = it.scripted.count(HEARTBEAT)
    it.scripted.pass_time(5.0)
    assert it.scripted.count(HEARTBEAT) == beats
    it.start()
    assert it.scripted.one(JOIN).message.member_id == ""


@contextmanager
def warnings_of(namespace):
    lines = []

    def observe(event):
        if event["log_namespace"].startswith(namespace) and event["log_level"] is LogLevel.warn:
            lines.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    try:
        yield lines
    finally:
        globalLogPublisher.removeObserver(observe)


def test_a_member_warns_once_before_it_leaves_and_names_what_its_caller_is_busy_with():
    it = Member(max_poll_interval_ms=10_000).stable(*places(0))
    it.scripted.answers[HEARTBEAT] = lambda _: HeartbeatResponse()
    it.unprocessed = dict(zip(places(*range(5)), range(7, 12), strict=True))
    with warnings_of("kclient.consumer.membership") as lines:
        it.scripted.pass_time(7.9)
        assert lines == []
        it.scripted.pass_time(2.0)
        assert lines == [
            "poll was last called 8 s ago: after max.poll.interval.ms (10000 ms) this member leaves group 'g'; its "
            "caller is busy with records from t-0 offset 7, t-1 offset 8, t-2 offset 9 and 2 more"
        ]
        it.member.polling()
        it.member.polled()
        it.unprocessed = {}
        it.scripted.pass_time(9.9)
    assert lines[1:] == [
        "poll was last called 8 s ago: after max.poll.interval.ms (10000 ms) this member leaves group 'g'"
    ]


def test_a_caller_that_waits_in_a_long_poll_is_not_overdue():
    it = Member(max_poll_interval_ms=5_000).stable(*places(0))
    it.scripted.answers[HEARTBEAT] = lambda _: HeartbeatResponse()
    it.member.polling()
    it.scripted.pass_time(10.0)
    assert it.member.state is MemberState.STABLE


def test_a_caller_that_does_not_come_back_to_give_up_its_partitions_leaves_too():
    it = Member(max_poll_interval_ms=5_000).stable(*places(0))
    it.gives_up_at_once = False
    it.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    it.scripted.answers[HEARTBEAT] = lambda _: HeartbeatResponse(
        error_code=ErrorCode.REBALANCE_IN_PROGRESS
    )
    it.scripted.answers[LEAVE] = lambda _: LeaveGroupResponse()
    it.scripted.pass_time(7.0)
    assert len(leave_requests(it)) == 1
    assert it.member.state is MemberState.LEFT


@pytest.mark.parametrize("problem", [UnknownMemberId, IllegalGeneration])
def test_answers_from_before_a_generation_do_not_matter_in_it(problem):
    it = Member().stable(*places(0))
    it.scripted.pass_time(1.0)
    late = it.scripted.one(HEARTBEAT)
    it.member.rejoin_soon("for this test")
    it.scripted.turn()
    it.joined(2)
    it.synced(*places(0))
    assert not late.waits
    it.heartbeat()
    assert it.member.generation_id == 2
    it.member.rejoin_soon("again")
    it.scripted.turn()
    assert it.scripted.one(JOIN)
