"""The admin manager: any broker creates, deletes and grows topics by znode writes; the controller acts on them.

One multi creates a topic: its settings and its assignment, never one without the other. A deletion is a znode under
/admin/delete_topics. More partitions are a new version of the topic's znode, conditional on the version that was read.
The controller's watches do the rest; a caller that waits for the result waits for this broker's metadata cache
(`until_led`, `until_gone`).

Every write belongs to the session of its request. A broker that was cut off for longer does not know the writes of
others. The client may have sent its request to another broker, and undone it there since. An attempt in an expired
session fails with RequestTimedOut, unless its result is found in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.common.reactor import Clock
from kbroker.config import KafkaConfig, LogConfig
from kbroker.metadata.core.config_entries import check_topic_config
from kbroker.metadata.core.topic_rules import check_collision, check_topic_name
from kbroker.metadata.metadata_cache import BrokerMetadata, MetadataCache
from kbroker.metadata.topic_placement import NewTopic, TopicPlacement
from kbroker.zk import znodes
from kbroker.zk.errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    PoisonZnode,
    SessionExpired,
)
from kbroker.zk.interface import Create, Node, Operation, SetData, Stat, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import (
    InvalidConfig,
    LeaderNotAvailable,
    RequestTimedOut,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kclient.wire.uuids import encode_uuid

log = Logger()

ATTEMPTS: Final = 10
NAME_FREE_SECONDS: Final = 1.0
"""How long a deletion that this broker has in its cache waits for its znodes to go, too."""
NAME_LOOK_SECONDS: Final = 0.02


def random_topic_id(new_uuid: Callable[[], UUID] = uuid4) -> UUID:
    """Generate a topic id that does not begin with a dash: a command line would take that for an option."""
    while True:
        topic_id = new_uuid()
        if not encode_uuid(topic_id).startswith("-"):
            return topic_id


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as created, or as it would be created."""

    name: str
    topic_id: UUID | None
    assignment: Mapping[int, tuple[int, ...]]
    overrides: Mapping[str, str]
    config: LogConfig

    @property
    def replication_factor(self) -> int:
        """The number of replicas of every partition."""
        return len(next(iter(self.assignment.values())))


