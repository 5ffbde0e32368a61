"""Leader election."""

from dataclasses import replace

import pytest

from kbroker.common.isr_epochs import VOID_EPOCH, before_void, is_void, void
from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.controller.core.context import LogEnd
from kbroker.controller.core.election import Candidates, elect, elect_first


def state(leader, *isr, epoch=4):
    return LeaderAndIsr(leader, epoch, isr, controller_epoch=1, zk_version=7)


def complete(alive):
    """Return candidates with all records that they ever had; those in *alive* are online."""
    return Candidates(
        set(alive).__contains__,
        epoch_of=lambda _replica: -1,
        holds=lambda _replica, _isr_epoch: True,
        is_empty=lambda _replica: False,
        is_incomplete=lambda _replica: False,
        end_after_power_loss=lambda _replica: None,
    )


def outcome(current, alive, *, replicas=(1, 2, 3), shutting_down=(), unclean=False):
    """(leader, isr) after the election, None if nothing changes."""
    wanted = elect(
        replicas,
        current,
        complete(alive),
        shutting_down=set(shutting_down),
        unclean=unclean,
        min_insync_replicas=1,
        controller_epoch=9,
    )
    if wanted is None:
        return None
    assert wanted.leader_epoch == current.leader_epoch + 1
    assert wanted.controller_epoch == 9
    return wanted.leader, wanted.isr


def test_a_new_partition_is_led_by_its_first_live_replica():
    assert elect_first((3, 1, 2), complete({1, 2}), 9) == LeaderAndIsr(1, 0, (1, 2), 9)


def test_a_new_partition_has_nothing_that_its_members_could_have_lost():
    lost_a_disk = replace(
        complete({1, 2}), epoch_of=lambda replica: 10 * replica, holds=lambda *_: False
    )
    assert elect_first([1, 2], lost_a_disk, 1).isr_epochs == (10, 20)


def test_a_new_partition_without_live_replicas_waits():
    assert elect_first((3, 1), complete({2}), 9) is None


def test_a_live_leader_stays_though_it_is_not_the_preferred_one():
    assert outcome(state(3, 3, 1), {1, 2, 3}) is None


def test_the_first_replica_in_assignment_order_that_is_in_the_isr_takes_over():
    assert outcome(state(1, 3, 2, 1), {2, 3}) == (2, (3, 2))


def test_a_live_replica_out_of_the_isr_is_not_elected():
    assert outcome(state(1, 1), {2, 3}) == (-1, (1,))


def test_the_isr_is_kept_when_no_member_is_alive():
    assert outcome(state(1, 1, 2), set()) == (-1, (1, 2))


def test_nothing_changes_while_no_member_of_the_isr_is_alive():
    assert outcome(state(-1, 1, 2), {3}) is None


def test_a_member_of_the_isr_that_comes_back_leads_alone():
    assert outcome(state(-1, 1, 2), {2, 3}) == (2, (2,))


def test_a_dead_follower_leaves_the_isr():
    assert outcome(state(1, 1, 2, 3), {1, 3}) == (1, (1, 3))


def test_unclean_election_takes_any_live_replica_alone():
    assert outcome(state(1, 1), {2, 3}, unclean=True) == (2, (2,))


def test_unclean_election_is_not_needed_while_a_member_of_the_isr_is_alive():
    assert outcome(state(1, 1, 3), {2, 3}, unclean=True) == (3, (3,))


def test_a_leader_that_shuts_down_hands_over():
    assert outcome(state(1, 1, 2), {1, 2, 3}, shutting_down={1}) == (2, (2,))


def test_a_leader_that_shuts_down_stays_when_no_other_replica_can_lead():
    assert outcome(state(1, 1), {1, 2, 3}, shutting_down={1}) is None
    assert outcome(state(1, 1, 2), {1, 2}, shutting_down={1, 2}) is None


def test_an_isr_member_that_is_no_replica_is_never_elected():
    assert outcome(state(9, 9, 2), {9, 2}, replicas=(1, 2)) == (2, (2,))


@pytest.mark.parametrize("leader", [1, 2, 3])
def test_each_leader_epoch_is_one_more(leader):
    others = {1, 2, 3} - {leader}
    assert outcome(state(leader, 1, 2, 3), others) == (min(others), tuple(sorted(others)))


class Brokers:
    """Live brokers: id -> (broker epoch, the epochs under which it kept everything, whether its log is empty)."""

    def __init__(self, **registrations):
        self.registrations = {
            int(name[1:]): registration for name, registration in registrations.items()
        }
        self.incomplete = set()
        self.ends = {}

    def candidates(self):
        return Candidates(
            self.registrations.__contains__,
            lambda r: self.registrations[r][0] if r in self.registrations else -1,
            lambda r, in_isr: r not in self.incomplete and (
                in_isr in (-1, self.registrations[r][0]) or in_isr in self.registrations[r][1]
            ),
            lambda r: not self.registrations[r][1],
            self.incomplete.__contains__,
            self.ends.get,
        )  # fmt: skip

    def elect(self, current, *, min_insync_replicas=1, unclean=False):
        return elect(
            (1, 2, 3),
            current,
            self.candidates(),
            shutting_down=set(),
            unclean=unclean,
            min_insync_replicas=min_insync_replicas,
            controller_epoch=9,
        )


