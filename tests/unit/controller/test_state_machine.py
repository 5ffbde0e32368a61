"""The controller, one rule at a time. (Its invariants: tests/property/test_controller.py.)"""

from dataclasses import replace
from uuid import UUID

import pytest

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.controller.core import effects as fx
from kbroker.controller.core import events
from kbroker.controller.core.broker_request_queue import PendingLeaderAndIsr
from kbroker.controller.core.context import Broker, Topic
from kbroker.controller.core.control_requests import event_for
from kbroker.controller.core.states import InvalidStateChangeError, PartitionState, ReplicaState
from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from tests.kit.state_machine import handle, new_machine

ID = UUID(int=1)
STEP = 4


def broker(broker_id, epoch=1):
    return Broker(broker_id, epoch, ())


def brokers(*ids):
    return {n: broker(n) for n in ids}


def topic(name="t", topic_id=ID, **assignment):
    return Topic(name, topic_id, {int(p[1:]): tuple(r) for p, r in assignment.items()})


def of_kind(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def written(machine, effects, version=0):
    """Answer the one WriteStates in *effects* with success."""
    (pending,) = of_kind(effects, fx.WriteStates)
    return handle(machine, events.StatesWritten({w.partition: version for w in pending.writes}))


@pytest.fixture
def machine():
    """A controller of brokers 1, 2, 3 with topic t: partition 0 on 1, 2, 3, partition 1 on 2."""
    made = new_machine()
    states = {
        ("t", 0): LeaderAndIsr(1, 5, (1, 2, 3), 1, 10),
        ("t", 1): LeaderAndIsr(2, 3, (2,), 1, 4),
    }
    handle(
        made,
        events.BecameController(2, brokers(1, 2, 3), {"t": topic(p0=[1, 2, 3], p1=[2])}, states),
    )
    return made


def test_a_new_controller_sends_live_brokers_then_leaders_then_everything():
    made = new_machine()
    states = {("t", 0): LeaderAndIsr(1, 5, (1,), 1, 10)}
    effects = handle(made, events.BecameController(2, brokers(1), {"t": topic(p0=[1])}, states))
    assert [type(e) for e in effects] == [
        fx.OpenChannel,
        fx.SendUpdateMetadata,
        fx.SendLeaderAndIsr,
        fx.SendUpdateMetadata,
    ]
    assert effects[1].before_leaders
    assert not effects[1].full
    assert [b.broker_id for b in effects[1].live_brokers] == [1]
    assert effects[3].full
    assert [(p.topic, p.partition) for p in effects[3].partitions] == [("t", 0)]
    assert not effects[3].before_leaders


def requests_of(effects):
    """Return what was written and sent, partitions of each."""
    sent = []
    for effect in effects:
        if isinstance(effect, fx.WriteStates):
            sent.append(("write", [w.partition[1] for w in effect.writes]))
        elif isinstance(effect, fx.SendLeaderAndIsr):
            sent.append((effect.broker_id, [p.partition for p in effect.partitions]))
        elif isinstance(effect, fx.SendUpdateMetadata):
            sent.append(
                ("all" if effect.full else "some", [p.partition for p in effect.partitions])
            )
    return sent


def test_a_new_controller_elects_missing_leaders_first():
    made = new_machine()
    states = {
        ("t", 0): LeaderAndIsr(1, 5, (1, 2), 1, 10),
        ("t", 1): LeaderAndIsr(2, 5, (2, 1), 1, 10),
        ("t", 2): LeaderAndIsr(2, 5, (2,), 1, 10),
    }
    assigned = {"t": topic(p0=[1, 2], p1=[2, 1], p2=[2])}
    effects = handle(made, events.BecameController(2, brokers(2), assigned, states))
    assert requests_of(effects) == [("some", []), ("write", [0])]
    effects = written(made, effects, 11)
    assert requests_of(effects) == [(2, [0]), ("all", [0, 1, 2]), ("write", [1])]
    assert requests_of(written(made, effects, 11)) == [(2, [1, 2]), ("some", [1])]


def test_partitions_that_lost_the_leader_are_before_those_that_lost_a_follower():
    made = new_machine()
    states = {
        ("t", 0): LeaderAndIsr(2, 5, (1, 2), 1, 10),
        ("t", 1): LeaderAndIsr(1, 5, (2, 1), 1, 10),
    }
    assigned = {"t": topic(p0=[1, 2], p1=[2, 1])}
    handle(made, events.BecameController(2, brokers(1, 2), assigned, states))
    effects = handle(made, events.BrokersChanged(brokers(2)))
    assert requests_of(effects) == [("write", [1])]
    effects = written(made, effects, 11)
    assert requests_of(effects) == [(2, [1]), ("some", [1]), ("write", [0])]
    assert requests_of(written(made, effects, 11)) == [(2, [0]), ("some", [0])]


def test_nothing_is_announced_before_it_is_written(machine):
    effects = handle(machine, events.BrokersChanged(brokers(2, 3)))
    assert [type(e) for e in effects] == [fx.CloseChannel, fx.WriteStates]
    write = effects[1].writes[0]
    assert (write.state.leader, write.state.isr, write.expected_version) == (2, (2, 3), 10)
    sent = written(machine, effects, 11)
    (to_two, to_three) = of_kind(sent, fx.SendLeaderAndIsr)
    assert (to_two.broker_id, to_three.broker_id) == (2, 3)
    assert to_two.partitions[0].state.zk_version == 11
    (metadata,) = of_kind(sent, fx.SendUpdateMetadata)
    assert metadata.broker_ids == (2, 3)
    assert metadata.partitions[0].offline_replicas == (1,)


def test_a_write_that_lost_a_race_is_decided_again_from_what_is_there(machine):
    handle(machine, events.BrokersChanged(brokers(2, 3)))
    found = LeaderAndIsr(1, 5, (1, 3), 1, 11)
    effects = handle(machine, events.StatesWritten(conflicts={("t", 0): found}))
    (pending,) = of_kind(effects, fx.WriteStates)
    assert pending.writes[0].state.leader == 3
    assert pending.writes[0].expected_version == 11


def test_an_event_while_a_write_is_unanswered_is_rejected(machine):
    handle(machine, events.BrokersChanged(brokers(2, 3)))
    with pytest.raises(RuntimeError, match="BrokersChanged came out of turn"):
        handle(machine, events.BrokersChanged(brokers(3)))
    effects = handle(machine, events.StatesWritten({("t", 0): 11}))
    assert of_kind(effects, fx.SendLeaderAndIsr)
    with pytest.raises(RuntimeError, match="StatesWritten came out of turn"):
        handle(machine, events.StatesWritten({("t", 0): 12}))


def test_a_bounced_broker_died_before_it_joined(machine):
    effects = handle(machine, events.BrokersChanged({**brokers(1, 2), 3: broker(3, epoch=2)}))
    (pending,) = of_kind(effects, fx.WriteStates)
    assert pending.writes[0].state.isr == (1, 2)
    after = written(machine, effects, 11)
    assert of_kind(after, fx.OpenChannel) == [fx.OpenChannel(broker(3, epoch=2))]


def test_a_broker_that_starts_is_sent_its_partitions_and_all_metadata(machine):
    written(machine, handle(machine, events.BrokersChanged(brokers(1, 2))), 11)
    effects = handle(machine, events.BrokersChanged(brokers(1, 2, 3)))
    (leaders,) = of_kind(effects, fx.SendLeaderAndIsr)
    assert leaders.broker_id == 3
    assert [u.partition for u in leaders.partitions] == [0]
    others, newcomer = of_kind(effects, fx.SendUpdateMetadata)
    assert others.broker_ids == (1, 2)
    assert newcomer.broker_ids == (3,)
    assert newcomer.full
    assert len(newcomer.partitions) == 2


def test_new_topics_are_created_in_one_round_of_writes(machine):
    effects = handle(
        machine,
        events.TopicsChanged(
            (topic("u", UUID(int=2), p0=[1], p1=[3]), topic("v", UUID(int=3), p0=[2]))
        ),
    )
    (pending,) = of_kind(effects, fx.WriteStates)
    assert [w.expected_version for w in pending.writes] == [None, None, None]
    sent = written(machine, effects)
    assert all(u.is_new for e in of_kind(sent, fx.SendLeaderAndIsr) for u in e.partitions)
    assert machine.context.partition_states["u", 1] is PartitionState.ONLINE


def test_a_topic_on_dead_brokers_only_stays_new_until_one_comes(machine):
    assert not handle(machine, events.TopicsChanged((topic("u", UUID(int=2), p0=[9]),)))
    assert machine.context.partition_states["u", 0] is PartitionState.NEW
    effects = handle(machine, events.BrokersChanged(brokers(1, 2, 3, 9)))
    sent = written(machine, effects)
    assert 9 in {e.broker_id for e in of_kind(sent, fx.SendLeaderAndIsr)}


def test_only_partitions_that_are_new_are_created(machine):
    effects = handle(machine, events.TopicsChanged((topic(p0=[3], p1=[2], p2=[3]),)))
    (pending,) = of_kind(effects, fx.WriteStates)
    assert [w.partition for w in pending.writes] == [("t", 2)]
    assert machine.context.replicas(("t", 0)) == (1, 2, 3)


def test_a_deleted_topic_leaves_the_metadata_first_and_zookeeper_last(machine):
    effects = handle(machine, events.TopicDeletionRequested(frozenset({"t"})))
    (metadata,) = of_kind(effects, fx.SendUpdateMetadata)
    assert {u.state.leader for u in metadata.partitions} == {-2}
    stops = of_kind(effects, fx.SendStopReplica)
    assert [e.broker_id for e in stops] == [1, 2, 3]
    assert all(s.delete and s.leader_epoch == -2 for e in stops for s in e.stops)
    first = frozenset({("t", 0)})
    assert handle(machine, events.StopReplicaAcked(1, 1, first)) == []
    assert handle(machine, events.StopReplicaAcked(2, 1, first | {("t", 1)})) == []
    assert handle(machine, events.StopReplicaAcked(3, 1, first)) == [fx.DeleteTopicZnodes("t", ID)]
    assert handle(machine, events.StopReplicaAcked(3, 1, first)) == []
    handle(machine, events.TopicZnodesDeleted("t", ID))
    assert not machine.context.topics
    assert not machine.context.replica_states


def test_a_new_controller_and_a_new_broker_send_and_receive_the_deletions_that_are_not_complete():
    """A broker may have a replica that was moved away from it, and no StopReplica is sent to it."""
    made = new_machine()
    states = {("t", 0): LeaderAndIsr(1, 5, (1,), 1, 10)}
    became = events.BecameController(
        2, brokers(1, 2), {"t": topic(p0=[1])}, states, deletions=frozenset({"t"})
    )
    joined = events.BrokersChanged(brokers(1, 2, 3))
    for effects in (handle(made, became), handle(made, joined)):
        (full,) = [e for e in of_kind(effects, fx.SendUpdateMetadata) if e.full]
        assert [(p.topic, p.state.leader, p.replicas) for p in full.partitions] == [("t", -2, (1,))]


def test_the_end_of_a_deletion_does_not_end_that_of_a_namesake(machine):
    deletion = events.TopicDeletionRequested(frozenset({"t"}))
    handle(machine, deletion)
    namesake = topic("t", UUID(int=8), p0=[1])
    written(machine, handle(machine, events.TopicsChanged((namesake,))), 0)
    handle(machine, deletion)
    handle(machine, events.TopicZnodesDeleted("t", ID))
    stopped = handle(machine, events.StopReplicaAcked(1, 1, frozenset({("t", 0)})))
    assert stopped == [fx.DeleteTopicZnodes("t", UUID(int=8))]


def test_a_deletion_waits_for_a_dead_broker_and_for_a_failed_one(machine):
    written(machine, handle(machine, events.BrokersChanged(brokers(1, 2))), 11)
    effects = handle(machine, events.TopicDeletionRequested(frozenset({"t"})))
    assert [e.broker_id for e in of_kind(effects, fx.SendStopReplica)] == [1, 2]
    first = frozenset({("t", 0)})
    handle(machine, events.StopReplicaAcked(1, 1, first))
    handle(machine, events.StopReplicaAcked(2, 1, first, frozenset({("t", 1)})))
    effects = handle(machine, events.BrokersChanged({1: broker(1), 2: broker(2, 2), 3: broker(3)}))
    assert {
        e.broker_id: {s.partition for s in e.stops} for e in of_kind(effects, fx.SendStopReplica)
    } == {
        2: {("t", 1)},
        3: {("t", 0)},
    }
    handle(machine, events.StopReplicaAcked(2, 2, frozenset({("t", 1)})))
    assert handle(machine, events.StopReplicaAcked(3, 1, first)) == [fx.DeleteTopicZnodes("t", ID)]


def test_a_response_from_an_earlier_broker_epoch_is_ignored(machine):
    handle(machine, events.TopicDeletionRequested(frozenset({"t"})))
    handle(machine, events.StopReplicaAcked(1, 77, frozenset({("t", 0)})))
    state = machine.context.replica_states[("t", 0), 1]
    assert state is ReplicaState.DELETION_STARTED


def test_deleting_what_does_not_exist_drops_the_request(machine):
    effects = handle(machine, events.TopicDeletionRequested(frozenset({"x"})))
    assert effects == [fx.DeleteTopicDeletions(("x",))]


def test_a_topic_that_comes_with_another_id_is_another_topic(machine):
    effects = handle(machine, events.TopicsChanged((topic("t", UUID(int=8), p0=[1]),)))
    ended = of_kind(effects, fx.SendUpdateMetadata)[0]
    assert {(u.topic_id, u.state.leader) for u in ended.partitions} == {(ID, -2)}
    (pending,) = of_kind(effects, fx.WriteStates)
    assert pending.writes[0].expected_version is None
    assert machine.context.topics["t"].topic_id == UUID(int=8)


def test_a_broker_that_lost_a_log_directory_is_sent_all_its_replicas_again(machine):
    (pending,) = handle(machine, events.LogDirsFailed(frozenset({2, 9})))
    assert isinstance(pending, fx.SendLeaderAndIsr)
    assert pending.broker_id == 2
    assert [(p.partition, p.state.leader_epoch) for p in pending.partitions] == [(0, 5), (1, 3)]


def test_a_failed_log_directory_moves_leadership(machine):
    effects = handle(machine, events.LeaderAndIsrAcked(1, 1, frozenset({("t", 0)})))
    (pending,) = of_kind(effects, fx.WriteStates)
    assert (pending.writes[0].state.leader, pending.writes[0].state.isr) == (2, (2, 3))


def answer(pending, code):
    """Answer the request that carries *order* with one error code for each partition."""
    topics = [
        LeaderAndIsrTopicError(u.topic_id, [LeaderAndIsrPartitionError(u.partition, int(code))])
        for u in pending.partitions
    ]
    request = PendingLeaderAndIsr(pending.partitions, ())
    return event_for(request, LeaderAndIsrResponse(topics=topics), broker(pending.broker_id))


def order_to(broker_id, effects):
    (pending,) = [e for e in of_kind(effects, fx.SendLeaderAndIsr) if e.broker_id == broker_id]
    return pending


def test_a_replica_that_was_created_in_another_log_directory_is_online_again(machine):
    first = order_to(3, handle(machine, events.LogDirsFailed(frozenset({3}))))
    effects = handle(machine, answer(first, ErrorCode.KAFKA_STORAGE_ERROR))
    again = order_to(3, written(machine, effects, 11))
    assert again.partitions[0].offline_replicas == (3,)
    assert handle(machine, answer(again, ErrorCode.KAFKA_STORAGE_ERROR)) == [], "still offline"
    (sent,) = of_kind(handle(machine, answer(again, ErrorCode.NONE)), fx.SendUpdateMetadata)
    assert [u.offline_replicas for u in sent.partitions] == [()]
    assert machine.context.is_online(3, ("t", 0))


def test_a_replica_that_was_reported_offline_is_asked_again_if_its_state_stays(machine):
    out_of_isr = replace(machine.context.leader_and_isr["t", 0], isr=(1, 2), zk_version=11)
    handle(machine, events.IsrChanged({("t", 0): out_of_isr}))
    effects = handle(machine, events.LeaderAndIsrAcked(3, 1, frozenset({("t", 0)})))
    assert not of_kind(effects, fx.WriteStates)
    assert order_to(3, effects).partitions[0].offline_replicas == (3,)


def test_s08_a_replica_that_lacks_records_follows_though_its_leader_removed_it_from_the_isr(
    machine,
):
    now = replace(machine.context.leader_and_isr["t", 0], isr=(1, 2), zk_version=11)
    handle(machine, events.IsrChanged({("t", 0): now}))
    lacks = events.LeaderAndIsrAcked(3, 1, incomplete=frozenset({("t", 0)}))
    effects = handle(machine, lacks)
    assert not of_kind(effects, fx.WriteStates)
    assert order_to(3, effects).partitions[0].state.isr == (1, 2)


def test_a_deletion_goes_on_when_the_replica_is_online_again(machine):
    there = frozenset({("t", 0)})
    written(machine, handle(machine, events.LeaderAndIsrAcked(3, 1, there)), 11)
    effects = handle(machine, events.TopicDeletionRequested(frozenset({"t"})))
    assert 3 not in {stop.broker_id for stop in of_kind(effects, fx.SendStopReplica)}
    effects = handle(machine, events.LeaderAndIsrAcked(3, 1, online=there))
    (stop,) = of_kind(effects, fx.SendStopReplica)
    assert (stop.broker_id, [s.partition for s in stop.stops]) == (3, [("t", 0)])


def test_controlled_shutdown_answers_after_leadership_has_moved(machine):
    effects = handle(machine, events.ControlledShutdownRequested(1, 1))
    after = written(machine, effects, 11)
    assert not of_kind(effects + after, fx.AnswerControlledShutdown)
    assert of_kind(after, fx.SendLeaderAndIsr)
    after = handle(machine, next_step(after))
    assert of_kind(after, fx.AnswerControlledShutdown) == [
        fx.AnswerControlledShutdown(fx.ShutdownOutcome.MOVED)
    ]
    (stop,) = of_kind(after, fx.SendStopReplica)
    assert stop.broker_id == 1
    assert [s.delete for s in stop.stops] == [False]


def next_step(effects):
    """Return the event that *effects* ask for: the next step of a controlled shutdown."""
    (following,) = of_kind(effects, fx.ContinueControlledShutdown)
    return events.ControlledShutdownRequested(
        following.broker_id, following.broker_epoch, following.left
    )


def many_partitions(led, followed):
    """Return a controller with topic m: broker 1 follows the first partitions, and leads the others."""
    made, count = new_machine(partitions_per_step=STEP), led + followed
    states = {
        ("m", p): LeaderAndIsr(2 if p < followed else 1, 5, (1, 2, 3), 1, 10) for p in range(count)
    }
    named = topic("m", **{f"p{p}": [1, 2, 3] for p in range(count)})
    handle(made, events.BecameController(2, brokers(1, 2, 3), {"m": named}, states))
    return made


def test_a_controlled_shutdown_moves_so_many_led_partitions_at_a_time_and_then_the_followed_ones():
    led, followed = STEP + 1, STEP + 2
    machine = many_partitions(led, followed)
    steps, event = [], events.ControlledShutdownRequested(1, 1)
    while True:
        after = written(machine, handle(machine, event), 11)
        (sent,) = (each for each in of_kind(after, fx.SendLeaderAndIsr) if each.broker_id == 2)
        steps.append([update.partition for update in sent.partitions])
        answers = of_kind(after, fx.AnswerControlledShutdown)
        if answers:
            break
        event = next_step(after)
    assert steps == [[6, 7, 8, 9], [10], [0, 1, 2, 3, 4, 5]]
    assert answers == [fx.AnswerControlledShutdown(fx.ShutdownOutcome.MOVED)]


def test_the_last_step_of_a_controlled_shutdown_removes_the_broker_from_an_isr_that_it_rejoined():
    machine = many_partitions(1, 0)
    after = written(machine, handle(machine, events.ControlledShutdownRequested(1, 1)), 11)
    again = replace(
        machine.context.leader_and_isr["m", 0], isr=(1, 2, 3), isr_epochs=(), zk_version=12
    )
    machine.context.leader_and_isr["m", 0] = again
    effects = handle(machine, next_step(after))
    (pending,) = of_kind(effects, fx.WriteStates)
    assert pending.writes[0].state.isr == (2, 3)
    assert of_kind(written(machine, effects, 13), fx.AnswerControlledShutdown)


def test_a_topic_may_vanish_between_two_steps_of_a_controlled_shutdown():
    machine = many_partitions(STEP + 1, 1)
    after = written(machine, handle(machine, events.ControlledShutdownRequested(1, 1)), 11)
    handle(machine, events.TopicsChanged((), frozenset({"m"})))
    states = dict(machine.context.partition_states), dict(machine.context.replica_states)
    after = handle(machine, next_step(after))
    assert states == (machine.context.partition_states, machine.context.replica_states)
    after = handle(machine, next_step(after))
    (answer,) = of_kind(after, fx.AnswerControlledShutdown)
    assert answer.remaining == ()


def test_a_step_is_not_taken_for_the_next_registration_of_the_broker():
    machine = many_partitions(1, 0)
    after = written(machine, handle(machine, events.ControlledShutdownRequested(1, 1)), 11)
    restarted = {**brokers(2, 3), 1: broker(1, epoch=2)}
    effects = handle(machine, events.BrokersChanged(restarted))
    while of_kind(effects, fx.WriteStates):
        effects = written(machine, effects, 12)
    (answer,) = of_kind(handle(machine, next_step(after)), fx.AnswerControlledShutdown)
    assert answer.outcome is fx.ShutdownOutcome.STALE_BROKER_EPOCH


def shuts_down(machine, broker_id=3):
    """Have a broker leave partition 0 in order; return all effects."""
    effects = handle(machine, events.ControlledShutdownRequested(broker_id, 1))
    return effects + written(machine, effects, 11)


def test_s28_every_broker_is_sent_which_one_is_shutting_down(machine):
    (sent,) = of_kind(shuts_down(machine), fx.SendUpdateMetadata)
    assert {b.broker_id: b.is_shutting_down for b in sent.live_brokers} == {
        1: False,
        2: False,
        3: True,
    }


def test_s28_a_broker_that_is_about_to_go_leaves_an_isr_that_took_it_back(machine):
    shuts_down(machine)
    state = machine.context.leader_and_isr["t", 0]
    assert state.isr == (1, 2)
    again = replace(state, isr=(1, 2, 3), isr_epochs=(), zk_version=12)
    effects = handle(machine, events.IsrChanged({("t", 0): again}))
    (pending,) = of_kind(effects, fx.WriteStates)
    assert pending.writes[0].state.isr == (1, 2)


def test_s28_requests_still_reach_a_broker_that_is_shutting_down(machine):
    shuts_down(machine)
    leaderless = written(machine, handle(machine, events.BrokersChanged(brokers(1, 3))), 12)
    sent = written(machine, leaderless, 12)
    assert {effect.broker_id for effect in of_kind(sent, fx.SendLeaderAndIsr)} == {1, 3}


def test_partitions_with_one_replica_do_not_hold_a_shutdown_up(machine):
    effects = handle(machine, events.ControlledShutdownRequested(2, 1))
    after = written(machine, effects, 11)
    (answer,) = of_kind(after, fx.AnswerControlledShutdown)
    assert answer.remaining == ()
    assert machine.context.leader_and_isr["t", 1].leader == 2


def test_it_is_asked_whether_a_replica_out_of_the_isr_may_lead(machine):
    machine.context.leader_and_isr["t", 0] = LeaderAndIsr(1, 5, (1,), 1, 10)
    asked = handle(machine, events.BrokersChanged(brokers(2, 3)))
    assert of_kind(asked, fx.CheckUncleanElection) == [fx.CheckUncleanElection(("t",))]
    written(machine, asked, 11)
    assert machine.context.leader_and_isr["t", 0].leader == -1
    assert machine.context.leader_and_isr["t", 0].isr == (1,)


def test_unclean_election_brings_a_partition_back(machine):
    written(machine, handle(machine, events.BrokersChanged(brokers(2, 3))), 11)
    only_one = LeaderAndIsr(1, 6, (1,), 2, 12)
    machine.context.leader_and_isr["t", 0] = only_one
    effects = handle(machine, events.UncleanElectionEnabled("t"))
    (pending,) = of_kind(effects, fx.WriteStates)
    assert (pending.writes[0].state.leader, pending.writes[0].state.isr) == (2, (2,))


def test_the_tables_forbid_moves_that_make_no_sense(machine):
    with pytest.raises(InvalidStateChangeError):
        machine.context.move_partition(("t", 0), PartitionState.NEW)
    with pytest.raises(InvalidStateChangeError):
        machine.context.move_replica(("t", 0), 1, ReplicaState.DELETION_SUCCESSFUL)


def test_isr_changes_only_ever_go_forward(machine):
    older = LeaderAndIsr(1, 5, (1,), 1, 9)
    assert handle(machine, events.IsrChanged({("t", 0): older})) == []
    newer = LeaderAndIsr(1, 5, (1, 2), 1, 11)
    (effect,) = handle(machine, events.IsrChanged({("t", 0): newer}))
    assert effect.partitions[0].state == newer
