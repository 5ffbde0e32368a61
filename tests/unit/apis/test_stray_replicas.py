"""Stray replicas, of a StopReplica that the broker missed: deleted when a full UpdateMetadata arrives."""

from __future__ import annotations

from collections.abc import Collection, Set
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred

from kbroker.apis.api06_update_metadata import UpdateMetadata
from kbroker.metadata.metadata_cache import FULL
from kclient.wire.errors import RequestTimedOut
from kclient.wire.interbroker import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.unit.apis.kit import ApiBroker, broker_in

A, B = UUID(int=0xA), UUID(int=0xB)


def follow(broker: ApiBroker, count: int, *, first: int = 0) -> None:
    """Have broker 1 follow broker 2 in epoch 0 of topic t."""
    states = [
        LeaderAndIsrPartitionState(p, 1, 2, 0, [1, 2], 0, [1, 2])
        for p in range(first, first + count)
    ]
    broker.become_leader_or_follower(
        LeaderAndIsrRequest(
            controller_epoch=1, topic_states=[LeaderAndIsrTopicState("t", A, states)]
        )
    )


def send_metadata(
    broker: ApiBroker,
    count: int,
    *,
    topic_id: UUID = A,
    leader: int = 2,
    leader_epoch: int = 1,
    replicas: tuple[int, ...] = (2, 3),
    controller_epoch: int = 1,
    broker_epoch: int = -1,
    kind: int = FULL,
    name: str = "t",
    deleted: Set[str] | Exception = frozenset(),
) -> Any:
    """Send an UpdateMetadata, a full one by default; return the Deferred of the response."""
    states = [
        UpdateMetadataPartitionState(
            p, controller_epoch, leader, leader_epoch, [2], 1, list(replicas)
        )
        for p in range(count)
    ]
    request = UpdateMetadataRequest(
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        type=kind,
        topic_states=[UpdateMetadataTopicState(name, topic_id, states)],
    )
    context: Any = None

    async def deleted_of(names: Collection[str]) -> set[str]:
        if isinstance(deleted, Exception):
            raise deleted
        return set(names) & deleted

    handler = UpdateMetadata(
        broker.cache, broker.replica_manager, lambda *_topics: None, deleted_of
    )
    return Deferred.fromCoroutine(handler(context, request))


def test_what_was_moved_to_others_is_deleted(broker: ApiBroker) -> None:
    follow(broker, 2)
    send_metadata(broker, 1)
    assert list(broker.replica_manager.log_manager) == [
        ("t", 1)
    ]  # the update does not have the other


@pytest.mark.parametrize(
    "state",
    [
        {"topic_id": B},
        {"leader": -1},
        {"replicas": (1, 2)},
        {"leader_epoch": -1},
    ],
    ids=["a namesake", "it has no leader", "it is ours", "an epoch before the last that we know"],
)
def test_what_may_still_be_needed_is_kept(broker: ApiBroker, state: dict[str, Any]) -> None:
    follow(broker, 1)
    states = [LeaderAndIsrPartitionState(0, 1, 2, 3, [1, 2], 0, [1, 2])]
    if state.get("leader_epoch") == -1:
        state = {"leader_epoch": 2}
        broker.become_leader_or_follower(
            LeaderAndIsrRequest(
                controller_epoch=1, topic_states=[LeaderAndIsrTopicState("t", A, states)]
            )
        )
    send_metadata(broker, 1, **state)
    assert list(broker.replica_manager.log_manager) == [("t", 0)]


@pytest.mark.parametrize("kind", [FULL, FULL - 1])
@pytest.mark.parametrize(
    "more", [{}, {"topic_id": B}, {"replicas": (1, 2)}, {"controller_epoch": 0}]
)
def test_what_was_moved_to_others_is_deleted_with_its_topic(
    broker: ApiBroker, kind: int, more: dict[str, Any]
) -> None:
    """The StopReplica of the move was never sent: the controller changed meanwhile. Nor is one of the deletion."""
    follow(broker, 1)
    deletion = {"leader": LEADER_DURING_DELETE, "leader_epoch": EPOCH_DURING_DELETE}
    send_metadata(broker, 1, kind=kind, **deletion, **more).addErrback(lambda _refused: None)
    kept = [("t", 0)] if more else []
    assert list(broker.replica_manager.log_manager) == kept
    assert list(broker.replica_manager.registry.partitions) == kept


