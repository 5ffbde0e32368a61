"""A leader and a follower with real logs, no network between them: what is cut, what is taken, what is waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from twisted.internet.defer import succeed

from kbroker.common.turns import WithoutTurns
from kbroker.replica import follower_log
from kbroker.replica.offset_lookup import LATEST, OffsetLookup
from kclient.wire.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    UnknownLeaderEpoch,
    UnknownServerError,
)
from kclient.wire.fetch import FetchPartitionResponse
from tests.kit.partitions import HostedPartition, fetch, fetch_all

Host = Callable[..., HostedPartition]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return lambda broker_id, **settings: HostedPartition(tmp_path, broker_id, **settings)


def test_a_follower_gets_the_leaders_bytes_and_watermark(host: Host) -> None:
    leader, follower = host(1), host(2)
    leader.take(1, 0, (1, 2), replicas=(1, 2))
    follower.take(1, 0, (1, 2), replicas=(1, 2))
    for _ in range(5):
        leader.put(1, 2)
    fetch(follower, leader)
    assert follower.content() == leader.content()
    assert (leader.high_watermark, follower.high_watermark) == (0, 0)
    fetch(follower, leader)  # the leader learns our end, and we the high watermark
    assert (leader.high_watermark, follower.high_watermark) == (10, 10)


def test_what_an_old_leader_wrote_alone_is_cut(host: Host) -> None:
    old, new = host(1), host(2)
    old.take(1, 0, (1, 2), replicas=(1, 2))
    new.take(1, 0, (1, 2), replicas=(1, 2))
    old.put(1, 2)
    fetch_all(new, old)
    old.put(3, value=b"lost")  # acks=1, never fetched
    new.take(2, 1, (2,), replicas=(1, 2))
    new.put(4, 5, 6, value=b"kept")
    old.take(2, 1, (2,), replicas=(1, 2))
    fetch_all(old, new)
    assert old.content() == new.content()
    assert old.end == 5


def test_epochs_that_were_missed_are_cut_one_after_another(host: Host) -> None:
    """KIP-279: A leads 0 and 2, B leads 1 and 3, and neither fetches the other's records."""
    a, b = host(1), host(2)
    a.take(1, 0)
    b.take(1, 0)
    a.put(1)
    fetch_all(b, a)
    b.take(2, 1)
    b.put(2)
    b.put(3)
    a.take(1, 2)
    a.put(4)
    a.put(5)
    b.take(2, 3)
    b.put(6)
    a.take(2, 3)
    fetch_all(a, b)
    assert a.content() == b.content()
    assert a.end == 4


def test_an_epoch_that_wrote_nothing_leads_into_no_loop(host: Host) -> None:
    a, b = host(1), host(2)
    a.take(1, 0)
    b.take(1, 0)
    a.put(1)
    fetch_all(b, a)
    a.take(1, 3)  # leads, writes nothing
    b.take(2, 4)
    a.take(2, 4)
    fetch_all(a, b)
    b.put(2)
    fetch_all(a, b)
    assert a.content() == b.content()


def test_a_follower_behind_the_leaders_log_start_begins_there(host: Host) -> None:
    leader, follower = host(1), host(2)
    leader.take(1, 0, (1,))
    for _ in range(10):
        leader.put(1)
    assert leader.delete_records(7) == 7
    follower.take(1, 0, (1,))
    fetch_all(follower, leader)
    assert follower.log is not None
    assert (follower.log.log_start_offset, follower.end) == (7, 10)


def test_a_log_start_within_a_batch_is_reached_with_the_whole_batch(host: Host) -> None:
    leader, follower = host(1), host(2)
    leader.take(1, 0, (1,))
    leader.put(*range(10))
    leader.delete_records(7)
    follower.take(1, 0, (1,))
    fetch_all(follower, leader)
    assert follower.log is not None
    assert (follower.log.log_start_offset, follower.end) == (7, 10)
    assert follower.content() == leader.content()


def test_what_ends_where_the_leader_begins_and_may_never_have_agreed_does_not_stay(
    host: Host,
) -> None:
    former_leader, leader = host(1), host(2)
    former_leader.take(1, 0)
    former_leader.put(*range(3), value=b"on no other replica")
    leader.take(2, 1, (2,))
    leader.put(*range(3))
    leader.delete_records(3)
    former_leader.take(2, 1, (2,))
    fetch(former_leader, leader)
    assert former_leader.content() == b""
    assert former_leader.log is not None
    assert (former_leader.log.log_start_offset, former_leader.end) == (3, 3)
    assert leader.leader_state is not None
    assert 1 not in leader.leader_state.maximal_isr, "it has not fetched since"
    leader.put(4)
    fetch_all(former_leader, leader)
    assert former_leader.end == 4


def test_a_deletion_of_records_reaches_the_follower(host: Host) -> None:
    leader, follower = host(1), host(2)
    leader.take(1, 0, (1,))
    follower.take(1, 0, (1,))
    for _ in range(10):
        leader.put(1)
    fetch_all(follower, leader)
    leader.delete_records(4)
    fetch(follower, leader)
    assert follower.log is not None
    assert follower.log.log_start_offset == 4


