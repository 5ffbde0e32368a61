"""Faults of requests without a broker: the responses that are an error code, for every API; the plan; the names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_entity_schema
from kio.serial import entity_reader
from kio.static.constants import EntityType

from kbroker.testing.request_faults.error_response import (
    NoPlaceError,
    error_response,
    names_no_partitions,
)
from kbroker.testing.request_faults.fault import (
    OF_BROKERS,
    RequestFault,
    api_name,
    api_of,
    code_for,
)
from kbroker.testing.request_faults.plan import FaultPlan
from kclient.errors import NotLeaderOrFollower
from kclient.net.codecs import encode_request
from kclient.testing.observer import OBSERVER
from kclient.wire import messages
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.schema.offset_fetch import OffsetFetchRequest
from kclient.wire.structs import WireStruct, fields_of, nested_struct
from kclient.wire.versions import SERVED, SUPPORTED, ApiKey

CODE = ErrorCode.POLICY_VIOLATION
IDS = [UUID(int=n) for n in (1, 2)]
VERSIONS = [
    (api, version)
    for api, served in SERVED.items()
    for version in range(max(served.min, SUPPORTED[api].min), served.max + 1)
    if api not in OF_BROKERS
]


def request_for(api: ApiKey, version: int) -> Any:
    """Return a request with two elements in each array, each with a name of its own."""
    if api == ApiKey.PRODUCE:
        return ProduceRequest(
            -1, 1000, [ProduceTopic(t, [ProducePartition(n, b"") for n in (0, 1)]) for t in "ab"]
        )
    if api == ApiKey.FETCH:
        topics = zip("ab", IDS, strict=True)
        return FetchRequest(
            500,
            1,
            [FetchTopic(t, [FetchPartition(n, 5, 100) for n in (0, 1)], i) for t, i in topics],
        )
    return filled(messages.request_class(api), version, "ab")


def filled(cls: type[WireStruct], version: int, names: str) -> Any:
    made: Any = cls()
    for field in fields_of(cls):
        if not field.versions.has(version):
            continue
        values: list[Any] = []
        for n, name in enumerate(names):
            if field.type[:1].isupper():
                each = filled(nested_struct(cls, field.type), version, names)
                if any(f.name == "topic_id" for f in fields_of(type(each))):
                    each.topic_id = IDS[n]
                for key in (
                    "name",
                    "topic",
                    "group_id",
                    "transactional_id",
                    "resource_name",
                    "key",
                ):
                    if hasattr(each, key):
                        setattr(each, key, name)
                for key in ("partition_index", "partition"):
                    if hasattr(each, key):
                        setattr(each, key, n)
                values.append(each)
            else:
                values.append({"string": name, "uuid": IDS[n], "bytes": b""}.get(field.type, n))
        if field.is_array:
            setattr(made, field.name, values)
    return made


def answered(api: ApiKey, version: int, request: Any, code: ErrorCode = CODE) -> bytes:
    frame = memoryview(
        b"".join(bytes(part) for part in encode_request(api, version, 7, "c", request))
    )
    header, body = messages.decode_request_header(frame)
    parts = error_response(header, frame, body, code)
    assert parts is not None
    return b"".join(bytes(part) for part in parts)


def as_kio_reads_it(api: ApiKey, version: int, frame: bytes) -> Any:
    correlation_id, at = messages.decode_response_header(api, version, frame)
    assert correlation_id == 7
    schema: Any = load_entity_schema(api.name.lower(), version, EntityType.response)
    response, size = entity_reader(schema)(frame, at)
    assert at + size == len(frame)
    return response


def codes(value: Any) -> Iterator[int]:
    """Return every error code in a message that kio decoded."""
    if isinstance(value, tuple):
        for each in value:
            yield from codes(each)
    elif is_dataclass(value):
        for field in fields(value):
            if field.name in ("error_code", "partition_error_code"):
                yield int(getattr(value, field.name))
            else:
                yield from codes(getattr(value, field.name))


@pytest.mark.parametrize(
    ("api", "version"), [each for each in VERSIONS if each[0] != ApiKey.METADATA]
)
def test_a_response_has_the_code_in_all_its_places(api: ApiKey, version: int) -> None:
    response = as_kio_reads_it(api, version, answered(api, version, request_for(api, version)))
    found = list(codes(response))
    whole = getattr(response, "error_code", None)
    if whole == CODE:
        return
    # A code at the highest level is the only one; otherwise each element has it.
    assert whole is None or api == ApiKey.FETCH
    assert len(found) - (whole is not None) in (2, 4, 8)
    assert set(found) - {0} == {CODE}
    assert found.count(CODE) == len(found) - (whole is not None)


@pytest.mark.parametrize(
    ("api", "version", "found"),
    [
        (ApiKey.OFFSET_FETCH, 1, [3] * 4),
        (ApiKey.OFFSET_FETCH, 7, [3] * 4 + [0]),
        (ApiKey.OFFSET_FETCH, 8, ([3] * 4 + [0]) * 2),
        (ApiKey.ELECT_LEADERS, 2, [0] + [3] * 4),
        (ApiKey.DESCRIBE_LOG_DIRS, 4, [3]),
        (ApiKey.LEAVE_GROUP, 4, [3]),
        (ApiKey.HEARTBEAT, 4, [3]),
        (ApiKey.DELETE_TOPICS, 6, [3, 3]),
    ],
)
def test_the_error_of_a_partition_is_in_its_element(
    api: ApiKey, version: int, found: list[int]
) -> None:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    frame = answered(api, version, request_for(api, version), code)
    assert list(codes(as_kio_reads_it(api, version, frame))) == found


@pytest.mark.parametrize(
    ("api", "version", "elements"),
    [
        (ApiKey.PRODUCE, 9, [("a", 0), ("a", 1), ("b", 0), ("b", 1)]),
        (ApiKey.LIST_OFFSETS, 7, [("a", 0), ("a", 1), ("b", 0), ("b", 1)]),
        (ApiKey.OFFSET_COMMIT, 8, [("a", 0), ("a", 1), ("b", 0), ("b", 1)]),
        (ApiKey.OFFSET_FETCH, 1, [("a", 0), ("a", 1), ("b", 0), ("b", 1)]),
        (ApiKey.OFFSET_FETCH, 5, []),
        (ApiKey.OFFSET_FETCH, 8, ["a", "b"]),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 3, [("a", 0), ("a", 1), ("b", 0), ("b", 1)]),
        (ApiKey.ALTER_REPLICA_LOG_DIRS, 2, [("a", 0), ("a", 1), ("b", 0), ("b", 1)] * 2),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, [("a", 0), ("a", 1), ("b", 0), ("b", 1)]),
        (ApiKey.CREATE_TOPICS, 5, ["a", "b"]),
        (ApiKey.DELETE_TOPICS, 1, ["a", "b"]),
        (ApiKey.DELETE_TOPICS, 6, ["a", "b"]),
        (ApiKey.DESCRIBE_GROUPS, 5, ["a", "b"]),
        (ApiKey.DELETE_GROUPS, 2, ["a", "b"]),
        (ApiKey.FIND_COORDINATOR, 4, ["a", "b"]),
        (ApiKey.DESCRIBE_TRANSACTIONS, 0, ["a", "b"]),
        (ApiKey.DESCRIBE_CONFIGS, 4, ["a", "b"]),
    ],
)
def test_the_elements_are_those_of_the_request(
    api: ApiKey, version: int, elements: list[Any]
) -> None:
    response = as_kio_reads_it(api, version, answered(api, version, request_for(api, version)))
    assert list(named(response)) == elements


def named(response: Any) -> Iterator[Any]:
    arrays = [getattr(response, f.name) for f in fields(response)]
    for element in next((each for each in arrays if isinstance(each, tuple) and each), ()):
        keys = (
            "name",
            "topic",
            "topic_name",
            "group_id",
            "key",
            "transactional_id",
            "resource_name",
        )
        name = next(getattr(element, key) for key in keys if hasattr(element, key))
        inner = [getattr(element, f.name) for f in fields(element)]
        partitions = next((each for each in inner if isinstance(each, tuple) and each), None)
        if partitions is None:
            yield name
        else:
            for each in partitions:
                index = next(
                    getattr(each, key)
                    for key in ("partition_index", "index", "partition")
                    if hasattr(each, key)
                )
                yield name, index


def test_a_fetch_has_an_error_of_its_session_at_the_top() -> None:
    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    frame = answered(ApiKey.FETCH, 12, request_for(ApiKey.FETCH, 12), code)
    response = as_kio_reads_it(ApiKey.FETCH, 12, frame)
    assert (int(response.error_code), response.responses) == (code, ())


@pytest.mark.parametrize(("epoch", "continues"), [(-1, False), (0, False), (1, True), (7, True)])
def test_a_fetch_within_a_session_names_no_partitions(epoch: int, continues: bool) -> None:
    request = FetchRequest(500, 1, [], session_id=5, session_epoch=epoch)
    frame = memoryview(b"".join(encode_request(ApiKey.FETCH, 12, 7, "c", request)))
    header, body = messages.decode_request_header(frame)
    assert names_no_partitions(header, frame[body:]) is continues


def test_a_coordinator_that_is_not_found_has_no_address() -> None:
    frame = answered(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="g"))
    response = as_kio_reads_it(ApiKey.FIND_COORDINATOR, 2, frame)
    assert (int(response.error_code), response.host) == (CODE, "")


def test_acks_0_has_no_response_and_all_topics_have_no_place() -> None:
    request = ProduceRequest(0, 1000, [])
    frame = memoryview(
        b"".join(bytes(p) for p in encode_request(ApiKey.PRODUCE, 9, 7, "c", request))
    )
    header, body = messages.decode_request_header(frame)
    assert error_response(header, frame, body, CODE) is None
    with pytest.raises(NoPlaceError, match="OFFSET_COMMIT v8"):
        answered(ApiKey.OFFSET_COMMIT, 8, messages.request_class(ApiKey.OFFSET_COMMIT)())
    answered(ApiKey.OFFSET_FETCH, 7, OffsetFetchRequest(topics=None))


# -- the plan --------------------------------------------------------------------------------------


@pytest.fixture
def plans(tmp_path: Path) -> Iterator[tuple[FaultPlan, FaultPlan, FaultPlan]]:
    """Give the plan as the test, and two brokers, have it open."""
    opened = tuple(FaultPlan(tmp_path / "faults") for _ in range(3))
    yield opened  # type: ignore[misc]
    for each in opened:
        each.close()


def test_a_fault_counts_over_all_brokers(plans: tuple[FaultPlan, FaultPlan, FaultPlan]) -> None:
    ours, one, two = plans
    first = RequestFault(0, api=0, times=3, error=6)
    then = RequestFault(1, api=0, times=1, error=19)
    assert one.claim(0, 1, "c") is None
    ours.replace([first, then])
    claimed = [
        plan.claim(0, n, "c") for plan, n in ((one, 1), (two, 2), (one, 1), (two, 2), (one, 1))
    ]
    assert claimed == [first, first, first, then, None]
    assert (ours.count(first), ours.count(then)) == (3, 1)
    one.give_back(then)
    assert two.claim(0, 2, "c") == then
    ours.replace([])
    ours.replace([RequestFault(2, error=1)])
    assert [plan.claim(9, 5, "c") for plan in (one, two)] == [RequestFault(2, error=1)] * 2


@pytest.mark.parametrize(
    ("fault", "asked", "is_for"),
    [
        (RequestFault(0), (3, 1, ""), True),
        (RequestFault(0), (3, 1, OBSERVER), False),
        (RequestFault(0, api=3), (3, 1, "c"), True),
        (RequestFault(0, api=3), (4, 1, "c"), False),
        (RequestFault(0, broker=2), (3, 1, "c"), False),
        (RequestFault(0, broker=1), (3, 1, "c"), True),
        (RequestFault(0, client_id="orders"), (3, 1, "orders-7"), True),
        (RequestFault(0, client_id="orders"), (3, 1, "c"), False),
        (RequestFault(0, client_id=OBSERVER), (3, 1, OBSERVER), True),
    ],
)
def test_which_requests_a_fault_is_for(
    fault: RequestFault, asked: tuple[int, int, str], is_for: bool
) -> None:
    assert fault.is_for(*asked) is is_for


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["OffsetCommit", "OFFSET_COMMIT", "offset-commit", ApiKey.OFFSET_COMMIT]
)
def test_an_api_has_kafkas_name(name: str) -> None:
    assert api_of(name) is ApiKey.OFFSET_COMMIT
    assert api_name(ApiKey.OFFSET_COMMIT) == "OffsetCommit"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("OfsetCommit", "brokers have no API 'OfsetCommit'; did you mean OffsetCommit?"),
        ("?", r"brokers have no API '\?'$"),
        ("SaslHandshake", "brokers have no API 'SaslHandshake'"),
        ("LeaderAndIsr", "LeaderAndIsr is sent by brokers only"),
        ("", "brokers have no API ''"),
    ],
)
def test_an_api_that_clients_do_not_use_is_refused(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        api_of(name)


@pytest.mark.parametrize(
    "error", ["NOT_LEADER_OR_FOLLOWER", "not_leader_or_follower", 6, NotLeaderOrFollower]
)
def test_an_error_has_a_name_a_number_or_a_class(error: Any) -> None:
    assert code_for(error) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        ("NOT_LEADER", "Kafka has no error code 'NOT_LEADER'; did you mean"),
        (9999, "Kafka has no error code 9999"),
        (0, "NONE is success"),
        ("NONE", "NONE is success"),
        (None, "Kafka has no error code None"),
        (ValueError, "Kafka has no error code"),
    ],
)
def test_an_error_that_kafka_does_not_have_is_refused(error: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        code_for(error)
