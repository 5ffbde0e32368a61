"""Configuration that changes while brokers run: /config/topics/T, /config/brokers/N and <default>.

Theory of operation
===================
`config_admin_manager.py` leaves a notification under /config/changes for every change. All brokers watch these, and
read the named resources again. After every reconnect all settings that are held here are read again (S21): a watch may
have missed a change. Every setting is kept as soon as it is read. So the order of ZooKeeper's answers is kept, and no
older value replaces a newer one, however many changes are in flight.

Topics are loaded before this broker creates the log of a partition of them (`load_topics`). They are keyed by topic id:
a topic of the same name does not inherit. An unusable value in ZooKeeper is logged once and ignored. While ZooKeeper
does not answer, a topic without readable settings has the defaults, except flush.messages=1. A record that was counted
as a copy without a sync cannot be taken back.

The broker that handles a notification purges those that are 15 minutes old, as in Kafka.

Changed quotas of users and client ids are only announced: `kbroker.quota.client_quota_config` reads them.

In: watches, session events   Out: callbacks on changed topics, brokers and quotas   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, cast
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.gather import all_of
from kbroker.common.turns import Turns, WithoutTurns, for_each
from kbroker.config import BROKER_SETTINGS, TOPIC_SETTINGS, ConfigError, KafkaConfig, LogConfig
from kbroker.metadata.config_admin_manager import BROKERS, TOPICS
from kbroker.metadata.core.config_entries import (
    BrokerLayers,
    effective_broker_config,
    usable_broker_config,
    usable_topic_config,
)
from kbroker.zk import znodes
from kbroker.zk.errors import ConnectionLoss, NoNode, PoisonZnode, SessionExpired
from kbroker.zk.interface import Children, Connected, SessionEvent, Watch, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import RequestTimedOut

log = Logger()

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
IDLE_TOPIC_SETTINGS: Final = frozenset(
    name for name, setting in TOPIC_SETTINGS.items() if setting.is_idle
)
"""Settings that a broker accepts and does not use."""
READS_AT_ONCE: Final = 500
"""Topics with settings being read at a time."""
_AT_ONCE: Final = WithoutTurns()
PURGE_AFTER_MS: Final = 15 * 60 * 1000


class DynamicConfigManager:
    """The configuration of this broker and its topics, kept up to date."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        reconnect: Reconnect,
        static: KafkaConfig,
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
        self._unread: dict[str, None] = {}
        """Topics without readable settings yet."""
        self._brokers: dict[str, dict[str, str]] = {str(broker_id): {}, znodes.DEFAULT_ENTITY: {}}
        self._applied = dict(self._brokers)
        """The settings that `_effective` was built from."""
        self._unannounced: dict[str, None] = {}
        """Topics with changed settings, until the callbacks have run."""
        self._effective = static
        self._seen: str | None = None
        self._watch: Watch | None = None
        self._reported: dict[str, str] = {}
        self._topic_callbacks: list[Callable[[Collection[str]], None]] = []
        self._broker_callbacks: list[Callable[[KafkaConfig], None]] = []
        self._quota_callbacks: list[Callable[[], None]] = []

    # -- start and stop--------------------------------------------------------------------------

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

    def on_topic_config(self, callback: Callable[[Collection[str]], None]) -> None:
        """Call *callback* with the loaded topics that have other settings now, many at a time."""
        self._topic_callbacks.append(callback)

    def on_broker_config(self, callback: Callable[[KafkaConfig], None]) -> None:
        """Call *callback* when this broker's own settings changed."""
        self._broker_callbacks.append(callback)

    def on_quota_change(self, callback: Callable[[], None]) -> None:
        """Call *callback* when the quotas of a user or client id changed."""
        self._quota_callbacks.append(callback)

    # -- look-ups --------------------------------------------------------------------------

    @property
    def broker_config(self) -> KafkaConfig:
        """This broker's settings, dynamic ones included."""
        return self._effective

    @property
    def layers(self) -> BrokerLayers:
        """The sources of the broker's settings."""
        return BrokerLayers(
            self._static,
            self._brokers[str(self._broker_id)],
            self._brokers[znodes.DEFAULT_ENTITY],
        )

    def log_config(self, topic: str) -> LogConfig:
        """Return the settings of *topic*; the broker's defaults for a topic that is not loaded."""
        _, overrides = self._topics.get(topic, (None, {}))
        config = self.resolve(topic, overrides)
        return replace(config, flush_messages=1) if topic in self._unread else config

    def min_insync_replicas(self, topic: str) -> int:
        """Return a topic's min.insync.replicas: by itself, because a controller reads it for every partition."""
        _, overrides = self._topics.get(topic, (None, {}))
        if MIN_INSYNC_REPLICAS in overrides:
            setting = TOPIC_SETTINGS[MIN_INSYNC_REPLICAS]
            with suppress(ValueError):
                return cast(int, setting.parse(overrides[MIN_INSYNC_REPLICAS]))
        return self._effective.log_defaults.min_insync_replicas

    def resolve(self, topic: str, overrides: Mapping[str, str]) -> LogConfig:
        """Resolve *overrides* without the unusable ones, which are logged once."""
        defaults = self._effective.log_defaults
        if not overrides:
            return defaults
        problems: list[str] = []
        try:
            config = defaults.overridden(overrides)
        except ConfigError:
            usable, problems = usable_topic_config(overrides, defaults)
            config = defaults.overridden(usable)
        self._report(f"/config/topics/{topic}", problems)
        return config

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
            return self._zookeeper.children(f"{znodes.CONFIG}/{TOPICS}")

        try:
            names = (await self._reconnect.read(None, all_topics)).names
        except NoNode:
            return
        await self.load_topics(dict.fromkeys(names))

    async def load_topics(self, topics: Mapping[str, UUID | None], turns: Turns = _AT_ONCE) -> None:
        """Have the settings of *topics* (name -> id) in memory, before their logs are created.

        Does not wait for a reconnect: until then the known settings or the defaults apply.
        """
        missing = self._missing(topics)

        async def load(name: str) -> None:
            await self._load(name, missing[name])

        await for_each(turns, missing, load, READS_AT_ONCE)

    def follow_topics(self, topics: Mapping[str, UUID | None], deleted: Iterable[str]) -> None:
        """Read the settings of *topics* in the background, and drop those of topics that were *deleted*.

        A controller uses min.insync.replicas of every topic, also of those without a replica on its broker.
        """
        self.forget_topics(deleted)
        missing = self._missing(topics)
        if missing:
            self._run(self.load_topics(missing))

    def _missing(self, topics: Mapping[str, UUID | None]) -> dict[str, UUID | None]:
        """Return those of *topics* (name -> id) with settings that are not in memory."""
        return {
            name: topic_id
            for name, topic_id in topics.items()
            if name not in self._topics or self._topics[name][0] != topic_id
        }

    async def _load(self, name: str, topic_id: UUID | None) -> None:
        overrides = await self._read_now(name)
        if overrides is not None:
            known = self._topics.get(name)
            if known is not None and known[1] != overrides:
                self._unannounced[name] = None  # with the notification of that change
            self._topics[name] = (topic_id, overrides)
            self._unread.pop(name, None)
            _warn_of_idle_settings(name, overrides)
        else:
            # Read with all others after the reconnect. The settings of an earlier topic of that name do not apply.
            known = self._topics.get(name)
            if known is None or (topic_id is not None and known[0] not in (None, topic_id)):
                self._topics[name] = (None, {})
            self._unread[name] = None

    async def _read_now(self, topic: str) -> dict[str, str] | None:
        """Read a topic's settings, even if the ZooKeeper server lags; None without a connection."""
        path = znodes.config_path(TOPICS, topic)
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
            self._unread.pop(name, None)
            self._reported.pop(f"/config/topics/{name}", None)

    async def read(self, entity_type: str, name: str) -> dict[str, str]:
        """Read one resource's own settings from ZooKeeper; {} if there are none, or they are poison."""
        path = znodes.config_path(entity_type, name)
        try:
            node = await self._reconnect.read(None, lambda: self._zookeeper.get(path))
            return znodes.decode_config(path, node.data)
        except NoNode:
            return {}
        except PoisonZnode as error:
            self._report(path, [str(error)])
            return {}

    def _on_session(self, event: SessionEvent) -> None:
        if isinstance(event, Connected):
            self._run(self._reload_all())

    async def _reload_all(self) -> None:
        """Read again all settings that may have changed without a watch."""
        await self._reload_brokers()
        await self._reload_topics(list(self._topics))

    async def _reload_topics(self, names: Iterable[str]) -> None:
        try:
            await for_each(_AT_ONCE, list(names), self._reload_topic, READS_AT_ONCE)
        finally:
            changed, self._unannounced = self._unannounced, {}
            self._announce(changed)

    async def _reload_topic(self, name: str) -> None:
        overrides = await self.read(TOPICS, name)
        known = self._topics.get(name)
        if known is not None and (known[1] != overrides or name in self._unread):
            self._unread.pop(name, None)
            self._topics[name] = (known[0], overrides)
            self._unannounced[name] = None
            _warn_of_idle_settings(name, overrides)

    async def _reload_brokers(self) -> None:
        await all_of(map(self._reload_broker, list(self._brokers)))
        if self._brokers == self._applied:
            return
        self._applied = dict(self._brokers)
        own, default = self._brokers[str(self._broker_id)], self._brokers[znodes.DEFAULT_ENTITY]
        self._effective, problems = effective_broker_config(self._static, {**default, **own})
        self._report(f"{znodes.CONFIG}/{BROKERS}", problems)
        log.info(
            "dynamic broker settings changed: {own} {default}",
            own=_shown(own),
            default=_shown(default),
        )
        unknown = sorted(name for name in {**default, **own} if name not in BROKER_SETTINGS)
        if unknown:
            log.warn(
                "unknown dynamic broker settings have no effect: {unknown}", unknown=unknown[:100]
            )
        for callback in list(self._broker_callbacks):
            callback(self._effective)
        self._announce(list(self._topics))

    async def _reload_broker(self, name: str) -> None:
        values, problems = usable_broker_config(
            await self.read(BROKERS, name), is_default=name == znodes.DEFAULT_ENTITY
        )
        self._report(f"/config/brokers/{name}", problems)
        self._brokers[name] = values

    def _announce(self, topics: Collection[str]) -> None:
        if topics:
            for callback in list(self._topic_callbacks):
                callback(topics)

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
        brokers = quotas = False
        for change in await all_of(map(self._read_change, paths)):
            if change is not None and change[0] == TOPICS and change[1] in self._topics:
                topics[change[1]] = None
            elif change is not None and change[0] == BROKERS:
                brokers = True
            elif change is not None and change[0] in (znodes.USERS, znodes.CLIENTS):
                quotas = True
        if quotas:
            for callback in list(self._quota_callbacks):
                callback()
        if brokers:
            await self._reload_brokers()
        await self._reload_topics(topics)
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


def _warn_of_idle_settings(topic: str, overrides: Mapping[str, str]) -> None:
    idle = sorted(IDLE_TOPIC_SETTINGS.intersection(overrides))
    if idle:
        log.warn("topic {topic}: accepted, no effect: {idle}", topic=topic, idle=", ".join(idle))


def _shown(values: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that may be logged: no secrets, and none that may be one."""
    return {
        name: value
        for name, value in values.items()
        if name in BROKER_SETTINGS and not BROKER_SETTINGS[name].sensitive
    }
