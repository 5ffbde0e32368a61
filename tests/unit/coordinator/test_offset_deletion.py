"""OffsetDelete: an offset is gone once its deletion is acknowledged, also if its group is read again meanwhile."""

from __future__ import annotations

import pytest

from kclient.wire.error_codes import ErrorCode
from tests.stepped.coordinator import SteppedCoordinator


@pytest.fixture
def coordinator() -> SteppedCoordinator:
    return SteppedCoordinator()


def test_an_offset_without_its_detail_is_deleted(coordinator: SteppedCoordinator) -> None:
    coordinator.done(coordinator.commit(("t", 0, 5), ("u", 0, 6), metadata="m"))
    coordinator.ensemble.remove("/consumers/g/offsets/t/0/detail")
    assert coordinator.done(coordinator.delete_offsets(("t", 0))) == [ErrorCode.NONE]
    assert "/consumers/g/offsets/t/0" not in coordinator.ensemble.tree
    assert coordinator.offsets() == {"t": {}, "u": {0: 6}}


def test_a_group_without_members_goes_with_its_last_offset(coordinator: SteppedCoordinator) -> None:
    coordinator.done(coordinator.commit(("t", 0, 5), ("t", 1, 6)))
    assert coordinator.done(coordinator.delete_offsets(("t", 0))) == [ErrorCode.NONE]
    assert "/consumers/g" in coordinator.ensemble.tree
    assert coordinator.done(coordinator.delete_offsets(("t", 1))) == [ErrorCode.NONE]
    assert "/consumers/g" not in coordinator.ensemble.tree


def test_a_deletion_that_meets_a_read_of_the_offsets_is_not_forgotten(
    coordinator: SteppedCoordinator,
) -> None:
    of_t = [("t", partition) for partition in range(20)]
    others = [(topic, 0, 1) for topic in "uvwxyz"]
    coordinator.done(coordinator.commit(*[(*tp, 5) for tp in of_t], *others))
    deleting = coordinator.delete_offsets(*of_t)
    coordinator.run(lambda: "/consumers/g/offsets/t/3" not in coordinator.ensemble.tree)
    coordinator.change_isr()  # the next check fails, and what was to be created is read again
    committing = coordinator.commit(("new", 0, 1))
    assert coordinator.done(deleting) == [ErrorCode.NONE] * 20
    assert coordinator.done(committing) == [ErrorCode.NONE]
    assert coordinator.offsets().get("t", {}) == {}


SUBSCRIPTION = b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(SUBSCRIPTION, id="a subscription"),
        pytest.param(b"not a subscription", id="other bytes"),
        pytest.param(b"", id="no bytes"),
    ],
)
def test_offsets_of_a_member_in_its_first_rebalance_stay(metadata: bytes) -> None:
    coordinator = SteppedCoordinator(initial_rebalance_delay=3.0)
    coordinator.done(coordinator.commit(("t", 0, 5)))
    joining = coordinator.join("a", protocols=(("range", metadata),))
    coordinator.turn()
    deleting = coordinator.delete_offsets(("t", 0))
    assert coordinator.done(deleting) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert not joining.called
    assert coordinator.offsets() == {"t": {0: 5}}
