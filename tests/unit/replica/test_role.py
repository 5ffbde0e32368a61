"""Orders of the controller: which are taken, which are from the past."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.replica.core.role import PartitionRole, Role
from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import EPOCH_DURING_DELETE, NO_EPOCH, LeaderAndIsrPartitionState

A, B = UUID(int=1), UUID(int=2)


def state(
    leader: int = 1, leader_epoch: int = 5, replicas: tuple[int, ...] = (1, 2)
) -> LeaderAndIsrPartitionState:
    return LeaderAndIsrPartitionState(0, 3, leader, leader_epoch, list(replicas), 7, list(replicas))


def leader() -> PartitionRole:
    role = PartitionRole(1)
    assert role.check_leader_and_isr(state(), A) is ErrorCode.NONE
    role.take(state(), A)
    return role


def test_the_first_request_makes_a_leader_or_a_follower() -> None:
    role = leader()
    assert (role.current, role.leader_epoch, role.partition_epoch, role.isr) == (
        Role.LEADER,
        5,
        7,
        {1, 2},
    )
    role.take(state(leader=2, leader_epoch=6), A)
    assert role.current is Role.FOLLOWER


@pytest.mark.parametrize(
    ("order", "topic_id", "verdict"),
    [
        (state(leader_epoch=4), A, ErrorCode.STALE_CONTROLLER_EPOCH),
        (state(leader_epoch=5), A, ErrorCode.STALE_CONTROLLER_EPOCH),
        (state(leader_epoch=6), A, ErrorCode.NONE),
        (state(leader_epoch=6), None, ErrorCode.NONE),
        (state(leader_epoch=6), B, ErrorCode.INCONSISTENT_TOPIC_ID),
        (state(leader_epoch=6, replicas=(2, 3)), A, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_requests_are_judged_by_epoch_identity_and_assignment(
    order: LeaderAndIsrPartitionState, topic_id: UUID | None, verdict: ErrorCode
) -> None:
    assert leader().check_leader_and_isr(order, topic_id) is verdict


@pytest.mark.parametrize(
    ("epoch", "verdict"),
    [
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (9, ErrorCode.NONE),
        (NO_EPOCH, ErrorCode.NONE),
        (EPOCH_DURING_DELETE, ErrorCode.NONE),
    ],
)
def test_a_stop_of_an_older_epoch_is_fenced(epoch: int, verdict: ErrorCode) -> None:
    assert leader().check_stop_replica(epoch) is verdict
