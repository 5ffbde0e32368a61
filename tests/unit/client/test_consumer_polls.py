"""Polling, on scripted brokers: what is handed out, what is raised, and what a poll must not lose."""

import pytest
from twisted.internet.defer import CancelledError, Deferred

from kclient.errors import (
    ClientClosed,
    KafkaError,
    NoCommittedOffset,
    RecordDeserializationError,
)
from kclient.types import TopicPartition
from kclient.wire.errors import CorruptMessage, ErrorCode, UnknownTopicOrPartition
from kclient.wire.fetch import AbortedTransaction
from kclient.wire.versions import ApiKey
from tests.kit.consumer_fixture import ConsumerFixture
from tests.kit.scripted_cluster import batch_of, now
from tests.unit.client.test_fetcher import marker, transactional

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def picky(data):
    if data.startswith(b"bad"):
        raise ValueError("it is bad")
    return data.decode()


# --- handing out


def test_records_come_in_order_and_not_more_than_asked_for():
    it = ConsumerFixture()
    it.produce(0, b"0", b"1", b"2")
    it.produce(0, b"3", b"4")
    it.assign(0)
    it.poll()
    assert it.poll(most=2) == {0: [b"0", b"1"]}
    assert it.consumer.next_offset(T0) == 2
    assert it.poll(most=2) == {0: [b"2", b"3"]}
    assert it.poll(most=2) == {0: [b"4"]}
    assert it.consumer.next_offset(T0) == 5


def test_partitions_take_turns():
    it = ConsumerFixture()
    for n in range(4):
        it.produce(0, b"a%d" % n)
        it.produce(1, b"b%d" % n)
    it.assign(0, 1)
    it.poll()
    assert [it.poll(most=1) for _ in range(4)] == [
        {0: [b"a0"]}, {1: [b"b0"]}, {0: [b"a1"]}, {1: [b"b1"]},
    ]  # fmt: skip


def test_a_poll_waits_for_the_first_record_and_no_longer():
    it = ConsumerFixture()
    it.assign(0)
    waiting = it.consumer.poll(timeout=60)
    it.scripted.turn(1.0)
    assert not waiting.called
    it.produce(0, b"there")
    it.release()
    it.scripted.turn()
    assert waiting.called
    assert it.now == pytest.approx(1.0, abs=0.01)


def test_a_poll_that_waits_in_vain_returns_nothing():
    it = ConsumerFixture()
    it.assign(0)
    waiting = it.consumer.poll(timeout=0.5)
    it.scripted.turn(0.4)
    assert not waiting.called
    it.scripted.turn(0.2)
    assert it.run(waiting) == {}


def test_a_seek_into_the_middle_of_a_batch_starts_there():
    it = ConsumerFixture()
    it.produce(0, b"0", b"1", b"2")
    it.assign(0)
    it.consumer.seek(T0, 1)
    assert it.records() == {0: [b"1", b"2"]}


def test_a_seek_drops_what_was_fetched_and_what_was_decoded():
    it = ConsumerFixture()
    it.produce(0, b"0", b"1", b"2")
    it.assign(0)
    it.poll()
    assert it.poll(most=1) == {0: [b"0"]}
    it.consumer.seek(T0, 0)
    assert it.records() == {0: [b"0", b"1", b"2"]}


def test_a_partition_assigned_again_has_a_new_position():
    it = ConsumerFixture()
    it.produce(0, b"0", b"1", b"2")
    it.assign(0)
    it.poll()
    assert it.poll(most=1) == {0: [b"0"]}
    it.assign()
    it.assign(0)
    assert it.records() == {0: [b"0", b"1", b"2"]}


def test_a_paused_partition_keeps_what_it_has_until_it_is_resumed():
    it = ConsumerFixture()
    it.produce(0, b"a")
    it.produce(1, b"b")
    it.assign(0, 1)
    it.poll()
    it.consumer.pause(T0)
    assert it.records() == {1: [b"b"]}
    assert it.consumer.paused() == {T0}
    it.consumer.resume(T0)
    assert it.records() == {0: [b"a"]}


