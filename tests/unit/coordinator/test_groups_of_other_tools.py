"""Znodes of a group that other programs left: ZooKeeper-based consumers before Kafka 0.9, or an operator's shell."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from kclient.wire.error_codes import ErrorCode
from tests.stepped.coordinator import SteppedCoordinator


@pytest.mark.parametrize("left", ["ids", "owners", "offsets/t"])
def test_a_group_of_former_zookeeper_consumers_gets_members(left: str) -> None:
    coordinator = SteppedCoordinator()
    coordinator.ensemble.put(f"/consumers/g/{left}")
    coordinator.elect()
    joined = coordinator.done(coordinator.join("a"))
    assert (joined.error, joined.generation_id) == (ErrorCode.NONE, 1)
    assert list(coordinator.ensemble.tree["/consumers/g/ids"].children) == ["a-id"]
    assert "/consumers/g/state" in coordinator.ensemble.tree


def test_a_group_with_a_name_that_is_not_escaped_is_deleted_from_the_list() -> None:
    """The znodes of "a b" are below /consumers/a%20b, and there are none."""
    coordinator = SteppedCoordinator()
    coordinator.ensemble.put("/consumers/a b/offsets/t/0", b"5")
    coordinator.elect()
    assert [each.group_id for each in coordinator.coordinator.listing()[0]] == ["a b"]
    coordinator.done(Deferred.fromCoroutine(coordinator.coordinator.delete("a b")))
    assert coordinator.coordinator.listing() == ([], ErrorCode.NONE)
