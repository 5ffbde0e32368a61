"""Requests of a controller that arrive too late."""

from __future__ import annotations

import pytest

from kbroker.metadata.epoch_fences import ControllerFence, Registration, fences_broker
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


# -- the registration of this broker --------------------------------------------------------------


def test_requests_for_an_earlier_broker_epoch_are_refused() -> None:
    ours = Registration()
    assert ours.lowest_accepted == -1  # nothing is known yet: the controller may know before we do
    ours.registered(7)
    assert ours.lowest_accepted == 7


def test_when_the_session_is_over_only_requests_for_the_next_broker_epoch_count() -> None:
    ours = Registration()
    ours.registered(7)
    ours.is_expired = True
    assert ours.lowest_accepted == 8
    ours.registered(8)
    assert ours.lowest_accepted == 8


def test_the_first_registration_and_the_same_one_again_are_no_new_broker_epoch() -> None:
    ours = Registration()
    assert [ours.registered(epoch) for epoch in (7, 7, 9)] == [False, False, True]


def test_a_request_may_have_the_epoch_of_a_registration_before_the_broker_knows_it() -> None:
    ours = Registration()
    assert not ours.is_behind(7)  # before the first one there is nothing to be taken from us
    ours.registered(7)
    assert [ours.is_behind(epoch) for epoch in (-1, 7, 8)] == [False, False, True]


def test_a_broker_that_shuts_down_joins_no_isr() -> None:
    ours = Registration()
    ours.registered(7)
    assert ours.epoch_to_join_by == 7
    ours.is_leaving = True
    assert ours.epoch_to_join_by == -1
    ours.is_leaving, ours.is_expired = False, True
    assert ours.epoch_to_join_by == -1


def test_the_first_registration_resumes_those_that_wait_for_it_when_it_is_in_force() -> None:
    ours = Registration()
    found: list[int] = []
    ours.known().addCallback(lambda _: found.append(ours.lowest_accepted))
    assert found == []
    ours.registered(7)
    assert found == [7]
    ours.is_expired = True
    assert ours.known().called  # the end of the session does not change that


def test_another_registration_ends_the_uncertainty_about_the_session() -> None:
    ours = Registration()
    ours.registered(7)
    ours.is_cut_off = True
    ours.registered(7)
    assert not ours.is_cut_off