def test_only_followers_of_the_same_epoch_are_served(host: Host) -> None:
    leader, follower = host(1), host(2)
    leader.take(1, 5)
    follower.take(1, 4)
    with pytest.raises(FencedLeaderEpoch):
        fetch(follower, leader)
    follower.take(1, 6)
    with pytest.raises(UnknownLeaderEpoch):
        fetch(follower, leader)
    outsider = host(9)
    outsider.take(1, 5)
    with pytest.raises(UnknownLeaderEpoch):
        fetch(outsider, leader)


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, UnknownLeaderEpoch), (-1, NotLeaderOrFollower)]
)
def test_a_replica_that_is_not_assigned_gets_kafkas_error(
    host: Host, epoch: int, expected: type[Exception]
) -> None:
    leader = host(1)
    leader.take(1, 0, (1, 2), replicas=(1, 2))
    with pytest.raises(expected, match="broker 9 is no replica"):
        leader.read_as_follower(9, 0, 1000, min_one_batch=True, current_leader_epoch=epoch)
    with pytest.raises(expected, match="broker 9 is no replica"):
        leader.require_leader_for_follower(9, epoch)


def test_a_delayed_fetch_is_no_sign_that_its_sender_is_alive(host: Host) -> None:
    leader = host(1)
    leader.take(1, 0, (1, 2), replicas=(1, 2))
    read = {"min_one_batch": True, "current_leader_epoch": 0}
    leader.put(1)
    leader.read_as_follower(2, 0, 1000, **read)  # type: ignore[arg-type]
    leader.clock = 10.5
    leader.read_as_follower(2, 0, 1000, again=True, **read)  # type: ignore[arg-type]
    leader.maybe_shrink_isr()
    assert [write.isr for write in leader.isr_writes.submitted] == [{1}]


def test_acks_all_needs_enough_replicas_before_and_after(host: Host) -> None:
    leader, follower = host(1, min_insync_replicas=2), host(2)
    leader.take(1, 0, (1,), replicas=(1, 2))
    with pytest.raises(NotEnoughReplicas):
        leader.put(1, acks=-1)
    leader.take(1, 1, (1, 2), replicas=(1, 2))
    follower.take(1, 1, (1, 2), replicas=(1, 2))
    leader.put(1, acks=-1)
    assert not leader.is_committed(1, 1)
    fetch_all(follower, leader)
    assert leader.is_committed(1, 1)
    leader.take(1, 2, (1,), replicas=(1, 2))
    with pytest.raises(NotEnoughReplicasAfterAppend):
        leader.is_committed(1, 1)


def test_a_produce_waits_on_while_the_leader_stays(host: Host) -> None:
    leader = host(1)
    leader.take(1, 3)
    leader.put(1)
    leader.take(1, 4, (1, 2))
    assert not leader.is_committed(1, 3)
    leader.take(1, 6, (1, 2))  # another broker may have led in epoch 5
    with pytest.raises(NotLeaderOrFollower):
        leader.is_committed(1, 3)


def latest_offset(partition: HostedPartition, leader_epoch: int) -> int:
    """What ListOffsets answers about the end."""
    lookup = OffsetLookup(lambda work: succeed(work()))
    found = lookup.find(partition, LATEST, leader_epoch, turns=WithoutTurns())
    with pytest.raises(StopIteration) as done:
        found.send(None)
    offset: int = done.value.value.offset
    return offset


def test_a_new_leader_returns_no_offset_before_it_knows_the_committed_end(host: Host) -> None:
    a, b = host(1), host(2)
    a.take(1, 0, (1, 2), replicas=(1, 2))
    b.take(1, 0, (1, 2), replicas=(1, 2))
    a.put(1)
    fetch(b, a)
    b.take(2, 1, (1, 2), replicas=(1, 2))
    with pytest.raises(OffsetNotAvailable):
        latest_offset(b, 1)
    a.take(2, 1, (1, 2), replicas=(1, 2))
    fetch_all(a, b)
    assert latest_offset(b, 1) == 1


def test_s08_a_leader_that_begins_beyond_what_is_committed_deletes_nothing(host: Host) -> None:
    leader, follower = host(1), host(2)
    leader.take(1, 0, (1, 2), replicas=(1, 2))
    follower.take(1, 0, (1, 2), replicas=(1, 2))
    leader.put(*range(5))
    fetch(follower, leader)
    for start, mark in ((3, 2), (5, 0)):
        answer = FetchPartitionResponse(0, high_watermark=mark, log_start_offset=start)
        with pytest.raises(UnknownServerError, match="begins at"):
            follower_log.process_partition_data(follower, answer, 0)
    with pytest.raises(UnknownServerError, match="begins at"):
        follower_log.fetch_offset_and_truncate(follower, 7, 6, 0)
    assert follower.log is not None
    assert (follower.log.log_start_offset, follower.end) == (0, 5)


def test_a_stopped_replica_keeps_its_watermark(host: Host) -> None:
    leader = host(1)
    leader.take(1, 0, (1,))
    leader.put(1)
    leader.stop()
    assert leader.high_watermark == 1
    with pytest.raises(NotLeaderOrFollower):
        leader.require_leader()


def test_truncation_takes_the_watermark_along(host: Host) -> None:
    follower, leader = host(2), host(1)
    leader.take(1, 0, (1,))
    leader.put(1)
    leader.put(1)
    follower.take(1, 0, (1,))
    fetch_all(follower, leader)
    assert follower.high_watermark == 2
    follower_log.truncate(follower, 1)
    assert (follower.end, follower.high_watermark) == (1, 1)
