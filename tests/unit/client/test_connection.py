"""One connection: answers find their requests, time limits hold, nothing is left waiting."""

from __future__ import annotations

import struct

import pytest
from twisted.internet import error
from twisted.python.failure import Failure

from kclient.errors import Cause, ConnectError, ConnectionClosed, KafkaTimeoutError
from kclient.net.connection import Connection
from kclient.wire.errors import MalformedMessage, UnsupportedVersion
from kclient.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse
from kclient.wire.schema.metadata import MetadataRequest, MetadataResponse
from kclient.wire.versions import ApiKey, VersionRange
from tests.kit.scripted_broker import Outcome, ScriptedBroker


def ask(connection: Connection, timeout: float | None = None) -> Outcome:
    return Outcome(
        connection.request(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g"), timeout=timeout)
    )


def test_pipelined_requests_get_their_own_answers() -> None:
    broker = ScriptedBroker()
    first = Outcome(broker.connection.request(ApiKey.METADATA, 9, MetadataRequest(topics=None)))
    second = ask(broker.connection)
    (one, _), (two, _) = broker.requests()
    broker.answer(one, MetadataResponse(cluster_id="c"))
    assert first.value.cluster_id == "c"
    assert not second.fired
    broker.answer(two, HeartbeatResponse(error_code=27))
    assert second.value.error_code == 27


def test_an_answer_cut_into_single_bytes_arrives_whole() -> None:
    broker = ScriptedBroker()
    outcome = ask(broker.connection)
    ((header, _),) = broker.requests()
    body = struct.pack(">iB", header.correlation_id, 0) + struct.pack(">ihB", 0, 0, 0)
    for i in range(4 + len(body)):
        broker.connection.dataReceived((struct.pack(">i", len(body)) + body)[i : i + 1])
    assert outcome.value.error_code == 0


def test_an_equal_metadata_response_is_decoded_once() -> None:
    broker = ScriptedBroker()

    def asked(response: MetadataResponse) -> MetadataResponse:
        outcome = Outcome(
            broker.connection.request(ApiKey.METADATA, 9, MetadataRequest(topics=None))
        )
        broker.answer(broker.requests()[0][0], response)
        found: MetadataResponse = outcome.value
        return found

    first = asked(MetadataResponse(cluster_id="c", controller_id=1))
    other = asked(MetadataResponse(cluster_id="c", controller_id=2))
    assert asked(MetadataResponse(cluster_id="c", controller_id=1)) is first
    assert asked(MetadataResponse(cluster_id="c", controller_id=2)) is other
    assert (first.controller_id, other.controller_id) == (1, 2)
    asked(MetadataResponse(cluster_id="c", controller_id=3))
    again = asked(MetadataResponse(cluster_id="c", controller_id=1))
    assert again == first
    assert again is not first, "two are kept"


def test_an_answer_out_of_turn_ends_the_connection() -> None:
    broker = ScriptedBroker()
    first, second = ask(broker.connection), ask(broker.connection)
    (_, _), (two, _) = broker.requests()
    broker.answer(two, HeartbeatResponse())
    assert isinstance(first.error, ConnectError)
    assert first.error.cause is Cause.NOT_KAFKA
    assert second.fired
    assert broker.transport.aborted


def test_a_response_without_a_request_ends_the_connection() -> None:
    broker = ScriptedBroker()
    broker.send(struct.pack(">i", 7))
    assert broker.connection.closed is not None
    assert broker.transport.aborted


def test_an_invalid_length_is_reported_as_not_a_kafka_port() -> None:
    broker = ScriptedBroker()
    outcome = ask(broker.connection)
    broker.connection.dataReceived(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert isinstance(outcome.error, ConnectError)
    assert outcome.error.cause is Cause.NOT_KAFKA
    assert "HTTP" in str(outcome.error)


def test_an_answer_with_a_broken_body_names_api_and_version() -> None:
    broker = ScriptedBroker()
    outcome = ask(broker.connection)
    ((header, _),) = broker.requests()
    broker.send(struct.pack(">i", header.correlation_id) + b"\xff")
    assert isinstance(outcome.error, MalformedMessage)
    assert "HEARTBEAT v4" in str(outcome.error)
    assert broker.transport.aborted


def test_a_request_unanswered_in_its_time_fails_and_takes_the_connection_with_it() -> None:
    broker = ScriptedBroker(request_timeout=30.0)
    slow, behind = ask(broker.connection), ask(broker.connection)
    broker.clock.advance(29.9)
    assert not slow.fired
    broker.clock.advance(0.2)
    assert isinstance(slow.error, KafkaTimeoutError)
    assert "HEARTBEAT v4 in 30" in str(slow.error)
    assert behind.fired
    assert broker.transport.aborted


def test_a_shorter_limit_of_one_request_is_kept() -> None:
    broker = ScriptedBroker(request_timeout=30.0)
    ask(broker.connection)
    outcome = ask(broker.connection, timeout=2.0)
    broker.clock.advance(2.1)
    assert isinstance(outcome.error, KafkaTimeoutError)


def test_answers_stop_the_clock() -> None:
    broker = ScriptedBroker()
    outcome = ask(broker.connection)
    ((header, _),) = broker.requests()
    broker.answer(header, HeartbeatResponse())
    assert outcome.fired
    assert broker.clock.getDelayedCalls() == []


def test_requests_beyond_the_limit_wait_their_turn() -> None:
    broker = ScriptedBroker(max_in_flight=2)
    outcomes = [ask(broker.connection) for _ in range(5)]
    sent = broker.requests()
    assert len(sent) == 2
    broker.answer(sent[0][0], HeartbeatResponse())
    assert len(broker.requests()) == 1
    assert [outcome.fired for outcome in outcomes] == [True, False, False, False, False]


def test_the_answer_to_a_cancelled_request_is_stepped_over() -> None:
    broker = ScriptedBroker()
    given_up = broker.connection.request(ApiKey.HEARTBEAT, 4, HeartbeatRequest())
    given_up.addErrback(lambda _: None)
    outcome = ask(broker.connection)
    given_up.cancel()
    for header, _ in broker.requests():
        broker.answer(header, HeartbeatResponse(error_code=header.correlation_id))
    assert outcome.value.error_code == 1


def test_losing_the_connection_fails_everything_that_waits_sent_or_not() -> None:
    broker = ScriptedBroker(max_in_flight=1)
    outcomes = [ask(broker.connection) for _ in range(3)]
    ended: list[Connection] = []
    broker.connection.on_close(ended.append)
    broker.connection.connectionLost(Failure(error.ConnectionLost()))
    assert all(isinstance(outcome.error, ConnectionClosed) for outcome in outcomes)
    assert ended == [broker.connection]
    assert isinstance(ask(broker.connection).error, ConnectionClosed)


def test_a_listener_that_asks_again_when_the_connection_ends_is_refused_not_lost() -> None:
    broker = ScriptedBroker()
    again: list[Outcome] = []
    broker.connection.request(ApiKey.HEARTBEAT, 4, HeartbeatRequest()).addErrback(
        lambda _: again.append(ask(broker.connection))
    )
    broker.connection.connectionLost(Failure(error.ConnectionDone()))
    assert isinstance(again[0].error, ConnectionClosed)


def test_an_api_the_broker_has_not_is_refused_here_with_both_ranges() -> None:
    broker = ScriptedBroker()
    broker.connection.api_versions = {int(ApiKey.METADATA): VersionRange(20, 21)}
    outcome = Outcome(broker.connection.request(ApiKey.METADATA, None, MetadataRequest()))
    assert isinstance(outcome.error, UnsupportedVersion)
    assert "0-12" in str(outcome.error)
    assert "20-21" in str(outcome.error)
    assert broker.requests() == []


def test_the_highest_common_version_is_used() -> None:
    broker = ScriptedBroker()
    broker.connection.api_versions = {int(ApiKey.METADATA): VersionRange(1, 7)}
    broker.connection.request(ApiKey.METADATA, None, MetadataRequest())
    ((header, _),) = broker.requests()
    assert header.api_version == 7


def test_a_message_the_version_cannot_carry_fails_its_request_only() -> None:
    broker = ScriptedBroker()
    bad = Outcome(
        broker.connection.request(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id=None))  # type: ignore[arg-type]
    )
    with pytest.raises(Exception, match="HeartbeatRequest v4"):
        _ = bad.value
    assert broker.connection.closed is None


def test_a_message_that_cannot_be_encoded_fails_its_request_also_if_none_answers() -> None:
    """It was raised: the producer went on counting the request as one in flight."""
    sent = Outcome(ScriptedBroker().connection.send(ApiKey.PRODUCE, 9, object()))
    assert isinstance(sent.error, AttributeError)