def test_control_batches_move_the_position_and_are_not_handed_out():
    it = ConsumerFixture()
    it.produce(0, b"a")
    it.produce(0, b"marker", data=marker(1, 7))
    it.assign(0)
    assert it.records() == {0: [b"a"]}
    assert it.consumer.next_offset(T0) == 2


def test_batches_come_whole_even_after_a_poll_that_took_a_part_of_one():
    it = ConsumerFixture()
    it.produce(0, b"0", b"1", b"2")
    it.assign(0)
    it.poll()
    assert it.poll(most=1) == {0: [b"0"]}
    assert it.run(it.consumer.poll_batches()) == {}
    it.scripted.turn(0.6)
    ((info, _data),) = it.run(it.consumer.poll_batches())[T0]
    assert (info.base_offset, info.record_count) == (0, 3)
    assert it.consumer.next_offset(T0) == 3


def test_fetched_batches_have_those_of_aborted_transactions_with_a_mark():
    def consumer():
        it = ConsumerFixture(isolation_level="read_committed")
        it.aborted = [AbortedTransaction(7, 0)]
        it.produce(0, b"a", data=transactional(0, 7, b"a"))
        it.produce(0, b"marker", data=marker(1, 7))
        it.produce(0, b"b", data=transactional(2, 7, b"b"))
        it.assign(0)
        assert it.run(it.consumer.poll_batches()) == {}
        it.scripted.turn(0.6)
        return it

    it = consumer()
    found = it.run(it.consumer.poll_fetched_batches())[T0]
    assert [(each.info.base_offset, each.hidden) for each in found] == [
        (0, True),
        (1, True),
        (2, False),
    ]
    it = consumer()
    assert [info.base_offset for info, _ in it.run(it.consumer.poll_batches())[T0]] == [1, 2]


def test_columns_begin_after_the_records_of_a_poll_and_end_before_those_of_the_next():
    it = ConsumerFixture()
    it.produce(0, b"0", b"1", b"2")
    it.produce(1, b"other")
    it.assign(0, 1)
    it.poll()
    assert it.poll(most=1) == {0: [b"0"]}
    seen = []
    for _ in range(3):
        made = it.run(it.consumer.poll_arrow(max_records=1))
        seen += zip(made["partition"].to_pylist(), made["value"].to_pylist(), strict=True)
        it.scripted.turn(0.6)
    assert sorted(seen) == [(0, b"1"), (1, b"other")]
    assert it.consumer.next_offset(T0) == 2
    assert it.poll() == {0: [b"2"]}
    assert it.run(it.consumer.poll_arrow()).num_rows == 0


def test_columns_are_refused_where_a_deserializer_would_be_ignored():
    it = ConsumerFixture(value_deserializer=bytes.decode)
    it.assign(0)
    with pytest.raises(KafkaError, match="this consumer has a deserializer"):
        it.run(it.consumer.poll_arrow())


def test_two_polls_at_a_time_are_refused():
    it = ConsumerFixture()
    it.assign(0)
    first = it.consumer.poll(timeout=1)
    with pytest.raises(KafkaError, match="one at a time"):
        it.run(it.consumer.poll())
    it.scripted.turn(1.0)
    assert it.run(first) == {}


# --- cancelling, closing


def test_a_cancelled_poll_hands_out_nothing():
    it = ConsumerFixture()
    it.assign(0)
    waiting = it.consumer.poll(timeout=60)
    it.scripted.turn()
    waiting.cancel()
    with pytest.raises(CancelledError):
        it.run(waiting)
    it.produce(0, b"there")
    it.release()
    assert it.records() == {0: [b"there"]}


