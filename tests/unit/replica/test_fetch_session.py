"""Which fetch sessions stay when there are too few slots (KIP-227), and how epochs are counted."""

from __future__ import annotations

from itertools import count

from kbroker.replica.core.fetch_session import FetchSession, FetchSessionCache
from kclient.net import fetch_session as fetching
from kclient.wire.fetch import (
    MAX_SESSION_EPOCH,
    FetchPartition,
    FetchPartitionResponse,
    FetchResponse,
    FetchTopic,
    next_session_epoch,
)


class Cache(FetchSessionCache):
    def __init__(self, slots: int) -> None:
        self.evictions: list[FetchSession] = []
        super().__init__(
            slots,
            count(1).__next__,
            self.evictions.append,
            notifies_followers_of_high_watermark=False,
        )

    def make(
        self, size: int, now: float, owner: tuple[int, str] | None = None
    ) -> FetchSession | None:
        session = self.maybe_create(owner, size, uses_topic_ids=True, now=now)
        if session is not None:
            wanted = [FetchPartition(index, 0, 1) for index in range(size)]
            for partition in session.update([FetchTopic("t", wanted)], ())[0]:
                self.watch(partition, ("t", partition.request.partition))
        return session


def test_without_slots_there_are_no_sessions() -> None:
    assert Cache(0).make(9, 0.0) is None


def test_a_new_session_does_not_evict_a_young_one() -> None:
    cache = Cache(1)
    kept = cache.make(1, 0.0)
    assert cache.make(9, 100.0) is None
    assert kept is not None
    assert cache.get(kept.id) is kept


def test_a_session_unused_for_two_minutes_is_evicted_for_any_other() -> None:
    cache = Cache(1)
    follower = cache.make(9, 0.0, owner=(2, "f"))
    assert cache.make(1, 120.5) is not None
    assert cache.evictions == [follower]


def test_an_older_session_that_is_in_use_goes_for_a_larger_one_only() -> None:
    cache = Cache(1)
    session = cache.make(3, 0.0)
    assert session is not None
    session.accepted(130.0)
    cache.used(session)
    assert cache.make(3, 140.0) is None
    assert cache.make(4, 140.0) is not None
    assert cache.evictions == [session]


def test_a_follower_evicts_a_young_client_but_no_young_follower() -> None:
    cache = Cache(2)
    client, follower = cache.make(9, 0.0), cache.make(1, 0.0, owner=(2, "f"))
    assert cache.make(1, 1.0, owner=(3, "f")) is not None
    assert cache.make(9, 2.0, owner=(4, "f")) is None
    assert cache.evictions == [client]
    assert follower is not None
    assert cache.get(follower.id) is follower


def test_a_follower_that_starts_again_replaces_its_own_session() -> None:
    cache = Cache(5)
    former = cache.make(9, 0.0, owner=(2, "f"))
    cache.make(9, 1.0, owner=(2, "f"))
    assert (cache.evictions, len(cache)) == ([former], 1)


def test_an_evicted_session_receives_no_events() -> None:
    cache = Cache(1)
    former = cache.make(1, 0.0, owner=(2, "f"))
    assert list(cache.log_end_advanced(("t", 0))) == [former]
    assert not cache.high_watermark_advanced(("t", 0))
    now = cache.make(1, 1.0, owner=(2, "f"))
    assert list(cache.log_end_advanced(("t", 0))) == [now]
    assert former is not None
    assert now is not None
    cache.remove(now)
    assert not cache.log_end_advanced(("t", 0))


def test_epochs_go_round_without_coming_to_zero() -> None:
    assert [next_session_epoch(epoch) for epoch in (0, 7, MAX_SESSION_EPOCH)] == [1, 8, 1]


def test_a_fetcher_names_only_what_changed() -> None:
    session = fetching.FetchSessionHandler()
    for index in range(3):
        session.add("t", FetchPartition(index, 0, 1))
    first = session.request()
    assert (first.session_epoch, len(first.topics[0].partitions)) == (0, 3)
    session.answered(FetchResponse([], session_id=9))
    session.add("t", FetchPartition(0, 0, 1))
    session.add("t", FetchPartition(1, 5, 1))
    session.remove("t", 2)
    request_data = session.request()
    assert (request_data.session_id, request_data.session_epoch) == (9, 1)
    assert [each.partition for each in request_data.topics[0].partitions] == [1]
    assert request_data.forgotten[0].partitions == [2]


def named(request_data: fetching.FetchRequestData) -> list[int]:
    return [each.partition for topic in request_data.topics for each in topic.partitions]


def test_of_many_that_are_wanted_some_are_named_at_a_time() -> None:
    session = fetching.FetchSessionHandler()
    for index in range(5):
        session.add("t", FetchPartition(index, 0, 1))
    assert named(session.request(2)) == [0, 1]
    assert session.is_behind
    session.answered(FetchResponse([], session_id=9))
    session.add("t", FetchPartition(0, 7, 1))  # known: not one of the two
    session.remove("t", 4)
    request_data = session.request(2)
    assert (sorted(named(request_data)), request_data.forgotten, session.is_behind) == (
        [0, 2, 3],
        [],
        False,
    )
    session.answered(FetchResponse([], session_id=9))
    assert named(session.request(2)) == []
    session.lost()
    assert named(session.request(3)) == [1, 2, 3]
    assert session.is_behind
    session.answered(FetchResponse([], session_id=10))
    assert named(session.request(3)) == [0]


def test_a_leader_without_a_session_receives_every_partition_at_once() -> None:
    session = fetching.FetchSessionHandler()
    for index in range(5):
        session.add("t", FetchPartition(index, 0, 1))
    session.request(2)
    session.answered(FetchResponse([], session_id=0))
    assert named(session.request(2)) == [0, 1, 2, 3, 4]
    assert not session.is_behind


def test_those_that_had_their_turn_come_behind_the_others() -> None:
    session = FetchSession(1, (2, "f"), uses_topic_ids=True, now=0.0)
    session.update([FetchTopic("t", [FetchPartition(index, 0, 1) for index in range(5)])], ())
    session.defer(2)
    assert [partition.request.partition for partition in session.due] == [2, 3, 4, 0, 1]


def test_after_a_missing_response_every_partition_is_named_and_the_session_closed() -> None:
    session = fetching.FetchSessionHandler()
    session.add("t", FetchPartition(0, 0, 1))
    session.request()
    session.answered(FetchResponse([], session_id=9))
    session.add("t", FetchPartition(0, 3, 1))
    session.request()
    session.lost()
    request_data = session.request()
    assert (request_data.session_id, request_data.session_epoch, len(request_data.topics)) == (
        9,
        0,
        1,
    )


def test_a_response_is_repeated_for_a_request_in_another_leader_epoch() -> None:
    session = FetchSession(1, (2, "f"), uses_topic_ids=True, now=0.0)
    (partition,), _ = session.update([FetchTopic("t", [FetchPartition(0, 5, 1, 3)])], ())
    answer = FetchPartitionResponse(0, high_watermark=5, log_start_offset=0)
    session.sent(partition, answer, is_caught_up=True)
    assert not session.was_read(partition, answer, is_caught_up=True)
    # It became a follower in epoch 4 while that answer was on its way, and dropped it.
    session.update([FetchTopic("t", [FetchPartition(0, 5, 1, 4)])], ())
    assert session.was_read(partition, answer, is_caught_up=True)
    session.sent(partition, answer, is_caught_up=True)
    session.update([FetchTopic("t", [FetchPartition(0, 6, 1, 4)])], ())
    assert not session.was_read(partition, answer, is_caught_up=True)
