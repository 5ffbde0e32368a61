"""The fetcher, on scripted brokers: what it asks, and what it makes of late, wrong and missing answers."""

from types import SimpleNamespace

import pytest

from kclient.config import ConsumerConfig
from kclient.consumer.fetcher import Fetcher
from kclient.consumer.partitions import Partitions
from kclient.types import TopicPartition
from kclient.wire import batches
from kclient.wire.errors import CorruptMessage, ErrorCode, TopicAuthorizationFailed
from kclient.wire.fetch import AbortedTransaction
from kclient.wire.records import ABORT, encode_transaction_marker
from kclient.wire.versions import ApiKey
from tests.kit.scripted_cluster import ScriptedCluster, batch_of, part

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


class Fetching:
    """A fetcher on a scripted cluster, and its reports."""

    def __init__(self, scripted, **settings):
        self.scripted = scripted
        self.cluster = scripted.cluster(ConsumerConfig.load({"retry_backoff_ms": 100, **settings}))
        self.partitions = Partitions()
        self.arrived = 0
        self.out_of_range = []
        self.reported = []
        self.fetcher = Fetcher(
            self.cluster,
            self.cluster.config,
            self.partitions,
            arrived=self._arrived,
            out_of_range=lambda state, problem: self.out_of_range.append(state.tp),
            report=lambda tp, problem: self.reported.append((tp, problem)),
        )

    def _arrived(self):
        self.arrived += 1

    def start(self, **offsets):
        self.partitions.assign({TopicPartition("t", int(name[1:])) for name in offsets})
        for name, offset in offsets.items():
            self.state(int(name[1:])).seek(offset)
        self.fetcher.send_fetches()

    def state(self, number=0):
        return self.partitions.get(TopicPartition("t", number))

    def values(self, number=0):
        return [b.info.base_offset for b in self.state(number).buffered]

    def asked(self):
        """(topic, partition, offset) of the one Fetch that waits."""
        message = self.scripted.one(ApiKey.FETCH).message
        return [
            (self.scripted.topic_name(t), p.partition, p.fetch_offset)
            for t in message.topics
            for p in t.partitions
        ]

    def forgotten(self):
        """(topic, partition) that the one Fetch that waits does not want any more."""
        message = self.scripted.one(ApiKey.FETCH).message
        return [(self.scripted.topic_name(t), p) for t in message.forgotten for p in t.partitions]

    def answer(self, *partitions, **of_session):
        pairs = [(TopicPartition("t", each.partition), each) for each in partitions]
        self.scripted.one(ApiKey.FETCH).answer(self.scripted.fetched(*pairs, **of_session))
        self.scripted.turn()


@pytest.fixture
def scripted():
    return ScriptedCluster({"t": 3})


def test_one_fetch_asks_one_leader_for_all_its_partitions(scripted):
    scripted.brokers = [1, 2]
    fetching = Fetching(scripted)
    fetching.start(p0=5, p1=6, p2=7)
    fetching.fetcher.send_fetches()
    fetches = scripted.waiting(ApiKey.FETCH)
    assert [asked.node for asked in fetches] == [1, 2]
    assert [
        [(p.partition, p.fetch_offset) for t in asked.message.topics for p in t.partitions]
        for asked in fetches
    ] == [[(0, 5), (2, 7)], [(1, 6)]]


