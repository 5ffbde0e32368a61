"""Finds the coordinator of a group or a transactional id (FindCoordinator), and caches it until it is wrong.

v1 key type (KIP-98) · v3 flexible · v4 several keys in one request (KIP-699)
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from kclient.errors import Address
from kclient.net.connection import Connection
from kclient.wire.errors import for_code
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.versions import ApiKey


class KeyType(IntEnum):
    """The kinds of coordinator."""

    GROUP = 0
    TRANSACTION = 1


class Coordinators:
    """The cached coordinators: (key type, key) -> (broker id, address)."""

    def __init__(self) -> None:
        self._found: dict[tuple[KeyType, str], tuple[int, Address]] = {}

    def known(self, key: str, kind: KeyType = KeyType.GROUP) -> tuple[int, Address] | None:
        """Return the cached coordinator of *key*."""
        return self._found.get((kind, key))

    def forget(self, key: str, kind: KeyType = KeyType.GROUP) -> None:
        """Drop a cached coordinator that answered NOT_COORDINATOR or did not answer."""
        self._found.pop((kind, key), None)

    async def find(
        self, connection: Connection, key: str, kind: KeyType = KeyType.GROUP
    ) -> tuple[int, Address]:
        """Request the coordinator from the broker at *connection*; raise its error (CoordinatorNotAvailable, ...)."""
        request = FindCoordinatorRequest(key=key, key_type=int(kind), coordinator_keys=[key])
        version = connection.version_for(ApiKey.FIND_COORDINATOR)
        response = await connection.request(ApiKey.FIND_COORDINATOR, version, request)
        answer: Any = response.coordinators[0] if version >= 4 else response
        if answer.error_code:
            error_message = f": {answer.error_message}" if answer.error_message else ""
            raise for_code(answer.error_code)(
                f"coordinator of {kind.name.lower()} {key!r}{error_message}"
            )
        found = (answer.node_id, Address(answer.host, answer.port))
        self._found[(kind, key)] = found
        return found
