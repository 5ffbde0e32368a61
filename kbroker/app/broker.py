"""One broker: its parts made, started in order, and stopped in the opposite one.

Theory of operation
===================
Start: the log directories are locked first, because whoever holds the lock may bury the ZooKeeper
session of a crashed former self. Then ZooKeeper, the cluster's id, the directories' identity, the
logs (in a pool). Then listeners, so that the ports are known; then the registration, by which the
controller learns of us; then we stand for election ourselves. Ready is the broker once the
controller has sent it the cluster's metadata, or has not done so for a while.

Stop: leadership is handed over (controlled shutdown, bounded), no more connections, groups let go,
the ZooKeeper session ended, and last the logs closed clean, a few syncs for all of them (`log/closing`).
How long it took, and what of it, is a line in the log.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from kbroker.apis.api_specs import handler_factories
from kbroker.apis.gates import BrokerGates
from kbroker.apis.handlers import HandlerDependencies
from kbroker.apis.inter_broker import InterBrokerTrust
from kbroker.apis.pipeline import RequestPipeline
from kbroker.app.controlled_shutdown import ControlledShutdown
from kbroker.app.undo import Undo
from kbroker.app.world import World
from kbroker.common.endpoint import Endpoint
from kbroker.common.epoch_fences import ControllerFence
from kbroker.common.shared_turns import SharedTurns
from kbroker.config import BrokerConfig, LogConfig
from kbroker.controller.controller import ControllerSettings, KafkaController
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.core.placement import OFFSETS_TOPIC
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.offset_expiry import OffsetExpiry
from kbroker.coordinator.transaction.producer_id_manager import ProducerIdManager, first_producer_id
from kbroker.log.log_manager import LogManager
from kbroker.metadata.admin_manager import AdminManager, random_topic_id
from kbroker.metadata.broker_epoch import BrokerEpoch
from kbroker.metadata.broker_registration import (
    BrokerRegistration,
    DuplicateBrokerError,
    Registered,
    RegistrationEvent,
    enter_cluster,
    generate_broker_id,
)
from kbroker.metadata.config_admin_manager import ConfigAdminManager
from kbroker.metadata.controller_epochs import ControllerEpochs
from kbroker.metadata.dynamic_config import DynamicConfig
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.metadata.registered_addresses import RegisteredAddresses
from kbroker.network.broker_connections import BrokerConnections
from kbroker.network.broker_dial import BrokerDial
from kbroker.replica.alter_partition_manager import AlterPartitionManager
from kbroker.replica.core.broker_epoch import Registration
from kbroker.replica.core.replication_quota import ReplicationQuotas
from kbroker.replica.log_dir_failure_channel import LogDirFailureChannel
from kbroker.replica.preferred_read_replica import replica_selector
from kbroker.replica.replica_fetcher_manager import ReplicaFetcherManager
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.security.core.broker_proof import BrokerProofs
from kbroker.security.inter_broker_secret import InterBrokerSecret
from kbroker.zk import znodes
from kbroker.zk.errors import ZooKeeperError
from kbroker.zk.interface import Connected, Expired, Lapsed, SessionEvent
from kbroker.zk.previous_session import PreviousSession
from kbroker.zk.reconnect import Reconnect
from kclient.errors import Address
from kclient.net.dial import resolve
from kclient.wire.errors import KafkaError

log = Logger(namespace="kbroker.broker")

PREVIOUS_SESSION_TIMEOUT = 3.0
"""Seconds to wait for the expiry of the previous session."""

METADATA_PATIENCE = 3.0
"""Seconds to wait for the controller's word before we call ourselves ready without it."""


class CannotContinueError(Exception):
    """The broker cannot go on; the text says why."""


class CannotStartError(Exception):
    """The broker cannot start; the text says why and what to do."""


