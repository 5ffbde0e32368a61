"""Encodes requests and decodes responses: with the hand-written codecs of Produce and Fetch, or with `messages`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kclient.lazy import LazyModule
from kclient.wire import messages
from kclient.wire.versions import ApiKey

if TYPE_CHECKING:
    from kclient.wire import fetch, produce
    from kclient.wire.batches import Buffer
else:
    fetch = LazyModule("kclient.wire.fetch")
    produce = LazyModule("kclient.wire.produce")


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Any
) -> Sequence[Buffer]:
    """Return the buffers of a request frame, without its length prefix; records are not copied."""
    if api_key == ApiKey.PRODUCE:
        return produce.encode_request(message, version, correlation_id, client_id)
    if api_key == ApiKey.FETCH:
        return [fetch.encode_request(message, version, correlation_id, client_id)]
    header = messages.RequestHeader(api_key, version, correlation_id, client_id)
    return [messages.encode_request(header, message)]


def decode_response(api_key: int, version: int, frame: memoryview) -> Any:
    """Return the response in *frame*; records are views of it. Raise MalformedMessage if it is none."""
    if api_key == ApiKey.PRODUCE:
        return produce.decode_response(frame, version)[1]
    if api_key == ApiKey.FETCH:
        return fetch.decode_response(frame, version)[1]
    return messages.decode_response(api_key, version, frame)[1]
