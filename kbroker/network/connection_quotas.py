"""Connection quotas: how many connections there may be, from one address and in all, and how fast they may come.

The limits are Kafka's: max.connections, max.connections.per.ip with overrides, max.connection.creation.rate. They
change while the broker runs. The inter-broker listener, where it is not the clients' listener, has a reserve. Clients
cannot take the last connections or file descriptors (`kbroker.log.open_files`) from the other brokers and the
controller (S40).
"""

from __future__ import annotations

import resource
from collections import Counter

from twisted.logger import Logger

from kbroker.config import KafkaConfig
from kbroker.config.connection_overrides import parse_connection_overrides
from kbroker.log import open_files

log = Logger()

FILES_EXPECTED = 4096
"""Open files below which even a small broker may run out."""

BROKER_RESERVE = 64
"""Connections beyond max.connections that only the inter-broker listener may use."""


class ConnectionQuotas:
    """The connections of all listeners together."""

    def __init__(self, config: KafkaConfig) -> None:
        self.configure(config)
        self._tokens = self._rate
        self._refilled: float | None = None
        self.by_ip: Counter[str] = Counter()
        """Open connections by address."""
        self.total = 0
        """Open connections."""

    def configure(self, config: KafkaConfig) -> None:
        """Use the limits of *config* from now on; connections above them stay open."""
        self._max = config.max_connections
        self._per_ip = config.max_connections_per_ip
        self._overrides, _ = parse_connection_overrides(config.max_connections_per_ip_overrides)
        self._rate = float(config.max_connection_creation_rate)

    def refusal(self, host: str, between_brokers: bool, now: float) -> str | None:
        """Return why *host* may not connect now; or None, and count its connection."""
        if self._refilled is not None:
            self._tokens = min(self._rate, self._tokens + (now - self._refilled) * self._rate)
        self._refilled = now
        if self.total >= self._max + (BROKER_RESERVE if between_brokers else 0):
            return f"max.connections ({self._max}) reached"
        allowed = self._overrides.get(host, self._per_ip)
        if self.by_ip[host] >= allowed and not between_brokers:
            return f"max.connections.per.ip ({allowed}) reached for {host}"
        if self._tokens < 1 and not between_brokers:
            return f"max.connection.creation.rate ({self._rate:.0f}/s) exceeded"
        self._tokens -= 1
        self.total += 1
        self.by_ip[host] += 1
        return None

    def release(self, host: str) -> None:
        """Subtract a closed connection from *host*."""
        self.total -= 1
        self.by_ip[host] -= 1
        if self.by_ip[host] <= 0:
            del self.by_ip[host]


def no_descriptor_left(descriptor: int, between_brokers: bool) -> str | None:
    """Return why a connection may not keep its *descriptor*, or None."""
    if not (open_files.is_scarce if between_brokers else open_files.is_reserved)(descriptor):
        return None
    return (
        f"the process may open {open_files.limit()} files, and {open_files.reserve()} of them are"
        " not for connections"
    )


def raise_file_limit(connections: int) -> None:
    """Raise the process's limit of open files to the system's; warn if that is low for *connections*."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (soft, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft < min(connections, FILES_EXPECTED):
        log.warn(
            "this process may open {soft} files; a broker needs one per connection and three per"
            " segment: raise `ulimit -n`",
            soft=soft,
        )