class Broker:
    """The parts of one broker in its *world*. *on_fatal* is told why it cannot go on.

    *before_listening* is called when the logs are open and nobody can ask for anything yet.
    """

    replica_manager: ReplicaManager

    def __init__(
        self,
        reactor: Any,
        config: BrokerConfig,
        *,
        on_fatal: Callable[[BaseException], None],
        world: World | None = None,
        before_listening: Callable[[], None] = lambda: None,
    ) -> None:
        self._reactor = reactor
        world = self._world = world or World()
        self.config = config
        self._on_fatal = on_fatal
        self._before_listening = before_listening
        self.broker_id = config.broker_id
        self.zookeeper = world.zookeeper(
            reactor, config.zookeeper_connect, config.zookeeper_session_timeout_ms / 1000
        )
        self.reconnect = Reconnect(self.zookeeper, self._reactor)
        self._disk_pool = world.disk_pool(config.background_threads)
        self.log_manager = LogManager(
            config.directories,
            config_of=self._log_config,
            executor=self._disk_pool,
            call_owner=reactor.callFromThread,
            now_ms=world.now_ms,
            on_failure=lambda *failure: self.replica_manager.log_dir_failed(*failure),
            on_flush=lambda key: self.replica_manager.log_flushed(key),
            disk=world.disk,
            new_uuid=world.new_uuid,
            boot_id=world.boot_id(),
            recovery_threads=config.num_recovery_threads_per_data_dir,
        )
        self.broker_epoch = BrokerEpoch()
        self._previous_session: PreviousSession | None = None
        self._hosts_partitions = False
        self._logs_loaded = False
        self._undo = Undo(reactor.seconds)

    # --- start ---

    async def start(self) -> str:
        """Start everything; the ready line. CannotStartError says what is in the way."""
        try:
            return await self._start()
        except (KafkaError, ZooKeeperError, DuplicateBrokerError, OSError) as error:
            raise CannotStartError(_with_hint(error)) from error
        except CannotListenError as error:
            raise CannotStartError(
                f"cannot listen at {error.interface or '*'}:{error.port}: {error.socketError}. "
                "Is another broker or program using that port? See `listeners`."
            ) from error

    async def _start(self) -> str:
        for warning in self.config.warnings:
            log.warn("configuration: {warning}", warning=warning)
        self._claim_directories()
        await self._connect_zookeeper()
        await self._take_identity()
        await self._make_parts()
        await self.dynamic_config.load_all_topics()
        await self.replica_manager.load()
        self._logs_loaded = True
        self._before_listening()
        advertised = self._listen()
        await self._join(advertised)
        self.controller.start()
        self._undo.add(self.controller.stop)
        await self._told_by_the_controller()
        self._undo.add(self._hand_over)
        return f"READY broker.id={self.broker_id} {','.join(map(str, advertised))}"

    def _claim_directories(self) -> None:
        self.log_manager.claim()
        self._undo.add(self._close_logs)
        self._previous_session = self._world.previous_session(Path(self.log_manager.online[0]))

    async def _connect_zookeeper(self) -> None:
        assert self._previous_session is not None
        config = self.config
        given = config.zookeeper_connection_timeout_ms
        timeout = (given if given > 0 else config.zookeeper_session_timeout_ms) / 1000
        self.zookeeper.on_session(self._remember_session)
        self.zookeeper.on_session(self._session_in_doubt)
        started = self.zookeeper.start(timeout)
        self._undo.add(self._end_session)
        await self._previous_session.expire(
            self._reactor, self.zookeeper.hosts, PREVIOUS_SESSION_TIMEOUT
        )
        await started

    def _remember_session(self, event: SessionEvent) -> None:
        if isinstance(event, Connected) and event.is_new and self._previous_session is not None:
            self._previous_session.remember(self.zookeeper)

    async def _take_identity(self) -> None:
        self.cluster_id = await enter_cluster(self.zookeeper, self.reconnect)
        if self.broker_id < 0:
            stored = self.log_manager.stored_identity().broker_id
            if stored is None:
                reserved = self.config.reserved_broker_max_id
                stored = await self.reconnect.read(
                    None, lambda: generate_broker_id(self.zookeeper, reserved)
                )
            self.broker_id = stored
        self.log_manager.take_identity(self.broker_id, self.cluster_id)

    async def _make_parts(self) -> None:
        config, zookeeper, broker_id = self.config, self.zookeeper, self.broker_id
        self.dynamic_config = DynamicConfig(
            zookeeper, self.reconnect, config, broker_id=broker_id, now_ms=self._world.now_ms
        )
        await self.dynamic_config.start()
        self._undo.add(self.dynamic_config.stop)
        self.config_changes = ConfigAdminManager(
            zookeeper, self.reconnect, lambda: self.dynamic_config.broker_config
        )
        await self._trust_brokers()
        self.controller_epochs = ControllerEpochs(zookeeper, self.reconnect)
        fence = ControllerFence()
        self.metadata = MetadataCache(self.cluster_id, fence)
        self.topics = AdminManager(
            self._reactor,
            zookeeper,
            self.reconnect,
            self.metadata,
            lambda: self.dynamic_config.broker_config,
            new_topic_id=self._new_topic_id,
            random_below=self._world.random_below,
        )
        self.peers = BrokerConnections(
            broker_id=broker_id,
            request_timeout=config.controller_socket_timeout_ms / 1000,
            dial=self._dial_broker,
        )
        self._undo.add(self.peers.close)
        self.controller = KafkaController(
            self._reactor,
            zookeeper,
            ControllerSettings(
                broker_id,
                config.inter_broker_listener,
                config.delete_topic_enable,
                rebalance_seconds=(
                    config.leader_imbalance_check_interval_seconds
                    if config.auto_leader_rebalance_enable
                    else None
                ),
                imbalance_percentage=config.leader_imbalance_per_broker_percentage,
                unclean_leader_election=(
                    lambda: self.dynamic_config.broker_config.unclean_leader_election_enable
                ),
                min_insync_replicas=self.dynamic_config.min_insync_replicas,
                is_extended=config.extends_inter_broker_protocol,
            ),
            self.peers,
            now_ms=self._world.now_ms,
            new_topic_id=self._new_topic_id,
            reconnect=self.reconnect,
        )
        self._make_replica_manager(fence)
        self.producer_ids = ProducerIdManager(
            zookeeper, broker_id, first=first_producer_id(self.cluster_id)
        )
        self.groups = GroupCoordinator(
            self._reactor,
            zookeeper,
            broker_id=broker_id,
            limits=_group_limits(config),
            now_ms=self._world.now_ms,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_commit_timeout=config.offsets_commit_timeout_ms / 1000,
            no_successor_at=partial(self.replica_manager.no_successor_at, OFFSETS_TOPIC),
            is_alone=partial(self.replica_manager.is_alone_in_isr, OFFSETS_TOPIC),
            new_uuid=self._world.new_uuid,
        )
        self._expire_offsets()

    async def _trust_brokers(self) -> None:
        """Read the secret by which brokers prove to each other which of them they are."""
        proofs = BrokerProofs(self.cluster_id, self.broker_id)
        secret = InterBrokerSecret(
            self.zookeeper, self.reconnect, proofs, random_bytes=self._world.random_bytes
        )
        await secret.start()
        self._undo.add(secret.stop)
        self._dial_broker = BrokerDial(self._reactor, self._world.dial, proofs)
        self.trust = InterBrokerTrust(
            proofs,
            self.config.inter_broker_listener,
            self._reactor.seconds,
            None
            if self.config.kbroker_inter_broker_proof_required
            else await self._registered_addresses(),
        )

    async def _registered_addresses(self) -> Callable[[str], Collection[int]]:
        """Return what gives the brokers that are registered at an address."""
        log.warn(
            "kbroker.inter.broker.proof.required=false: every program on a broker's host may act as that broker"
        )
        addresses = RegisteredAddresses(
            self.zookeeper,
            self.reconnect,
            self.config.inter_broker_listener,
            lambda host: resolve(self._reactor, Address(host, 0)),
        )
        await addresses.start()
        self._undo.add(addresses.stop)
        return addresses.brokers_at

    def _make_replica_manager(self, fence: ControllerFence) -> None:
        reactor, config, broker_id, dynamic = (
            self._reactor,
            self.config,
            self.broker_id,
            self.dynamic_config,
        )
        registration, quotas = Registration(), ReplicationQuotas(broker_id)
        self.replica_manager = replica_manager = ReplicaManager(
            reactor,
            config,
            broker_id=broker_id,
            registration=registration,
            controller_fence=fence,
            metadata=self.metadata,
            log_manager=self.log_manager,
            disk_pool=self._disk_pool,
            quotas=quotas,
            alter_partition=AlterPartitionManager(reactor, self.zookeeper, self.reconnect),
            fetchers=ReplicaFetcherManager(
                reactor,
                config,
                broker_id=broker_id,
                registration=registration,
                quota=quotas.follower,
                now_ms=self._world.now_ms,
                address=lambda other: self.metadata.address(other, config.inter_broker_listener),
                dial=self._dial_broker,
            ),
            replica_selector=replica_selector(
                config.replica_selector_class, lambda: self.metadata.brokers
            ),
            random_below=self._world.random_below,
            log_dir_failures=LogDirFailureChannel(reactor, self.zookeeper, broker_id),
            topic_config=self._log_config,
            now_ms=self._world.now_ms,
            on_leadership=lambda *change: self.groups.on_leadership(*change),
            fatal=lambda cause: self._on_fatal(CannotContinueError(cause)),
        )
        dynamic.on_topic_config(replica_manager.reconfigure)
        dynamic.on_broker_config(replica_manager.log_schedule.reconfigure)
        replica_manager.log_schedule.reconfigure(dynamic.broker_config)
        dynamic.on_broker_config(replica_manager.throttle)
        replica_manager.throttle(dynamic.broker_config)
        self._hosts_partitions = True
        replica_manager.start_replication()
        self._undo.add(replica_manager.stop_replication)

    def _expire_offsets(self) -> None:
        expiry = OffsetExpiry(
            self._reactor,
            self.zookeeper,
            self.groups,
            retention_ms=self.config.offsets_retention_minutes * 60_000,
            interval=self.config.offsets_retention_check_interval_ms / 1000,
            topics=lambda: set(self.metadata.topics),
            now_ms=self._world.now_ms,
        )
        self.metadata.on_change(expiry.topics_changed)
        expiry.start()
        self._undo.add(expiry.stop)

    def _listen(self) -> tuple[Endpoint, ...]:
        """Bind all listeners; return what to advertise, with the ports that were really given."""
        self.pipeline = RequestPipeline(
            handler_factories(self._handler_dependencies()),
            trust=self.trust,
            gates=BrokerGates(
                self._reactor,
                self.broker_id,
                self.broker_epoch,
                self.controller_epochs,
                self.metadata,
            ),
            turns=SharedTurns(self._reactor),
        )
        self.network = self._world.socket_server(self._reactor, self.config, self.pipeline)
        bound = {endpoint.listener: endpoint for endpoint in self.network.start()}
        # Members of groups hear from their coordinator before their connections close.
        self._undo.add(self.network.stop, self.groups.stop)
        return tuple(
            replace(endpoint, port=endpoint.port or bound[endpoint.listener].port)
            for endpoint in self.config.advertised
        )

    def _handler_dependencies(self) -> HandlerDependencies:
        return HandlerDependencies(
            reactor=self._reactor,
            config=self.config,
            broker_id=self.broker_id,
            random_below=self._world.random_below,
            trust=self.trust,
            broker_epoch=self.broker_epoch,
            replica_manager=self.replica_manager,
            metadata=self.metadata,
            admin_manager=self.topics,
            dynamic_config=self.dynamic_config,
            config_admin_manager=self.config_changes,
            controller=self.controller,
            groups=self.groups,
            producer_ids=self.producer_ids,
        )

    async def _join(self, advertised: tuple[Endpoint, ...]) -> None:
        registration = znodes.BrokerInfo(
            self.broker_id,
            advertised,
            rack=self.config.broker_rack or None,
            timestamp=self._world.now_ms(),
        )
        self.registration = BrokerRegistration(
            self._reactor,
            self.zookeeper,
            registration,
            cluster_id=self.cluster_id,
            reconnect=self.reconnect,
            on_fatal=self._on_fatal,
            history=self.log_manager,
            is_extended=self.config.extends_inter_broker_protocol,
        )
        self.registration.on_event(self._on_registration)
        await self.registration.register()
        self._undo.add(self.registration.stop)

    async def _told_by_the_controller(self) -> None:
        if not await self.metadata.received_within(
            METADATA_PATIENCE, self._reactor, self.broker_id
        ):
            log.warn(
                "no word from the controller after {s:g} s; serving what there is",
                s=METADATA_PATIENCE,
            )

    # --- what the parts ask of each other ---

    def _new_topic_id(self) -> UUID:
        return random_topic_id(self._world.new_uuid)

    def _log_config(self, topic: str) -> LogConfig:
        return self.dynamic_config.log_config(topic)

    def _session_in_doubt(self, event: SessionEvent) -> None:
        if not self._hosts_partitions:
            return
        if isinstance(event, Lapsed):
            self.replica_manager.cut_off()
        elif isinstance(event, Expired):
            self.replica_manager.expired()

    def _on_registration(self, event: RegistrationEvent) -> None:
        if isinstance(event, Registered):
            self.replica_manager.registered(event.broker_epoch)
            self.broker_epoch.registered(event.broker_epoch)

    # --- stop ---

    async def stop(self) -> None:
        """Undo what was started, in the opposite order; a step that fails does not stop the others."""
        await self._undo.run()

    async def _hand_over(self) -> None:
        """Ask the controller to move our leadership away, for a bounded time."""
        self.replica_manager.registration.is_leaving = True
        if self.config.controlled_shutdown_enable:
            shutdown = ControlledShutdown(
                self._reactor,
                self.config,
                self.metadata,
                self.peers,
                broker_id=self.broker_id,
                broker_epoch=self.registration.broker_epoch or -1,
            )
            await shutdown.run()

    async def _close_logs(self) -> None:
        if not self._logs_loaded:
            return  # perhaps a thread is recovering them: the lock goes with the process
        if not await self.replica_manager.close():
            log.warn("not every log was closed cleanly; the next start will recover them")

    async def _end_session(self) -> None:
        await self.zookeeper.stop()
        if self._previous_session is not None:
            self._previous_session.forget()


def _group_limits(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(
        min_session_timeout=config.group_min_session_timeout_ms / 1000,
        max_session_timeout=config.group_max_session_timeout_ms / 1000,
        initial_rebalance_delay=config.group_initial_rebalance_delay_ms / 1000,
        max_size=config.group_max_size,
    )


def _with_hint(error: BaseException) -> str:
    hint = getattr(error, "hint", None)
    return f"{error}" if not hint or hint in str(error) else f"{error}\n    {hint}"
