"""The ISR follows the followers, the high watermark the slowest of all that may be in it."""

from __future__ import annotations

from kbroker.replica.core.leader_state import (
    FoundState,
    HighWatermarkAdvanced,
    LeaderState,
    WriteIsr,
)
from kbroker.replica.core.remote_replicas import FollowerLiveness

ALL = frozenset({1, 2, 3})


def leader(
    *isr: int, end: int = 10, mark: int = 0, min_isr: int = 1, epoch: int = 5
) -> LeaderState:
    """Broker 1 leads replicas 1, 2, 3; the znode has version 7; lag is 10 seconds."""
    return LeaderState(
        1,
        frozenset(isr or ALL),
        replicas=ALL,
        leader_epoch=epoch,
        zk_version=7,
        log_end_offset=end,
        high_watermark=mark,
        min_insync_replicas=min_isr,
        lag_time_max=10,
    )


def follower_end(leader_state: LeaderState, replica: int) -> int:
    """The known log end of an in-sync follower; -1 before its first fetch."""
    return dict(leader_state.in_sync_followers())[replica].end


def test_a_leader_alone_commits_what_it_appends() -> None:
    leader_state = LeaderState(1, frozenset({1}), log_end_offset=4, high_watermark=2)
    assert leader_state.high_watermark == 4
    assert leader_state.log_end(9)
    assert leader_state.high_watermark == 9


def test_the_slowest_in_sync_replica_holds_the_watermark() -> None:
    leader_state = leader(mark=4)
    assert leader_state.follower_fetched(2, 8, 5, 0) == []
    assert leader_state.follower_fetched(3, 6, 5, 0) == [HighWatermarkAdvanced(6)]


def test_an_append_is_not_committed_before_the_followers_fetched_it() -> None:
    leader_state = leader(mark=10)
    assert not leader_state.log_end(20)
    assert leader_state.follower_fetched(2, 20, 5, 0) == []
    assert leader_state.follower_fetched(3, 20, 5, 0) == [HighWatermarkAdvanced(20)]


def test_it_does_not_advance_under_min_insync_replicas() -> None:
    leader_state = leader(1, end=0, min_isr=2)
    assert not leader_state.has_min_insync_replicas
    assert not leader_state.log_end(5)
    assert leader_state.high_watermark == 0
    assert leader_state.set_min_insync_replicas(1) == [HighWatermarkAdvanced(5)]
    assert leader_state.high_watermark == 5


def test_a_checkpoint_beyond_the_log_end_is_not_used() -> None:
    assert leader(end=3, mark=9).high_watermark == 3


def test_a_follower_joins_when_it_has_what_is_committed_and_the_epoch_began() -> None:
    leader_state = leader(1, 2, end=10, mark=4)
    assert leader_state.follower_fetched(3, 5, 5, 0) == []  # the epoch began at 10
    assert leader_state.follower_fetched(3, 10, 5, 0) == [WriteIsr(ALL, 7)]


def test_from_when_it_is_to_join_it_holds_the_watermark() -> None:
    leader_state = leader(1, 2, end=10, mark=4)
    leader_state.follower_fetched(3, 10, 5, 0)
    leader_state.log_end(12)
    assert leader_state.follower_fetched(2, 12, 5, 0) == [HighWatermarkAdvanced(10)]
    assert leader_state.isr == {1, 2}
    assert leader_state.isr_written(8) == []
    assert leader_state.isr == ALL
    assert leader_state.follower_fetched(3, 12, 5, 1) == [HighWatermarkAdvanced(12)]


def test_one_that_is_to_leave_holds_the_watermark_until_it_has_left() -> None:
    leader_state = leader(mark=10)
    leader_state.log_end(20)
    for replica in (2, 3):
        leader_state.follower_fetched(replica, 10, 5, 0)
    leader_state.follower_fetched(2, 20, 5, 9)
    assert leader_state.maybe_shrink_isr(11) == [WriteIsr(frozenset({1, 2}), 7)]
    assert leader_state.high_watermark == 10
    assert leader_state.isr_written(8) == [HighWatermarkAdvanced(20)]


def test_a_fetch_of_another_leader_epoch_changes_nothing() -> None:
    leader_state = leader(1, 2)
    for epoch in (-1, 4, 6):
        assert leader_state.follower_fetched(3, 10, epoch, 0) == []
        assert leader_state.follower_fetched(2, 10, epoch, 0) == []
    assert (leader_state.high_watermark, follower_end(leader_state, 2), leader_state.pending) == (
        0,
        -1,
        None,
    )


