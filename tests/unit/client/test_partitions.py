"""What a consumer knows of its partitions: positions, turns, what may be fetched."""

from kclient.consumer.partitions import FetchedBatch, Partitions
from kclient.types import TopicPartition
from kclient.wire import batches
from tests.kit.scripted_cluster import batch_of

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


def fetched(base_offset, *values):
    data = memoryview(batch_of(base_offset, *values))
    return FetchedBatch(batches.parse(data), data)


def some(*tps):
    partitions = Partitions()
    partitions.assign(tps)
    for state in partitions:
        state.seek(0)
    return partitions


def test_assigning_keeps_what_stays_and_forgets_what_goes():
    partitions = some(T0, T1)
    kept, gone = partitions.get(T0), partitions.get(T1)
    kept.fetched([fetched(0, b"a")], 1, 10)
    gone.fetched([fetched(0, b"a")], 1, 10)
    partitions.assign([T0, T2])
    assert partitions.get(T0) is kept
    assert kept.buffered
    assert not gone.buffered
    assert partitions.assigned() == {T0, T2}


def test_an_answer_counts_only_for_the_state_and_epoch_that_asked():
    partitions = some(T0)
    state = partitions.get(T0)
    epoch = state.epoch
    assert partitions.current(state, epoch)
    state.seek(5)
    assert not partitions.current(state, epoch)
    epoch = state.epoch
    partitions.assign([])
    partitions.assign([T0])
    new = partitions.get(T0)
    while new.epoch < epoch:
        new.seek(5)
    assert new.epoch == epoch
    assert not partitions.current(state, epoch)
    assert not partitions.current(state, state.epoch)


def test_a_seek_drops_everything_of_the_old_position():
    partitions = some(T0)
    state = partitions.get(T0)
    state.fetched([fetched(0, b"a", b"b")], 2, 10)
    state.decoded, state.problem, state.in_flight = [object()], ValueError(), True
    state.reset_because = "out of range"
    state.seek(7)
    assert (state.position, state.fetch_offset, state.buffered_bytes) == (7, 7, 0)
    assert not state.ready
    assert not state.in_flight
    assert state.reset_because == ""


def test_served_partitions_go_to_the_end_of_the_line():
    partitions = some(T0, T1, T2)
    partitions.served(T0)
    assert [state.tp for state in partitions] == [T1, T2, T0]
    partitions.served(TopicPartition("t", 9))
    assert len(partitions) == 3


def test_only_what_has_something_is_ready():
    partitions = some(T0, T1, T2)
    partitions.get(T1).fetched([fetched(0, b"a")], 1, 10)
    partitions.get(T2).fetched([fetched(0, b"a")], 1, 10)
    partitions.get(T2).paused = True
    assert [state.tp for state in partitions.ready()] == [T1]
    partitions.get(T1).take()
    assert list(partitions.ready()) == []
    partitions.get(T1).problem = ValueError()
    assert [state.tp for state in partitions.ready()] == [T1]


def test_what_may_be_fetched():
    partitions = some(T0, T1, T2)
    zero, one, two = partitions
    zero.not_before = 10.0
    one.in_flight = True
    assert partitions.fetchable(5.0, 100) == [two]
    assert partitions.next_retry_at(5.0) == 10.0
    two.fetched([fetched(0, b"a")], 1, 100)
    assert partitions.fetchable(10.0, 100) == [zero]
    assert partitions.next_retry_at(10.0) is None
    zero.problem = ValueError()
    assert partitions.fetchable(10.0, 100) == []
    zero.problem, zero.position = None, None
    assert partitions.fetchable(10.0, 100) == []
    assert partitions.without_position() == [zero]


def test_bytes_of_paused_partitions_do_not_count():
    partitions = some(T0, T1)
    for state in partitions:
        state.fetched([fetched(0, b"a")], 1, 50)
    assert partitions.buffered_bytes == 100
    partitions.get(T0).paused = True
    assert partitions.buffered_bytes == 50


def test_taking_returns_the_bytes():
    partitions = some(T0)
    state = partitions.get(T0)
    batch = fetched(0, b"a")
    state.fetched([batch], 1, batch.info.size)
    assert state.take() is batch
    assert (state.buffered_bytes, state.take()) == (0, None)


def test_lag_is_never_negative_and_unknown_before_the_first_fetch():
    state = some(T0).get(T0)
    assert state.lag() is None
    state.high_watermark = 5
    state.position = 3
    assert state.lag() == 2
    state.position = 9
    assert state.lag() == 0


def test_with_read_committed_the_lag_is_up_to_the_last_stable_offset():
    state = some(T0).get(T0)
    state.position = 3
    state.high_watermark = 9
    assert state.lag(read_committed=True) is None
    state.last_stable_offset = 5
    assert state.lag(read_committed=True) == 2
    state.position = 6
    assert state.lag(read_committed=True) == 0
