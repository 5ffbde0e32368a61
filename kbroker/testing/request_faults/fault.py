"""A fault of requests: which requests it is for, and what happens to them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from kclient.testing.observer import OBSERVER
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError
from kclient.wire.versions import SERVED, ApiKey

Lost = Literal["request", "response"]

OF_BROKERS = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.ALTER_PARTITION,
    }
)
"""APIs that only brokers use."""


@dataclass(frozen=True, slots=True)
class RequestFault:
    """One fault. The first that matches a request and has a use left is the request's; it has no other."""

    number: int
    """Counts from 0 in a cluster; its place in the plan."""
    api: int | None = None
    """None: every API."""
    broker: int | None = None
    """None: every broker."""
    client_id: str | None = None
    """How the client ids begin; None: all but the cluster's own observer."""
    times: int | None = None
    """After so many requests, over all brokers, it has ended; None: it does not end by itself."""
    delay: float = 0.0
    """Seconds before anything else happens to the request."""
    error: int = 0
    """The request is not handled: its response has this error code. 0: it is handled."""
    lost: Lost | None = None
    """The connection ends before the request is handled, or before its response is sent."""

    def is_for(self, api: int, broker: int, client_id: str) -> bool:
        """Return whether a request of *api* to *broker* by *client_id* has this fault."""
        if self.api is not None and self.api != api:
            return False
        if self.broker is not None and self.broker != broker:
            return False
        if self.client_id is None:
            return client_id != OBSERVER
        return client_id.startswith(self.client_id)


def api_of(name: str | ApiKey) -> ApiKey:
    """Return the API with Kafka's *name*: ``Produce``, ``OffsetCommit``; ValueError for one that clients do not use."""
    if isinstance(name, ApiKey):
        found: ApiKey | None = name
    else:
        found = _BY_NAME.get(_plain(name))
    if found is None or found not in SERVED:
        near = difflib.get_close_matches(_plain(str(name)), _BY_NAME, 1)
        hint = f"; did you mean {api_name(_BY_NAME[near[0]])}?" if near else ""
        raise ValueError(f"brokers have no API {name!r}{hint}")
    if found in OF_BROKERS:
        raise ValueError(
            f"{api_name(found)} is sent by brokers only: see `partition` for faults between them"
        )
    return found


def api_name(api: ApiKey) -> str:
    """Return Kafka's name of *api*: ``OffsetCommit``."""
    return "".join(word.capitalize() for word in api.name.split("_"))


def code_for(error: str | int | type[KafkaError]) -> ErrorCode:
    """Return the code of an error's name, number or exception class; ValueError if it is none."""
    if isinstance(error, type) and issubclass(error, KafkaError):
        code = error.code
    elif isinstance(error, str):
        try:
            code = ErrorCode[error.upper()]
        except KeyError:
            near = difflib.get_close_matches(error.upper(), ErrorCode.__members__, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"Kafka has no error code {error!r}{hint}") from None
    else:
        try:
            code = ErrorCode(error)
        except ValueError:
            raise ValueError(f"Kafka has no error code {error!r}") from None
    if code is ErrorCode.NONE:
        raise ValueError("NONE is success: name the error that the response shall have")
    return code


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


_BY_NAME = {_plain(api.name): api for api in SERVED}
