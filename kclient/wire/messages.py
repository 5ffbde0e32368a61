"""Bytes <-> the dataclasses of `kclient.wire.schema` and `kclient.wire.interbroker`, with headers.

All messages except Produce and Fetch, which are hand-written for their records and use the header functions of this
module. No function here handles the four-byte length prefix; that is `kclient.wire.framing`.

Decoding raises `MalformedMessage` for invalid bytes, `UnsupportedVersion` for an unsupported version, and nothing else.
Encoding raises ValueError with message and field for a value that the version cannot encode; a field that the version
lacks is left out.
"""

import struct
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from kclient.wire.codec import read_message, read_struct, write_in_steps, write_message
from kclient.wire.errors import MalformedMessage, UnsupportedVersion
from kclient.wire.primitives import Buffer, skip_tags
from kclient.wire.structs import WireStruct
from kclient.wire.versions import (
    SUPPORTED,
    ApiKey,
    is_flexible,
    request_header_version,
    response_header_version,
)

_HEAD = struct.Struct(">hhih")  # api key, version, correlation id, size of the client id
_CORRELATION_ID = struct.Struct(">i")
MAX_REQUEST_ELEMENTS = 500_000
"""For readers without a limit of their caller; a broker has one per API (`kbroker.apis.api_specs`)."""
MAX_HEADER_TAGS = 64
"""Kafka defines none in a header so far."""
MAX_RESPONSE_ELEMENTS = 5_000_000

PART_BYTES = 64 * 1024
"""Bytes after which a response that is encoded in steps starts another part."""

_COPY_BELOW = 1 << 20  # bytes, because slices of bytes are faster than slices of a memoryview
_HAND_WRITTEN = {ApiKey.PRODUCE: "kclient.wire.produce", ApiKey.FETCH: "kclient.wire.fetch"}
_INTER_BROKER = {
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
}


_SUPPORTED = {int(api): versions for api, versions in SUPPORTED.items()}


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


# --- headers


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Decode a request's header; return it and the position of the body.

    Raise MalformedMessage if it is invalid or the api key unknown. An unsupported version is no error here, so that the
    caller can respond to it: the position is then the end of the client id.
    """
    try:
        api_key, version, correlation_id, size = _HEAD.unpack_from(frame)
        pos = _HEAD.size
        client_id = None
        if size >= 0:
            if size > len(frame) - pos:
                raise MalformedMessage(f"client id of {size} bytes with {len(frame) - pos} left")
            client_id = str(frame[pos : pos + size], "utf-8")
            pos += size
        elif size != -1:
            raise MalformedMessage(f"client id of {size} bytes")
        supported = _SUPPORTED.get(api_key)
        if supported is None:
            raise MalformedMessage(f"api key {api_key} is unknown")
        if version in supported and is_flexible(api_key, version):
            pos = skip_tags(frame, pos, len(frame), [MAX_HEADER_TAGS, MAX_HEADER_TAGS])
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"request header: {error}") from None
    return RequestHeader(api_key, version, correlation_id, client_id), pos


def encode_request_header(header: RequestHeader) -> bytearray:
    """Return the header's bytes, to which the body may be appended."""
    api_key, version, correlation_id, client_id = header
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    out = bytearray(_HEAD.pack(api_key, version, correlation_id, size))
    out += name
    if request_header_version(api_key, version) == 2:
        out.append(0)
    return out


def decode_response_header(api_key: int, version: int, frame: Buffer) -> tuple[int, int]:
    """Decode a response's header; return (correlation id, position of the body)."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        pos = _CORRELATION_ID.size
        if response_header_version(api_key, version) == 1:
            pos = skip_tags(frame, pos, len(frame), [MAX_HEADER_TAGS, MAX_HEADER_TAGS])
    except (struct.error, IndexError) as error:
        raise MalformedMessage(f"response header: {error}") from None
    return correlation_id, pos


def encode_response_header(api_key: int, version: int, correlation_id: int) -> bytearray:
    """Return the header's bytes, to which the body may be appended."""
    out = bytearray(_CORRELATION_ID.pack(correlation_id))
    if response_header_version(api_key, version) == 1:
        out.append(0)
    return out


# --- bodies


def decode_request(
    header: RequestHeader,
    frame: Buffer,
    body_offset: int,
    *,
    max_elements: int = MAX_REQUEST_ELEMENTS,
) -> Any:
    """Decode the body of a request. Bytes after it are ignored, as in Kafka.

    librdkafka 2.x requests all topics (Metadata 9 and later) with three extra bytes, the rest of a placeholder for the
    array's length. Raise `TooManyElements` for more than *max_elements* array elements and tagged fields.
    """
    version = header.api_version
    request, flexible = _body_class(header.api_key, version, "Request")
    message, _ = read_struct(request, version, flexible, _quick(frame), body_offset, max_elements)
    return message