KEPT, WIPED = range(10, 100), ()


def in_isr(leader, isr, epochs, elr=()):
    return LeaderAndIsr(leader, 4, isr, 1, 7, epochs, elr)


def test_s09_the_first_state_has_the_broker_epochs():
    first = elect_first((1, 2, 3), Brokers(b1=(10, KEPT), b3=(30, KEPT)).candidates(), 9)
    assert (first.isr, first.isr_epochs) == ((1, 3), (10, 30))


def test_s08_a_sole_member_that_kept_everything_leads_again_under_its_new_broker_epoch():
    after = Brokers(b1=(50, KEPT)).elect(in_isr(-1, (1,), (10,)))
    assert (after.leader, after.isr, after.isr_epochs) == (1, (1,), (50,))


def test_s08_a_sole_member_that_lost_its_disk_is_not_elected():
    brokers = Brokers(b1=(50, WIPED), b2=(20, KEPT))
    after = brokers.elect(in_isr(1, (1,), (10,)))
    assert (after.leader, after.isr, after.isr_epochs) == (-1, (1,), (10,))
    assert brokers.elect(after) is None
    # The old disk is back: an operator has nothing to decide.
    again = Brokers(b1=(60, KEPT), b2=(20, KEPT)).elect(after)
    assert (again.leader, again.isr_epochs) == (1, (60,))


def test_s08_a_disk_of_an_earlier_time_does_not_count():
    assert Brokers(b1=(50, range(10, 20))).elect(in_isr(1, (1,), (30,))).leader == -1


def test_s08_another_member_that_kept_everything_is_elected_instead():
    after = Brokers(b1=(50, WIPED), b2=(20, KEPT)).elect(in_isr(1, (1, 2), (10, 20)))
    assert (after.leader, after.isr, after.isr_epochs) == (2, (2,), (20,))


def test_s09_a_member_of_an_earlier_broker_epoch_leaves_the_isr_and_its_leader_goes_on():
    after = Brokers(b1=(10, KEPT), b2=(50, WIPED)).elect(in_isr(1, (1, 2), (10, 20)))
    assert (after.leader, after.isr, after.leader_epoch) == (1, (1,), 5)


def test_s09_a_leader_that_came_back_takes_a_new_leader_epoch():
    after = Brokers(b1=(50, KEPT)).elect(in_isr(1, (1,), (10,)))
    assert (after.leader, after.leader_epoch, after.isr_epochs) == (1, 5, (50,))


def test_s08_what_a_member_reported_itself_outlives_the_controller():
    brokers = Brokers(b1=(50, KEPT))
    brokers.incomplete = {1}
    after = brokers.elect(in_isr(1, (1,), (50,)))
    assert (after.leader, after.isr_epochs) == (-1, (void(50),))
    assert brokers.elect(after) is None
    brokers.incomplete = set()
    assert brokers.elect(after) is None, "only the log itself, found again, ends the wait"


@pytest.mark.parametrize("isr_epoch", [-1, 0, 1, 50, 2**62])
def test_a_void_broker_epoch_shows_which_one_it_was(isr_epoch):
    assert is_void(void(isr_epoch))
    assert not is_void(isr_epoch)
    assert void(void(isr_epoch)) == void(isr_epoch)
    assert before_void(void(isr_epoch)) == isr_epoch
    assert void(-1) == VOID_EPOCH


def test_s08_what_an_eligible_replica_reported_itself_outlives_the_controller():
    brokers = Brokers(b1=(50, KEPT), b2=(60, KEPT))
    brokers.incomplete = {2}
    led = in_isr(1, (1,), (50,), elr=((2, 20), (3, 30)))
    after = brokers.elect(led, min_insync_replicas=2)
    assert (after.leader, after.leader_epoch, after.elr) == (1, 5, ((3, 30),))
    assert brokers.elect(after, min_insync_replicas=2) is None
    leaderless = in_isr(-1, (1,), (10,), elr=((2, 20), (3, 30)))
    only = Brokers(b2=(60, KEPT))
    only.incomplete = {2}
    after = only.elect(leaderless, min_insync_replicas=2)
    assert (after.leader, after.elr) == (-1, ((2, void(20)), (3, 30)))
    assert only.elect(after, min_insync_replicas=2) is None
    only.incomplete = set()
    assert only.elect(after, min_insync_replicas=2) is None
    back = Brokers(b1=(50, KEPT)).elect(after, min_insync_replicas=2)
    assert (back.leader, back.elr) == (1, ((3, 30),))