def test_closing_ends_a_poll_that_waits():
    it = ConsumerFixture()
    it.assign(0)
    waiting = it.consumer.poll(timeout=60)
    it.scripted.turn()
    it.run(it.consumer.close())
    assert it.run(waiting) == {}
    with pytest.raises(ClientClosed):
        it.run(it.consumer.poll())


def test_nothing_is_asked_after_closing():
    it = ConsumerFixture()
    it.assign(0)
    it.poll()
    it.run(it.consumer.close())
    asked = len(it.scripted.requests)
    it.scripted.pass_time(5.0)
    assert it.scripted.requests[asked:] == []
    assert it.scripted.clock.getDelayedCalls() == []


# --- records that cannot be read


def test_a_record_that_cannot_be_deserialized_is_not_skipped_and_takes_none_before_it_along():
    it = ConsumerFixture(value_deserializer=picky)
    it.produce(0, b"0", b"1", b"bad", b"3")
    it.assign(0)
    it.poll()
    assert it.poll() == {0: ["0", "1"]}
    for _ in range(2):
        with pytest.raises(RecordDeserializationError) as caught:
            it.poll()
        assert (caught.value.topic_partition, caught.value.offset) == (T0, 2)
    assert it.consumer.next_offset(T0) == 2
    it.consumer.seek(T0, 3)
    assert it.records() == {0: ["3"]}


def test_a_corrupt_batch_is_reported_with_its_position():
    broken = bytearray(batch_of(0, b"abc"))
    broken[-5] = 99  # the length of the value
    it = ConsumerFixture(check_crcs=False)
    it.produce(0, b"abc", data=bytes(broken))
    it.assign(0)
    it.scripted.turn()
    with pytest.raises(KafkaError, match="t-0, batch at offset 0"):
        it.poll()
    assert it.consumer.next_offset(T0) == 0


def test_the_error_of_one_partition_does_not_lose_the_records_of_another():
    it = ConsumerFixture(value_deserializer=picky)
    it.produce(1, b"bad")
    it.produce(0, b"good")
    it.assign(0, 1)
    it.poll()
    assert it.poll() == {0: ["good"]}
    with pytest.raises(RecordDeserializationError):
        it.poll()


def test_a_fetch_error_is_raised_once_per_failure_not_once_per_backoff():
    it = ConsumerFixture()
    it.produce(0, b"a")
    it.assign(0)
    broken = bytearray(it.log[T0][0][2])
    broken[-1] ^= 1
    it.log[T0] = [(0, 0, bytes(broken))]
    it.poll()
    it.scripted.pass_time(5.0)
    with pytest.raises(CorruptMessage):
        it.poll()
    assert it.poll() == {}


def test_an_error_of_a_partition_that_is_not_assigned_any_more_is_not_raised():
    it = ConsumerFixture(auto_offset_reset="none")
    it.assign(0)
    it.scripted.turn()
    it.assign()
    assert it.poll() == {}


# --- positions


def test_one_partition_without_a_leader_holds_up_no_other():
    it = ConsumerFixture()
    it.scripted.leaders[T0] = (-1, 0)
    it.produce(0, b"a")
    it.produce(1, b"b")
    it.assign(0, 1)
    assert it.records() == {1: [b"b"]}
    it.scripted.leaders.clear()
    it.scripted.pass_time(2.0)
    assert it.records() == {0: [b"a"]}


def test_what_the_group_committed_comes_before_the_reset_policy():
    it = ConsumerFixture(group_id="g")
    it.produce(0, b"0", b"1")
    it.produce(1, b"0", b"1")
    it.committed[T0] = 1
    it.assign(0, 1)
    assert it.records() == {0: [b"1"], 1: [b"0", b"1"]}


