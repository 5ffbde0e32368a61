"""Requests of the controller with and without our extensions (inter.broker.protocol.version)."""

from uuid import UUID

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.controller.core.broker_request_queue import (
    PendingLeaderAndIsr,
    PendingStopReplica,
    PendingUpdateMetadata,
)
from kbroker.controller.core.context import Broker
from kbroker.controller.core.control_requests import request_for
from kbroker.controller.core.effects import PartitionUpdate, ReplicaStop
from kclient.wire.interbroker import StopReplicaRequest, UpdateMetadataRequest

BROKER = Broker(1, 7, (), is_shutting_down=True)


def update(partition=0):
    state = LeaderAndIsr(1, 3, (1, 2), 1, 4, isr_epochs=(7, 8), elr=((3, 9),))
    return PartitionUpdate("t", UUID(int=1), partition, state, (1, 2, 3))


def request(order, *, is_extended):
    return request_for(
        order,
        controller_id=1,
        controller_epoch=2,
        broker=BROKER,
        listener="PLAINTEXT",
        is_extended=is_extended,
    )[2]


def test_leader_and_isr_of_an_older_version_carries_no_broker_epochs():
    order = PendingLeaderAndIsr((update(),), (), 5)
    for is_extended, epochs, elr, number in ((True, [7, 8], [3], 5), (False, [], [], -1)):
        found = request(order, is_extended=is_extended)
        state = found.topic_states[0].partition_states[0]
        assert (state.isr_epochs, state.elr, found.request_number) == (epochs, elr, number)
        assert bool(state.elr_epochs) is is_extended
        assert (state.isr, state.leader, state.leader_epoch) == ([1, 2], 1, 3)


def test_of_an_older_version_update_metadata_keeps_its_parts_and_has_no_other_extension():
    order = PendingUpdateMetadata((update(),), (BROKER,), True, 3, True, 5)
    found = request(order, is_extended=True)
    assert (found.part, found.has_more, found.request_number) == (3, True, 5)
    assert (found.live_brokers[0].epoch, found.live_brokers[0].is_shutting_down) == (7, True)
    found = request(order, is_extended=False)
    assert (found.part, found.has_more, found.request_number) == (3, True, -1)
    assert (found.live_brokers[0].epoch, found.live_brokers[0].is_shutting_down) == (-1, False)
    plain = UpdateMetadataRequest(type=found.type).type
    assert found.type == plain == 2
    stop = request(PendingStopReplica((ReplicaStop(("t", 0), 1, True),), 5), is_extended=False)
    assert isinstance(stop, StopReplicaRequest)
    assert stop.request_number == -1
