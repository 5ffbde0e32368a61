"""Brokers in network namespaces: one address and one listener each, for clients and for other brokers."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.namespaces import Namespaces
from tests.chaos.routed_brokers import SETTINGS
from tests.kit.brokers import Cluster
from tests.kit.zookeeper import Ensemble


class NamespacedBrokers(Cluster):
    """Brokers in network namespaces."""

    def __init__(
        self, directory: Path, network: Namespaces, ensemble: Ensemble, chroot: str, brokers: int
    ) -> None:
        super().__init__(
            directory,
            ensemble.connect + chroot,
            brokers,
            overrides=SETTINGS,
            hosts=lambda n: network.host(f"broker-{n}"),
        )

    @property
    def entrances(self) -> dict[int, tuple[str, int]]:
        """Host and port where clients reach each broker."""
        return {n: (one.host.address, one.port) for n, one in self.brokers.items()}