def test_read_committed_waits_for_a_transaction_that_commits_offsets_of_its_partitions():
    it = ConsumerFixture(group_id="g", isolation_level="read_committed")
    it.produce(0, b"0", b"1", b"2")
    it.committed[T0] = 1
    stable = it.scripted.answers[ApiKey.OFFSET_FETCH]
    asked = []

    def unstable(request):
        asked.append(request.require_stable)
        response = stable(request)
        if len(asked) < 3:
            response.groups[0].topics[0].partitions[0].error_code = int(
                ErrorCode.UNSTABLE_OFFSET_COMMIT
            )
        else:
            it.committed[T0] = 2
            response = stable(request)
        return response

    it.scripted.answers[ApiKey.OFFSET_FETCH] = unstable
    it.assign(0)
    it.scripted.pass_time(1.0)
    assert it.records() == {0: [b"2"]}
    assert asked == [True, True, True]
    waiting = it.consumer.committed([T0])
    it.scripted.turn()
    committed = now(waiting)
    assert committed[T0].offset == 2
    assert asked[-1]


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_the_isolation_level_is_that_of_every_lookup_of_the_log_end(level):
    it = ConsumerFixture(isolation_level=level)
    it.produce(0, b"0")
    it.assign(0)
    it.scripted.pass_time(0.2)
    ends = it.consumer.end_offsets([T0])
    it.scripted.pass_time(0.2)
    assert now(ends) == {T0: 1}
    asked = [
        a.message for a in it.scripted.requests if a.api in (ApiKey.LIST_OFFSETS, ApiKey.FETCH)
    ]
    assert {each.isolation_level for each in asked} == {int(level == "read_committed")}


def test_without_auto_offset_reset_a_partition_without_a_commit_is_an_error_and_others_continue():
    it = ConsumerFixture(group_id="g", auto_offset_reset="none")
    it.produce(0, b"0")
    it.produce(1, b"0")
    it.committed[T0] = 0
    it.assign(0, 1)
    it.scripted.turn()
    with pytest.raises(NoCommittedOffset, match="t-1: there is no committed offset"):
        it.poll()
    assert it.poll() == {0: [b"0"]}
    it.scripted.turn()
    with pytest.raises(NoCommittedOffset):
        it.poll()
    it.consumer.seek(T1, 0)
    assert it.records() == {1: [b"0"]}


def test_without_a_policy_nothing_is_asked_again_before_the_next_poll():
    it = ConsumerFixture(group_id="g", auto_offset_reset="none")
    it.assign(0)
    it.scripted.turn()
    asked = it.scripted.count(ApiKey.OFFSET_FETCH)
    it.scripted.pass_time(10.0)
    assert it.scripted.count(ApiKey.OFFSET_FETCH) == asked


@pytest.mark.parametrize(("policy", "start"), [("earliest", 5), ("latest", 7)])
def test_an_offset_out_of_range_is_reset_by_the_policy(policy, start):
    it = ConsumerFixture(group_id="g", auto_offset_reset=policy)
    it.produce(0, *[b"%d" % n for n in range(7)])
    it.ends[T0] = (5, 7)
    it.committed[T0] = 1
    it.assign(0)
    it.poll()
    it.scripted.turn()
    assert it.consumer.next_offset(T0) == start


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_records_that_are_buffered_are_returned_before_an_offset_out_of_range_is_reset(policy):
    it = ConsumerFixture(1, auto_offset_reset=policy)
    it.produce(0, b"0", b"1", b"2")
    it.assign(0).consumer.seek(T0, 0)
    it.scripted.turn(0.6)
    assert it.poll(most=1) == {0: [b"0"]}
    it.log.clear()  # by retention
    it.ends[T0] = (50, 50)
    it.release()
    fetches = it.scripted.count(ApiKey.FETCH)
    it.scripted.pass_time(1.0)
    assert it.scripted.count(ApiKey.FETCH) == fetches
    assert it.poll() == {0: [b"1", b"2"]}
    it.scripted.turn(0.6)
    it.produce(0, b"50")
    assert it.records() == {0: [b"50"]}