def test_what_came_is_buffered_and_the_next_fetch_goes_on_behind_it(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    fetching.answer(part(0, batch_of(4, b"a", b"b") + batch_of(6, b"c")))
    assert (fetching.arrived, fetching.values()) == (1, [4, 6])
    assert fetching.asked() == [("t", 0, 7)]


def test_a_batch_that_ends_before_the_position_is_not_buffered(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=6)
    fetching.answer(part(0, batch_of(4, b"a", b"b") + batch_of(6, b"c")))
    assert fetching.values() == [6]


def test_an_answer_from_before_a_seek_changes_nothing(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    fetching.state().seek(50)
    fetching.answer(part(0, batch_of(5, b"a")))
    assert (fetching.values(), fetching.state().position) == ([], 50)
    assert fetching.asked() == [("t", 0, 50)]


def test_an_answer_for_a_partition_that_went_and_came_back_changes_nothing(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    fetching.partitions.assign([])
    fetching.partitions.assign([T0])
    fetching.state().seek(50)
    fetching.answer(part(0, batch_of(5, b"a")))
    assert (fetching.values(), fetching.state().fetch_offset) == ([], 50)


def test_an_error_from_before_a_seek_changes_nothing(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    fetching.state().seek(50)
    fetching.answer(part(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert fetching.out_of_range == []


def test_a_leader_that_is_none_any_more_leads_to_the_new_one(scripted):
    scripted.brokers = [1, 2]
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    scripted.leaders[T0] = (2, 1)
    fetching.answer(part(0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert scripted.waiting(ApiKey.FETCH) == []
    scripted.pass_time(0.3)
    if scripted.one(ApiKey.FETCH).node == 1:  # Its turn came just before the new metadata.
        fetching.answer(part(0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        scripted.pass_time(0.3)
    fetch = scripted.one(ApiKey.FETCH)
    assert fetch.node == 2
    assert fetch.message.topics[0].partitions[0].current_leader_epoch == 1
    assert fetching.reported == []


def test_a_broker_that_cannot_be_reached_is_tried_again(scripted):
    fetching = Fetching(scripted)
    scripted.down.add(1)
    fetching.start(p0=5)
    scripted.pass_time(0.5)
    assert scripted.waiting(ApiKey.FETCH) == []
    scripted.down.clear()
    scripted.pass_time(0.3)
    assert fetching.asked() == [("t", 0, 5)]
    assert fetching.reported == []


def test_a_partition_without_a_leader_waits_and_does_not_hold_up_others(scripted):
    scripted.leaders[T0] = (-1, 0)
    fetching = Fetching(scripted)
    fetching.start(p0=5, p1=6)
    assert fetching.asked() == [("t", 1, 6)]
    scripted.leaders.clear()
    fetching.answer(part(1))
    scripted.pass_time(0.3)
    fetching.answer(part(1))
    assert ("t", 0, 5) in fetching.asked()


def test_after_an_unknown_topic_id_the_fetch_is_retried(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    before = scripted.count(ApiKey.METADATA)
    fetching.answer(part(0, error_code=ErrorCode.UNKNOWN_TOPIC_ID))
    scripted.pass_time(0.3)
    assert scripted.count(ApiKey.METADATA) > before
    assert fetching.asked() == [("t", 0, 5)]
    assert fetching.reported == []


def test_a_cluster_without_topic_ids_is_asked_by_name(scripted):
    scripted.with_topic_ids = False
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    assert scripted.one(ApiKey.FETCH).version == 12
    fetching.answer(part(0, batch_of(5, b"a")))
    assert fetching.values() == [5]


def test_topic_ids_are_used_where_there_are_some(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    assert scripted.one(ApiKey.FETCH).version > 12
    assert scripted.one(ApiKey.FETCH).message.topics[0].topic_id == scripted.topic_id("t")


def test_an_offset_out_of_range_is_reported_and_not_fetched_again(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5, p1=6)
    fetching.partitions.get(T0)
    fetching.answer(part(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE), part(1, batch_of(6, b"a")))
    assert fetching.out_of_range == [T0]
    assert fetching.values(1) == [6]


def test_an_error_that_is_not_retriable_is_reported_and_retried_later_only(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    fetching.answer(part(0, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    ((tp, problem),) = fetching.reported
    assert tp == T0
    assert isinstance(problem, TopicAuthorizationFailed)
    assert scripted.waiting(ApiKey.FETCH) == []
    scripted.pass_time(0.2)
    assert fetching.asked() == [("t", 0, 5)]


def test_a_paused_partition_is_not_fetched(scripted):
    fetching = Fetching(scripted)
    fetching.partitions.assign([T0, T1])
    fetching.state(0).seek(1)
    fetching.state(1).seek(2)
    fetching.state(0).paused = True
    fetching.fetcher.send_fetches()
    assert fetching.asked() == [("t", 1, 2)]


def test_what_paused_partitions_hold_back_does_not_starve_others(scripted):
    fetching = Fetching(scripted, fetch_max_bytes=100)
    fetching.start(p0=0, p1=0)
    fetching.answer(part(0, batch_of(0, b"x" * 200)), part(1))
    fetching.state(0).paused = True
    fetching.fetcher.send_fetches()
    assert fetching.asked() == [("t", 1, 0)]


def test_nothing_is_fetched_beyond_fetch_max_bytes(scripted):
    fetching = Fetching(scripted, fetch_max_bytes=100)
    fetching.start(p0=0, p1=0)
    fetching.answer(part(0, batch_of(0, b"x" * 200)), part(1))
    assert scripted.waiting(ApiKey.FETCH) == []
    fetching.state(0).take()
    fetching.fetcher.send_fetches()
    assert fetching.asked() == [("t", 0, 1), ("t", 1, 0)]


def test_a_partition_with_a_full_buffer_is_not_fetched(scripted):
    fetching = Fetching(scripted, max_partition_fetch_bytes=100)
    fetching.start(p0=0, p1=0)
    fetching.answer(part(0, batch_of(0, b"x" * 200)), part(1))
    assert fetching.asked() == [("t", 1, 0)]


def test_closing_drops_the_answers_that_still_come(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    fetching.fetcher.close()
    fetching.answer(part(0, batch_of(5, b"a")))
    assert (fetching.arrived, fetching.values()) == (0, [])
    assert scripted.waiting(ApiKey.FETCH) == []


def test_closing_while_a_fetch_fails_reports_nothing(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    fetching.fetcher.close()
    scripted.one(ApiKey.FETCH).fail()
    scripted.pass_time(1.0)
    assert fetching.reported == []
    assert scripted.count(ApiKey.FETCH) == 1


def test_a_partition_that_is_missing_in_an_answer_is_not_asked_in_a_circle(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    fetching.answer()
    assert scripted.waiting(ApiKey.FETCH) == []
    scripted.pass_time(0.2)
    assert fetching.asked() == [("t", 0, 5)]


def test_a_cut_off_batch_behind_another_partition_comes_the_next_time(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=0, p1=0)
    fetching.answer(part(0, batch_of(0, b"a")), part(1, batch_of(0, b"b" * 500)[:100]))
    assert fetching.reported == []
    scripted.pass_time(0.2)
    fetching.answer(part(0))
    assert ("t", 1, 0) in fetching.asked()


def test_a_single_truncated_batch_is_an_error(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=0)
    fetching.answer(part(0, batch_of(0, b"b" * 500)[:100]))
    ((tp, problem),) = fetching.reported
    assert tp == T0
    assert "without a complete batch" in str(problem)


def test_batches_before_a_corrupt_one_are_returned_and_its_error_comes_after_them(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=0)
    broken = bytearray(batch_of(1, b"b"))
    broken[-1] ^= 1
    fetching.answer(part(0, batch_of(0, b"a") + bytes(broken)))
    assert (fetching.values(), fetching.reported) == ([0], [])
    assert fetching.asked() == [("t", 0, 1)]
    fetching.answer(part(0, bytes(broken)))
    ((_tp, problem),) = fetching.reported
    assert isinstance(problem, CorruptMessage)
    assert str(problem).startswith("CORRUPT_MESSAGE: t-0 at offset 1: ")


def test_a_broken_crc_passes_where_it_is_not_to_be_checked(scripted):
    fetching = Fetching(scripted, check_crcs=False)
    fetching.start(p0=0)
    broken = bytearray(batch_of(0, b"b"))
    broken[-2] ^= 1
    fetching.answer(part(0, bytes(broken)))
    assert fetching.values() == [0]


def test_a_partition_set_aside_is_looked_at_in_time_whatever_else_was_set_aside_before(scripted):
    scripted.brokers = [1, 2]
    fetching = Fetching(scripted)
    fetching.start(p0=5, p1=6)
    zero, one = scripted.waiting(ApiKey.FETCH)
    not_available = part(0, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    zero.answer(scripted.fetched((T0, not_available)))
    scripted.turn(0.06)
    one.answer(scripted.fetched((T1, part(1, error_code=ErrorCode.UNKNOWN_SERVER_ERROR))))
    scripted.pass_time(0.06, step=0.02)
    assert [asked.node for asked in scripted.waiting(ApiKey.FETCH)] == [1]
    scripted.pass_time(0.08, step=0.02)
    assert [asked.node for asked in scripted.waiting(ApiKey.FETCH)] == [1, 2]


def test_the_offsets_of_a_fetch_response_are_kept(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    fetching.answer(part(0, high_watermark=25, last_stable_offset=20, log_start_offset=3))
    state = fetching.state()
    assert (state.high_watermark, state.last_stable_offset, state.log_start_offset) == (25, 20, 3)
    assert state.lag() == 20


def transactional(base_offset, producer_id, *values):
    return batch_of(
        base_offset,
        *values,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        attributes=batches.TRANSACTIONAL,
    )


def marker(offset, producer_id, kind=ABORT):
    return encode_transaction_marker(
        kind,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1,
        base_offset=offset,
    )


def test_batches_of_aborted_transactions_and_markers_are_hidden(scripted):
    fetching = Fetching(scripted, isolation_level="read_committed")
    fetching.start(p0=0)
    assert scripted.one(ApiKey.FETCH).message.isolation_level == 1
    data = (
        transactional(0, 7, b"aborted")
        + transactional(1, 8, b"committed")
        + batch_of(2, b"plain")
        + transactional(3, 7, b"aborted too")
        + marker(4, 7)
        + transactional(5, 7, b"the next one of the same producer")
        + marker(6, 8, kind=1)
    )
    fetching.answer(part(0, data, aborted_transactions=[AbortedTransaction(7, 0)]))
    shown = [b.info.base_offset for b in fetching.state().buffered if not b.hidden]
    assert shown == [1, 2, 5]
    assert fetching.state().fetch_offset == 7


def test_a_control_batch_that_compaction_emptied_ends_no_transaction(scripted):
    fetching = Fetching(scripted, isolation_level="read_committed")
    fetching.start(p0=0)
    empty = batches.build(
        b"", record_count=0, last_offset_delta=0, base_timestamp=-1, max_timestamp=-1,
        attributes=batches.CONTROL | batches.TRANSACTIONAL, base_offset=1, producer_id=7, producer_epoch=0,
    )  # fmt: skip
    data = transactional(0, 7, b"aborted") + empty + marker(2, 7) + transactional(3, 7, b"next")
    fetching.answer(part(0, data, aborted_transactions=[AbortedTransaction(7, 0)]))
    shown = [b.info.base_offset for b in fetching.state().buffered if not b.hidden]
    assert shown == [3]


def test_under_read_uncommitted_only_markers_are_hidden(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=0)
    fetching.answer(part(0, transactional(0, 7, b"a") + marker(1, 7)))
    assert [b.hidden for b in fetching.state().buffered] == [False, True]


def test_an_unexpected_exception_is_reported_instead_of_retried_forever(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    scripted.one(ApiKey.FETCH).answer(SimpleNamespace(error_code=0, topics=None))
    scripted.turn()
    assert len(fetching.reported) == 1
