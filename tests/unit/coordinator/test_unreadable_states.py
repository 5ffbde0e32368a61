"""A partition of __consumer_offsets with a state znode that cannot be decoded: the groups of the others are served."""

from __future__ import annotations

from uuid import uuid4

from twisted.internet.defer import Deferred

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.shards import RETRY_LOADING
from kbroker.zk import znodes
from kclient.wire.error_codes import ErrorCode
from tests.kit.coordinators import error_of
from tests.stepped.coordinator import STATE, SteppedCoordinator


def test_the_groups_of_other_partitions_are_loaded_and_its_own_when_it_is_mended() -> None:
    coordinator = SteppedCoordinator()
    ensemble = coordinator.ensemble
    replicas = znodes.ReplicaAssignment((1,))
    two = znodes.encode_topic(znodes.TopicAssignment(uuid4(), {0: replicas, 1: replicas}))
    whole = ensemble.tree[STATE].data
    coordinator.write(znodes.topic_path(OFFSETS_TOPIC), two)
    ensemble.put(znodes.partition_state_path(OFFSETS_TOPIC, 1), whole)
    coordinator.write(STATE, b"{")
    coordinator.coordinator.on_resignation(0)
    for partition in (0, 1):
        coordinator.coordinator.on_election(partition, 0)
    coordinator.pass_time(3 * RETRY_LOADING)

    groups = {partition_for(f"g{n}", 2): f"g{n}" for n in range(20)}
    assert coordinator.done(coordinator.commit(("t", 0, 5), group=groups[1])) == [ErrorCode.NONE]
    refused = error_of(coordinator.coordinator.offsets(groups[0]))
    error = coordinator.done(Deferred.fromCoroutine(refused))
    assert error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    coordinator.write(STATE, whole)
    coordinator.pass_time(2 * RETRY_LOADING)
    assert coordinator.done(coordinator.commit(("t", 0, 5), group=groups[0])) == [ErrorCode.NONE]
