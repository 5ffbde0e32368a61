"""Requests for the present registration, or for one that this broker does not know yet, are applied."""

from __future__ import annotations

from kbroker.metadata.broker_epoch import Registration


def test_orders_for_an_earlier_life_are_refused() -> None:
    ours = Registration()
    assert ours.lowest_accepted == -1  # nothing is known yet: the controller may know before we do
    ours.registered(7)
    assert ours.lowest_accepted == 7


def test_when_the_session_is_over_only_orders_for_the_next_life_count() -> None:
    ours = Registration()
    ours.registered(7)
    ours.is_expired = True
    assert ours.lowest_accepted == 8
    ours.registered(8)
    assert ours.lowest_accepted == 8


def test_the_first_registration_and_the_same_one_again_are_no_other_life() -> None:
    ours = Registration()
    assert [ours.registered(epoch) for epoch in (7, 7, 9)] == [False, False, True]


def test_an_order_may_know_of_a_registration_before_we_do() -> None:
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


def test_another_registration_ends_the_doubt_about_the_session() -> None:
    ours = Registration()
    ours.registered(7)
    ours.is_cut_off = True
    ours.registered(7)
    assert not ours.is_cut_off
