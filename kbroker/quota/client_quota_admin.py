"""Changes to client quotas: one multi writes the entity's znode and the notification that all brokers watch.

The write is conditional on the version that was read, and is computed again after a lost race. After a lost answer the
settings are read again: an applied change has no difference left. Other settings in the znode of a user (SCRAM
credentials, which Kafka keeps there) stay. A znode without settings and children is deleted, as in Kafka, and so are
its parents below /config/users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from kbroker.quota.client_quota_config import read_quotas
from kbroker.quota.core.entities import DEFAULT, EntityName, QuotaEntity
from kbroker.quota.core.stored_quotas import Component, QuotaOperation, altered, chosen, shown
from kbroker.zk import znodes
from kbroker.zk.errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    NotEmpty,
    PoisonZnode,
    SessionExpired,
)
from kbroker.zk.interface import Create, Delete, Operation, SetData, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import InvalidRequest, UnknownServerError

ATTEMPTS: Final = 10
"""How often a change that lost a race is retried."""


class ClientQuotaAdmin:
    """Reads and writes the quotas in ZooKeeper."""

    def __init__(self, zookeeper: ZooKeeper, reconnect: Reconnect) -> None:
        self._zookeeper = zookeeper
        self._reconnect = reconnect

    async def describe(
        self, components: Mapping[str, Component], *, is_strict: bool
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of the entities that match."""
        stored, _ = await read_quotas(self._zookeeper, self._reconnect)
        return chosen(stored, components, is_strict=is_strict)

    async def alter(
        self,
        entity: QuotaEntity,
        operations: Iterable[QuotaOperation],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change the quotas of *entity*. InvalidRequest, UnknownServerError."""
        asked = list(operations)
        path = _path(entity)
        for _ in range(ATTEMPTS):
            there, version = await self._read(path)
            wanted = altered(there, asked)
            if validate_only or wanted == there:
                return
            try:
                await self._write(entity, path, wanted, version)
            except (BadVersion, NodeExists, NoNode):
                continue  # another client changed it meanwhile: read again
            except (ConnectionLoss, SessionExpired):
                await self._reconnect.connected()  # applied or not: the next read shows it
            else:
                return
        raise UnknownServerError(
            f"the quotas of {shown(entity)} were changed by others {ATTEMPTS} times in a row"
        )

    async def _read(self, path: str) -> tuple[dict[str, str], int | None]:
        """Read (settings, version of the znode; None if there is none)."""
        try:
            node = await self._reconnect.read(None, lambda: self._zookeeper.get(path))
            return znodes.decode_config(path, node.data), node.stat.version
        except NoNode:
            return {}, None
        except PoisonZnode as error:
            raise InvalidRequest(f"{error}; repair or delete the znode") from None

    async def _write(
        self, entity: QuotaEntity, path: str, wanted: Mapping[str, str], version: int | None
    ) -> None:
        data = znodes.encode_config(wanted)
        notice = Create(
            znodes.CONFIG_CHANGE_PREFIX, znodes.encode_quota_change(path), sequential=True
        )
        if version is None:
            await self._zookeeper.multi(
                [*await self._missing_parents(entity), Create(path, data), notice]
            )
            return
        change: Operation = SetData(path, data, version)
        if wanted:
            await self._zookeeper.multi([change, notice])
            return
        try:
            await self._zookeeper.multi([Delete(path, version), notice])
        except NotEmpty:  # quotas of the user's client ids
            await self._zookeeper.multi([change, notice])
            return
        await self._delete_empty_parents(entity)

    async def _missing_parents(self, entity: QuotaEntity) -> list[Operation]:
        missing: list[Operation] = []
        for path in reversed(_parents(entity)):
            stat = await self._reconnect.read(None, partial(self._zookeeper.exists, path))
            if stat is None:
                missing.append(Create(path))
        return missing

    async def _delete_empty_parents(self, entity: QuotaEntity) -> None:
        """Delete the parents of a deleted znode as far as they are empty; they do no harm if they stay."""
        with suppress(NoNode, NotEmpty, BadVersion, ConnectionLoss, SessionExpired, InvalidRequest):
            for path in _parents(entity):
                settings, version = await self._read(path)
                if settings or version is None:
                    return
                await self._zookeeper.delete(path, version)


def _path(entity: QuotaEntity) -> str:
    try:
        return znodes.quota_path(_element(entity.user), _element(entity.client_id))
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _parents(entity: QuotaEntity) -> list[str]:
    """Return the znodes between the entity's own and /config/users or /config/clients, from below."""
    if entity.user is None or entity.client_id is None:
        return []
    user = znodes.quota_path(_element(entity.user), None)
    return [f"{user}/{znodes.CLIENTS}", user]


def _element(name: EntityName | None) -> str | None:
    if name is None:
        return None
    return znodes.DEFAULT_ENTITY if name is DEFAULT else znodes.quota_element(name)
