"""Commits of one partition are stored in the order of their requests, also while the group's offsets are read."""

from __future__ import annotations

from kclient.wire.error_codes import ErrorCode
from tests.stepped.coordinator import SteppedCoordinator


def test_the_first_commits_after_an_election_are_stored_in_order() -> None:
    coordinator = SteppedCoordinator()
    coordinator.done(coordinator.commit(("t", 0, 5)))
    coordinator.coordinator.on_resignation(0)
    coordinator.coordinator.on_election(0, 0)
    coordinator.run(lambda: coordinator.coordinator.listing()[1] is ErrorCode.NONE)
    committing = [coordinator.commit(("t", 0, offset)) for offset in (6, 7, 8)]
    assert [coordinator.done(each) for each in committing] == [[ErrorCode.NONE]] * 3
    assert coordinator.offsets() == {"t": {0: 8}}
    assert coordinator.ensemble.tree["/consumers/g/offsets/t/0"].data == b"8"


def test_the_metadata_of_a_refused_multi_is_written_again() -> None:
    coordinator = SteppedCoordinator()
    coordinator.done(coordinator.commit(("t", 0, 5), metadata="a"))
    committing = coordinator.commit(("t", 0, 6), metadata="b")
    coordinator.turn()
    coordinator.change_isr()  # the multi is refused: its check is of the former version
    assert coordinator.done(committing) == [ErrorCode.NONE]
    assert b'"b"' in coordinator.ensemble.tree["/consumers/g/offsets/t/0/detail"].data