def test_a_broker_that_is_no_replica_changes_nothing() -> None:
    assert leader().follower_fetched(9, 10, 5, 0) == []


def test_there_is_one_write_at_a_time() -> None:
    leader_state = leader(1)
    assert leader_state.follower_fetched(2, 10, 5, 0) == [WriteIsr(frozenset({1, 2}), 7)]
    assert leader_state.follower_fetched(3, 10, 5, 0) == []
    leader_state.isr_written(8)
    assert leader_state.follower_fetched(3, 10, 5, 0) == [WriteIsr(ALL, 8)]


def test_our_own_value_in_the_znode_means_the_write_was_applied() -> None:
    leader_state = leader(1)
    leader_state.follower_fetched(2, 10, 5, 0)
    leader_state.isr_found(FoundState(1, 5, frozenset({1, 2}), 8))
    assert (leader_state.isr, leader_state.zk_version, leader_state.pending) == ({1, 2}, 8, None)


def test_an_unchanged_version_means_it_was_not_and_it_is_written_again() -> None:
    leader_state = leader(1)
    leader_state.follower_fetched(2, 10, 5, 0)
    found = FoundState(1, 5, frozenset({1}), 7)
    assert leader_state.isr_found(found) == [WriteIsr(frozenset({1, 2}), 7)]
    assert leader_state.maximal_isr == {1, 2}


def test_a_newer_epoch_ends_the_writing_but_not_the_caution() -> None:
    leader_state = leader(1)
    leader_state.follower_fetched(2, 10, 5, 0)
    assert leader_state.isr_found(FoundState(2, 6, frozenset({2}), 9)) == []
    leader_state.log_end(30)
    assert leader_state.high_watermark <= 10
    assert leader_state.follower_fetched(3, 30, 5, 0) == []
    assert leader_state.maybe_shrink_isr(1000) == []


def test_a_follower_at_the_log_end_never_lags_however_long_it_is_silent() -> None:
    leader_state = leader(mark=10)
    for replica in (2, 3):
        leader_state.follower_fetched(replica, 10, 5, 0)
    assert leader_state.maybe_shrink_isr(1000) == []


def test_a_follower_that_reads_all_there_was_at_its_last_fetch_is_in_sync() -> None:
    leader_state = leader(1, 2, mark=10)
    for second in range(1, 40):
        leader_state.log_end(10 * second + 10)
        leader_state.follower_fetched(2, 10 * second, 5, second)
        assert leader_state.maybe_shrink_isr(second) == []


def test_a_follower_that_never_fetches_leaves() -> None:
    leader_state = leader(mark=10)
    assert leader_state.maybe_shrink_isr(10) == []
    assert leader_state.maybe_shrink_isr(10.5) == [WriteIsr(frozenset({1}), 7)]


def test_a_follower_that_caught_up_holds_the_watermark_while_its_turn_to_join_has_not_come() -> (
    None
):
    leader_state = leader(1, mark=10)
    leader_state.follower_fetched(2, 10, 5, 0)  # the one write there may be
    leader_state.follower_fetched(3, 10, 5, 0)
    leader_state.log_end(20)
    leader_state.follower_fetched(2, 20, 5, 1)
    leader_state.isr_written(8)
    assert leader_state.high_watermark == 10
    assert leader_state.follower_fetched(3, 15, 5, 1) == [
        WriteIsr(ALL, 8),
        HighWatermarkAdvanced(15),
    ]


def test_followers_are_known_over_the_next_epoch_but_not_over_a_gap() -> None:
    leader_state = leader(mark=10)
    leader_state.follower_fetched(2, 10, 5, 0)
    fields = {"replicas": ALL, "log_end_offset": 10, "high_watermark": 10, "previous": leader_state}
    following = LeaderState(1, ALL, leader_epoch=6, **fields)  # type: ignore[arg-type]
    assert follower_end(following, 2) == 10
    assert following.led_since_epoch == 5
    later = LeaderState(1, ALL, leader_epoch=7, **fields)  # type: ignore[arg-type]
    assert follower_end(later, 2) == -1


