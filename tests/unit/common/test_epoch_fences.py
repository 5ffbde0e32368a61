"""Requests of a controller that arrive too late."""

from __future__ import annotations

import pytest

from kbroker.common.epoch_fences import ControllerFence, fences_broker
from kclient.wire.errors import (
    InvalidUpdateVersion,
    KafkaError,
    StaleBrokerEpoch,
    StaleControllerEpoch,
)
from kclient.wire.interbroker import StopReplicaRequest


def request(controller_epoch: int, broker_epoch: int, number: int) -> StopReplicaRequest:
    return StopReplicaRequest(
        controller_id=1,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        request_number=number,
    )


def test_a_stale_controller_epoch_is_refused() -> None:
    fence = ControllerFence()
    assert [fence.admits(epoch) for epoch in (3, 3, 4, 3)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("theirs", "ours", "fenced"),
    [(4, 5, True), (5, 5, False), (6, 5, False), (-1, 5, False), (5, -1, False)],
)
def test_only_an_earlier_broker_epoch_is_fenced(theirs: int, ours: int, fenced: bool) -> None:
    assert fences_broker(theirs, ours) is fenced


@pytest.mark.parametrize(
    ("late", "error"),
    [
        (request(4, 6, 9), StaleBrokerEpoch),
        (request(3, 7, 9), StaleControllerEpoch),
        (request(4, 7, 7), InvalidUpdateVersion),
    ],
)
def test_a_late_request_is_rejected_by_its_fence(
    late: StopReplicaRequest, error: type[KafkaError]
) -> None:
    fence = ControllerFence()
    fence.check(request(4, 7, 8), 7)
    with pytest.raises(error):
        fence.check(late, 7)


def test_a_repeated_request_passes_again() -> None:
    fence = ControllerFence()
    for _ in range(2):
        fence.check(request(4, 7, 8), 7)


def test_a_request_for_an_earlier_registration_raises_no_fence() -> None:
    fence = ControllerFence()
    with pytest.raises(StaleBrokerEpoch):
        fence.check(request(9, 6, 1), 7)
    fence.check(request(4, 7, 1), 7)


def test_without_its_number_only_the_epochs_of_a_request_count() -> None:
    fence = ControllerFence()
    fence.check(request(4, 7, 8), 7)
    fence.check(request(4, 7, 3), 7, check_number=False)
    with pytest.raises(StaleControllerEpoch):
        fence.check(request(3, 7, 9), 7, check_number=False)
