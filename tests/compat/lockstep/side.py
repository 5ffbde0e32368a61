"""One of the two clusters: sends requests, and gives names to what is its own in the answers."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from kclient.testing.raw_connection import RawConnection
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kclient.wire.versions import ApiKey
from tests.compat.lockstep.drawing import Recipe, Symbol

ANSWER_SECONDS = 30.0
"""Within which a cluster answers: members wait 0.7 s for others, topics are created and deleted."""
RETRY_SECONDS = 20.0
NOT_YET = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
"""Errors that end: a transaction's markers are being written, a coordinator is being elected."""

OWN = {
    *("throttle_time_ms", "host", "port", "cluster_id", "rack", "error_message", "documentation"),
    *("log_dir", "partition_size", "usable_bytes", "total_bytes", "offset_lag"),
    *("client_host", "client_id"),
}
"""Fields that are each cluster's own."""
KINDS = {
    "topic_id": "topic_id",
    "member_id": "member",
    "leader": "member",
    "producer_id": "producer",
}
"""What is a `Symbol`."""
TIMES = {"transaction_start_time_ms", "last_timestamp", "timestamp"}
SINCE = 1_600_000_000_000
"""Times after it are the clock's, not a record's."""
WRONG_ID = 987_654


class Side:
    """A cluster of one broker, at *bootstrap*."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = host, int(port)
        self._connection: RawConnection | None = None
        self._own: dict[Symbol, Any] = {}

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.__exit__(None, None, None)
            self._connection = None

    def ask(self, api: ApiKey, version: int, recipe: Recipe) -> Any:
        """Return the answer in the form that is compared; a text if there is none."""
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            request = self._built(recipe)
            try:
                if self._connection is None:
                    self._connection = RawConnection(*self._address, timeout=ANSWER_SECONDS)
                response = self._connection.ask(api, version, request)
            except TimeoutError:
                self.close()
                return "no answer"
            except ConnectionError:
                self.close()
                return "closed"
            if NOT_YET & set(_errors(response)) and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            compared = self._named(response)
            self._learn(api, request, response)
            return compared

    def _built(self, value: Any) -> Any:
        if isinstance(value, Recipe):
            made = value.cls()
            for name, each in value.values.items():
                setattr(made, name, self._built(each))
            return made
        if isinstance(value, list):
            return [self._built(each) for each in value]
        return self._value(value) if isinstance(value, Symbol) else value

    def _value(self, symbol: Symbol) -> Any:
        match symbol.kind, symbol.name:
            case "topic_id", _:
                return self._own.get(symbol, UUID(int=WRONG_ID))
            case "member", "none":
                return ""
            case "member", _:
                return self._own.get(symbol, f"unknown-{symbol.name}")
            case _, "none":
                return -1
        return self._own.get(symbol, WRONG_ID)

    def _named(self, value: Any, field: str = "") -> Any:
        """Return *value* with names in place of what is the cluster's own; structs are dicts."""
        if hasattr(value, "__dataclass_fields__"):
            return {
                name: self._named(getattr(value, name), name)
                for name in value.__dataclass_fields__
                if name != "WIRE" and name not in OWN
            }
        if isinstance(value, list):
            return [self._named(each, field) for each in value]
        if field.endswith("error_code"):
            return ErrorCode(value).name
        kind = KINDS.get(field)
        if kind is not None and value not in (None, "", -1):
            names = [
                each.name for each, own in self._own.items() if (each.kind, own) == (kind, value)
            ]
            return names[0] if names else f"another {kind}"
        if field in TIMES and value > SINCE:
            return "now"
        return bytes(value) if isinstance(value, memoryview | bytearray) else value

    def _learn(self, api: ApiKey, request: Any, response: Any) -> None:
        """Keep the ids that the cluster has given."""
        if api is ApiKey.METADATA:
            for topic in response.topics:
                if topic.name and topic.topic_id:
                    self._own[Symbol("topic_id", topic.name)] = topic.topic_id
        elif api is ApiKey.JOIN_GROUP and response.error_code in (0, ErrorCode.MEMBER_ID_REQUIRED):
            if response.member_id not in self._own.values():
                slot = sum(symbol.kind == "member" for symbol in self._own) % 2
                self._own[Symbol("member", str(slot))] = response.member_id
            if response.leader == response.member_id:
                self._synchronize(request, response)
        elif (
            api is ApiKey.INIT_PRODUCER_ID and not response.error_code and request.transactional_id
        ):
            self._own[Symbol("producer", request.transactional_id)] = response.producer_id

    def _synchronize(self, request: Any, response: Any) -> None:
        """Send the assignment of a leader at once: without it, each cluster removes the member at its own time."""
        assignments = [SyncGroupRequestAssignment(m.member_id, b"x") for m in response.members]
        sync = SyncGroupRequest(
            request.group_id, response.generation_id, response.member_id, assignments=assignments
        )
        assert self._connection is not None
        self._connection.ask(ApiKey.SYNC_GROUP, 3, sync)


def _errors(value: Any) -> list[int]:
    """Return every error code in a response."""
    if hasattr(value, "__dataclass_fields__"):
        found = [getattr(value, n) for n in value.__dataclass_fields__ if n.endswith("error_code")]
        return found + [e for n in value.__dataclass_fields__ for e in _errors(getattr(value, n))]
    return [error for each in value for error in _errors(each)] if isinstance(value, list) else []
