"""Changes to the settings of topics and brokers: /config/topics/T, /config/brokers/N and <default>.

Theory of operation
===================
A change is one multi of two writes. One is the resource's znode, conditional on the version that was read. The other is
a sequential notification under /config/changes, which every broker watches (`dynamic_config_manager.py`). The new
settings are computed from the ones that were read, and computed again after a lost race, so no change overwrites
another. An invalid value is rejected before anything is written. After a lost answer the settings are read again: an
applied change has no difference left.

In: changes of clients   Out: znodes   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from kbroker.config import KafkaConfig
from kbroker.metadata.core.config_entries import (
    BrokerLayers,
    Change,
    ConfigOperation,
    changed_broker,
    changed_topic,
    check_remaining,
)
from kbroker.zk import znodes
from kbroker.zk.errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    PoisonZnode,
    SessionExpired,
)
from kbroker.zk.interface import ANY_VERSION, Check, Create, Operation, SetData, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import InvalidConfig, UnknownServerError, UnknownTopicOrPartition

ATTEMPTS: Final = 10
"""How often a change that lost a race is retried."""

TOPICS: Final = "topics"
BROKERS: Final = "brokers"

Settings = Mapping[str, str]
Changing = Callable[[Settings], dict[str, str]]
"""Computes the new settings from the present ones; raises KafkaError for invalid ones."""


class ConfigAdminManager:
    """Writes settings, like the class of this name in Kafka.

    *in_force* returns this broker's configuration, and *layers* where its settings come from.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        reconnect: Reconnect,
        in_force: Callable[[], KafkaConfig],
        layers: Callable[[], BrokerLayers],
    ) -> None:
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._in_force = in_force
        self._layers = layers

    async def alter_topic(
        self, topic: str, changes: Iterable[Change], *, validate_only: bool = False
    ) -> None:
        """Change a topic's settings. UnknownTopicOrPartition, InvalidConfig, InvalidRequest."""
        asked = list(changes)
        await self._alter_topic(topic, lambda _: asked, validate_only=validate_only)

    async def replace_topic(
        self, topic: str, values: Settings, *, validate_only: bool = False
    ) -> None:
        """Give a topic exactly these settings (AlterConfigs)."""
        await self._alter_topic(
            topic, lambda there: _replacement(there, values), validate_only=validate_only
        )

    async def alter_broker(
        self, name: str, changes: Iterable[Change], *, validate_only: bool = False
    ) -> None:
        """Change the dynamic settings of a broker (id as text) or of all ("<default>")."""
        asked = list(changes)
        await self._alter_broker(name, lambda _: asked, validate_only=validate_only)

    async def replace_broker(
        self, name: str, values: Settings, *, validate_only: bool = False
    ) -> None:
        """Give a broker, or "<default>", exactly these dynamic settings (AlterConfigs)."""
        await self._alter_broker(
            name, lambda there: _replacement(there, values), validate_only=validate_only
        )

    async def _alter_topic(
        self, topic: str, changes: Callable[[Settings], list[Change]], *, validate_only: bool
    ) -> None:
        def change(there: Settings) -> dict[str, str]:
            return changed_topic(there, changes(there), self._in_force().log_defaults)

        try:
            there: Operation = Check(znodes.topic_path(topic), ANY_VERSION)
        except ValueError:
            raise UnknownTopicOrPartition(f"there is no topic {topic[:249]!r}") from None
        created = await self._created(there.path)
        if created is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic}")

        async def is_there() -> bool:
            return await self._created(there.path) == created

        await self._alter(TOPICS, topic, change, [there], is_there, validate_only=validate_only)

    async def _created(self, path: str) -> int | None:
        """Return ZooKeeper's transaction id of a znode's creation; None if it does not exist."""
        stat = await self._reconnect.read(None, lambda: self._zookeeper.exists(path))
        return None if stat is None else stat.czxid

    async def _alter_broker(
        self, name: str, changes: Callable[[Settings], list[Change]], *, validate_only: bool
    ) -> None:
        is_default = name == znodes.DEFAULT_ENTITY

        def change(there: Settings) -> dict[str, str]:
            wanted = changed_broker(there, changes(there), self._in_force(), is_default=is_default)
            if there.keys() - wanted.keys():
                check_remaining(self._layers(), there, wanted, is_default=is_default)
            return wanted

        async def is_there() -> bool:
            return True

        await self._alter(BROKERS, name, change, [], is_there, validate_only=validate_only)

    async def _alter(
        self,
        entity_type: str,
        name: str,
        change: Changing,
        conditions: list[Operation],
        is_there: Callable[[], Awaitable[bool]],
        *,
        validate_only: bool,
    ) -> None:
        """Change one resource. *is_there* returns whether the resource of the request still exists."""
        path = znodes.config_path(entity_type, name)
        notice = Create(
            znodes.CONFIG_CHANGE_PREFIX,
            znodes.encode_config_change(entity_type, name),
            sequential=True,
        )
        for _ in range(ATTEMPTS):
            there, version = await self._read(entity_type, name)
            wanted = change(there)
            if validate_only or wanted == there:
                return
            data = znodes.encode_config(wanted)
            write: Operation = (
                Create(path, data) if version is None else SetData(path, data, version)
            )
            try:
                await self._zookeeper.multi([*conditions, write, notice])
            except (BadVersion, NodeExists):
                continue  # another client changed it meanwhile: read again
            except (ConnectionLoss, SessionExpired):
                # Applied or not: after the next read an applied change has no difference left.
                await self._reconnect.connected()
                if not await is_there():
                    raise UnknownTopicOrPartition(f"{name} was deleted meanwhile") from None
            except NoNode as error:
                if error.path == path and version is not None:
                    continue
                raise UnknownTopicOrPartition(f"{name} does not exist any more") from None
            else:
                return
        raise UnknownServerError(
            f"the settings of {name} were changed by others {ATTEMPTS} times in a row"
        )

    async def _read(self, entity_type: str, name: str) -> tuple[dict[str, str], int | None]:
        """Read (settings, version of the znode; None if there is none)."""
        path = znodes.config_path(entity_type, name)
        try:
            node = await self._reconnect.read(None, lambda: self._zookeeper.get(path))
            return znodes.decode_config(path, node.data), node.stat.version
        except NoNode:
            return {}, None
        except PoisonZnode as error:
            raise InvalidConfig(str(error), hint="repair or delete the znode") from None


def _replacement(there: Settings, values: Settings) -> list[Change]:
    """List the changes after which the resource has exactly *values*."""
    changes = [Change(key, ConfigOperation.SET, value) for key, value in values.items()]
    gone = [key for key in there if key not in values]
    return changes + [Change(key, ConfigOperation.DELETE, None) for key in gone]