def known_leader(*isr: int, min_isr: int = 1, elr: dict[int, int] | None = None) -> LeaderState:
    """Like `leader`, with broker epochs 10, 20, 30."""
    return LeaderState(
        1,
        frozenset(isr),
        replicas=ALL,
        leader_epoch=5,
        zk_version=7,
        log_end_offset=10,
        high_watermark=10,
        min_insync_replicas=min_isr,
        lag_time_max=10,
        epochs={replica: 10 * replica for replica in isr},
        elr=elr,
    )


def test_s09_a_follower_joins_under_the_broker_epoch_it_fetches_in() -> None:
    leader_state = known_leader(1, 2)
    (write,) = leader_state.follower_fetched(3, 10, 5, 0, 33)
    assert write == WriteIsr(ALL, 7, ((1, 10), (2, 20), (3, 33)))
    leader_state.isr_written(8)
    assert leader_state.epochs == {1: 10, 2: 20, 3: 33}


def test_s09_a_former_broker_epoch_does_not_join_nor_hold_the_watermark() -> None:
    leader_state = known_leader(1, 2)
    assert leader_state.follower_fetched(3, 10, 5, 0, 29, may_join=False) == []
    leader_state.log_end(12)
    assert leader_state.follower_fetched(2, 12, 5, 0, 20) == [HighWatermarkAdvanced(12)]


def test_a_replica_that_leaves_under_min_insync_replicas_is_eligible_and_nothing_is_committed_meanwhile() -> (
    None
):
    leader_state = known_leader(1, 2, min_isr=2)
    leader_state.log_end(12)
    leader_state.follower_fetched(2, 10, 5, 0, 20)
    (write,) = leader_state.maybe_shrink_isr(11)
    assert write == WriteIsr(frozenset({1}), 7, ((1, 10),), ((2, 20),))
    leader_state.isr_written(8)
    assert leader_state.elr == {2: 20}
    assert leader_state.set_min_insync_replicas(1) == [WriteIsr(frozenset({1}), 8, ((1, 10),))]
    assert (
        leader_state.high_watermark == 10
    )  # ZooKeeper may still hold that broker 2 has everything
    assert leader_state.isr_written(9) == [HighWatermarkAdvanced(12)]


def test_a_new_leader_removes_eligible_replicas_before_it_commits_without_them() -> None:
    leader_state = known_leader(1, elr={2: 20})
    leader_state.log_end(12)
    assert leader_state.high_watermark == 10
    assert leader_state.propose_again() == [WriteIsr(frozenset({1}), 7, ((1, 10),))]
    assert leader_state.isr_written(8) == [HighWatermarkAdvanced(12)]


def test_s08_a_leader_ends_its_recovery_before_it_commits_anything() -> None:
    """KIP-704: the acceptance of a loss is for one election; in ZooKeeper it must not outlive a commit."""
    leader_state = LeaderState(
        1,
        frozenset({1}),
        replicas=frozenset({1, 2}),
        leader_epoch=5,
        zk_version=7,
        log_end_offset=4,
        high_watermark=2,
        epochs={1: 10},
        is_recovering=True,
    )
    leader_state.log_end(5)
    assert leader_state.high_watermark == 2
    assert leader_state.propose_again() == [WriteIsr(frozenset({1}), 7, ((1, 10),))]
    leader_state.log_end(6)
    assert leader_state.high_watermark == 2
    assert leader_state.isr_written(8) == [HighWatermarkAdvanced(6)]
    assert leader_state.propose_again() == []
    assert leader_state.log_end(7)


def test_s08_the_only_replica_ends_its_recovery_too() -> None:
    leader_state = LeaderState(
        1, frozenset({1}), log_end_offset=0, high_watermark=0, is_recovering=True
    )
    (write,) = leader_state.propose_again()
    assert not leader_state.log_end(1)
    # The answer was lost: the znode shows the write.
    assert leader_state.isr_found(FoundState(1, 0, frozenset({1}), write.zk_version + 1)) == [
        HighWatermarkAdvanced(1)
    ]
    assert leader_state.maybe_shrink_isr(1.0) == []


def test_a_leader_of_an_unclean_election_commits_what_it_has_synced() -> None:
    """It was not in the ISR, and knew of a high watermark above what it had synced."""
    leader_state = LeaderState(
        1, frozenset({1}), log_end_offset=3, high_watermark=3, durable_end=1, is_recovering=True
    )
    assert leader_state.high_watermark == 1
    (write,) = leader_state.propose_again()
    assert leader_state.isr_written(write.zk_version + 1) == []
    assert leader_state.flushed(3) == [HighWatermarkAdvanced(3)]


