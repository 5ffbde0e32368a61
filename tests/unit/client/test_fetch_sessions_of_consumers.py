"""Fetch sessions (KIP-227) as a consumer uses them, on scripted brokers."""

import pytest

from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode
from kclient.wire.versions import ApiKey
from tests.kit.scripted_cluster import ScriptedCluster, batch_of, part
from tests.unit.client.test_fetcher import Fetching

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


@pytest.fixture
def scripted():
    return ScriptedCluster({"t": 3})


def session_of(scripted):
    message = scripted.one(ApiKey.FETCH).message
    return message.session_id, message.session_epoch


def in_session(scripted, **settings):
    """A fetcher of three partitions that broker 1 has given session 7, in which nothing is new."""
    fetching = Fetching(scripted, **settings)
    fetching.start(p0=5, p1=6, p2=7)
    assert session_of(scripted) == (0, 0)
    fetching.answer(part(0), part(1), part(2), session_id=7)
    return fetching


def test_what_the_broker_knows_is_not_named_again(scripted):
    fetching = in_session(scripted)
    for epoch in (1, 2):
        assert (session_of(scripted), fetching.asked(), fetching.forgotten()) == (
            (7, epoch),
            [],
            [],
        )
        fetching.answer(session_id=7)
    fetching.answer(part(1, batch_of(6, b"a")), session_id=7)
    assert fetching.values(1) == [6]
    assert (session_of(scripted), fetching.asked()) == ((7, 4), [("t", 1, 7)])
    fetching.answer(session_id=7)
    assert (session_of(scripted), fetching.asked()) == ((7, 5), [])


def test_a_partition_that_has_nothing_new_is_not_set_aside(scripted):
    fetching = in_session(scripted)
    fetching.answer(session_id=7)
    assert not any(state.not_before for state in fetching.partitions)
    assert fetching.reported == []


def test_what_is_paused_is_forgotten_and_named_when_it_goes_on(scripted):
    fetching = in_session(scripted)
    fetching.state(1).paused = True
    fetching.answer(session_id=7)
    assert (fetching.asked(), fetching.forgotten()) == ([], [("t", 1)])
    fetching.state(1).paused = False
    fetching.answer(session_id=7)
    assert (fetching.asked(), fetching.forgotten()) == ([("t", 1, 6)], [])


def test_what_is_not_assigned_any_more_is_forgotten(scripted):
    fetching = in_session(scripted)
    fetching.partitions.assign([T0, T2])
    fetching.answer(session_id=7)
    assert (fetching.asked(), fetching.forgotten()) == ([], [("t", 1)])


@pytest.mark.parametrize(
    ("code", "id_in_the_next"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 7),
    ],
)
def test_a_session_that_the_broker_does_not_know_is_started_again_at_once(
    scripted, code, id_in_the_next
):
    fetching = in_session(scripted)
    fetching.answer(error_code=code)
    assert session_of(scripted) == (id_in_the_next, 0)
    assert fetching.asked() == [("t", 0, 5), ("t", 1, 6), ("t", 2, 7)]
    assert fetching.reported == []


def test_a_broker_that_refuses_even_full_fetches_is_not_asked_in_a_circle(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    fetching.answer(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert scripted.waiting(ApiKey.FETCH) == []
    scripted.pass_time(0.3)
    assert fetching.asked() == [("t", 0, 5)]


def test_a_fetch_without_an_answer_is_followed_by_a_full_one(scripted):
    fetching = in_session(scripted)
    scripted.one(ApiKey.FETCH).fail()
    scripted.pass_time(0.3)
    assert session_of(scripted) == (7, 0)
    assert fetching.asked() == [("t", 0, 5), ("t", 1, 6), ("t", 2, 7)]


def test_a_broker_without_room_is_asked_for_everything_every_time(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5, p1=6)
    fetching.answer(part(0, batch_of(5, b"a")), part(1))
    assert session_of(scripted) == (0, 0)
    assert fetching.asked() == [("t", 0, 6), ("t", 1, 6)]


def test_a_seek_to_the_same_offset_has_the_partition_answered_again(scripted):
    fetching = in_session(scripted)
    fetching.state(1).seek(6)
    fetching.answer(part(1, batch_of(6, b"dropped"), high_watermark=7), session_id=7)
    assert fetching.values(1) == []
    assert fetching.asked() == [("t", 1, 6)]


def test_a_new_leader_epoch_is_named(scripted):
    fetching = in_session(scripted)
    scripted.leaders[T2] = (1, 3)
    fetching.cluster.update_soon()
    scripted.pass_time(0.5)
    fetching.answer(session_id=7)
    assert fetching.asked() == [("t", 2, 7)]
    (topic,) = scripted.one(ApiKey.FETCH).message.topics
    assert topic.partitions[0].current_leader_epoch == 3


def test_where_names_take_the_place_of_ids_another_session_is_begun(scripted):
    fetching = in_session(scripted)
    scripted.with_topic_ids = False
    fetching.cluster.update_soon()
    scripted.pass_time(0.5)
    fetching.answer(session_id=7)
    assert (scripted.one(ApiKey.FETCH).version, session_of(scripted)) == (12, (7, 0))
    assert fetching.asked() == [("t", 0, 5), ("t", 1, 6), ("t", 2, 7)]
    fetching.answer(part(0), part(1), part(2), session_id=8)
    assert (session_of(scripted), fetching.asked()) == ((8, 1), [])


def test_every_broker_has_a_session_of_its_own(scripted):
    scripted.brokers = [1, 2]
    fetching = Fetching(scripted)
    fetching.start(p0=5, p1=6)
    one, two = scripted.waiting(ApiKey.FETCH)
    one.answer(scripted.fetched((T0, part(0)), session_id=7))
    two.answer(scripted.fetched((T1, part(1)), session_id=8))
    scripted.turn()
    requests = {asked.node: asked.message for asked in scripted.waiting(ApiKey.FETCH)}
    assert {node: message.session_id for node, message in requests.items()} == {1: 7, 2: 8}
    scripted.leaders[T1] = (1, 1)
    fetching.cluster.update_soon()
    scripted.pass_time(0.5)
    for asked in scripted.waiting(ApiKey.FETCH):
        asked.answer(scripted.fetched(session_id=requests[asked.node].session_id))
    scripted.turn()
    assert scripted.one(ApiKey.FETCH).node == 1, "what one has lost another one is asked for"
    fetching.answer(session_id=7)
    assert fetching.asked() == [("t", 1, 6)]


def test_closing_gives_the_session_back(scripted):
    fetching = in_session(scripted)
    fetching.fetcher.close()
    _, last = scripted.waiting(ApiKey.FETCH)
    assert (last.message.session_id, last.message.session_epoch) == (7, -1)
    assert last.message.topics == []
    last.fail()
    fetching.fetcher.close()
    assert scripted.count(ApiKey.FETCH) == 3


def test_without_a_session_or_a_connection_no_close_request_is_sent(scripted):
    fetching = Fetching(scripted)
    fetching.start(p0=5)
    fetching.fetcher.close()
    assert scripted.count(ApiKey.FETCH) == 1