def test_without_a_policy_buffered_records_are_returned_before_an_offset_out_of_range_is_raised():
    it = ConsumerFixture(1, auto_offset_reset="none")
    it.produce(0, b"0", b"1")
    it.assign(0).consumer.seek(T0, 0)
    it.poll(most=1)
    it.scripted.turn(0.6)
    assert it.poll(most=1) == {0: [b"0"]}
    it.ends[T0] = (50, 50)
    it.release()
    assert it.poll() == {0: [b"1"]}
    it.scripted.turn(0.6)
    with pytest.raises(NoCommittedOffset, match="offset 2"):
        it.poll()


def test_an_offset_out_of_range_without_auto_offset_reset_is_named_in_the_error():
    it = ConsumerFixture(auto_offset_reset="none")
    it.assign(0)
    it.consumer.seek(T0, 99)
    it.scripted.pass_time(0.6)
    with pytest.raises(NoCommittedOffset, match="offset 99"):
        it.poll()


def test_a_seek_that_comes_while_the_position_is_looked_for_wins():
    it = ConsumerFixture(group_id="g")
    it.produce(0, b"0", b"1", b"2")
    fetch = it.scripted.answers.pop(ApiKey.OFFSET_FETCH)
    it.assign(0)
    it.scripted.turn()
    asked = it.scripted.one(ApiKey.OFFSET_FETCH)
    it.consumer.seek(T0, 2)
    it.committed[T0] = 1
    asked.answer(fetch(asked.message))
    it.scripted.turn()
    assert it.records() == {0: [b"2"]}


def test_the_commit_asked_for_before_a_partition_went_and_came_back_does_not_count():
    it = ConsumerFixture(group_id="g")
    it.produce(0, b"0", b"1", b"2")
    fetch = it.scripted.answers.pop(ApiKey.OFFSET_FETCH)
    it.assign(0)
    it.scripted.turn()
    asked = it.scripted.one(ApiKey.OFFSET_FETCH)
    it.committed[T0] = 1
    stale = fetch(asked.message)
    it.assign()
    it.assign(0)
    it.committed[T0] = 2
    it.scripted.answers[ApiKey.OFFSET_FETCH] = fetch
    asked.answer(stale)
    it.scripted.turn()
    assert it.records() == {0: [b"2"]}


def test_a_position_that_is_not_found_within_the_timeout_is_an_error():
    it = ConsumerFixture(default_api_timeout_ms=5_000)
    it.consumer.assign([TopicPartition("nowhere", 0)])
    it.scripted.pass_time(4.0)
    assert it.poll() == {}
    it.scripted.pass_time(3.0)
    with pytest.raises(UnknownTopicOrPartition):
        it.poll()


def test_position_waits_until_it_is_found():
    it = ConsumerFixture(group_id="g")
    fetch = it.scripted.answers.pop(ApiKey.OFFSET_FETCH)
    it.committed[T0] = 17
    it.assign(0)
    waiting = it.consumer.position(T0)
    it.scripted.turn()
    assert not waiting.called
    asked = it.scripted.one(ApiKey.OFFSET_FETCH)
    asked.answer(fetch(asked.message))
    assert it.run(waiting) == 17


def test_position_raises_why_there_is_none():
    it = ConsumerFixture(group_id="g", auto_offset_reset="none")
    it.assign(0)
    it.scripted.turn()
    with pytest.raises(NoCommittedOffset):
        it.run(it.consumer.position(T0))


def test_positions_by_time_and_at_the_edges():
    it = ConsumerFixture()
    it.produce(0, b"0", b"1", b"2")
    it.assign(0)
    it.run(it.consumer.seek_to_end())
    assert it.consumer.next_offset(T0) == 3
    it.run(it.consumer.seek_to_beginning(T0))
    assert it.consumer.next_offset(T0) == 0
    with pytest.raises(ValueError, match="negative"):
        it.consumer.seek(T0, -1)
    with pytest.raises(KafkaError, match="t-1 is not assigned"):
        it.consumer.seek(T1, 0)


# --- iterating