def test_a_leader_of_an_unclean_election_has_its_high_watermark_at_its_log_start_offset() -> None:
    """Its recovery point was below it. Its followers refuse a leader that begins above its own high watermark."""
    leader_state = LeaderState(
        1,
        frozenset({1}),
        log_start_offset=4,
        log_end_offset=5,
        high_watermark=5,
        durable_end=0,
        is_recovering=True,
    )
    assert leader_state.high_watermark == 4


def test_a_member_of_the_isr_keeps_its_high_watermark_when_it_leads_again_after_a_restart() -> None:
    """What it reads above the recovery point waits for a sync, and was synced before it was committed."""
    leader_state = LeaderState(1, frozenset({1}), log_end_offset=3, high_watermark=3, durable_end=1)
    assert leader_state.high_watermark == 3


def test_the_write_of_a_whole_isr_removes_eligible_replicas() -> None:
    leader_state = known_leader(1, min_isr=2, elr={2: 20})
    assert leader_state.propose_again() == []
    (write,) = leader_state.follower_fetched(2, 10, 5, 0, 21)
    assert write == WriteIsr(frozenset({1, 2}), 7, ((1, 10), (2, 21)))


def test_s05_what_was_found_brings_its_epochs() -> None:
    leader_state = known_leader(1, 2)
    leader_state.follower_fetched(3, 10, 5, 0, 33)
    found = FoundState(1, 5, frozenset({1, 3}), 9, ((1, 10), (3, 34)), ((2, 20),))
    leader_state.isr_found(found)
    assert (leader_state.isr, leader_state.epochs, leader_state.elr) == (
        {1, 3},
        {1: 10, 3: 34},
        {2: 20},
    )


class Backing:
    """Broker 1 leads 2 and 3, and receives their fetches; a broker's timeout counts from 3 seconds on."""

    def __init__(self, *isr: int) -> None:
        self.leader_state = leader(*(isr or (1, 2, 3)))
        self.liveness = FollowerLiveness(3.0)

    def fetch(self, replica: int, now: float, *, is_full: bool = False, epoch: int = 5) -> None:
        self.liveness.fetch_received(replica, now, is_full=is_full)
        self.leader_state.follower_fetched(replica, 10, epoch, now)

    def backed(self, now: float) -> bool:
        return self.leader_state.is_backed(self.liveness, now)


def test_s11_a_leader_is_backed_while_all_in_sync_replicas_follow_it() -> None:
    world = Backing()
    world.fetch(2, 1, is_full=True)
    assert not world.backed(1)
    world.fetch(3, 1, is_full=True)
    assert world.backed(4)
    world.liveness.fetch_received(2, 5, is_full=False)  # a session in which this partition is idle
    assert not world.backed(5)
    world.liveness.fetch_received(3, 5, is_full=False)
    assert world.backed(8)
    assert not world.backed(8.1)


def test_s11_a_broker_that_stopped_following_may_follow_another_leader() -> None:
    world = Backing()
    for replica in (2, 3):
        world.fetch(replica, 1, is_full=True)
    world.leader_state.follower_left(2)
    assert not world.backed(1)
    world.fetch(2, 2)
    assert world.backed(2)
    world.liveness.fetch_received(
        2, 3, is_full=True
    )  # another session, in which it does not ask for this partition
    assert not world.backed(3)


def test_s11_a_fetch_in_another_epoch_backs_no_leader() -> None:
    world = Backing(1, 2)
    world.fetch(2, 1, is_full=True, epoch=4)
    assert not world.backed(1)


def test_s11_alone_in_the_isr_a_leader_is_not_backed_and_the_only_replica_is() -> None:
    assert not Backing(1).backed(0)
    only = LeaderState(1, frozenset({1}), log_end_offset=4, high_watermark=2)
    assert only.is_backed(FollowerLiveness(), 0)


def test_s11_what_followed_an_earlier_epoch_has_to_ask_again() -> None:
    world = Backing(1, 2)
    world.fetch(2, 1, is_full=True)
    later = LeaderState(
        1, frozenset({1, 2}), log_end_offset=10, high_watermark=0, leader_epoch=6,
        previous=world.leader_state,
    )  # fmt: skip
    assert not later.is_backed(world.liveness, 1)
