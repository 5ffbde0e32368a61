"""The proof that no other broker leads yet: the followers' fetches, and what they do not prove."""

from __future__ import annotations

from kbroker.replica.core.leader_state import FoundState, LeaderState
from kbroker.replica.core.remote_replicas import NEVER, FollowerLiveness


def leader(isr: set[int], replicas: set[int] | None = None, **changes: object) -> LeaderState:
    return LeaderState(
        1,
        frozenset(isr),
        log_end_offset=0,
        high_watermark=0,
        replicas=frozenset(replicas or isr),
        leader_epoch=5,
        **changes,  # type: ignore[arg-type]
    )


def followed(
    leader_state: LeaderState, liveness: FollowerLiveness, *brokers: int, at: float
) -> None:
    """Have *brokers* begin a session, in which they follow."""
    for broker in brokers:
        liveness.fetch_received(broker, at, is_full=True)
        leader_state.follower_fetched(broker, 0, 5, at)


def test_the_slowest_follower_decides() -> None:
    leader_state, liveness = leader({1, 2, 3}), FollowerLiveness()
    followed(leader_state, liveness, 2, 3, at=10.0)
    liveness.response_received(2, 10.5)
    assert leader_state.no_successor_at(liveness, 20.0) == NEVER
    liveness.response_received(3, 10.2)
    assert leader_state.no_successor_at(liveness, 20.0) == 10.2


def test_a_fetch_that_was_just_received_does_not_count_as_sent_now() -> None:
    """After a pause of this process: the fetch waited in a socket."""
    leader_state, liveness = leader({1, 2}), FollowerLiveness()
    followed(leader_state, liveness, 2, at=10.0)
    liveness.fetch_received(2, 19.0, is_full=False)
    liveness.response_received(2, 10.0)
    assert leader_state.is_backed(liveness, 19.0)
    assert leader_state.no_successor_at(liveness, 19.0) == 10.0


def test_a_new_session_proves_nothing_before_its_second_fetch() -> None:
    leader_state, liveness = leader({1, 2}), FollowerLiveness()
    followed(leader_state, liveness, 2, at=10.0)
    liveness.response_received(2, 10.5)
    followed(leader_state, liveness, 2, at=11.0)
    assert leader_state.no_successor_at(liveness, 11.0) == NEVER
    liveness.response_received(2, 11.0)
    assert leader_state.no_successor_at(liveness, 12.0) == 11.0


def test_a_session_that_does_not_name_the_partition_proves_nothing() -> None:
    leader_state, liveness = leader({1, 2}), FollowerLiveness()
    followed(leader_state, liveness, 2, at=10.0)
    liveness.fetch_received(2, 11.0, is_full=True)
    liveness.response_received(2, 11.0)
    assert leader_state.no_successor_at(liveness, 12.0) == NEVER


def test_a_follower_that_forgot_the_partition_may_lead_it() -> None:
    leader_state, liveness = leader({1, 2}), FollowerLiveness()
    followed(leader_state, liveness, 2, at=10.0)
    liveness.response_received(2, 10.5)
    leader_state.follower_left(2)
    assert leader_state.no_successor_at(liveness, 11.0) == NEVER


def test_the_only_replica_has_no_successor() -> None:
    assert leader({1}).no_successor_at(FollowerLiveness(), 7.0) == 7.0


def test_the_last_member_of_the_isr_may_have_a_successor() -> None:
    assert leader({1}, {1, 2}).no_successor_at(FollowerLiveness(), 7.0) == NEVER


def test_an_eligible_replica_may_succeed() -> None:
    leader_state, liveness = leader({1, 2}, {1, 2, 3}, elr={3: 9}), FollowerLiveness()
    followed(leader_state, liveness, 2, at=10.0)
    liveness.response_received(2, 10.5)
    assert leader_state.no_successor_at(liveness, 11.0) == NEVER


def test_a_joining_replica_counts_before_zookeeper_answered() -> None:
    leader_state, liveness = leader({1, 2}, {1, 2, 3}), FollowerLiveness()
    followed(leader_state, liveness, 2, 3, at=10.0)
    liveness.response_received(2, 10.5)
    assert leader_state.pending == {1, 2, 3}
    assert leader_state.no_successor_at(liveness, 11.0) == NEVER


def test_a_leader_that_knows_of_a_later_epoch_has_a_successor() -> None:
    leader_state, liveness = leader({1, 2}, {1, 2, 3}), FollowerLiveness()
    followed(leader_state, liveness, 2, 3, at=10.0)
    liveness.response_received(2, 10.5)
    liveness.response_received(3, 10.5)
    assert leader_state.no_successor_at(liveness, 11.0) == 10.5
    leader_state.isr_found(FoundState(2, 6, frozenset({2, 3}), 4))
    assert leader_state.no_successor_at(liveness, 11.0) == NEVER
