"""The response to a request that is nothing but an error code, in all places where its API has one.

An error of the whole response is there once, at the highest level that the version has a field for. An error of a
partition (`OF_A_PARTITION`) is in each element (topic, partition, group, resource) that the request names. So is every
error where there is no higher place. The elements are found by the names of their fields. So an API needs no code of
its own here, apart from those with codecs of their own (Produce, Fetch).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kclient.wire import fetch, messages, produce
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartitionResponse, FetchTopicResponse
from kclient.wire.messages import RequestHeader
from kclient.wire.produce import ProducePartitionResponse, ProduceTopicResponse
from kclient.wire.structs import Field, WireStruct, fields_of, nested_struct
from kclient.wire.versions import ApiKey

MAX_ELEMENTS: Final = 1_000_000

OF_A_SESSION: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Errors of a whole Fetch response; the others are those of its partitions."""

OF_A_PARTITION: Final = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Errors that brokers have in the element of a partition, where the response has one."""

FIRST_WITH_SESSIONS: Final = 7

_ERRORS = ("error_code", "partition_error_code")
_KEYS: Final = (
    ("name", "topic", "topic_name"),
    ("topic_id",),
    ("partition_index", "partition", "partition_id"),
    ("group_id",),
    ("key",),
    ("transactional_id",),
    ("resource_type",),
    ("resource_name",),
    ("entity",),
)
"""The fields that name an element, each with its names: a response may use another one than the request."""


class NoPlaceError(Exception):
    """The response of this version, to this request, has no place for an error."""


def names_no_partitions(header: RequestHeader, body: memoryview) -> bool:
    """Return whether a Fetch continues a session: it names the partitions that changed, not all (KIP-227)."""
    if header.api_version < FIRST_WITH_SESSIONS:
        return False
    return fetch.decode_request(body, header.api_version, MAX_ELEMENTS).session_epoch > 0


def error_response(
    header: RequestHeader, frame: memoryview, body: int, code: ErrorCode
) -> Sequence[Any] | None:
    """Return the parts of the response with *code* to the request in *frame*; None for a Produce with acks=0.

    *body* is where the header ends. MalformedMessage as decoding has it; NoPlaceError.
    """
    version, correlation_id = header.api_version, header.correlation_id
    if header.api_key == ApiKey.PRODUCE:
        return _produce(header, frame[body:], code)
    if header.api_key == ApiKey.FETCH:
        return _fetch(header, frame[body:], code)
    request = messages.decode_request(header, frame, body, max_elements=MAX_ELEMENTS)
    response: Any = messages.response_class(header.api_key)()
    if not _fill(response, request, version, code):
        raise NoPlaceError(
            f"{ApiKey(header.api_key).name} v{version}: this request's response has no place for an error"
        )
    return (messages.encode_response(header.api_key, version, correlation_id, response),)


def _produce(header: RequestHeader, body: memoryview, code: ErrorCode) -> Sequence[Any] | None:
    request = produce.decode_request(body, header.api_version, MAX_ELEMENTS)
    if request.acks == 0:
        return None
    topics = [
        ProduceTopicResponse(
            topic.name, [ProducePartitionResponse(each.index, code) for each in topic.partitions]
        )
        for topic in request.topics
    ]
    response = produce.ProduceResponse(topics)
    return (produce.encode_response(response, header.api_version, header.correlation_id),)


def _fetch(header: RequestHeader, body: memoryview, code: ErrorCode) -> Sequence[Any]:
    request = fetch.decode_request(body, header.api_version, MAX_ELEMENTS)
    response = fetch.FetchResponse([])
    if code in OF_A_SESSION and header.api_version >= FIRST_WITH_SESSIONS:
        response.error_code = code
    else:
        response.topics = [
            FetchTopicResponse(
                topic.name,
                [FetchPartitionResponse(each.partition, code) for each in topic.partitions],
                topic.topic_id,
            )
            for topic in request.topics
        ]
    return fetch.encode_response(response, header.api_version, header.correlation_id)


# -- by the names of fields ------------------------------------------------------------------------


def _fill(answer: Any, asked: object, version: int, code: ErrorCode) -> bool:
    """Put *code* into *answer*, or into its elements, which *asked* names; return whether it has a place."""
    cls: type[WireStruct] = type(answer)
    fields = [field for field in fields_of(cls) if field.versions.has(version)]
    own = next((field.name for field in fields if field.name in _ERRORS), None)
    if own is None or code in OF_A_PARTITION:
        for field in fields:
            if field.is_array and _has_error(cls, field, version):
                struct = nested_struct(cls, field.type)
                if own is not None and not _keys(struct, version):
                    continue  # log directories, members: not what such an error is about
                elements = _elements(asked, field.name, version) or ()
                made = [_element(struct, each, version, code) for each in elements]
                setattr(answer, field.name, made)
                if made:
                    return True
    if own is not None:
        setattr(answer, own, int(code))
    return own is not None


def _element(struct: type[WireStruct], asked: Any, version: int, code: ErrorCode) -> Any:
    element: Any = struct()
    for name, others in _keys(struct, version):
        if not hasattr(asked, "WIRE"):  # the element of the request is a name or a number only
            setattr(element, name, asked)
            continue
        for other in others:
            if hasattr(asked, other):
                setattr(element, name, getattr(asked, other))
    _fill(element, asked, version, code)
    return element


def _keys(struct: type[WireStruct], version: int) -> list[tuple[str, Sequence[str]]]:
    """Return the fields that name a *struct*, each with what a request may call it."""
    names = {field.name for field in fields_of(struct) if field.versions.has(version)}
    return [(name, key) for key in _KEYS for name in names.intersection(key)]


def _has_error(cls: type[WireStruct], array: Field, version: int) -> bool:
    if not array.type[:1].isupper():
        return False
    struct = nested_struct(cls, array.type)
    return any(
        field.versions.has(version)
        and (field.name in _ERRORS or (field.is_array and _has_error(struct, field, version)))
        for field in fields_of(struct)
    )


def _elements(asked: Any, answered: str, version: int) -> list[Any] | None:
    """Return what the request names where the response has *answered*; None: all that there are."""
    cls: type[WireStruct] = type(asked)
    arrays = {
        field.name: getattr(asked, field.name)
        for field in fields_of(cls)
        if field.is_array and field.versions.has(version)
    }
    if (
        "dirs" in arrays
    ):  # AlterReplicaLogDirs: topics are in the log directories of the request only
        return [topic for log_dir in arrays["dirs"] for topic in log_dir.topics]
    found: list[Any] | None = arrays.get(answered, next(iter(arrays.values()), []))
    return found