class AdminManager:
    """Changes to the topics of the cluster (Kafka's ZkAdminManager)."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        reconnect: Reconnect,
        cache: MetadataCache,
        config: Callable[[], KafkaConfig],
        *,
        new_topic_id: Callable[[], UUID],
        random_below: Callable[[int], int],
    ) -> None:
        self._clock = clock
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._cache = cache
        self._config = config
        self._new_topic_id = new_topic_id
        self._placement = TopicPlacement(config, random_below)

    # -- creation ----------------------------------------------------------------------------

    async def create(self, new: NewTopic, *, validate_only: bool = False) -> CreatedTopic:
        """Check *new* and write it. The leaders come later: `until_led`.

        InvalidTopicException, TopicAlreadyExists, InvalidPartitions, InvalidReplicationFactor,
        InvalidReplicaAssignment, InvalidConfig.
        """
        name = check_topic_name(new.name)
        ours = self._in_this_session()
        if self._cache.topic(name) is not None:
            raise TopicAlreadyExists(f"topic {name} already exists")
        check_collision(name, self._cache.topics)
        overrides = self._overrides(new)
        config = check_topic_config(overrides, self._config().log_defaults)
        assignment = self._placement.of_new(new, await self._live_brokers())
        last_change = await self._check_absent(name)
        if validate_only:
            return CreatedTopic(name, None, assignment, overrides, config)
        topic_id = self._new_topic_id()
        await self._write(name, topic_id, assignment, overrides, ours, last_change)
        log.info(
            "created topic {name}: {n} partitions, replication factor {factor}",
            name=name,
            n=len(assignment),
            factor=len(assignment[0]),
        )
        return CreatedTopic(name, topic_id, assignment, overrides, config)

    async def create_offsets_topic(self) -> None:
        """Create __consumer_offsets unless it exists; LeaderNotAvailable while no broker is known."""
        config = self._config()
        await self._create_internal(
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            "offsets.topic.replication.factor",
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )

    async def create_transactions_topic(self) -> None:
        """Create __transaction_state unless it exists; LeaderNotAvailable while no broker is known."""
        config = self._config()
        await self._create_internal(
            TRANSACTIONS_TOPIC,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            "transaction.state.log.replication.factor",
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )

    async def _create_internal(
        self, topic: str, partitions: int, replicas: int, setting: str, configs: dict[str, str]
    ) -> None:
        """Create a topic of a coordinator unless it exists; *setting* is the one with the wanted *replicas*."""
        live = len(await self._live_brokers())
        if live == 0:
            raise LeaderNotAvailable("no live broker is known yet")
        factor = min(replicas, live)
        if factor < replicas:
            # Kafka refuses: with a single broker no group works until the setting is changed.
            log.warn(
                "{topic} is created with {factor} replicas, not {setting}={wanted}: no more brokers are alive",
                topic=topic, factor=factor, setting=setting, wanted=replicas,
            )  # fmt: skip
        if "min.insync.replicas" in configs:
            # The topic stays empty: a minimum that its replicas cannot reach would only make the cluster look ill.
            least = min(int(configs["min.insync.replicas"]), factor)
            configs = {**configs, "min.insync.replicas": str(least)}
        with suppress(TopicAlreadyExists):
            await self.create(NewTopic(topic, partitions, factor, configs=configs))

    def _overrides(self, new: NewTopic) -> dict[str, str]:
        empty = sorted(name for name, value in new.configs.items() if value is None)
        if empty:
            raise InvalidConfig(f"null is no value for {', '.join(empty)[:300]}")
        return {name: value for name, value in new.configs.items() if value is not None}

    async def _live_brokers(self) -> dict[int, BrokerMetadata]:
        """Return the brokers of the metadata cache that are registered now, by id.

        The cache alone may be out of date where a client knows better. At a new controller, which the client knows from
        another broker, it names the dead one until the controller's own UpdateMetadata arrives.
        """
        registered = await self._reconnect.read(
            None, lambda: self._zookeeper.children(znodes.BROKER_IDS)
        )
        ids = set(registered.names)
        return {id: broker for id, broker in self._cache.brokers.items() if str(id) in ids}

    async def _check_absent(self, name: str) -> int:
        """Return ZooKeeper's transaction id of the last creation or deletion of any topic; TopicAlreadyExists."""
        paths = (znodes.TOPICS, znodes.topic_path(name), znodes.delete_topic_path(name))
        topics, topic, deletion = await self._reconnect.read(
            None, lambda: self._zookeeper.get_all(paths)
        )
        if topic is not None:
            state = "already exists" if deletion is None else "is marked for deletion"
            raise TopicAlreadyExists(f"topic {name} {state}")
        return topics.stat.pzxid if topics is not None else -1

    def _in_this_session(self) -> ZooKeeper:
        """Return the client for the writes of one request."""
        session = self._zookeeper.session
        if session is None:
            raise RequestTimedOut("this broker is cut off from ZooKeeper", hint="try again")
        return self._zookeeper.in_session(session)

    async def _exists(self, path: str) -> bool:
        return await self._created(path) is not None

    async def _created(self, path: str) -> int | None:
        """Return ZooKeeper's transaction id of a znode's creation; None if it does not exist."""
        stat = await self._reconnect.read(None, lambda: self._zookeeper.exists(path))
        return None if stat is None else stat.czxid

    async def _write(
        self,
        name: str,
        topic_id: UUID,
        assignment: Mapping[int, tuple[int, ...]],
        overrides: Mapping[str, str],
        ours: ZooKeeper,
        last_change: int,
    ) -> None:
        """Write a topic, which did not exist at *last_change* of the topics.

        A topic of an attempt with a lost answer may have been deleted since. It is not created again: without the topic
        an attempt is repeated only if no topic was created or deleted meanwhile.
        """
        path, config_path = znodes.topic_path(name), znodes.config_path("topics", name)
        content = znodes.TopicAssignment(
            topic_id, {p: znodes.ReplicaAssignment(r) for p, r in assignment.items()}
        )
        topic = Create(path, znodes.encode_topic(content))
        data = znodes.encode_config(overrides)
        settings: Operation = Create(config_path, data)
        for _ in range(ATTEMPTS):
            try:
                await ours.multi([settings, topic])
            except NodeExists as error:
                if error.path == path or await self._exists(path):
                    if await self._topic_id(name) == topic_id:
                        return  # an earlier attempt with a lost answer has written it
                    raise TopicAlreadyExists(f"topic {name} already exists") from None
                # Settings left by a creation or a deletion that broke off: the new ones replace them.
                settings = SetData(config_path, data)
            except NoNode:
                settings = Create(config_path, data)
            except (ConnectionLoss, SessionExpired) as error:
                await self._reconnect.connected()
                if await self._topic_id(name) == topic_id:
                    return
                if isinstance(error, SessionExpired):
                    raise RequestTimedOut(f"topic {name} was not created; retry") from None
                if await self._last_change() != last_change:
                    raise RequestTimedOut(
                        f"whether topic {name} was created is unknown: other topics changed meanwhile",
                        hint="retry",
                    ) from None
            else:
                return
        raise UnknownServerError(f"topic {name} could not be created in {ATTEMPTS} attempts")

    async def _last_change(self) -> int:
        """Return the transaction id of the last creation or deletion of a topic, as the ensemble has it."""

        async def read() -> Stat | None:
            await self._zookeeper.sync(znodes.TOPICS)
            return await self._zookeeper.exists(znodes.TOPICS)

        stat = await self._reconnect.read(None, read)
        return stat.pzxid if stat is not None else -1

    async def _topic_id(self, name: str) -> UUID | None:
        read = await self._read(name)
        return read[0].topic_id if read is not None else None

    async def _read(self, name: str) -> tuple[znodes.TopicAssignment, Stat] | None:
        path = znodes.topic_path(name)
        try:
            node: Node = await self._reconnect.read(None, lambda: self._zookeeper.get(path))
        except NoNode:
            return None
        return znodes.decode_topic(name, node.data), node.stat

    # -- deletion ----------------------------------------------------------------------------

    async def delete(self, name: str, topic_id: UUID | None = None) -> None:
        """Ask the controller to delete topic *name*, with that id if one is given.

        UnknownTopicOrPartition, UnknownTopicId, TopicDeletionDisabled.
        """
        if not self._config().delete_topic_enable:
            raise TopicDeletionDisabled(
                "topics cannot be deleted here", hint="set delete.topic.enable=true on the brokers"
            )
        try:
            path = znodes.delete_topic_path(name)
        except ValueError:
            raise UnknownTopicOrPartition(f"there is no topic {name[:249]!a}") from None
        ours = self._in_this_session()
        created = await self._created(znodes.topic_path(name))
        if created is None:
            raise UnknownTopicOrPartition(f"there is no topic {name}")
        # Read after `created`: if the topic is deleted and created again from now on, a retry does not delete that one.
        if topic_id is not None and await self._topic_id(name) != topic_id:
            raise UnknownTopicId(
                f"topic {name} has another id than {topic_id}: it was created again"
            )
        for _ in range(ATTEMPTS):
            try:
                await ours.create(path)
            except NodeExists:
                return  # requested already, by this broker or another
            except SessionExpired:
                await self._reconnect.connected()
                if await self._exists(path):
                    return
                raise RequestTimedOut(f"topic {name} was not deleted; retry") from None
            except ConnectionLoss:
                await self._reconnect.connected()
                if await self._created(znodes.topic_path(name)) != created:
                    return  # that topic is deleted; one of the same name stays
            else:
                return
        raise UnknownServerError(f"topic {name} could not be deleted in {ATTEMPTS} attempts")

    async def deleted_of(self, names: Collection[str]) -> set[str]:
        """Return those of the topics *names* that have no znode. RequestTimedOut."""

        async def read() -> set[str]:
            await self._zookeeper.sync(znodes.TOPICS)
            return set((await self._zookeeper.children(znodes.TOPICS)).names)

        return set(names) - await self._reconnect.read(None, read)

    # -- growth ------------------------------------------------------------------------------

    async def add_partitions(
        self,
        name: str,
        count: int,
        given: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> range:
        """Grow topic *name* to *count* partitions; the new ones' replicas may be *given*.

        Answers the new partitions. UnknownTopicOrPartition, InvalidPartitions,
        InvalidReplicaAssignment, InvalidReplicationFactor, ReassignmentInProgress.
        """
        ours = self._in_this_session()
        created: int | None = None
        for _ in range(ATTEMPTS):
            try:
                read = await self._read(name)
            except PoisonZnode as error:
                raise UnknownServerError(str(error)) from None
            except ValueError:
                read = None
            if read is None:
                raise UnknownTopicOrPartition(f"there is no topic {name[:249]!a}")
            topic, stat = read
            if created not in (None, stat.czxid):
                raise UnknownTopicOrPartition(f"topic {name} was deleted, and created again")
            created = stat.czxid
            grown = self._placement.grown(name, topic, count, given, await self._live_brokers())
            added = range(len(topic.partitions), count)
            if validate_only:
                return added
            try:
                await ours.set(znodes.topic_path(name), znodes.encode_topic(grown), stat.version)
            except (BadVersion, NoNode):
                continue  # changed meanwhile: look again
            except (ConnectionLoss, SessionExpired) as error:
                await self._reconnect.connected()
                after = await self._read(name)
                if after is not None and after[0] == grown:
                    return added
                if isinstance(error, SessionExpired):
                    raise RequestTimedOut(
                        f"partitions of topic {name} were not added; retry"
                    ) from None
            else:
                return added
        raise UnknownServerError(f"topic {name} was changed by others {ATTEMPTS} times in a row")

    # -- waiting -----------------------------------------------------------------------------

    async def until_led(self, name: str, partitions: Sequence[int] | range, timeout: float) -> bool:
        """Wait until this broker knows a live leader of each; False after *timeout* seconds."""
        return await self._until(lambda: self._cache.is_led(name, partitions), timeout)

    async def until_led_by(
        self, leaders: Mapping[tuple[str, int], int], timeout: float
    ) -> set[tuple[str, int]]:
        """Wait until this broker knows these leaders; those it does not know after *timeout* seconds."""

        def late() -> set[tuple[str, int]]:
            known = {p: self._cache.partition(*p) for p in leaders}
            return {p for p, found in known.items() if not found or found.leader != leaders[p]}

        await self._until(lambda: not late(), timeout)
        return late()

    async def until_gone(self, name: str, topic_id: UUID | None, timeout: float) -> bool:
        """Wait until this broker does not know the topic any more; False after *timeout* seconds.

        Then, for at most `NAME_FREE_SECONDS`, until its name is free: clients often create a deleted topic again at
        once. While a broker with replicas is down the name stays taken (S27), so this part has no effect on the
        result.
        """

        def gone() -> bool:
            known = self._cache.topic(name)
            return known is None or (topic_id is not None and known.topic_id != topic_id)

        if not await self._until(gone, timeout):
            return False
        for _ in range(round(min(timeout, NAME_FREE_SECONDS) / NAME_LOOK_SECONDS)):
            with suppress(ConnectionLoss, SessionExpired):
                if await self._zookeeper.exists(znodes.delete_topic_path(name)) is None:
                    break
            looked: Deferred[None] = Deferred()
            self._clock.callLater(NAME_LOOK_SECONDS, looked.callback, None)
            await looked
        return True

    async def _until(self, condition: Callable[[], bool], timeout: float) -> bool:
        return await self._cache.holds_within(timeout, self._clock, condition)
