"""The quotas in ZooKeeper: /config/users/U, /config/users/U/clients/C and /config/clients/C, with `<default>`.

All are read at start, after a change notification and after a reconnect. One read is under way at a time. A change that
comes meanwhile causes another one, so the last read is later than the last change. Settings that cannot be used are
logged once and ignored.

In: change notifications, session events   Out: limits to the `ClientQuotaManager`   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.gather import all_of
from kbroker.quota.client_quota_manager import ClientQuotaManager
from kbroker.quota.core.entities import DEFAULT, EntityName, QuotaEntity
from kbroker.quota.core.stored_quotas import quota_limits
from kbroker.zk import znodes
from kbroker.zk.errors import ConnectionLoss, NoNode, PoisonZnode, SessionExpired
from kbroker.zk.interface import Connected, SessionEvent, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import RequestTimedOut

log = Logger()

READS_AT_ONCE = 500


class ClientQuotaConfig:
    """Keeps the limits of *manager* those in ZooKeeper."""

    def __init__(
        self, zookeeper: ZooKeeper, reconnect: Reconnect, manager: ClientQuotaManager
    ) -> None:
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._manager = manager
        self._is_reading = False
        self._is_stale = False
        self._logged: tuple[str, ...] = ()

    async def start(self) -> None:
        """Read the quotas, and follow the session."""
        await self._reload()
        self._zookeeper.on_session(self._on_session)

    def changed(self) -> None:
        """Read the quotas again."""
        self._is_stale = True
        if not self._is_reading:
            Deferred.fromCoroutine(self._reload()).addErrback(self._failed)

    def _on_session(self, event: SessionEvent) -> None:
        if isinstance(event, Connected):
            self.changed()

    async def _reload(self) -> None:
        self._is_reading = self._is_stale = True
        try:
            while self._is_stale:
                self._is_stale = False
                stored, problems = await read_quotas(self._zookeeper, self._reconnect)
                limits, unusable = quota_limits(stored)
                self._report((*problems, *unusable))
                self._manager.replace(limits)
        finally:
            self._is_reading = False

    def _report(self, problems: tuple[str, ...]) -> None:
        if problems and problems != self._logged:
            log.error("ignored quotas: {problems}", problems="; ".join(problems[:20]))
        self._logged = problems

    def _failed(self, failure: Failure) -> None:
        if not isinstance(failure.value, ConnectionLoss | SessionExpired | RequestTimedOut):
            log.failure("reading the client quotas failed", failure)
        # else: all is read again once connected


async def read_quotas(
    zookeeper: ZooKeeper, reconnect: Reconnect
) -> tuple[dict[QuotaEntity, dict[str, str]], list[str]]:
    """Read the settings of every user and client id that has any; and what is wrong with unreadable znodes."""

    async def children(path: str) -> list[str]:
        try:
            return (await reconnect.read(None, lambda: zookeeper.children(path))).names
        except NoNode:
            return []

    users, clients = await all_of(
        [children(f"{znodes.CONFIG}/{kind}") for kind in (znodes.USERS, znodes.CLIENTS)]
    )
    found: list[tuple[str | None, str | None]] = [(None, client) for client in clients]
    found += [(user, None) for user in users]
    for some in _slices(users):
        parents = [f"{znodes.quota_path(user, None)}/{znodes.CLIENTS}" for user in some]
        for user, names in zip(some, await all_of(map(children, parents)), strict=True):
            found += [(user, name) for name in names]
    stored: dict[QuotaEntity, dict[str, str]] = {}
    problems: list[str] = []
    for some in _slices(found):
        paths = [znodes.quota_path(*elements) for elements in some]
        nodes = await reconnect.read(None, partial(zookeeper.get_all, paths))
        for (user, client), path, node in zip(some, paths, nodes, strict=True):
            if node is None:
                continue
            try:
                settings = znodes.decode_config(path, node.data)
            except PoisonZnode as error:
                problems.append(str(error))
                continue
            if settings:
                stored[QuotaEntity(_name(user), _name(client))] = settings
    return stored, problems


def _slices(items: list[Any]) -> Iterable[list[Any]]:
    return (items[i : i + READS_AT_ONCE] for i in range(0, len(items), READS_AT_ONCE))


def _name(element: str | None) -> EntityName | None:
    if element is None:
        return None
    return DEFAULT if element == znodes.DEFAULT_ENTITY else znodes.unescape(element)
