"""Offsets that are committed in a transaction: pending until its marker, then visible all or none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.coordinator.group.core.effects import Sync
from kclient.wire.error_codes import ErrorCode
from tests.stepped.coordinator import STATE
from tests.stepped.transactional_coordinator import NUMBER, TransactionalCoordinator

OK = [ErrorCode.NONE]
E = ErrorCode


@pytest.fixture
def coordinator() -> TransactionalCoordinator:
    return TransactionalCoordinator()


def test_a_commit_is_invisible_until_its_marker(coordinator: TransactionalCoordinator) -> None:
    assert coordinator.done(coordinator.commit(("t", 0, 1))) == OK
    assert coordinator.done(coordinator.txn_commit(("t", 0, 5), ("u", 2, 6))) == OK * 2
    assert coordinator.asked == [("x", 5, 0, ("__consumer_offsets", 0))]
    assert coordinator.offsets() == {"t": {0: 1}}
    assert coordinator.unstable(("t", 0), ("u", 2), ("t", 1)) == {("t", 0), ("u", 2)}
    assert coordinator.pending_znodes() == ["5,g"]
    assert coordinator.done(coordinator.marker(is_commit=True)) is E.NONE
    assert coordinator.offsets() == {"t": {0: 5}, "u": {2: 6}}
    assert coordinator.unstable(("t", 0), ("u", 2)) == set()
    assert coordinator.pending_znodes() == []


def test_a_fetch_that_takes_several_turns_has_a_transaction_whole(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.done(coordinator.commit(("t", 0, 1), ("t", 1, 1)))
    fetching = Deferred.fromCoroutine(coordinator.coordinator.offsets_and_pending("g"))
    offsets, pending = coordinator.done(fetching)
    coordinator.done(coordinator.txn_commit(("t", 0, 5), ("t", 1, 5)))
    coordinator.done(coordinator.marker(is_commit=True))
    assert [(p, committed.offset) for _, p, committed in offsets] == [(0, 1), (1, 1)]
    assert ("t", 0) not in pending


def test_an_abort_changes_nothing(coordinator: TransactionalCoordinator) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    assert coordinator.done(coordinator.marker(is_commit=False)) is E.NONE
    assert coordinator.offsets() == {}
    assert coordinator.unstable(("t", 0)) == set()
    assert coordinator.pending_znodes() == []


def test_a_later_commit_of_the_transaction_adds_to_it(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5), ("t", 1, 5)))
    coordinator.done(coordinator.txn_commit(("t", 1, 6), metadata="m"))
    coordinator.elect()
    coordinator.done(coordinator.marker(is_commit=True))
    assert coordinator.offsets() == {"t": {0: 5, 1: 6}}


def test_a_partition_is_unstable_until_zookeeper_has_acknowledged_the_end(
    coordinator: TransactionalCoordinator,
) -> None:
    committing = coordinator.txn_commit(("t", 0, 5))
    coordinator.turn()
    assert coordinator.unstable(("t", 0)) == {("t", 0)}
    assert coordinator.done(committing) == OK
    pending = coordinator.coordinator._shards.partitions[0].pending
    ending = coordinator.marker(is_commit=True)
    coordinator.turn()
    coordinator.turn()
    assert ("t", 0) in pending.unstable("g")
    assert coordinator.done(ending) is E.NONE
    assert ("t", 0) not in pending.unstable("g")


def test_a_failover_keeps_what_is_pending(coordinator: TransactionalCoordinator) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.done(coordinator.txn_commit(("t", 1, 6), group="h,1", producer_id=8))
    coordinator.elect()
    assert coordinator.unstable(("t", 0), ("t", 1)) == {("t", 0)}
    assert coordinator.unstable(("t", 0), ("t", 1), group="h,1") == {("t", 1)}
    assert coordinator.done(coordinator.marker(is_commit=True)) is E.NONE
    assert coordinator.done(coordinator.marker(is_commit=True, producer_id=8)) is E.NONE
    assert coordinator.offsets() == {"t": {0: 5}}
    assert coordinator.offsets("h,1") == {"t": {1: 6}}


def test_a_marker_ends_all_groups_of_its_producer(coordinator: TransactionalCoordinator) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.done(coordinator.txn_commit(("t", 0, 6), group="h"))
    coordinator.done(coordinator.txn_commit(("t", 0, 7), group="i", producer_id=9))
    coordinator.done(coordinator.marker(is_commit=True, number=None))
    assert coordinator.offsets() == {"t": {0: 5}}
    assert coordinator.offsets("h") == {"t": {0: 6}}
    assert coordinator.pending_znodes() == ["9,i"]


def test_a_late_marker_changes_nothing(coordinator: TransactionalCoordinator) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    assert coordinator.done(coordinator.marker(is_commit=True, number=NUMBER - 1)) is E.NONE
    assert coordinator.pending_znodes() == ["5,g"]
    fenced = coordinator.marker(is_commit=True, number=None, epoch=-1)
    assert coordinator.done(fenced) is E.INVALID_PRODUCER_EPOCH
    assert coordinator.pending_znodes() == ["5,g"]


@pytest.mark.parametrize("epoch", [2, 4, (1 << 15) - 1])
def test_an_abort_of_a_client_drops_only_what_is_pending_in_its_epoch(
    coordinator: TransactionalCoordinator, epoch: int
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5), epoch=3))
    of_client = {"is_commit": False, "number": None, "sent_by_client": True}
    refused = coordinator.marker(epoch=epoch, **of_client)
    assert coordinator.done(refused) is E.INVALID_PRODUCER_EPOCH
    assert coordinator.pending_znodes() == ["5,g"]
    assert coordinator.done(coordinator.marker(epoch=3, **of_client)) is E.NONE
    assert coordinator.pending_znodes() == []


def test_an_abort_of_a_client_invalidates_no_verification(
    coordinator: TransactionalCoordinator,
) -> None:
    """Sent again and again it kept a producer from committing offsets."""
    coordinator.verifications = []
    committing = coordinator.txn_commit(("t", 0, 5))
    aborting = coordinator.marker(is_commit=False, number=None, sent_by_client=True)
    assert coordinator.done(aborting) is E.NONE
    coordinator.verifications[0].callback((E.NONE, NUMBER))
    assert coordinator.done(committing) == OK


def test_an_older_epoch_is_fenced_and_a_newer_transaction_replaces(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5), epoch=3))
    older = coordinator.txn_commit(("t", 0, 6), epoch=2)
    assert coordinator.done(older) == [E.INVALID_PRODUCER_EPOCH]
    coordinator.verified = E.NONE, NUMBER + 1
    assert coordinator.done(coordinator.txn_commit(("t", 1, 7), epoch=3)) == OK
    coordinator.done(coordinator.marker(is_commit=True, epoch=3, number=NUMBER + 1))
    assert coordinator.offsets() == {"t": {1: 7}}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE),
        (E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH),
        (E.NETWORK_EXCEPTION, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_a_commit_that_is_not_verified_writes_nothing(
    coordinator: TransactionalCoordinator, answer: ErrorCode, error: ErrorCode
) -> None:
    coordinator.verified = answer, -1
    assert coordinator.done(coordinator.txn_commit(("t", 0, 5))) == [error]
    assert coordinator.pending_znodes() == []
    assert coordinator.coordinator.listing() == ([], E.NONE)


def test_a_verification_counts_only_until_a_marker_arrives(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.verifications = []
    committing = coordinator.txn_commit(("t", 0, 5))
    assert coordinator.done(coordinator.marker(is_commit=False)) is E.NONE
    # Also if the next transaction is open by now: the offsets may be of the former one.
    coordinator.verifications[0].callback((E.NONE, NUMBER + 1))
    assert coordinator.done(committing) == [E.COORDINATOR_LOAD_IN_PROGRESS]
    assert coordinator.pending_znodes() == []


def test_a_marker_of_another_producer_leaves_a_verification(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.verifications = []
    committing = coordinator.txn_commit(("t", 0, 5))
    coordinator.done(coordinator.marker(is_commit=False, producer_id=6))
    coordinator.verifications[0].callback((E.NONE, NUMBER))
    assert coordinator.done(committing) == OK


def test_a_verification_of_an_earlier_election_does_not_count(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.verifications = []
    committing = coordinator.txn_commit(("t", 0, 5))
    coordinator.elect()
    coordinator.verifications[0].callback((E.NONE, NUMBER))
    assert coordinator.done(committing) == [E.NOT_COORDINATOR]
    assert coordinator.pending_znodes() == []


def test_a_commit_is_not_written_behind_a_marker(
    coordinator: TransactionalCoordinator,
) -> None:
    committing = coordinator.txn_commit(("t", 0, 5))
    coordinator.turn()
    coordinator.change_isr()  # the write is refused, and must not be made again behind the marker
    ending = coordinator.marker(is_commit=False)
    assert coordinator.done(ending) is E.NONE
    assert coordinator.done(committing) == [E.COORDINATOR_LOAD_IN_PROGRESS]
    assert coordinator.pending_znodes() == []


def test_a_change_of_the_isr_delays_a_write(coordinator: TransactionalCoordinator) -> None:
    coordinator.change_isr()
    assert coordinator.done(coordinator.txn_commit(("t", 0, 5))) == OK
    coordinator.change_isr()
    assert coordinator.done(coordinator.marker(is_commit=True)) is E.NONE
    assert coordinator.offsets() == {"t": {0: 5}}


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_with_an_unknown_outcome_is_sent_again(
    coordinator: TransactionalCoordinator, is_commit: bool
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.connections[-1].lose_next_reply = True
    lost = coordinator.done(coordinator.marker(is_commit=is_commit))
    assert lost is E.NOT_LEADER_OR_FOLLOWER
    coordinator.pass_time(1)
    assert coordinator.done(coordinator.marker(is_commit=is_commit)) is E.NONE
    assert coordinator.offsets() == ({"t": {0: 5}} if is_commit else {})
    assert coordinator.unstable(("t", 0)) == set()


def test_offsets_that_a_marker_has_set_are_known_before_its_answer(
    coordinator: TransactionalCoordinator,
) -> None:
    """ZooKeeper is not asked for offsets while it is down: those in memory have to be those that were acknowledged."""
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.done(coordinator.marker(is_commit=True))
    assert coordinator.offsets() == {"t": {0: 5}}
    coordinator.verified = (E.NONE, NUMBER + 1)
    coordinator.done(coordinator.txn_commit(("t", 0, 6)))
    coordinator.connections[-1].lose_next_reply = True
    coordinator.done(coordinator.marker(number=NUMBER + 1, is_commit=True))
    coordinator.pass_time(1)
    assert coordinator.done(coordinator.marker(number=NUMBER + 1, is_commit=True)) is E.NONE
    coordinator.lose_connection()
    assert coordinator.offsets() == {"t": {0: 6}}


@pytest.mark.parametrize("delay_ms", range(0, 32, 2))
def test_offsets_are_known_also_if_the_connection_breaks_while_they_are_read(
    coordinator: TransactionalCoordinator, delay_ms: int
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.connections[-1].lose_next_reply = True
    coordinator.done(coordinator.marker(is_commit=True))
    coordinator.pass_time(1)
    ending = coordinator.marker(is_commit=True)
    coordinator.pass_time(delay_ms / 1000)
    coordinator.lose_connection()
    coordinator.pass_time(2)
    if coordinator.done(ending) is not E.NONE:
        assert coordinator.done(coordinator.marker(is_commit=True)) is E.NONE
    coordinator.lose_connection()
    assert coordinator.offsets() == {"t": {0: 5}}


def test_a_commit_with_an_unknown_outcome_is_repeated(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.connections[-1].lose_next_reply = True
    lost = coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    assert lost == [E.COORDINATOR_NOT_AVAILABLE]
    assert coordinator.unstable(("t", 0)) == {("t", 0)}
    coordinator.pass_time(1)
    assert coordinator.done(coordinator.txn_commit(("t", 0, 5))) == OK
    coordinator.done(coordinator.marker(is_commit=True))
    assert coordinator.offsets() == {"t": {0: 5}}


def test_a_commit_with_an_unknown_outcome_is_ended_by_the_marker(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.connections[-1].lose_next_reply = True
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.pass_time(1)
    assert coordinator.done(coordinator.marker(is_commit=False)) is E.NONE
    assert coordinator.pending_znodes() == []
    assert coordinator.unstable(("t", 0)) == set()


def test_offsets_that_were_read_from_a_server_that_is_behind_are_read_again(
    coordinator: TransactionalCoordinator,
) -> None:
    """A plain commit between a lost answer and the next marker reads offsets from before the write in doubt."""
    coordinator.done(coordinator.commit(("t", 0, 1), ("t", 1, 1)))
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    for follower in (1, 2):
        coordinator.ensemble.lag(follower, True)
    coordinator.connections[-1].lose_next_reply = True
    coordinator.done(coordinator.marker(is_commit=True))
    coordinator.pass_time(1)
    coordinator.connections[-1]._server = coordinator.ensemble.servers[1]
    assert coordinator.done(coordinator.commit(("t", 1, 9))) == OK
    assert coordinator.done(coordinator.marker(is_commit=True)) is E.NONE
    assert coordinator.offsets() == {"t": {0: 5, 1: 9}}


def test_a_server_that_is_behind_does_not_hide_a_commit(
    coordinator: TransactionalCoordinator,
) -> None:
    for follower in (1, 2):
        coordinator.ensemble.lag(follower, True)
    coordinator.connections[-1].lose_next_reply = True
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.pass_time(1)
    coordinator.connections[-1]._server = coordinator.ensemble.servers[1]
    assert coordinator.done(coordinator.marker(is_commit=False)) is E.NONE
    assert coordinator.pending_znodes() == []


def test_a_write_has_the_version_of_the_znode(coordinator: TransactionalCoordinator) -> None:
    for offset in range(3):
        coordinator.done(coordinator.txn_commit(("t", 0, offset)))
    pending = coordinator.coordinator._shards.partitions[0].pending
    [znode] = pending.of_group("g")
    assert (znode.version, znode.refusals) == (2, 0)
    assert coordinator.ensemble.tree[znode.path].version == 2


def test_without_zookeeper_requests_are_answered_in_time(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.ensemble.network.block(1, 99)
    started = coordinator.scheduler.now
    assert coordinator.done(coordinator.txn_commit(("t", 0, 6))) == [E.REQUEST_TIMED_OUT]
    assert coordinator.done(coordinator.marker(is_commit=True)) is E.NOT_LEADER_OR_FOLLOWER
    assert coordinator.scheduler.now - started < 11


# --- order against other commits


def test_a_plain_commit_after_a_pending_one_stays(coordinator: TransactionalCoordinator) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5), ("t", 1, 5)))
    assert coordinator.done(coordinator.commit(("t", 0, 9))) == OK
    coordinator.elect()
    coordinator.done(coordinator.marker(is_commit=True))
    assert coordinator.offsets() == {"t": {0: 9, 1: 5}}
    coordinator.done(coordinator.commit(("t", 0, 2)))
    coordinator.done(coordinator.txn_commit(("t", 0, 3)))
    coordinator.done(coordinator.marker(is_commit=True))
    assert coordinator.offsets() == {"t": {0: 3, 1: 5}}


def test_a_plain_commit_before_a_pending_one_is_replaced(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 1)))
    coordinator.done(coordinator.commit(("t", 0, 9)))
    coordinator.elect()
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.done(coordinator.marker(is_commit=True))
    assert coordinator.offsets() == {"t": {0: 5}}


@pytest.mark.parametrize("first", [5, 6])
def test_transactions_are_ordered_by_their_commits(
    coordinator: TransactionalCoordinator, first: int
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 50), producer_id=5))
    coordinator.done(coordinator.txn_commit(("t", 0, 60), producer_id=6))
    coordinator.done(coordinator.marker(is_commit=True, producer_id=first))
    coordinator.elect()
    coordinator.done(coordinator.marker(is_commit=True, producer_id=11 - first))
    assert coordinator.offsets() == {"t": {0: 60}}


def test_the_marker_waits_for_a_plain_commit_on_its_way(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    plain = coordinator.commit(("t", 0, 9))
    coordinator.turn()
    coordinator.change_isr()  # its multi is refused, and sent again
    assert coordinator.done(coordinator.marker(is_commit=True)) is E.NONE
    assert coordinator.done(plain) == OK
    assert coordinator.offsets() == {"t": {0: 9}}


def test_the_marker_is_decided_by_the_outcome_of_a_plain_commit(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    plain = coordinator.commit(("t", 0, 9))
    coordinator.turn()
    requests = dict(coordinator.connections[-1]._outstanding)
    ending = coordinator.marker(is_commit=True)
    coordinator.turn()
    assert coordinator.connections[-1]._outstanding == requests  # nothing was sent for the marker
    assert coordinator.done(plain) == OK
    assert coordinator.done(ending) is E.NONE
    assert coordinator.offsets() == {"t": {0: 9}}


# --- large transactions


def test_offsets_that_do_not_fit_in_one_multi_are_stable_together(
    coordinator: TransactionalCoordinator,
) -> None:
    offsets = [("t", partition, partition + 1) for partition in range(700)]
    assert coordinator.done(coordinator.txn_commit(*offsets)) == OK * 700
    ending = coordinator.marker(is_commit=True)
    pending = coordinator.coordinator._shards.partitions[0].pending
    tree = coordinator.ensemble.tree
    coordinator.run(lambda: "/consumers/g/offsets/t/0" in tree)
    assert "/consumers/g/offsets/t/699" not in tree
    assert {("t", 0), ("t", 699)} <= set(pending.unstable("g")._partitions)
    coordinator.elect()  # the coordinator fails in between
    assert coordinator.done(ending) is E.NOT_LEADER_OR_FOLLOWER
    assert coordinator.unstable(("t", 0), ("t", 699)) == {("t", 0), ("t", 699)}
    assert coordinator.done(coordinator.marker(is_commit=True)) is E.NONE
    assert coordinator.offsets() == {"t": {p: p + 1 for p in range(700)}}
    assert coordinator.unstable(("t", 0), ("t", 699)) == set()


def test_too_many_offsets_are_refused(coordinator: TransactionalCoordinator) -> None:
    offsets = [("t", partition, 1) for partition in range(300)]
    refused = coordinator.done(coordinator.txn_commit(*offsets, metadata="m" * 3500))
    assert set(refused) == {E.INVALID_COMMIT_OFFSET_SIZE}
    assert coordinator.pending_znodes() == []


def test_metadata_and_topics_are_checked(coordinator: TransactionalCoordinator) -> None:
    assert coordinator.done(coordinator.txn_commit(("t", 0, 1), metadata="m" * 4097)) == [
        E.OFFSET_METADATA_TOO_LARGE
    ]
    assert coordinator.done(coordinator.txn_commit(("..", 0, 1))) == [E.INVALID_TOPIC_EXCEPTION]
    assert coordinator.asked == []


# --- members (KIP-447)


def stable(coordinator: TransactionalCoordinator, **changes: Any) -> str:
    joined = coordinator.done(coordinator.join("a", **changes))
    sync = Sync(joined.member_id, joined.generation_id, {joined.member_id: b"all"})
    coordinator.done(coordinator.coordinator.sync("g", sync))
    return str(joined.member_id)


def test_a_member_is_checked_where_the_request_has_one(
    coordinator: TransactionalCoordinator,
) -> None:
    member = stable(coordinator, group_instance_id="i")

    def commit(**fields: Any) -> list[ErrorCode]:
        answer: list[ErrorCode] = coordinator.done(coordinator.txn_commit(("t", 0, 5), **fields))
        return answer

    assert commit(member_id="b", generation_id=1) == [E.UNKNOWN_MEMBER_ID]
    assert commit(member_id=member, generation_id=0) == [E.ILLEGAL_GENERATION]
    assert commit(member_id=member, generation_id=-1) == [E.ILLEGAL_GENERATION]
    fenced = commit(member_id="b", generation_id=1, group_instance_id="i")
    assert fenced == [E.FENCED_INSTANCE_ID]
    assert coordinator.pending_znodes() == []
    assert commit(member_id=member, generation_id=1, group_instance_id="i") == OK
    assert commit() == OK  # before v3, or without a consumer


# --- deletion and expiry


def test_pending_offsets_keep_a_group_and_its_offsets(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.done(coordinator.commit(("t", 0, 1), ("t", 1, 1)))
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.now_ms += 1000
    assert coordinator.done(coordinator.expire(coordinator.now_ms)) == 1
    assert coordinator.offsets() == {"t": {0: 1}}
    coordinator.done(coordinator.marker(is_commit=False))
    assert coordinator.done(coordinator.expire(coordinator.now_ms)) == 1
    assert "/consumers/g" not in coordinator.ensemble.tree


def test_a_group_with_nothing_but_pending_offsets_stays(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.now_ms += 1000
    assert coordinator.done(coordinator.expire(coordinator.now_ms)) == 0
    assert [listing.group_id for listing in coordinator.coordinator.listing()[0]] == ["g"]
    coordinator.done(coordinator.marker(is_commit=False))
    coordinator.done(coordinator.expire(coordinator.now_ms))
    assert "/consumers/g" not in coordinator.ensemble.tree


def test_offset_delete_removes_what_is_pending(coordinator: TransactionalCoordinator) -> None:
    coordinator.done(coordinator.commit(("t", 0, 1)))
    coordinator.done(coordinator.txn_commit(("t", 0, 5), ("t", 1, 6)))
    assert coordinator.done(coordinator.delete_offsets(("t", 0))) == OK
    assert coordinator.unstable(("t", 0), ("t", 1)) == {("t", 1)}
    coordinator.done(coordinator.marker(is_commit=True))
    assert coordinator.offsets() == {"t": {1: 6}}


def test_offset_delete_of_all_that_is_pending_removes_the_znode(
    coordinator: TransactionalCoordinator,
) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    assert coordinator.done(coordinator.delete_offsets(("t", 0))) == OK
    assert coordinator.pending_znodes() == []
    assert coordinator.done(coordinator.marker(is_commit=True)) is E.NONE
    assert coordinator.offsets() == {}


def test_a_deleted_group_has_nothing_pending(coordinator: TransactionalCoordinator) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    deleting = Deferred.fromCoroutine(coordinator.coordinator.delete("g"))
    assert coordinator.error_of(deleting) is E.NONE
    assert coordinator.pending_znodes() == []
    assert "/consumers/g" not in coordinator.ensemble.tree
    assert coordinator.done(coordinator.marker(is_commit=True)) is E.NONE
    assert coordinator.offsets() == {}


# --- poison


def test_a_poison_znode_concerns_its_group_only(coordinator: TransactionalCoordinator) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.ensemble.put("/transactions/pending/6,poisoned", b"{}")
    coordinator.ensemble.put("/transactions/pending/strange")
    coordinator.elect()
    shard = coordinator.coordinator._shards.partitions[0]
    assert shard.pending.unstable("poisoned").is_unreadable
    assert not shard.pending.unstable("g").is_unreadable
    waiting = coordinator.marker(is_commit=True, producer_id=6)
    assert coordinator.done(waiting) is E.NOT_LEADER_OR_FOLLOWER
    refused = coordinator.txn_commit(("t", 0, 1), group="poisoned", producer_id=6)
    assert coordinator.done(refused) == [E.UNKNOWN_SERVER_ERROR]
    assert coordinator.done(coordinator.marker(is_commit=True)) is E.NONE
    assert coordinator.offsets() == {"t": {0: 5}}
    mended = {"version": 1, "producer_epoch": 0, "number": NUMBER, "offsets": {"t": [[0, 8, 1]]}}
    coordinator.write("/transactions/pending/6,poisoned", json.dumps(mended).encode())
    assert coordinator.done(coordinator.marker(is_commit=True, producer_id=6)) is E.NONE
    assert coordinator.offsets("poisoned") == {"t": {0: 8}}
    assert not shard.pending.unstable("poisoned").is_unreadable


def test_nothing_is_left_in_memory(coordinator: TransactionalCoordinator) -> None:
    coordinator.done(coordinator.txn_commit(("t", 0, 5)))
    coordinator.done(coordinator.marker(is_commit=True))
    pending = coordinator.coordinator._shards.partitions[0].pending
    assert (pending._by_group, pending._by_producer, pending._guards) == ({}, {}, {})


def test_another_coordinator_answers_no_marker_from_memory(
    coordinator: TransactionalCoordinator,
) -> None:
    node = coordinator.ensemble.tree[STATE]
    data = node.data.replace(b'"leader":1', b'"leader":2')
    assert data != node.data
    coordinator.write(STATE, data)
    assert coordinator.done(coordinator.marker(is_commit=True)) is E.NOT_LEADER_OR_FOLLOWER
    assert coordinator.done(coordinator.txn_commit(("t", 0, 5))) == [E.NOT_COORDINATOR]
