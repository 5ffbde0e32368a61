"""The settings of one broker as typed attributes, and what follows from several of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from kbroker.common.endpoint import Endpoint
from kbroker.common.protocol_version import is_extended
from kbroker.config.cluster import (
    CleanerSettings,
    GroupSettings,
    IdentitySettings,
    QuotaSettings,
    ReplicationSettings,
    TopicSettings,
    TransactionSettings,
)
from kbroker.config.listeners import parse_endpoints, parse_protocol_map
from kbroker.config.network import NetworkSettings
from kbroker.config.storage import StorageSettings


@dataclass(frozen=True, kw_only=True)
class BrokerSettings(
    NetworkSettings,
    IdentitySettings,
    ReplicationSettings,
    QuotaSettings,
    TopicSettings,
    GroupSettings,
    TransactionSettings,
    CleanerSettings,
    StorageSettings,
):
    """Every setting of one broker as a typed attribute: `config.log_segment_bytes` is log.segment.bytes."""

    given: Mapping[str, str] = field(default_factory=dict)
    """The file and the overrides, as text."""
    warnings: tuple[str, ...] = ()
    """Remarks to print once at start: unknown keys, keys without effect."""
    between_brokers: str = ""
    """With dynamic settings: the inter-broker listener without them, which all brokers look for; else empty."""

    @cached_property
    def protocols(self) -> dict[str, str]:
        """Security protocol by listener name."""
        return parse_protocol_map(self.listener_security_protocol_map)[0]

    @cached_property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where the broker listens."""
        return parse_endpoints("listeners", self.listeners, self.protocols)[0]

    @cached_property
    def advertised(self) -> tuple[Endpoint, ...]:
        """The endpoints that clients and brokers dial; port 0 stands for the port that the listener bound."""
        if self.advertised_listeners.strip():
            return parse_endpoints(
                "advertised.listeners", self.advertised_listeners, self.protocols
            )[0]
        return tuple(
            replace(endpoint, host="localhost")
            if endpoint.host in ("", "0.0.0.0", "::")
            else endpoint
            for endpoint in self.endpoints
        )

    @cached_property
    def inter_broker_listener(self) -> str:
        """Name of the listener that brokers use among themselves.

        Without inter.broker.listener.name it is the one named as security.inter.broker.protocol, as in Kafka. Without
        such a listener the first one with that protocol counts; Kafka refuses to start. Dynamic settings do not change
        it.
        """
        if self.between_brokers:
            return self.between_brokers
        if self.inter_broker_listener_name:
            return self.inter_broker_listener_name.upper()
        protocol = self.security_inter_broker_protocol.upper()
        names = [each.listener for each in self.endpoints if each.security_protocol == protocol]
        return protocol if protocol in names else next(iter(names), "")

    @cached_property
    def control_plane_listener(self) -> str:
        """Name of the listener that controllers send LeaderAndIsr, StopReplica and UpdateMetadata to (KIP-291)."""
        return self.control_plane_listener_name.upper() or self.inter_broker_listener

    @cached_property
    def broker_listeners(self) -> frozenset[str]:
        """Names of the listeners on which a connection may be another broker's."""
        return frozenset((self.inter_broker_listener, self.control_plane_listener))

    @cached_property
    def extends_inter_broker_protocol(self) -> bool:
        """Whether this broker sends our extensions of the inter-broker protocol (inter.broker.protocol.version)."""
        return is_extended(self.inter_broker_protocol_version)

    @cached_property
    def directories(self) -> tuple[str, ...]:
        """The log directories: those of log.dir only if log.dirs is not given, not if it is empty."""
        if self.log_dirs or "log.dirs" in self.given:
            return self.log_dirs
        return tuple(item.strip() for item in self.log_dir.split(","))
