"""What a busy core must not cause."""

from __future__ import annotations

from tests.chaos.busy_core import Placement, what_moved

BEFORE = Placement({1: (77, 5), 2: (78, 6)}, {"t-0": (1, 3)})


def test_all_is_as_it_was() -> None:
    assert what_moved(BEFORE, BEFORE) == []


def test_a_session_that_ended_and_a_leader_that_changed_are_reported() -> None:
    again = Placement({1: (79, 9)}, {"t-0": (1, 4)})
    found = [(one.rule, one.where) for one in what_moved(BEFORE, again)]
    assert found == [
        ("session-ended", "broker-1"),
        ("session-ended", "broker-2"),
        ("leader-moved", "t-0"),
    ]
