"""Brokers behind the switchboard: all connections to ZooKeeper, to each other and from clients lead through it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kbroker.local.zookeeper import free_ports
from kbroker.testing.switchboard.board import Switchboard
from kbroker.testing.switchboard.remote import RemoteSwitchboard
from tests.kit.brokers import Cluster
from tests.kit.zookeeper import Ensemble

SESSION_TIMEOUT = 4.0

SETTINGS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": str(int(SESSION_TIMEOUT * 1000)),
    "replica.lag.time.max.ms": "3000",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "5",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "15",
    "controlled.shutdown.max.retries": "3",
    "log.segment.bytes": "262144",
    "log.index.interval.bytes": "512",
    "log.retention.check.interval.ms": "5000",
    "log.flush.scheduler.interval.ms": "2000",
}


class RoutedBrokers(Cluster):
    """Brokers with all connections through the switchboard."""

    def __init__(
        self,
        directory: Path,
        board: Switchboard | RemoteSwitchboard,
        ensemble: Ensemble,
        chroot: str,
        brokers: int,
    ) -> None:
        # As a user starts them: the vitals of a run are their memory, too.
        super().__init__(
            directory, ensemble.connect + chroot, brokers, overrides=SETTINGS, forked=False
        )
        inner = free_ports(brokers)
        self.entrances: dict[int, tuple[str, int]] = {}
        """Host and port where clients reach each broker."""
        for (number, broker), port in zip(self.brokers.items(), inner, strict=True):
            name = f"broker-{number}"
            entrance = board.route("client", name, broker.port)
            self.entrances[number] = ("127.0.0.1", entrance)
            peers = board.route(None, name, port)
            zookeepers = ",".join(
                f"127.0.0.1:{board.route(name, 'zk', server.client_port)}"
                for server in ensemble.servers
            )
            broker.settings = {
                "listeners": f"PLAINTEXT://{broker.address},PEERS://127.0.0.1:{port}",
                "advertised.listeners": (
                    f"PLAINTEXT://127.0.0.1:{entrance},PEERS://127.0.0.1:{peers}"
                ),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT",
                "inter.broker.listener.name": "PEERS",
                "zookeeper.connect": zookeepers + chroot,
            }
