"""Stage 4 of a broker: it listens, registers in /brokers/ids, and takes part in the election of the controller.

The listeners are bound first, so that the ports are known. Then the broker registers: the controller learns of it by
that. Then it stands for election itself. It is ready when the controller has sent the cluster's metadata, or has not
done so for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from twisted.logger import Logger

from kbroker.apis.api_specs import handler_factories
from kbroker.apis.gates import BrokerGates, ControllerEpochs
from kbroker.apis.handlers import HandlerDependencies
from kbroker.apis.pipeline import RequestPipeline
from kbroker.app.bootstrapped import BootstrappedBroker
from kbroker.app.controlled_shutdown import ControlledShutdown
from kbroker.app.dynamic_listeners import DynamicListeners
from kbroker.app.undo import Undo
from kbroker.common.endpoint import Endpoint
from kbroker.common.turns import SharedTurns
from kbroker.config import KafkaConfig
from kbroker.metadata.broker_registration import (
    BrokerRegistration,
    Registered,
    RegistrationEvent,
)
from kbroker.network.socket_server import SocketServer
from kbroker.zk import znodes

log = Logger(namespace="kbroker.broker")

METADATA_TIMEOUT = 3.0
"""Seconds to wait for the controller's metadata before the broker is ready without it."""


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker that clients can reach."""

    bootstrapped: BootstrappedBroker
    pipeline: RequestPipeline
    socket_server: SocketServer
    registration: BrokerRegistration
    advertised: Sequence[Endpoint]

    @property
    def ready_line(self) -> str:
        """The line that the process prints when the broker is ready."""
        broker_id = self.bootstrapped.identified.broker_id
        return f"READY broker.id={broker_id} {','.join(map(str, self.advertised))}"


def listen(broker: BootstrappedBroker, undo: Undo) -> RunningBroker:
    """Bind all listeners; raise CannotListenError."""
    identified = broker.identified
    reactor, config = identified.configured.reactor, identified.configured.config
    world = identified.configured.world
    pipeline = RequestPipeline(
        handler_factories(_handler_dependencies(broker)),
        authorizer=broker.authorizer,
        gates=BrokerGates(
            reactor,
            identified.broker_id,
            broker.replica_manager.registration,
            ControllerEpochs(identified.zookeeper, identified.reconnect),
            broker.metadata,
        ),
        quotas=broker.client_quotas,
        turns=SharedTurns(reactor),
    )
    socket_server = world.socket_server(reactor, config, pipeline)
    effective = broker.dynamic_config.broker_config
    socket_server.quotas.configure(effective)
    broker.dynamic_config.on_broker_config(socket_server.quotas.configure)
    listeners = DynamicListeners(socket_server, socket_server.start(effective.endpoints))
    broker.transactions.start()
    # The coordinator answers the members of groups before their connections close.
    undo.add(socket_server.stop, broker.groups.stop, broker.transactions.stop)

    advertised = listeners.advertised(effective)
    registration = BrokerRegistration(
        reactor,
        identified.zookeeper,
        znodes.BrokerInfo(
            identified.broker_id,
            advertised,
            rack=config.broker_rack or None,
            timestamp=world.now_ms(),
        ),
        cluster_id=identified.cluster_id,
        reconnect=identified.reconnect,
        on_event=partial(_registration_changed, broker),
        on_fatal=identified.configured.on_fatal,
        history=broker.log_manager,
        is_extended=config.extends_inter_broker_protocol,
    )

    def reconfigure(config: KafkaConfig) -> None:
        listeners.add(config)
        registration.advertise(listeners.advertised(config))
        listeners.remove(config)

    broker.dynamic_config.on_broker_config(reconfigure)
    return RunningBroker(broker, pipeline, socket_server, registration, advertised)


async def join(broker: RunningBroker, undo: Undo) -> None:
    """Register, stand for election, and wait for the cluster's metadata."""
    parts, reactor = broker.bootstrapped, broker.bootstrapped.identified.configured.reactor
    await broker.registration.register()
    undo.add(broker.registration.stop)
    parts.controller.start()
    undo.add(parts.controller.stop)
    broker_id = parts.identified.broker_id
    if not await parts.metadata.received_within(METADATA_TIMEOUT, reactor, broker_id):
        log.warn(
            "no metadata from the controller after {s:g} s; serving without it",
            s=METADATA_TIMEOUT,
        )
    undo.add(partial(_hand_over, broker))


def _handler_dependencies(broker: BootstrappedBroker) -> HandlerDependencies:
    configured = broker.identified.configured
    return HandlerDependencies(
        reactor=configured.reactor,
        config=configured.config,
        broker_id=broker.identified.broker_id,
        authorizer=broker.authorizer,
        replica_manager=broker.replica_manager,
        metadata=broker.metadata,
        admin_manager=broker.admin_manager,
        dynamic_config=broker.dynamic_config,
        config_admin_manager=broker.config_admin_manager,
        quota_admin=broker.quota_admin,
        controller=broker.controller,
        groups=broker.groups,
        producer_ids=broker.producer_ids,
        transactions=broker.transactions,
        logger_levels=configured.world.logger_levels,
        now_ms=configured.world.now_ms,
    )


def _registration_changed(broker: BootstrappedBroker, event: RegistrationEvent) -> None:
    if isinstance(event, Registered):
        broker.replica_manager.registered(event.broker_epoch)


async def _hand_over(broker: RunningBroker) -> None:
    """Ask the controller to move leadership away, for a bounded time."""
    parts = broker.bootstrapped
    parts.replica_manager.registration.is_leaving = True
    configured = parts.identified.configured
    if configured.config.controlled_shutdown_enable:
        shutdown = ControlledShutdown(
            configured.reactor,
            configured.config,
            parts.metadata,
            parts.shutdown_connections,
            broker_id=parts.identified.broker_id,
            broker_epoch=lambda: broker.registration.broker_epoch,
        )
        await shutdown.run()
