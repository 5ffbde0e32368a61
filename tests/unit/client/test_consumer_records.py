"""From batches to records: what is handed out, and what happens at one that cannot be read."""

import pytest

from kclient.consumer.partitions import FetchedBatch, Partitions
from kclient.consumer.records import Deserializers, decode, take_records
from kclient.errors import RecordDeserializationError
from kclient.types import Record, TopicPartition
from kclient.wire import batches
from kclient.wire import records as wire
from kclient.wire.errors import InvalidRecord
from tests.kit.scripted_cluster import batch_of

TP = TopicPartition("t", 0)


def of(data, hidden=False):
    view = memoryview(data)
    return FetchedBatch(batches.parse(view), view, hidden)


def state_with(*fetched, position=None):
    partitions = Partitions()
    partitions.assign([TP])
    state = partitions.get(TP)
    state.seek(fetched[0].info.base_offset if position is None else position)
    state.fetched(fetched, fetched[-1].info.next_offset, sum(b.info.size for b in fetched))
    return state


def picky(data):
    if data == b"bad":
        raise ValueError("it is bad")
    return data.decode()


def test_a_record_has_every_field_of_its_batch_and_place():
    record = wire.Record(0, 1_700_000_000_000, b"key", None, [("h", b"1")])
    data = wire.encode_batch([record], base_offset=7, leader_epoch=3)
    (made,), problem = decode(TP, of(data), 0)
    assert problem is None
    assert made == Record("t", 0, 7, 1_700_000_000_000, 0, b"key", None, [("h", b"1")], 3, 3, -1)
    assert made._fields == Record._fields
    assert made.topic_partition == TP


def test_the_leaders_time_stands_for_every_record():
    data = bytearray(batch_of(0, b"a", b"b"))
    stamped = batches.with_log_append_time(data, batches.parse(data), 99)
    made, _ = decode(TP, of(bytes(stamped)), 0)
    assert [(r.timestamp, r.timestamp_type) for r in made] == [(99, 1), (99, 1)]


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_read(codec):
    made, _ = decode(TP, of(batch_of(0, b"a" * 100, b"b", codec=codec)), 0)
    assert [r.value for r in made] == [b"a" * 100, b"b"]


@pytest.mark.parametrize(("position", "left"), [(4, [4, 5, 6]), (5, [5, 6]), (6, [6]), (7, [])])
def test_records_below_the_position_are_left_out(position, left):
    made, _ = decode(TP, of(batch_of(4, b"a", b"b", b"c")), position)
    assert [r.offset for r in made] == left
    assert [r.value for r in made] == [b"a", b"b", b"c"][position - 4 :]


def test_a_position_in_a_hole_of_compaction_goes_on_behind_it():
    records = [wire.Record(n, 1, None, b"%d" % n) for n in (0, 5)]
    data = wire.encode_batch(records, base_offset=0, keep_offsets=True, last_offset_delta=9)
    made, _ = decode(TP, of(data), 3)
    assert [r.offset for r in made] == [5]
    state = state_with(of(data), position=3)
    assert [r.offset for r in take_records(state, 10)] == [5]
    assert state.position == 10


def test_a_batch_that_compaction_emptied_only_moves_the_position():
    data = batches.build(
        b"",
        base_offset=3,
        record_count=0,
        last_offset_delta=4,
        base_timestamp=-1,
        max_timestamp=-1,
    )
    state = state_with(of(data), of(batch_of(8, b"a")))
    assert [r.offset for r in take_records(state, 10)] == [8]
    assert state.position == 9


def test_a_hidden_batch_only_moves_the_position():
    state = state_with(of(batch_of(0, b"a", b"b"), hidden=True))
    assert take_records(state, 10) == []
    assert state.position == 2


def test_batches_are_handed_out_in_parts():
    state = state_with(of(batch_of(0, b"0", b"1", b"2")), of(batch_of(3, b"3")))
    assert [r.value for r in take_records(state, 2)] == [b"0", b"1"]
    assert state.position == 2
    assert [r.value for r in take_records(state, 2)] == [b"2", b"3"]
    assert state.position == 4
    assert take_records(state, 2) == []


def test_keys_and_values_are_deserialized_and_nulls_stay():
    record = wire.Record(0, 1, b"k", None)
    data = wire.encode_batch([record])
    (made,), _ = decode(TP, of(data), 0, Deserializers(bytes.decode, bytes.decode))
    assert (made.key, made.value) == ("k", None)
    assert (made.serialized_key_size, made.serialized_value_size) == (1, -1)


def test_a_deserializer_that_fails_names_the_record_and_keeps_those_before():
    made, problem = decode(TP, of(batch_of(4, b"a", b"bad", b"c")), 0, Deserializers(value=picky))
    assert [r.value for r in made] == ["a"]
    assert isinstance(problem, RecordDeserializationError)
    assert (problem.topic_partition, problem.offset) == (TP, 5)
    assert "the value of the record at t-0, offset 5" in str(problem)
    assert isinstance(problem.__cause__, ValueError)


def test_the_first_failure_of_key_or_value_counts():
    records = [
        wire.Record(n, 1, key, value)
        for n, (key, value) in enumerate([(b"k", b"v"), (b"k", b"bad"), (b"bad", b"v")])
    ]
    made, problem = decode(
        TP, of(wire.encode_batch(records)), 0, Deserializers(key=picky, value=picky)
    )
    assert len(made) == 1
    assert (problem.offset, "value" in str(problem)) == (1, True)


def test_an_invalid_record_is_an_error_of_every_poll_until_a_seek_skips_it():
    state = state_with(of(batch_of(0, b"a", b"bad", b"c")))
    picking = Deserializers(value=picky)
    assert [r.value for r in take_records(state, 10, picking)] == ["a"]
    assert state.position == 1
    for _ in range(3):
        with pytest.raises(RecordDeserializationError):
            take_records(state, 10, picking)
    assert state.position == 1


def test_a_corrupt_batch_is_reported_with_its_position():
    broken = bytearray(batch_of(4, b"abc"))
    broken[-5] = 99
    state = state_with(of(batch_of(3, b"x")), of(bytes(broken)))
    assert [r.value for r in take_records(state, 10)] == [b"x"]
    with pytest.raises(InvalidRecord, match="t-0, batch at offset 4"):
        take_records(state, 10)
    assert state.position == 4


def test_the_leader_epoch_of_the_last_record_is_remembered():
    state = state_with(of(batch_of(0, b"a", leader_epoch=0)), of(batch_of(1, b"b", leader_epoch=4)))
    take_records(state, 1)
    assert state.leader_epoch == 0
    take_records(state, 1)
    assert state.leader_epoch == 4
