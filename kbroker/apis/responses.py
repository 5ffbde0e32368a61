"""The stage that encodes: a response, an error response, or a large response in many turns."""

from __future__ import annotations

from functools import cache
from typing import Any

from kbroker.apis.request import RequestContext
from kbroker.network.service import Answer
from kclient.wire import messages
from kclient.wire.structs import fields_of
from kclient.wire.versions import ApiKey


def encode(context: RequestContext, response: Any) -> Answer:
    """Encode *response*; None stays None: the request has no response."""
    if response is None:
        return None
    header = context.header
    return (
        messages.encode_response(
            header.api_key, header.api_version, header.correlation_id, response
        ),
    )


async def encode_in_steps(context: RequestContext, response: object) -> Answer:
    """Encode a large response in as many turns as it takes."""
    header = context.header
    parts: list[bytes] = []
    share = context.turns.slice(clock_every=1)
    for _ in messages.encode_response_in_steps(
        header.api_key, header.api_version, header.correlation_id, response, parts
    ):
        if share.is_over():
            await share.next()
    return parts


def encode_error(context: RequestContext, code: int, message: str | None) -> Answer:
    """Encode a response that is only an error code, and *message* if the response has a field for it."""
    response: Any = messages.response_class(context.header.api_key)()
    response.error_code = int(code)
    if hasattr(response, "error_message"):
        response.error_message = message
    return encode(context, response)


@cache
def has_error_code(api: ApiKey, version: int) -> bool:
    """Return whether the response of that version has an error code for the whole request."""
    if messages.is_written_by_hand(api):
        return False
    return any(
        field.name == "error_code" and field.versions.has(version)
        for field in fields_of(messages.response_class(api))
    )
