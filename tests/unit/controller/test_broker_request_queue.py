"""The requests that a broker is sent, and their order."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.controller.core.broker_request_queue import (
    PARTITIONS_PER_REQUEST,
    BrokerRequestQueue,
    PendingLeaderAndIsr,
    PendingStopReplica,
    PendingUpdateMetadata,
)
from kbroker.controller.core.context import Broker
from kbroker.controller.core.effects import PartitionUpdate, ReplicaStop
from tests.kit.property_tests import examples

ONE = Broker(1, 1, ())
LIVE = (ONE,)


def update(partition=0, epoch=0, *, topic="t", topic_id=1, leader=1, is_new=False):
    state = LeaderAndIsr(leader, epoch, (1,), 1, epoch)
    return PartitionUpdate(topic, UUID(int=topic_id), partition, state, (1,), is_new=is_new)


def drain(channel):
    """Every request of the queue, each answered at once."""
    requests = []
    while (request := channel.next_request()) is not None:
        requests.append(request)
        channel.answered()
    return requests


def test_leader_and_isr_is_sent_before_metadata_and_metadata_before_stops():
    channel = BrokerRequestQueue()
    channel.stop_replica([ReplicaStop(("x", 0), 1, True)])
    channel.update_metadata([update()], LIVE)
    channel.leader_and_isr([update()], [ONE])
    kinds = [type(request) for request in drain(channel)]
    assert kinds == [PendingLeaderAndIsr, PendingUpdateMetadata, PendingStopReplica]
    assert channel.is_idle


def test_one_request_is_out_at_a_time_and_sent_again_until_answered():
    channel = BrokerRequestQueue()
    channel.leader_and_isr([update()], [])
    channel.update_metadata([], LIVE)
    request = channel.next_request()
    assert isinstance(request, PendingLeaderAndIsr)
    assert channel.next_request() is None
    assert channel.unanswered() is request
    channel.answered()
    assert isinstance(channel.next_request(), PendingUpdateMetadata)


def test_many_partitions_are_sent_in_several_requests_in_the_order_of_kinds():
    channel = BrokerRequestQueue()
    partitions = range(PARTITIONS_PER_REQUEST * 2 + 1)
    channel.leader_and_isr([update(index) for index in partitions], [ONE])
    channel.update_metadata([update(index) for index in partitions], LIVE)
    channel.stop_replica([ReplicaStop(("x", index), 1, True) for index in partitions])
    requests = drain(channel)
    kinds = [PendingLeaderAndIsr] * 3 + [PendingUpdateMetadata] * 3 + [PendingStopReplica] * 3
    assert [type(request) for request in requests] == kinds
    assert [u.partition for request in requests[:3] for u in request.partitions] == list(partitions)
    assert [u.partition for request in requests[3:6] for u in request.partitions] == list(
        partitions
    )
    assert [s.partition[1] for request in requests[6:] for s in request.stops] == list(partitions)
    assert {request.live_leaders for request in requests[:3]} == {(ONE,)}
    assert {request.live_brokers for request in requests[3:6]} == {LIVE}
    assert channel.is_idle


def test_what_is_decided_between_two_requests_of_a_batch_is_sent_after_it():
    channel = BrokerRequestQueue()
    partitions = range(PARTITIONS_PER_REQUEST + 1)
    channel.leader_and_isr([update(index) for index in partitions], [ONE])
    assert len(channel.next_request().partitions) == PARTITIONS_PER_REQUEST
    channel.answered()
    channel.leader_and_isr([update(0, epoch=7)], [ONE])
    rest = [[(u.partition, u.state.leader_epoch) for u in o.partitions] for o in drain(channel)]
    assert rest == [[(PARTITIONS_PER_REQUEST, 0)], [(0, 7)]]


def test_a_full_update_comes_in_numbered_parts_that_nothing_comes_between():
    channel = BrokerRequestQueue()
    partitions = range(PARTITIONS_PER_REQUEST + 1)
    channel.update_metadata([update(index) for index in partitions], LIVE, full=True)
    first = channel.next_request()
    channel.update_metadata([update(0, 7)], LIVE)
    channel.answered()
    last, after = drain(channel)
    assert (first.full, first.part, first.has_more) == (True, 0, True)
    assert (last.full, last.part, last.has_more) == (True, 1, False)
    assert first.partitions + last.partitions == tuple(update(index) for index in partitions)
    assert after == PendingUpdateMetadata((update(0, 7),), LIVE)


def test_a_slow_broker_is_sent_the_latest_state_once():
    channel = BrokerRequestQueue()
    channel.leader_and_isr([update(0, 1)], [])
    channel.next_request()
    channel.leader_and_isr([update(0, 2), update(1, 5)], [])
    channel.leader_and_isr([update(0, 3)], [])
    channel.answered()
    (request,) = drain(channel)
    assert request.partitions == (update(0, 3), update(1, 5))


def test_a_new_partition_stays_new_until_it_was_sent():
    channel = BrokerRequestQueue()
    channel.leader_and_isr([update(0, 0, is_new=True)], [])
    channel.leader_and_isr([update(0, 1)], [])
    (request,) = drain(channel)
    assert request.partitions == (update(0, 1, is_new=True),)


def test_a_stop_and_a_start_of_a_replica_are_sent_in_that_order():
    channel = BrokerRequestQueue()
    channel.stop_replica([ReplicaStop(("t", 0), 1, True)])
    channel.leader_and_isr([update(0, 0, topic_id=2)], [])
    stop, start = drain(channel)
    assert isinstance(stop, PendingStopReplica)
    assert isinstance(start, PendingLeaderAndIsr)


def test_another_partition_may_join_the_round_of_a_stop():
    channel = BrokerRequestQueue()
    channel.stop_replica([ReplicaStop(("t", 0), 1, True)])
    channel.leader_and_isr([update(1)], [])
    start, stop = drain(channel)
    assert isinstance(start, PendingLeaderAndIsr)
    assert isinstance(stop, PendingStopReplica)


def test_a_deletion_is_not_weakened_to_a_stop():
    channel = BrokerRequestQueue()
    channel.stop_replica([ReplicaStop(("t", 0), -2, True)])
    channel.stop_replica([ReplicaStop(("t", 0), 1, False)])
    (request,) = drain(channel)
    assert request.stops == (ReplicaStop(("t", 0), -2, True),)


def test_metadata_before_leaders_is_not_merged_with_what_follows():
    channel = BrokerRequestQueue()
    channel.update_metadata([update()], LIVE, full=True, alone=True)
    channel.leader_and_isr([update()], [ONE])
    channel.update_metadata([update()], LIVE)
    first, second, third = drain(channel)
    assert first == PendingUpdateMetadata((update(),), LIVE, full=True)
    assert isinstance(second, PendingLeaderAndIsr)
    assert third == PendingUpdateMetadata((update(),), LIVE)


def test_a_snapshot_replaces_the_changes_that_wait():
    channel = BrokerRequestQueue()
    channel.update_metadata([update(0, topic="gone")], ())
    channel.update_metadata([update(0)], LIVE, full=True)
    channel.update_metadata([update(1)], LIVE)
    (request,) = drain(channel)
    assert request == PendingUpdateMetadata((update(0), update(1)), LIVE, full=True)


def test_the_end_of_a_topic_and_the_beginning_of_its_namesake_are_both_sent():
    channel = BrokerRequestQueue()
    ended = update(0, topic_id=1, leader=-2)
    begun = update(0, topic_id=2)
    channel.update_metadata([ended], LIVE)
    channel.update_metadata([begun], LIVE)
    (request,) = drain(channel)
    assert request.partitions == (ended, begun)


def test_nothing_out_cannot_be_sent_again():
    with pytest.raises(RuntimeError):
        BrokerRequestQueue().unanswered()


class ChannelAgainstList(RuleBasedStateMachine):
    """Per partition the requests arrive in order, and the last state decided arrives."""

    def __init__(self):
        super().__init__()
        self.channel = BrokerRequestQueue()
        self.clock = 0
        self.decided = {}  # partition -> (time, "lead" | "stop")
        self.arrived = {}

    def now(self):
        self.clock += 1
        return self.clock

    @rule(partitions=st.sets(st.integers(0, 3), min_size=1))
    def lead(self, partitions):
        updates = []
        for partition in partitions:
            at = self.now()
            self.decided[partition] = (at, "lead")
            updates.append(replace(update(partition), state=LeaderAndIsr(1, at, (1,), 1, 0)))
        self.channel.leader_and_isr(updates, [ONE])
        self.channel.update_metadata(updates, LIVE)

    @rule(partitions=st.sets(st.integers(0, 3), min_size=1))
    def stop(self, partitions):
        stops = []
        for partition in partitions:
            at = self.now()
            self.decided[partition] = (at, "stop")
            stops.append(ReplicaStop(("t", partition), at, True))
        self.channel.stop_replica(stops)

    @rule(lost=st.booleans())
    def deliver(self, lost):
        request = self.channel.next_request()
        if request is None:
            return
        if lost:
            assert self.channel.unanswered() == request
        if isinstance(request, PendingLeaderAndIsr):
            for each in request.partitions:
                self.arrive(each.partition, each.state.leader_epoch, "lead")
        elif isinstance(request, PendingStopReplica):
            for stop in request.stops:
                self.arrive(stop.partition[1], stop.leader_epoch, "stop")
        self.channel.answered()

    def arrive(self, partition, at, what):
        assert at > self.arrived.get(partition, (0, ""))[0]
        self.arrived[partition] = (at, what)

    @rule()
    def deliver_all(self):
        while not self.channel.is_idle:
            self.deliver(lost=False)
        assert self.arrived == self.decided


TestChannel = ChannelAgainstList.TestCase
TestChannel.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