@pytest.mark.parametrize(
    ("deleted", "hosted"),
    [({"t"}, []), (set(), [("t", 0)]), (RequestTimedOut("cut off"), [("t", 0)])],
    ids=["it has no znode", "its znode cannot be read", "ZooKeeper cannot be reached"],
)
def test_a_topic_that_no_controller_names_any_more_is_stopped_if_zookeeper_has_none(
    broker: ApiBroker, deleted: set[str] | Exception, hosted: list[tuple[str, int]]
) -> None:
    """A controller that could not reach this broker deleted the topic. The next controller does not know it."""
    follow(broker, 1)
    send_metadata(broker, 1, name="another", topic_id=B, controller_epoch=2, deleted=deleted)
    assert list(broker.replica_manager.registry.partitions) == hosted
    assert list(broker.replica_manager.log_manager) == [("t", 0)]  # the log stays


def test_of_thousands_some_are_deleted_in_every_turn(tmp_path: Path) -> None:
    with broker_in(tmp_path) as broker:
        follow(broker, 250)
        answer = send_metadata(broker, 250)
        assert len(broker.replica_manager.log_manager) == 150
        assert not answer.called
        for _ in range(3):
            broker.clock.advance(0)
        assert answer.called
        assert len(broker.replica_manager.log_manager) == 0


@pytest.fixture
def registered_again(broker: ApiBroker) -> ApiBroker:
    """One that followed 250 partitions before its last registration, 7."""
    broker.replica_manager.registered(6)
    follow(broker, 250)
    broker.replica_manager.registered(7)
    return broker


def test_of_thousands_that_are_not_confirmed_some_are_given_up_in_every_turn(
    registered_again: ApiBroker,
) -> None:
    replicas, hosted = registered_again.replica_manager, registered_again.replica_manager.registry
    answer = send_metadata(registered_again, 0, broker_epoch=7)
    assert (len(hosted.partitions), answer.called) == (150, False)
    follow(registered_again, 1, first=200)
    for _ in range(3):
        registered_again.clock.advance(0)
    assert answer.called
    assert list(hosted.partitions) == [("t", 200)]
    assert not hosted.unconfirmed
    assert len(replicas.log_manager) == 250


def test_a_later_registration_ends_the_giving_up_for_an_earlier_one(
    registered_again: ApiBroker,
) -> None:
    send_metadata(registered_again, 0, broker_epoch=7)
    registered_again.replica_manager.registered(8)
    for _ in range(3):
        registered_again.clock.advance(0)
    assert len(registered_again.replica_manager.registry.partitions) == 150


def test_metadata_for_another_registration_gives_up_nothing(
    registered_again: ApiBroker,
) -> None:
    send_metadata(registered_again, 0)
    assert len(registered_again.replica_manager.registry.partitions) == 250


def test_a_later_controller_ends_what_an_earlier_one_began(broker: ApiBroker) -> None:
    follow(broker, 250)
    send_metadata(broker, 250)
    send_metadata(broker, 0, controller_epoch=2)
    broker.become_leader_or_follower(LeaderAndIsrRequest(controller_epoch=2))
    for _ in range(3):
        broker.clock.advance(0)
    assert len(broker.replica_manager.log_manager) == 150


def test_s20_after_the_metadata_of_a_later_controller_requests_of_an_earlier_one_are_refused(
    broker: ApiBroker,
) -> None:
    """Else the replica that the request creates would stay for ever: no full update follows."""
    send_metadata(broker, 1, controller_epoch=2)
    follow(broker, 1)
    assert list(broker.replica_manager.log_manager) == []
