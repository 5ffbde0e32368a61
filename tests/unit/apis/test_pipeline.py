"""The request pipeline: versions, errors and the handlers' three ways to answer."""

from __future__ import annotations

import struct
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.apis.request import RequestContext
from kbroker.network.service import RequestRefusedError
from kclient.wire import messages
from kclient.wire.errors import ErrorCode, GroupIdNotFound, MalformedMessage
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.api_versions import ApiVersionsRequest
from kclient.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse
from kclient.wire.schema.metadata import MetadataRequest
from kclient.wire.versions import SERVED, ApiKey
from tests.kit.inter_broker import authorizer_of
from tests.kit.request_pipelines import open_pipeline
from tests.unit.apis.kit import PEER, ApiBroker, joined

TRUST = authorizer_of(1)


def heartbeat(handler: Any, version: int = 3) -> Any:
    pipeline = open_pipeline({ApiKey.HEARTBEAT: lambda: handler}, TRUST)
    frame = messages.encode_request(
        RequestHeader(12, version, 7, "c"), HeartbeatRequest(group_id="g")
    )
    return pipeline(memoryview(frame), PEER)


def code(answer: Any) -> int:
    found: int = messages.decode_response(12, 3, joined(answer))[1].error_code
    return found


def test_a_handler_may_return_its_response() -> None:
    assert code(heartbeat(lambda context, request: HeartbeatResponse(error_code=5))) == 5


def test_or_a_deferred_of_it() -> None:
    waiting: Deferred[Any] = Deferred()
    answer = heartbeat(lambda context, request: waiting)
    waiting.callback(HeartbeatResponse(error_code=6))
    assert code(answer.result) == 6


def test_or_be_a_coroutine() -> None:
    async def handler(context: RequestContext, request: Any) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=len(request.group_id) + 6)

    assert code(heartbeat(handler).result) == 7


def test_a_kafka_error_becomes_the_error_code() -> None:
    def handler(context: RequestContext, request: Any) -> Any:
        raise GroupIdNotFound("no")

    assert code(heartbeat(handler)) == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_unexpected_error_becomes_unknown_server_error() -> None:
    async def handler(context: RequestContext, request: Any) -> Any:
        raise ZeroDivisionError

    assert code(heartbeat(handler).result) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_handlers_without_a_request_are_made_one_at_a_time() -> None:
    made: list[str] = []

    def factory(name: str) -> Any:
        def make() -> Any:
            made.append(name)
            if name == "broken":
                raise ImportError(name)
            return lambda context, request: HeartbeatResponse(error_code=len(made))

        return make

    pipeline = open_pipeline(
        {
            ApiKey.LIST_GROUPS: factory("broken"),
            ApiKey.FETCH: factory("raw"),
            ApiKey.HEARTBEAT: factory("good"),
        },
        TRUST,
    )
    steps = pipeline.make_handlers()
    assert made == []
    assert [made[-1] for _ in steps] == ["broken", "raw", "good"]
    frame = messages.encode_request(RequestHeader(12, 3, 7, "c"), HeartbeatRequest(group_id="g"))
    assert code(pipeline(memoryview(frame), PEER)) == 3
    assert [made[-1] for _ in pipeline.make_handlers()] == ["broken"] * 3
    assert made == ["broken", "raw", "good", "broken"]


def test_a_handler_that_was_made_needs_its_file_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "a_handler_on_its_own.py"
    file.write_text(
        "class Handler:\n    def __call__(self, context, request):\n        raise KeyError\n"
    )

    def factory() -> Any:
        return import_module("a_handler_on_its_own").Handler()

    pipeline = open_pipeline({ApiKey.HEARTBEAT: factory}, TRUST)
    assert list(pipeline.make_handlers()) == [None]
    file.unlink()
    frame = messages.encode_request(RequestHeader(12, 3, 7, "c"), HeartbeatRequest(group_id="g"))
    assert code(pipeline(memoryview(frame), PEER)) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_what_a_client_did_not_wait_for_is_still_done() -> None:
    cancelled: list[Any] = []
    waiting: Deferred[Any] = Deferred(cancelled.append)
    answer = heartbeat(lambda context, request: waiting)
    answer.addErrback(lambda _: None)
    answer.cancel()
    assert cancelled == []
    waiting.callback(HeartbeatResponse())


@pytest.mark.parametrize(
    ("api", "version"), [(3, 13), (3, -1), (12, 99), (1, 3), (1, 18), (0, 12), (2, 0)]
)
def test_versions_not_served_close_the_connection(
    broker: ApiBroker, api: int, version: int
) -> None:
    broker.serve(ApiKey.HEARTBEAT, lambda: lambda context, request: None)
    with pytest.raises(RequestRefusedError, match="not served"):
        broker.ask_raw(struct.pack(">hhih", api, version, 7, -1))


@pytest.mark.parametrize("api", [-1, 9999, 52])
def test_unknown_apis_are_malformed(broker: ApiBroker, api: int) -> None:
    with pytest.raises(MalformedMessage):
        broker.ask_raw(struct.pack(">hhih", api, 0, 7, -1))


def test_an_api_without_a_handler_is_refused(broker: ApiBroker) -> None:
    with pytest.raises(RequestRefusedError, match="CREATE_ACLS is not served"):
        broker.ask_raw(struct.pack(">hhih", 30, 1, 7, -1))


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_has_a_handler(broker: ApiBroker, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="lib", client_software_version="1.0")
    response = broker.ask(18, version, request)
    served = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert served[0] == (0, 11)
    assert set(served) == {0, 1, 2, 3, 18, 21, 23}
    assert all(ApiKey(key) in SERVED for key in served)


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_an_unknown_version_of_api_versions_is_answered_in_v0(
    broker: ApiBroker, version: int
) -> None:
    answer = broker.ask_raw(struct.pack(">hhih", 18, version, 7, -1) + b"\x00\x01junk")
    correlation_id, response = messages.decode_response(18, 0, joined(answer))
    assert (correlation_id, response.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
    assert response.api_keys


@pytest.mark.parametrize(
    ("name", "version"), [("", "1"), ("a b", "1"), ("ok", "-1"), ("ok", "1\n")]
)
def test_client_software_must_look_like_a_name(broker: ApiBroker, name: str, version: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    assert broker.ask(18, 3, request).error_code == ErrorCode.INVALID_REQUEST


def test_metadata_names_the_leader(broker: ApiBroker) -> None:
    broker.lead("t", 2)
    response = broker.ask(3, 12, MetadataRequest(topics=None))
    assert [partition.leader_id for partition in response.topics[0].partitions] == [1, 1]
