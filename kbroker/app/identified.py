"""Stage 2 of a broker: its log directories are locked, it has a ZooKeeper session, and its ids are known.

The directories are locked first: only the process with the lock may expire the ZooKeeper session of the broker's
previous run (`zk/previous_session.py`). The ids of the cluster and the broker are compared with those in the
directories before any log is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kbroker.app.configured import ConfiguredBroker
from kbroker.app.undo import Undo
from kbroker.log.claimed_log_dirs import ClaimedLogDirs
from kbroker.metadata.broker_registration import enter_cluster, generate_broker_id
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.interface import Connected, SessionEvent
from kbroker.zk.reconnect import Reconnect

PREVIOUS_SESSION_TIMEOUT = 3.0
"""Seconds to wait for the expiry of the previous session."""


@dataclass(frozen=True, slots=True)
class IdentifiedBroker:
    """A broker that knows which one it is."""

    configured: ConfiguredBroker
    log_dirs: ClaimedLogDirs
    zookeeper: ZooKeeperClient
    reconnect: Reconnect
    broker_id: int
    cluster_id: str


async def identify(configured: ConfiguredBroker, undo: Undo) -> IdentifiedBroker:
    """Lock the log directories, open the ZooKeeper session, and take the ids of the broker and the cluster."""
    config, world = configured.config, configured.world
    zookeeper = world.zookeeper(
        configured.reactor, config.zookeeper_connect, config.zookeeper_session_timeout_ms / 1000
    )
    reconnect = Reconnect(zookeeper, configured.reactor)
    log_dirs = ClaimedLogDirs(config.directories, disk=world.disk, new_uuid=world.new_uuid)
    await _connect(configured, zookeeper, Path(log_dirs.usable[0].path), undo)
    cluster_id = await enter_cluster(zookeeper, reconnect)
    broker_id = await _broker_id(configured, zookeeper, reconnect, log_dirs)
    log_dirs.take_identity(broker_id, cluster_id)
    return IdentifiedBroker(configured, log_dirs, zookeeper, reconnect, broker_id, cluster_id)


async def _connect(
    configured: ConfiguredBroker, zookeeper: ZooKeeperClient, directory: Path, undo: Undo
) -> None:
    """Open the ZooKeeper session; *directory* has the file with the previous one."""
    config = configured.config
    given = config.zookeeper_connection_timeout_ms
    timeout = (given if given > 0 else config.zookeeper_session_timeout_ms) / 1000
    previous_session = configured.world.previous_session(directory)

    def remember_session(event: SessionEvent) -> None:
        if isinstance(event, Connected) and event.is_new:
            previous_session.remember(zookeeper)

    async def end_session() -> None:
        await zookeeper.stop()
        previous_session.forget()

    zookeeper.on_session(remember_session)
    started = zookeeper.start(timeout)
    undo.add(end_session)
    await previous_session.expire(configured.reactor, zookeeper.hosts, PREVIOUS_SESSION_TIMEOUT)
    await started


async def _broker_id(
    configured: ConfiguredBroker,
    zookeeper: ZooKeeperClient,
    reconnect: Reconnect,
    log_dirs: ClaimedLogDirs,
) -> int:
    """Return broker.id; where it is -1 the id in the log directories, or a generated one."""
    config = configured.config
    if config.broker_id >= 0:
        return config.broker_id
    stored = log_dirs.stored_identity().broker_id
    if stored is not None:
        return stored
    reserved = config.reserved_broker_max_id
    return await reconnect.read(None, lambda: generate_broker_id(zookeeper, reserved))
