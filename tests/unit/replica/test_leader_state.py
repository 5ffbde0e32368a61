"""The ISR follows the followers, the high watermark the slowest of all that may be in it."""

from __future__ import annotations

from kbroker.replica.core.leader_state import (
    FoundState,
    HighWatermarkAdvanced,
    Leading,
    WriteIsr,
)
from kbroker.replica.core.remote_replicas import FollowersHeard

ALL = frozenset({1, 2, 3})


def leader(*isr: int, end: int = 10, mark: int = 0, min_isr: int = 1, epoch: int = 5) -> Leading:
    """Broker 1 leads replicas 1, 2, 3; the znode has version 7; lag is 10 seconds."""
    return Leading(
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


def test_a_leader_alone_commits_what_it_appends() -> None:
    leading = Leading(1, frozenset({1}), log_end_offset=4, high_watermark=2)
    assert leading.high_watermark == 4
    assert leading.log_end(9)
    assert leading.high_watermark == 9


def test_the_slowest_in_sync_replica_holds_the_watermark() -> None:
    leading = leader(mark=4)
    assert leading.follower_fetched(2, 8, 5, 0) == []
    assert leading.follower_fetched(3, 6, 5, 0) == [HighWatermarkAdvanced(6)]


def test_an_append_is_not_committed_before_the_followers_fetched_it() -> None:
    leading = leader(mark=10)
    assert not leading.log_end(20)
    assert leading.follower_fetched(2, 20, 5, 0) == []
    assert leading.follower_fetched(3, 20, 5, 0) == [HighWatermarkAdvanced(20)]


def test_it_does_not_advance_under_min_insync_replicas() -> None:
    leading = leader(1, end=0, min_isr=2)
    assert not leading.enough_in_sync
    assert not leading.log_end(5)
    assert leading.high_watermark == 0
    assert leading.require(1) == [HighWatermarkAdvanced(5)]
    assert leading.high_watermark == 5


def test_a_checkpoint_beyond_the_log_end_is_not_believed() -> None:
    assert leader(end=3, mark=9).high_watermark == 3


def test_a_follower_joins_when_it_has_what_is_committed_and_the_epoch_began() -> None:
    leading = leader(1, 2, end=10, mark=4)
    assert leading.follower_fetched(3, 5, 5, 0) == []  # the epoch began at 10
    assert leading.follower_fetched(3, 10, 5, 0) == [WriteIsr(ALL, 7)]


def test_from_when_it_is_to_join_it_holds_the_watermark() -> None:
    leading = leader(1, 2, end=10, mark=4)
    leading.follower_fetched(3, 10, 5, 0)
    leading.log_end(12)
    assert leading.follower_fetched(2, 12, 5, 0) == [HighWatermarkAdvanced(10)]
    assert leading.isr == {1, 2}
    assert leading.isr_written(8) == []
    assert leading.isr == ALL
    assert leading.follower_fetched(3, 12, 5, 1) == [HighWatermarkAdvanced(12)]


def test_one_that_is_to_leave_holds_the_watermark_until_it_has_left() -> None:
    leading = leader(mark=10)
    leading.log_end(20)
    for replica in (2, 3):
        leading.follower_fetched(replica, 10, 5, 0)
    leading.follower_fetched(2, 20, 5, 9)
    assert leading.time_passed(11) == [WriteIsr(frozenset({1, 2}), 7)]
    assert leading.high_watermark == 10
    assert leading.isr_written(8) == [HighWatermarkAdvanced(20)]


def test_a_fetch_of_another_leader_epoch_changes_nothing() -> None:
    leading = leader(1, 2)
    for epoch in (-1, 4, 6):
        assert leading.follower_fetched(3, 10, epoch, 0) == []
        assert leading.follower_fetched(2, 10, epoch, 0) == []
    assert (leading.high_watermark, leading.replica_end(2), leading.pending) == (0, -1, None)


def test_a_broker_that_is_no_replica_changes_nothing() -> None:
    assert leader().follower_fetched(9, 10, 5, 0) == []


def test_there_is_one_write_at_a_time() -> None:
    leading = leader(1)
    assert leading.follower_fetched(2, 10, 5, 0) == [WriteIsr(frozenset({1, 2}), 7)]
    assert leading.follower_fetched(3, 10, 5, 0) == []
    leading.isr_written(8)
    assert leading.follower_fetched(3, 10, 5, 0) == [WriteIsr(ALL, 8)]


def test_our_own_value_in_the_znode_means_the_write_was_applied() -> None:
    leading = leader(1)
    leading.follower_fetched(2, 10, 5, 0)
    leading.isr_found(FoundState(1, 5, frozenset({1, 2}), 8))
    assert (leading.isr, leading.zk_version, leading.pending) == ({1, 2}, 8, None)


def test_an_unchanged_version_means_it_was_not_and_it_is_written_again() -> None:
    leading = leader(1)
    leading.follower_fetched(2, 10, 5, 0)
    found = FoundState(1, 5, frozenset({1}), 7)
    assert leading.isr_found(found) == [WriteIsr(frozenset({1, 2}), 7)]
    assert leading.maximal_isr == {1, 2}


def test_a_newer_epoch_ends_the_writing_but_not_the_caution() -> None:
    leading = leader(1)
    leading.follower_fetched(2, 10, 5, 0)
    assert leading.isr_found(FoundState(2, 6, frozenset({2}), 9)) == []
    leading.log_end(30)
    assert leading.high_watermark <= 10
    assert leading.follower_fetched(3, 30, 5, 0) == []
    assert leading.time_passed(1000) == []


def test_a_follower_at_the_log_end_never_lags_however_long_it_is_silent() -> None:
    leading = leader(mark=10)
    for replica in (2, 3):
        leading.follower_fetched(replica, 10, 5, 0)
    assert leading.time_passed(1000) == []


def test_a_follower_that_reads_all_there_was_at_its_last_fetch_is_in_sync() -> None:
    leading = leader(1, 2, mark=10)
    for second in range(1, 40):
        leading.log_end(10 * second + 10)
        leading.follower_fetched(2, 10 * second, 5, second)
        assert leading.time_passed(second) == []


def test_a_follower_that_never_fetches_leaves() -> None:
    leading = leader(mark=10)
    assert leading.time_passed(10) == []
    assert leading.time_passed(10.5) == [WriteIsr(frozenset({1}), 7)]


def test_a_follower_that_caught_up_holds_the_watermark_while_its_turn_to_join_has_not_come() -> (
    None
):
    leading = leader(1, mark=10)
    leading.follower_fetched(2, 10, 5, 0)  # the one write there may be
    leading.follower_fetched(3, 10, 5, 0)
    leading.log_end(20)
    leading.follower_fetched(2, 20, 5, 1)
    leading.isr_written(8)
    assert leading.high_watermark == 10
    assert leading.follower_fetched(3, 15, 5, 1) == [
        WriteIsr(ALL, 8),
        HighWatermarkAdvanced(15),
    ]


def test_followers_are_known_over_the_next_epoch_but_not_over_a_gap() -> None:
    leading = leader(mark=10)
    leading.follower_fetched(2, 10, 5, 0)
    fields = {"replicas": ALL, "log_end_offset": 10, "high_watermark": 10, "previous": leading}
    assert Leading(1, ALL, leader_epoch=6, **fields).replica_end(2) == 10  # type: ignore[arg-type]
    assert Leading(1, ALL, leader_epoch=6, **fields).led_since_epoch == 5  # type: ignore[arg-type]
    assert Leading(1, ALL, leader_epoch=7, **fields).replica_end(2) == -1  # type: ignore[arg-type]


def known_leader(*isr: int, min_isr: int = 1, elr: dict[int, int] | None = None) -> Leading:
    """Like `leader`, with broker epochs 10, 20, 30."""
    return Leading(
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
    leading = known_leader(1, 2)
    (write,) = leading.follower_fetched(3, 10, 5, 0, 33)
    assert write == WriteIsr(ALL, 7, ((1, 10), (2, 20), (3, 33)))
    leading.isr_written(8)
    assert leading.epochs == {1: 10, 2: 20, 3: 33}


def test_s09_a_life_that_is_over_does_not_join_nor_hold_the_watermark() -> None:
    leading = known_leader(1, 2)
    assert leading.follower_fetched(3, 10, 5, 0, 29, may_join=False) == []
    leading.log_end(12)
    assert leading.follower_fetched(2, 12, 5, 0, 20) == [HighWatermarkAdvanced(12)]


def test_who_leaves_under_min_insync_replicas_is_eligible_and_nothing_is_committed_meanwhile() -> (
    None
):
    leading = known_leader(1, 2, min_isr=2)
    leading.log_end(12)
    leading.follower_fetched(2, 10, 5, 0, 20)
    (write,) = leading.time_passed(11)
    assert write == WriteIsr(frozenset({1}), 7, ((1, 10),), ((2, 20),))
    leading.isr_written(8)
    assert leading.elr == {2: 20}
    assert leading.require(1) == [WriteIsr(frozenset({1}), 8, ((1, 10),))]
    assert leading.high_watermark == 10  # ZooKeeper may still hold that broker 2 has everything
    assert leading.isr_written(9) == [HighWatermarkAdvanced(12)]


def test_a_new_leader_has_those_forgotten_who_are_eligible_before_it_commits_without_them() -> None:
    leading = known_leader(1, elr={2: 20})
    leading.log_end(12)
    assert leading.high_watermark == 10
    assert leading.begin() == [WriteIsr(frozenset({1}), 7, ((1, 10),))]
    assert leading.isr_written(8) == [HighWatermarkAdvanced(12)]


def test_s08_a_leader_ends_its_recovery_before_it_commits_anything() -> None:
    """KIP-704: the acceptance of a loss is for one election; in ZooKeeper it must not outlive a commit."""
    leading = Leading(
        1,
        frozenset({1}),
        replicas=frozenset({1, 2}),
        leader_epoch=5,
        zk_version=7,
        log_end_offset=4,
        high_watermark=2,
        epochs={1: 10},
        recovers=True,
    )
    leading.log_end(5)
    assert leading.high_watermark == 2
    assert leading.begin() == [WriteIsr(frozenset({1}), 7, ((1, 10),))]
    leading.log_end(6)
    assert leading.high_watermark == 2
    assert leading.isr_written(8) == [HighWatermarkAdvanced(6)]
    assert leading.begin() == []
    assert leading.log_end(7)


def test_s08_the_only_replica_ends_its_recovery_too() -> None:
    leading = Leading(1, frozenset({1}), log_end_offset=0, high_watermark=0, recovers=True)
    (write,) = leading.begin()
    assert not leading.log_end(1)
    # The answer was lost: the znode shows the write.
    assert leading.isr_found(FoundState(1, 0, frozenset({1}), write.zk_version + 1)) == [
        HighWatermarkAdvanced(1)
    ]
    assert leading.time_passed(1.0) == []


def test_the_isr_that_is_whole_again_forgets_who_was_eligible() -> None:
    leading = known_leader(1, min_isr=2, elr={2: 20})
    assert leading.begin() == []
    (write,) = leading.follower_fetched(2, 10, 5, 0, 21)
    assert write == WriteIsr(frozenset({1, 2}), 7, ((1, 10), (2, 21)))


def test_s05_what_was_found_brings_its_epochs() -> None:
    leading = known_leader(1, 2)
    leading.follower_fetched(3, 10, 5, 0, 33)
    found = FoundState(1, 5, frozenset({1, 3}), 9, ((1, 10), (3, 34)), ((2, 20),))
    leading.isr_found(found)
    assert (leading.isr, leading.epochs, leading.elr) == ({1, 3}, {1: 10, 3: 34}, {2: 20})


class Backing:
    """Broker 1 leads 2 and 3, and hears their fetches; a broker's silence counts from 3 seconds on."""

    def __init__(self, *isr: int) -> None:
        self.leading = leader(*(isr or (1, 2, 3)))
        self.heard = FollowersHeard(3.0)

    def fetch(self, replica: int, now: float, *, anew: bool = False, epoch: int = 5) -> None:
        self.heard.heard(replica, now, anew=anew)
        self.leading.follower_fetched(replica, 10, epoch, now)

    def backed(self, now: float) -> bool:
        return self.leading.is_backed(self.heard, now)


def test_s11_a_leader_is_backed_while_all_in_sync_replicas_follow_it() -> None:
    world = Backing()
    world.fetch(2, 1, anew=True)
    assert not world.backed(1)
    world.fetch(3, 1, anew=True)
    assert world.backed(4)
    world.heard.heard(2, 5, anew=False)  # a session in which this partition is idle
    assert not world.backed(5)
    world.heard.heard(3, 5, anew=False)
    assert world.backed(8)
    assert not world.backed(8.1)


def test_s11_who_follows_no_more_may_follow_another() -> None:
    world = Backing()
    for replica in (2, 3):
        world.fetch(replica, 1, anew=True)
    world.leading.unfollowed(2)
    assert not world.backed(1)
    world.fetch(2, 2)
    assert world.backed(2)
    world.heard.heard(
        2, 3, anew=True
    )  # another session, in which it does not ask for this partition
    assert not world.backed(3)


def test_s11_a_fetch_of_another_epoch_backs_nobody() -> None:
    world = Backing(1, 2)
    world.fetch(2, 1, anew=True, epoch=4)
    assert not world.backed(1)


def test_s11_alone_in_the_isr_a_leader_is_not_backed_and_the_only_replica_is() -> None:
    assert not Backing(1).backed(0)
    only = Leading(1, frozenset({1}), log_end_offset=4, high_watermark=2)
    assert only.is_backed(FollowersHeard(), 0)


def test_s11_what_followed_an_earlier_epoch_has_to_ask_again() -> None:
    world = Backing(1, 2)
    world.fetch(2, 1, anew=True)
    later = Leading(
        1, frozenset({1, 2}), log_end_offset=10, high_watermark=0, leader_epoch=6,
        previous=world.leading,
    )  # fmt: skip
    assert not later.is_backed(world.heard, 1)
