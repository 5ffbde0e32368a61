"""What a request may have, by API: bytes, elements, and a turn of its own when it is large."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from kbroker.apis.api_specs import API_SPECS
from kbroker.apis.request import RequestContext
from kbroker.common.turns import SharedTurns
from kbroker.network.service import RequestRefusedError
from kclient.wire import fetch, messages, produce
from kclient.wire.errors import ErrorCode, MalformedMessage, TooManyElements
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.messages import MAX_HEADER_TAGS, RequestHeader
from kclient.wire.primitives import write_uvarint
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.schema.delete_topics import DeleteTopicsRequest
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.schema.list_groups import ListGroupsRequest, ListGroupsResponse
from kclient.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kclient.wire.versions import ApiKey
from tests.kit.inter_broker import authorizer_of
from tests.kit.request_pipelines import open_pipeline
from tests.kit.scripted_cluster import now
from tests.unit.apis.kit import PEER, joined


def frame(api: ApiKey, version: int, request: object) -> bytes:
    return messages.encode_request(RequestHeader(api, version, 7, "c"), request)


def ask(sent: bytes, answer: Any = None, turns: Any = None) -> Any:
    api = ApiKey(struct.unpack_from(">h", sent)[0])
    pipeline = open_pipeline(
        {api: lambda: lambda context, request: answer}, authorizer_of(1), turns
    )
    return pipeline(memoryview(sent), PEER)


def test_numbers_count_as_elements() -> None:
    limit = API_SPECS[ApiKey.OFFSET_FETCH].budget.max_elements
    topics = [OffsetFetchRequestTopic("t", [0] * limit)]
    sent = frame(ApiKey.OFFSET_FETCH, 5, OffsetFetchRequest("g", topics=topics))
    error, answer = messages.decode_response(ApiKey.OFFSET_FETCH, 5, joined(ask(sent)))
    assert (error, answer.error_code) == (7, ErrorCode.INVALID_REQUEST)
    topics = [OffsetFetchRequestTopic("t", [0] * (limit - 1))]
    sent = frame(ApiKey.OFFSET_FETCH, 5, OffsetFetchRequest("g", topics=topics))
    _, answer = messages.decode_response(
        ApiKey.OFFSET_FETCH, 5, joined(ask(sent, OffsetFetchResponse()))
    )
    assert answer.error_code == ErrorCode.NONE


def test_tagged_fields_count_as_elements() -> None:
    body = bytearray(b"\x01\x01")  # no states, no types
    tags = bytearray()
    write_uvarint(tags, 101)
    for tag in range(101):
        write_uvarint(tags, tag)
        tags.append(0)
    header = messages.encode_request_header(RequestHeader(ApiKey.LIST_GROUPS, 5, 7, "c"))
    _, answer = messages.decode_response(
        ApiKey.LIST_GROUPS, 5, joined(ask(bytes(header + body + tags), ListGroupsResponse()))
    )
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_a_header_with_more_tagged_fields_than_kafka_could_ever_want_is_malformed() -> None:
    head = struct.pack(">hhih", ApiKey.LIST_GROUPS, 5, 7, -1)
    tags = bytearray()
    write_uvarint(tags, MAX_HEADER_TAGS + 1)
    for tag in range(MAX_HEADER_TAGS + 1):
        write_uvarint(tags, tag)
        tags.append(0)
    with pytest.raises(MalformedMessage, match="more than 64 elements"):
        messages.decode_request_header(head + tags)


def test_a_refusal_names_the_limit_where_the_response_has_a_message() -> None:
    limit = API_SPECS[ApiKey.FIND_COORDINATOR].budget.max_bytes
    sent = frame(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest("g", 0)) + bytes(limit)
    _, answer = messages.decode_response(ApiKey.FIND_COORDINATOR, 3, joined(ask(sent)))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert str(limit) in answer.error_message


def test_a_request_over_budget_closes_the_connection_if_its_response_has_no_error() -> None:
    limit = API_SPECS[ApiKey.DELETE_TOPICS].budget.max_elements
    sent = frame(ApiKey.DELETE_TOPICS, 3, DeleteTopicsRequest(topic_names=["t"] * (limit + 1)))
    with pytest.raises(RequestRefusedError, match=f"DELETE_TOPICS v3: more than the {limit}"):
        now(ask(sent))
    # Version 8 has an error for each group only.
    sent = frame(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest()) + bytes(5 << 20)
    with pytest.raises(RequestRefusedError, match="OFFSET_FETCH v8: 5242"):
        ask(sent)


def test_a_fetch_and_a_produce_have_so_many_partitions_and_no_more() -> None:
    def fetching(count: int) -> bytes:
        wanted = FetchRequest(0, 0, [FetchTopic("t", [FetchPartition(0, 0, 1)] * count)])
        return fetch.encode_request(wanted, 12, 7, "c")

    def producing(count: int) -> bytes:
        batches = [ProducePartition(0, b"")] * count
        request = ProduceRequest(1, 1, [ProduceTopic("t", batches)])
        return b"".join(produce.encode_request(request, 9, 7, "c"))

    def read(context: RequestContext, body: memoryview) -> Any:
        codec: Any = fetch if context.header.api_key == ApiKey.FETCH else produce
        topics = codec.decode_request(body, context.api_version, context.budget.max_elements).topics
        return (b"%d" % len(topics[0].partitions),)

    read.raw = True  # type: ignore[attr-defined]
    pipeline = open_pipeline(
        dict.fromkeys((ApiKey.FETCH, ApiKey.PRODUCE), lambda: read), authorizer_of(1)
    )
    for api, make in ((ApiKey.FETCH, fetching), (ApiKey.PRODUCE, producing)):
        most = API_SPECS[api].budget.max_elements - 1  # and one topic
        assert now(maybeDeferred(pipeline, memoryview(make(most)), PEER)) == (b"%d" % most,)
        with pytest.raises(RequestRefusedError, match=f"more than the {most + 1} elements"):
            now(maybeDeferred(pipeline, memoryview(make(most + 1)), PEER))


def test_a_section_of_a_produce_with_many_tagged_fields_is_refused() -> None:
    tags = bytearray()
    write_uvarint(tags, 1000)
    for tag in range(1000):
        write_uvarint(tags, tag)
        tags.append(0)
    request = ProduceRequest(1, 1, [])
    head, *rest = produce.encode_request(request, 9, 7, "c")
    body = (head + b"".join(rest))[
        len(messages.encode_request_header(RequestHeader(0, 9, 7, "c"))) :
    ]
    with pytest.raises(TooManyElements):
        produce.decode_request(memoryview(body[:-1] + bytes(tags)), 9)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_large_request_waits_for_a_turn_of_its_own(clock: Clock) -> None:
    small = frame(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(["x"]))
    turns = SharedTurns(clock)
    assert isinstance(ask(small, ListGroupsResponse(), turns), tuple)
    large = frame(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(["x" * 100] * 60))
    answer = ask(large, ListGroupsResponse(), turns)
    assert isinstance(answer, Deferred)
    assert not answer.called
    clock.advance(0)
    assert messages.decode_response(ApiKey.LIST_GROUPS, 5, joined(answer.result))[0] == 7
