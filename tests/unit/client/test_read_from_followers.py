"""Reading from the follower that the leader named, and going back to the leader (KIP-392), on scripted brokers."""

import pytest

from kclient.consumer.preferred_read_replica import PreferredReadReplica
from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode
from kclient.wire.versions import ApiKey
from tests.kit.scripted_cluster import ScriptedCluster, batch_of, part
from tests.unit.client.test_fetcher import Fetching

T0 = TopicPartition("t", 0)


@pytest.fixture
def scripted():
    """Partition 0 is led by broker 1, partition 1 by broker 2."""
    scripted = ScriptedCluster({"t": 3})
    scripted.brokers = [1, 2]
    return scripted


def sent_to_follower(scripted, **settings):
    """A fetcher that broker 1 has sent to broker 2 for partition 0, and that asks there now."""
    fetching = Fetching(scripted, client_rack="west", metadata_max_age_ms=10_000, **settings)
    fetching.start(p0=5)
    asked = scripted.one(ApiKey.FETCH)
    assert (asked.node, asked.message.rack_id) == (1, "west")
    fetching.answer(part(0, preferred_read_replica=2))
    assert scripted.one(ApiKey.FETCH).node == 2
    return fetching


def test_the_follower_that_the_leader_names_is_read_from_at_once(scripted):
    fetching = sent_to_follower(scripted)
    assert fetching.asked() == [("t", 0, 5)]
    fetching.answer(part(0, batch_of(5, b"a")))
    assert fetching.values() == [5]
    assert (scripted.one(ApiKey.FETCH).node, fetching.asked()) == (2, [("t", 0, 6)])


def test_after_a_while_the_leader_is_asked_again(scripted):
    fetching = sent_to_follower(scripted)
    scripted.pass_time(9.5)
    fetching.answer(part(0, batch_of(5, b"a")))
    assert scripted.one(ApiKey.FETCH).node == 2
    scripted.pass_time(1)
    fetching.answer(part(0, batch_of(6, b"b")))
    assert scripted.one(ApiKey.FETCH).node == 1


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
    ],
)
def test_what_goes_wrong_at_a_follower_only_leads_back_to_the_leader(scripted, code):
    fetching = sent_to_follower(scripted)
    fetching.answer(part(0, error_code=code))
    scripted.pass_time(0.2)
    asked = scripted.one(ApiKey.FETCH)
    assert (asked.node, fetching.asked()) == (1, [("t", 0, 5)])
    assert (fetching.out_of_range, fetching.reported) == ([], [])
    assert asked.message.rack_id == "", "the leader would name it again"
    scripted.pass_time(31)
    fetching.answer(part(0, batch_of(5, b"a")))
    assert (scripted.one(ApiKey.FETCH).node, scripted.one(ApiKey.FETCH).message.rack_id) == (
        1,
        "west",
    )


def test_out_of_range_at_the_leader_is_the_truth(scripted):
    fetching = sent_to_follower(scripted)
    fetching.answer(part(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    scripted.pass_time(0.2)
    fetching.answer(part(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert fetching.out_of_range == [T0]


def test_a_follower_that_is_gone_leads_back_to_the_leader(scripted):
    fetching = sent_to_follower(scripted)
    scripted.down.add(2)
    scripted.one(ApiKey.FETCH).fail()
    scripted.turn()
    scripted.pass_time(0.3)
    assert scripted.one(ApiKey.FETCH).node == 1
    assert fetching.reported == []


def test_a_choice_holds_for_its_time_its_epoch_and_live_brokers():
    choice = PreferredReadReplica()
    assert choice.select(1, 4, {1, 2}, 0) == 1
    choice.named(2, 4, 10)
    assert [choice.select(1, 4, {1, 2}, now) for now in (0, 9.9)] == [2, 2]
    assert choice.select(1, 4, {1, 2}, 10) == 1
    choice.named(2, 4, 10)
    assert choice.select(1, 5, {1, 2}, 0) == 1
    choice.named(2, 4, 10)
    assert choice.select(1, 4, {1}, 0) == 1
    assert choice.select(1, 4, {1, 2}, 0) == 1, "it is not remembered"
    choice.named(2, 4, 10)
    assert choice.failed(0)
    assert not choice.failed(1), "it was the leader then"
    assert [choice.avoids_followers(now) for now in (29, 30)] == [True, False]
