"""Configuration that changes while brokers run: /config/topics/T, /config/brokers/N and <default>.

Theory of operation
===================
A change is one multi: the resource's znode, conditional on the version that was read, and a sequential
notification under /config/changes. All brokers watch the notifications and re-read the resources they
name. A watch may miss nothing for good: after every reconnect all that is held here is read again (S21).
Topics are loaded when this broker is told to host a partition of them (`load_topics`, before the log is
made), keyed by topic id so that a namesake does not inherit. A value in ZooKeeper that cannot be used
is reported once and ignored; one that a client sends is refused before anything is written.

Notifications are purged by whoever handles one once they are a quarter of an hour old, as in Kafka.

In: watches, session events   Out: callbacks on changed topics and brokers   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.config import BrokerConfig, ConfigError, LogConfig
from kbroker.runtime.config_entries import (
    BrokerLayers,
    Change,
    ConfigOperation,
    changed_broker,
    changed_topic,
    usable_broker_config,
    usable_topic_config,
)
from kbroker.runtime.gather import all_of
from kbroker.runtime.reconnect import Reconnect
from kbroker.zk import znodes
from kbroker.zk.errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    PoisonZnode,
    SessionExpired,
    UnsafeName,
)
from kbroker.zk.interface import (
    ANY_VERSION,
    Check,
    Children,
    Connected,
    Create,
    Operation,
    SessionEvent,
    SetData,
    Watch,
    ZooKeeper,
)
from kclient.wire.errors import (
    InvalidConfig,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)

log = Logger()

PURGE_AFTER_MS: Final = 15 * 60 * 1000
ATTEMPTS: Final = 10
"""How often a change that lost a race is tried again."""

_TOPICS, _BROKERS = "topics", "brokers"


class DynamicConfig:
    """What this broker goes by, kept up to date."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        reconnect: Reconnect,
        static: BrokerConfig,
        *,
        broker_id: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._static = static
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._topics: dict[str, tuple[UUID | None, dict[str, str]]] = {}
        self._brokers: dict[str, dict[str, str]] = {str(broker_id): {}, znodes.DEFAULT_ENTITY: {}}
        self._effective = static
        self._seen: str | None = None
        self._watch: Watch | None = None
        self._reported: dict[str, str] = {}
        self._topic_callbacks: list[Callable[[str, LogConfig], None]] = []
        self._broker_callbacks: list[Callable[[BrokerConfig], None]] = []

    # -- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the brokers' settings, then watch for changes."""
        await self._reload_brokers()
        self._zookeeper.on_session(self._on_session)
        self._watch = self._zookeeper.watch_children(znodes.CONFIG_CHANGES, self._have_changes)

    def stop(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def on_topic_config(self, callback: Callable[[str, LogConfig], None]) -> None:
        """Call *callback* (topic, config) when a loaded topic's settings changed."""
        self._topic_callbacks.append(callback)

    def on_broker_config(self, callback: Callable[[BrokerConfig], None]) -> None:
        """Call *callback* when this broker's own settings changed."""
        self._broker_callbacks.append(callback)

    # -- what is known -----------------------------------------------------------------------

    @property
    def broker_config(self) -> BrokerConfig:
        """This broker's settings, dynamic ones included."""
        return self._effective

    @property
    def layers(self) -> BrokerLayers:
        """Where they come from."""
        return BrokerLayers(
            self._static,
            self._brokers[str(self._broker_id)],
            self._brokers[znodes.DEFAULT_ENTITY],
        )

    def log_config(self, topic: str) -> LogConfig:
        """Return what *topic* goes by; the broker's defaults for a topic that is not loaded."""
        _, overrides = self._topics.get(topic, (None, {}))
        return self.resolve(topic, overrides)

    def min_insync_replicas(self, topic: str) -> int:
        """Return a topic's min.insync.replicas: alone, for a controller asks it of every partition."""
        _, overrides = self._topics.get(topic, (None, {}))
        text = overrides.get("min.insync.replicas", "")
        if text.isdecimal():
            return int(text)
        return self._effective.log_defaults.min_insync_replicas

    def resolve(self, topic: str, overrides: Mapping[str, str]) -> LogConfig:
        """Resolve *overrides*, leaving out (and reporting once) what cannot be used."""
        defaults = self._effective.log_defaults
        if not overrides:
            return defaults
        usable, problems = usable_topic_config(overrides, defaults)
        self._report(f"/config/topics/{topic}", problems)
        return defaults.overridden(usable)

    def _report(self, path: str, problems: list[str]) -> None:
        text = "; ".join(problems)
        if text and self._reported.get(path) != text:
            log.error("ignored in {path}: {problems}", path=path, problems=text)
        if text:
            self._reported[path] = text
        else:
            self._reported.pop(path, None)

    # -- loading -----------------------------------------------------------------------------

    async def load_all_topics(self) -> None:
        """Read the settings of all topics there are: at start, before the logs on disk are opened."""

        def all_topics() -> Deferred[Children]:
            return self._zookeeper.children(f"{znodes.CONFIG}/{_TOPICS}")

        try:
            names = (await self._reconnect.read(None, all_topics)).names
        except NoNode:
            return
        await self.load_topics(dict.fromkeys(names))

    async def load_topics(self, topics: Mapping[str, UUID | None]) -> None:
        """Make sure that the settings of *topics* (name -> id) are known, before their logs are made.

        Does not wait for ZooKeeper to come back: what is known, or the defaults, must do until then.
        """
        missing = {
            name: topic_id
            for name, topic_id in topics.items()
            if name not in self._topics or self._topics[name][0] != topic_id
        }
        read = await all_of(map(self._read_now, missing))
        for (name, topic_id), overrides in zip(missing.items(), read, strict=True):
            if overrides is not None:
                self._topics[name] = (topic_id, overrides)
            else:
                # Read, like everything here, once we are connected again.
                self._topics.setdefault(name, (None, {}))

    async def _read_now(self, topic: str) -> dict[str, str] | None:
        """Read a topic's settings, even if our ZooKeeper server lags; None while we are cut off."""
        path = znodes.config_path(_TOPICS, topic)
        try:
            try:
                node = await self._zookeeper.get(path)
            except NoNode:
                await self._zookeeper.sync(znodes.CONFIG)
                node = await self._zookeeper.get(path)
            return znodes.decode_config(path, node.data)
        except NoNode:
            return {}
        except PoisonZnode as error:
            self._report(path, [str(error)])
            return {}
        except (ConnectionLoss, SessionExpired):
            return None

    def forget_topics(self, names: Iterable[str]) -> None:
        """Drop topics that were deleted."""
        for name in names:
            self._topics.pop(name, None)
            self._reported.pop(f"/config/topics/{name}", None)

    async def read(self, entity_type: str, name: str) -> dict[str, str]:
        """Read one resource's own settings from ZooKeeper; {} if there are none, or they are poison."""
        return (await self._read_versioned(entity_type, name))[0]

    async def _read_versioned(
        self, entity_type: str, name: str, *, strict: bool = False
    ) -> tuple[dict[str, str], int | None]:
        """Read (settings, version of the znode or None); with *strict* poison is raised."""
        path = znodes.config_path(entity_type, name)
        try:
            node = await self._reconnect.read(None, lambda: self._zookeeper.get(path))
        except NoNode:
            return {}, None
        try:
            values = znodes.decode_config(path, node.data)
        except PoisonZnode as error:
            if strict:
                raise InvalidConfig(str(error), hint="repair or delete the znode") from None
            self._report(path, [str(error)])
            return {}, node.stat.version
        return values, node.stat.version

    def _on_session(self, event: SessionEvent) -> None:
        if isinstance(event, Connected):
            self._run(self._reload_all())

    async def _reload_all(self) -> None:
        """Read again whatever may have changed while nobody watched."""
        await self._reload_brokers()
        names = list(self._topics)
        for name, overrides in zip(
            names, await all_of(self.read(_TOPICS, name) for name in names), strict=True
        ):
            self._have_topic(name, overrides)

    async def _reload_brokers(self) -> None:
        names = list(self._brokers)
        read = await all_of(self.read(_BROKERS, name) for name in names)
        found: dict[str, dict[str, str]] = {}
        for name, values in zip(names, read, strict=True):
            found[name], problems = usable_broker_config(values)
            self._report(f"/config/brokers/{name}", problems)
        if found == self._brokers:
            return
        self._brokers = found
        own, default = found[str(self._broker_id)], found[znodes.DEFAULT_ENTITY]
        try:
            self._effective = self._static.with_values({**default, **own})
        except ConfigError as error:
            self._report(znodes.CONFIG + "/brokers", error.problems)
            self._effective = self._static
        log.info("dynamic broker settings changed: {own} {default}", own=own, default=default)
        for callback in list(self._broker_callbacks):
            callback(self._effective)
        for name, (_, overrides) in list(self._topics.items()):
            self._announce(name, overrides)

    def _have_topic(self, name: str, overrides: dict[str, str]) -> None:
        known = self._topics.get(name)
        if known is None or known[1] == overrides:
            return
        self._topics[name] = (known[0], overrides)
        self._announce(name, overrides)

    def _announce(self, name: str, overrides: Mapping[str, str]) -> None:
        config = self.resolve(name, overrides)
        for callback in list(self._topic_callbacks):
            callback(name, config)

    # -- notifications -----------------------------------------------------------------------

    def _have_changes(self, children: Children | None) -> None:
        if children is None:
            return
        names = sorted(children.names)
        fresh = [name for name in names if self._seen is None or name > self._seen]
        if names:
            self._seen = max(names[-1], self._seen or "")
        self._run(self._handle_changes(fresh, names))

    async def _handle_changes(self, fresh: list[str], names: list[str]) -> None:
        paths = [f"{znodes.CONFIG_CHANGES}/{name}" for name in fresh]
        topics: dict[str, None] = {}
        brokers = False
        for change in await all_of(map(self._read_change, paths)):
            if change is not None and change[0] == _TOPICS and change[1] in self._topics:
                topics[change[1]] = None
            elif change is not None and change[0] == _BROKERS:
                brokers = True
        if brokers:
            await self._reload_brokers()
        for name, overrides in zip(
            topics, await all_of(self.read(_TOPICS, name) for name in topics), strict=True
        ):
            self._have_topic(name, overrides)
        await self._purge(names)

    async def _read_change(self, path: str) -> tuple[str, str] | None:
        try:
            node = await self._reconnect.read(None, lambda: self._zookeeper.get(path))
            return znodes.decode_config_change(path, node.data)
        except NoNode:
            return None
        except PoisonZnode as error:
            self._report(path, [str(error)])
            return None

    async def _purge(self, names: list[str]) -> None:
        """Delete old notifications; in the order they were made, up to the first young one."""
        for name in names:
            path = f"{znodes.CONFIG_CHANGES}/{name}"
            with suppress(NoNode, ConnectionLoss):
                stat = await self._zookeeper.exists(path)
                if stat is None:
                    continue
                if self._now_ms() - stat.ctime < PURGE_AFTER_MS:
                    return
                await self._zookeeper.delete(path)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        Deferred.fromCoroutine(work).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        if not isinstance(failure.value, ConnectionLoss | SessionExpired | RequestTimedOut):
            log.failure("reading dynamic settings failed", failure)
        # else: all is read again once connected

    # -- changing ----------------------------------------------------------------------------

    async def alter_topic(
        self, topic: str, changes: Iterable[Change], *, validate_only: bool = False
    ) -> None:
        """Change a topic's settings. UnknownTopicOrPartition, InvalidConfig, InvalidRequest."""
        asked = list(changes)

        def change(overrides: Mapping[str, str]) -> dict[str, str]:
            return changed_topic(overrides, asked, self._effective.log_defaults)

        try:
            there: Operation = Check(znodes.topic_path(topic), ANY_VERSION)
        except ValueError:
            raise UnknownTopicOrPartition(f"there is no topic {topic[:249]!r}") from None
        if await self._reconnect.read(None, lambda: self._zookeeper.exists(there.path)) is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic}")
        await self._alter(_TOPICS, topic, change, [there], validate_only=validate_only)

    async def alter_broker(
        self, name: str, changes: Iterable[Change], *, validate_only: bool = False
    ) -> None:
        """Change the dynamic settings of a broker (id as text) or of all ("<default>")."""
        asked = list(changes)

        def change(overrides: Mapping[str, str]) -> dict[str, str]:
            return changed_broker(overrides, asked, self._effective)

        await self._alter(_BROKERS, name, change, [], validate_only=validate_only)

    async def replace_topic(
        self, topic: str, values: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Give a topic exactly these settings (AlterConfigs)."""
        changes = await self._replacement(_TOPICS, topic, values)
        await self.alter_topic(topic, changes, validate_only=validate_only)

    async def replace_broker(
        self, name: str, values: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Give a broker, or "<default>", exactly these dynamic settings (AlterConfigs)."""
        changes = await self._replacement(_BROKERS, name, values)
        await self.alter_broker(name, changes, validate_only=validate_only)

    async def _replacement(
        self, entity_type: str, name: str, values: Mapping[str, str]
    ) -> list[Change]:
        """List the changes after which the resource has just *values*."""
        try:
            current = await self.read(entity_type, name)
        except UnsafeName:
            raise UnknownTopicOrPartition(f"there is no topic {name[:249]!a}") from None
        changes = [Change(key, ConfigOperation.SET, value) for key, value in values.items()]
        gone = [key for key in current if key not in values]
        return changes + [Change(key, ConfigOperation.DELETE, None) for key in gone]

    async def _alter(
        self,
        entity_type: str,
        name: str,
        change: Callable[[Mapping[str, str]], dict[str, str]],
        conditions: list[Operation],
        *,
        validate_only: bool,
    ) -> None:
        path = znodes.config_path(entity_type, name)
        notice = Create(
            znodes.CONFIG_CHANGE_PREFIX,
            znodes.encode_config_change(entity_type, name),
            sequential=True,
        )
        for _ in range(ATTEMPTS):
            overrides, version = await self._read_versioned(entity_type, name, strict=True)
            wanted = change(overrides)
            if validate_only or wanted == overrides:
                return
            data = znodes.encode_config(wanted)
            write: Operation = (
                Create(path, data) if version is None else SetData(path, data, version)
            )
            try:
                await self._zookeeper.multi([*conditions, write, notice])
            except (BadVersion, NodeExists):
                continue  # somebody else changed it meanwhile: look again
            except (ConnectionLoss, SessionExpired):
                # Applied or not: reading again tells, as the change asks for no more then.
                await self._reconnect.connected()
            except NoNode as error:
                if error.path == path and version is not None:
                    continue
                raise UnknownTopicOrPartition(f"{name} does not exist any more") from None
            else:
                return
        raise UnknownServerError(
            f"the settings of {name} were changed by others {ATTEMPTS} times in a row"
        )