def encode_request(header: RequestHeader, request: object) -> bytes:
    """Return header and body of *request*."""
    version = header.api_version
    body, flexible = _body_class(header.api_key, version, "Request")
    out = encode_request_header(header)
    write_message(body, version, flexible, out, request)
    return bytes(out)


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """Decode the response to a request of *version*; return (correlation id, response)."""
    response, flexible = _body_class(api_key, version, "Response")
    correlation_id, pos = decode_response_header(api_key, version, frame)
    return correlation_id, read_message(
        response, version, flexible, _quick(frame), pos, MAX_RESPONSE_ELEMENTS
    )


def encode_response(api_key: int, version: int, correlation_id: int, response: object) -> bytes:
    """Return header and body of the *response* to a request of *version*."""
    body, flexible = _body_class(api_key, version, "Response")
    out = encode_response_header(api_key, version, correlation_id)
    write_message(body, version, flexible, out, response)
    return bytes(out)


def encode_response_in_steps(
    api_key: int, version: int, correlation_id: int, response: object, parts: list[bytes]
) -> Iterator[None]:
    """Append header and body of *response* to *parts*; yield after every struct of its own arrays.

    For a response that takes too long to encode in one reactor turn.
    """
    body, flexible = _body_class(api_key, version, "Response")
    out = encode_response_header(api_key, version, correlation_id)
    for _ in write_in_steps(body, version, flexible, out, response):
        if len(out) > PART_BYTES:
            parts.append(bytes(out))
            out.clear()
        yield
    parts.append(bytes(out))


def request_class(api_key: int) -> type[WireStruct]:
    """Return the dataclass of an API's requests, e.g. MetadataRequest for 3."""
    return _message_class(ApiKey(api_key), "Request")


def response_class(api_key: int) -> type[WireStruct]:
    """Return the dataclass of an API's responses."""
    return _message_class(ApiKey(api_key), "Response")


def is_written_by_hand(api_key: int) -> bool:
    """Return whether an API's messages have a hand-written codec, and no dataclasses here."""
    return api_key in _HAND_WRITTEN


@cache
def _message_class(api: ApiKey, direction: str) -> type[WireStruct]:
    if api in _HAND_WRITTEN:
        raise LookupError(f"{api.name} has a codec of its own: {_HAND_WRITTEN[api]}")
    module = (
        "kclient.wire.interbroker"
        if api in _INTER_BROKER
        else f"kclient.wire.schema.{api.name.lower()}"
    )
    camel = "".join(part.capitalize() for part in api.name.split("_"))
    found: type[WireStruct] = getattr(import_module(module), camel + direction)
    return found


@cache
def _known_body_class(api_key: int, version: int, direction: str) -> tuple[type[WireStruct], bool]:
    return _message_class(ApiKey(api_key), direction), is_flexible(api_key, version)


def _body_class(api_key: int, version: int, direction: str) -> tuple[type[WireStruct], bool]:
    """Return the dataclass and whether *version* is flexible; raise UnsupportedVersion if it is unsupported."""
    supported = _SUPPORTED.get(api_key)
    if supported is None:
        raise UnsupportedVersion(f"api key {api_key} is unknown")
    if version not in supported:
        raise UnsupportedVersion(
            f"{ApiKey(api_key).name} version {version}: supported are {supported}"
        )
    # Only supported versions enter the cache: a malicious peer cannot make it grow.
    return _known_body_class(api_key, version, direction)


def _quick(frame: Buffer) -> Buffer:
    return bytes(frame) if len(frame) < _COPY_BELOW else frame


# --- the consumer protocol inside JoinGroup and SyncGroup


def encode_consumer_protocol(version: int, message: object) -> bytes:
    """Return a ConsumerProtocolSubscription or -Assignment after its int16 version (0 to 3)."""
    out = bytearray(struct.pack(">h", version))
    write_message(type(message), version, False, out, message)  # type: ignore[arg-type]
    return bytes(out)


def decode_consumer_protocol(cls: type[Any], data: Buffer) -> tuple[int, Any]:
    """Decode a ConsumerProtocolSubscription or -Assignment; return (its version, message).

    A version above 3 is decoded as 3 and bytes after it are ignored, as in every Kafka client. New versions only add
    fields at the end. Raise MalformedMessage for any other error.
    """
    if len(data) < 2:
        raise MalformedMessage(f"{cls.__name__} of {len(data)} bytes")
    (version,) = struct.unpack_from(">h", data)
    if version < 0:
        raise MalformedMessage(f"{cls.__name__} of version {version}")
    message, _end = read_struct(cls, min(version, 3), False, data, 2, MAX_REQUEST_ELEMENTS)
    return version, message


__all__ = [
    "RequestHeader",
    "decode_consumer_protocol",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "decode_response_header",
    "encode_consumer_protocol",
    "encode_request",
    "encode_request_header",
    "encode_response",
    "encode_response_header",
    "encode_response_in_steps",
    "request_class",
    "response_class",
]