def test_s17_after_an_outage_of_all_the_last_member_that_comes_back_ends_the_wait():
    brokers = Brokers(b1=(50, range(50, 51)), b2=(60, range(60, 61)))
    brokers.ends = {1: LogEnd(4, 3, 900), 2: LogEnd(4, 3, 950)}
    assert brokers.elect(in_isr(-1, (1, 2, 3), (10, 20, 30))) is None, "3 may have more"
    after = brokers.elect(in_isr(-1, (1, 2), (10, 20)))
    assert (after.leader, after.isr, after.isr_epochs) == (2, (2,), (60,))
    assert after.leader_recovery_state == 1
    brokers.ends[1] = LogEnd(4, 3, 950)
    assert brokers.elect(in_isr(-1, (1, 2), (10, 20))).leader == 1, "of equals the first"
    brokers.ends[1] = LogEnd(4, 2, 999)
    assert brokers.elect(in_isr(-1, (1, 2), (10, 20))).leader == 2, "epochs count before offsets"
    brokers.ends[1] = LogEnd(3, 3, 999)
    assert brokers.elect(in_isr(-1, (1, 2), (10, 20))) is None, (
        "it was reported before a leader was elected"
    )
    del brokers.ends[1]
    assert brokers.elect(in_isr(-1, (1, 2), (10, 20))) is None, "its log end is not known"


def test_s17_a_member_that_seemed_alone_for_a_moment_is_compared_with_all_others():
    """Three died together; ZooKeeper held one for alive a little longer, and so the ISR was shrunk to it."""
    brokers = Brokers(b1=(50, range(50, 51)), b2=(60, range(60, 61)), b3=(70, range(70, 71)))
    brokers.ends = {1: LogEnd(4, 3, 900), 2: LogEnd(4, 3, 950)}
    assert brokers.elect(in_isr(-1, (1,), (10,))) is None
    brokers.ends[3] = LogEnd(4, 3, 940)
    assert brokers.elect(in_isr(-1, (1,), (10,))).leader == 2


def test_s08_a_last_replica_that_lost_power_waits_though_it_is_all_there_is_in_the_isr():
    brokers = Brokers(b1=(50, range(50, 51)), b2=(20, KEPT))
    brokers.ends = {1: LogEnd(4, 3, 900)}
    assert brokers.elect(in_isr(-1, (1,), (10,))) is None


def test_without_broker_epochs_in_the_state_every_replica_is_trusted():
    assert Brokers(b1=(50, WIPED)).elect(in_isr(1, (1,), ())) is None


def test_a_replica_that_leaves_under_min_insync_replicas_is_eligible():
    after = Brokers(b1=(10, KEPT)).elect(in_isr(1, (1, 2), (10, 20)), min_insync_replicas=2)
    assert (after.isr, after.elr) == ((1,), ((2, 20),))
    after = Brokers(b1=(10, KEPT)).elect(in_isr(1, (1, 2), (10, 20)), min_insync_replicas=1)
    assert (after.isr, after.elr) == ((1,), ())


def test_an_eligible_replica_leads_when_no_member_can():
    state = in_isr(1, (1,), (10,), elr=((2, 20), (3, 30)))
    after = Brokers(b3=(30, KEPT)).elect(state, min_insync_replicas=2)
    assert (after.leader, after.isr, after.isr_epochs) == (3, (3,), (30,))
    assert after.elr == ((1, 10), (2, 20))  # the former leader has all that is committed, too
    assert after.leader_recovery_state == 0
    wiped = Brokers(b3=(50, WIPED)).elect(state, min_insync_replicas=2)
    assert (wiped.leader, wiped.isr, wiped.elr) == (-1, (1,), state.elr)


def test_an_isr_that_is_large_enough_makes_no_other_replica_eligible():
    state = in_isr(1, (1,), (10,), elr=((2, 20),))
    grown = replace(state, isr=(1, 3), isr_epochs=(10, 30))
    after = Brokers(b1=(10, KEPT)).elect(grown, min_insync_replicas=1)
    assert after.elr == ()


def test_an_unclean_election_prefers_former_members_and_emptied_replicas_last():
    lost_power = Brokers(b1=(50, range(50, 51)), b2=(20, KEPT))
    after = lost_power.elect(in_isr(-1, (1,), (10,)), unclean=True)
    assert (after.leader, after.isr_epochs, after.leader_recovery_state) == (1, (50,), 1)
    wiped = Brokers(b1=(50, WIPED), b2=(20, KEPT))
    after = wiped.elect(in_isr(-1, (1,), (10,), elr=((3, 30),)), unclean=True)
    assert (after.leader, after.isr, after.isr_epochs, after.elr) == (2, (2,), (20,), ())
    assert Brokers(b1=(50, WIPED)).elect(in_isr(-1, (1,), (10,)), unclean=True).leader == 1


def test_the_longest_log_after_a_power_loss_does_not_lead_from_a_directory_that_failed_since():
    """Nor does the other one lead: it may have less. The ISR stays, for the directory may be back."""
    everyone = {1, 2}

    def wanted(online):
        return elect(
            (1, 2),
            replace(state(-1, 1, 2), isr_epochs=(10, 20)),
            replace(
                complete(online),
                holds=lambda *_: False,
                end_after_power_loss=lambda replica: LogEnd(4, 3, {1: 100, 2: 50}[replica]),
            ),
            shutting_down=set(),
            unclean=False,
            min_insync_replicas=1,
            controller_epoch=9,
        )

    assert wanted({2}) is None
    found = wanted(everyone)
    assert (found.leader, found.isr) == (1, (1,))