def test_what_a_broken_off_iteration_did_not_yield_comes_in_the_next():
    it = ConsumerFixture()
    it.produce(0, b"0", b"1", b"2")
    it.assign(0)

    async def some(count):
        values = []
        async for record in it.consumer:
            values.append(record.value)
            if len(values) == count:
                return values
        return None

    assert it.run(some(1)) == [b"0"]
    assert it.run(some(1)) == [b"1"]
    assert it.poll() == {0: [b"2"]}


def test_an_iteration_commits_what_it_has_yielded_and_no_more():
    it = ConsumerFixture(group_id="g")
    it.produce(0, b"0", b"1", b"2")
    it.assign(0)

    async def first():
        async for record in it.consumer:
            return record.value
        return None

    assert it.run(first()) == b"0"
    it.run(it.consumer.commit())
    assert it.committed[T0] == 1
    it.run(it.consumer.close())
    assert it.committed[T0] == 1


def test_a_seek_ends_what_an_iteration_had_left():
    it = ConsumerFixture()
    it.produce(0, b"0", b"1", b"2")
    it.assign(0)

    async def some():
        async for record in it.consumer:
            return record.value
        return None

    assert it.run(some()) == b"0"
    it.consumer.seek(T0, 2)
    it.scripted.turn(0.6)
    assert it.run(some()) == b"2"


def test_a_seek_settles_what_was_wrong_with_the_position():
    it = ConsumerFixture(auto_offset_reset="none")
    it.produce(0, b"0")
    it.assign(0)
    it.scripted.turn()
    it.consumer.seek(T0, 0)
    assert it.records() == {0: [b"0"]}


# --- refusing nonsense


def test_assigning_and_subscribing_do_not_mix():
    it = ConsumerFixture(2, "t", group_id="g")
    with pytest.raises(KafkaError, match="unsubscribe before assigning"):
        it.assign(0)
    it.run(it.consumer.unsubscribe())
    it.assign(0)
    with pytest.raises(KafkaError, match="unsubscribe before subscribing"):
        it.consumer.subscribe(["t"])


def test_group_functions_without_a_group_id_are_errors():
    it = ConsumerFixture()
    with pytest.raises(KafkaError, match=r"subscribe needs a group\.id; use assign"):
        it.consumer.subscribe(["t"])
    with pytest.raises(KafkaError, match=r"commit needs a group\.id"):
        it.run(it.consumer.commit())


def test_an_unauthorized_topic_is_an_error():
    it = ConsumerFixture(2, "t", group_id="g")
    it.scripted.topic_errors["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaError, match="topic 't'"):
        it.poll()


def test_an_iteration_that_ends_by_an_error_commits_what_came_before_the_record_in_hand():
    it = ConsumerFixture(group_id="g")
    it.produce(0, b"0", b"1", b"2", b"3")
    it.assign(0)

    async def work():
        async with it.consumer as consumer:
            async for record in consumer:
                if record.value == b"2":
                    raise RuntimeError("in the middle of 2")

    done = Deferred.fromCoroutine(work())
    it.scripted.pass_time(1.0)
    with pytest.raises(RuntimeError):
        it.run(done)
    assert it.committed[T0] == 2


def test_partitions_assigned_with_offsets_need_no_lookup_and_share_one_fetch():
    it = ConsumerFixture(partitions=3, auto_offset_reset="none")
    for partition in range(3):
        it.produce(partition, b"0", b"1", b"2")
    tps = [TopicPartition("t", partition) for partition in range(3)]
    it.consumer.assign(tps, {tp: tp.partition for tp in tps})
    assert it.records() == {0: [b"0", b"1", b"2"], 1: [b"1", b"2"], 2: [b"2"]}
    with pytest.raises(KafkaError, match="not assigned"):
        it.consumer.assign([T0], {T1: 0})
    with pytest.raises(ValueError, match="negative"):
        it.consumer.assign([T0], {T0: -2})
