"""Checks of settings against each other: what is wrong only in combination."""

from __future__ import annotations

import os
import re

from kbroker.config.broker_settings import BrokerSettings
from kbroker.config.connection_overrides import parse_connection_overrides
from kbroker.config.listeners import (
    SUPPORTED_PROTOCOLS,
    WILDCARDS,
    parse_endpoints,
    parse_protocol_map,
)

_ZK_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s,]+)(:[0-9]{1,5})?")
_CHROOT = re.compile(r"(/[^/\s\x00-\x1f]+)*/?")

MIN_OFFSET_MAP_BYTES = 1024 * 1024
"""The smallest offset map of a round of compaction, as in Kafka."""


def check_together(config: BrokerSettings) -> list[str]:
    """Return every problem of *config* that no single setting shows."""
    return [
        *check_listeners(config),
        *_zookeeper(config.zookeeper_connect),
        *_identity(config),
        *_directories(config),
        *check_numbers(config),
    ]


def check_listeners(config: BrokerSettings) -> list[str]:
    """Return the problems of the listeners and of what is advertised; all of it is dynamic."""
    protocols, problems = parse_protocol_map(config.listener_security_protocol_map)
    endpoints, wrong = parse_endpoints("listeners", config.listeners, protocols)
    problems += wrong
    if not endpoints and not wrong:
        problems.append("listeners: at least one NAME://host:port is needed")
    for endpoint in endpoints:
        if endpoint.security_protocol not in SUPPORTED_PROTOCOLS:
            problems.append(
                f"listeners: {endpoint.listener}: protocol {endpoint.security_protocol} is not supported yet,"
                f" only {', '.join(SUPPORTED_PROTOCOLS)}"
            )
    names = {endpoint.listener for endpoint in endpoints}
    advertised, wrong = parse_endpoints(
        "advertised.listeners", config.advertised_listeners, protocols
    )
    problems += wrong
    for endpoint in advertised:
        if endpoint.host in WILDCARDS:
            problems.append(
                f"advertised.listeners: {endpoint} cannot be dialled: name an address that clients reach"
            )
        if endpoint.listener not in names:
            problems.append(f"advertised.listeners: {endpoint.listener} is not in listeners")
    between = config.inter_broker_listener
    if advertised and between in names - {endpoint.listener for endpoint in advertised}:
        problems.append(
            f"advertised.listeners: {between} is missing, by which brokers reach each other"
        )
    if config.between_brokers and not config.inter_broker_listener_name and between not in names:
        problems.append(
            f"listeners: {between} is missing, by which brokers reach each other; it stays while the broker runs"
        )
    return problems + _inter_broker(config, names)


def check_listener_changes(old: BrokerSettings, new: BrokerSettings) -> list[str]:
    """Return why a broker with *old* cannot take the listeners of *new* while it runs: those that stay must not change.

    Kafka keeps the former address of such a listener, without a word.
    """
    before = {endpoint.listener: endpoint for endpoint in old.endpoints}
    return [
        f"listeners: {endpoint.listener} is at {before[endpoint.listener]} and cannot move while the broker runs:"
        " add a listener with another name"
        for endpoint in new.endpoints
        if before.get(endpoint.listener, endpoint) != endpoint
    ]


def _inter_broker(config: BrokerSettings, names: set[str]) -> list[str]:
    problems = []
    named = config.inter_broker_listener_name.upper()
    if named and named not in names:
        problems.append(f"inter.broker.listener.name: {named} is not in listeners")
    if named and "security.inter.broker.protocol" in config.given:
        problems.append(
            "inter.broker.listener.name: and security.inter.broker.protocol exclude each other"
        )
    if not named and names and not config.inter_broker_listener:
        problems.append(
            "security.inter.broker.protocol: no listener has the protocol"
            f" {config.security_inter_broker_protocol}; set inter.broker.listener.name"
        )
    control = config.control_plane_listener_name.upper()
    if control and control not in names:
        problems.append(f"control.plane.listener.name: {control} is not in listeners")
    if control and control == config.inter_broker_listener:
        problems.append(
            f"control.plane.listener.name: {control} is the inter-broker listener; name another one, or remove the key"
        )
    return problems


def _zookeeper(connect: str) -> list[str]:
    if not connect.strip():
        return ["zookeeper.connect: is required, e.g. 127.0.0.1:2181/kafka"]
    servers, slash, chroot = connect.strip().partition("/")
    problems = []
    for server in servers.split(","):
        match = _ZK_SERVER.fullmatch(server.strip())
        if match is None or int((match[2] or ":2181")[1:]) not in range(1, 65536):
            problems.append(f"zookeeper.connect: {server.strip()!r} is not host:port")
    if slash and not _CHROOT.fullmatch("/" + chroot):
        problems.append(f"zookeeper.connect: chroot {'/' + chroot!r} is not a path")
    if "," in chroot:
        problems.append("zookeeper.connect: the chroot is written once, after the last server")
    return problems


def _identity(config: BrokerSettings) -> list[str]:
    if config.broker_id < 0 and not config.broker_id_generation_enable:
        return ["broker.id: is required where broker.id.generation.enable=false"]
    if config.broker_id_generation_enable and config.broker_id > config.reserved_broker_max_id:
        return [
            f"broker.id: {config.broker_id} is above reserved.broker.max.id"
            f" ({config.reserved_broker_max_id}); raise that or set broker.id.generation.enable=false"
        ]
    return []


def _directories(config: BrokerSettings) -> list[str]:
    name = "log.dirs" if "log.dirs" in config.given else "log.dir"
    if not config.directories:
        return [f"{name}: it is empty; name the directories, or remove the key"]
    problems = []
    seen: dict[str, str] = {}
    for directory in config.directories:
        if not directory:
            problems.append(f"{name}: an empty name in the list")
            continue
        real = os.path.realpath(os.path.expanduser(directory))
        if real in seen:
            problems.append(f"{name}: {directory} and {seen[real]} are the same directory")
        seen[real] = directory
        if os.path.exists(real) and not os.path.isdir(real):
            problems.append(f"{name}: {directory} is not a directory")
        elif os.path.isdir(real) and not os.access(real, os.W_OK | os.X_OK):
            problems.append(f"{name}: {directory} is not writable")
    return problems


def check_numbers(config: BrokerSettings) -> list[str]:
    """Return the problems of numbers that bound each other: all that a dynamic setting can cause."""
    problems = []

    def below(low: str, low_value: int, high: str, high_value: int) -> None:
        if low_value > high_value:
            problems.append(f"{low}: {low_value} is above {high} ({high_value})")

    below("replica.fetch.wait.max.ms", config.replica_fetch_wait_max_ms,
          "replica.lag.time.max.ms", config.replica_lag_time_max_ms)  # fmt: skip
    below("message.max.bytes", config.message_max_bytes,
          "socket.request.max.bytes", config.socket_request_max_bytes)  # fmt: skip
    below("group.min.session.timeout.ms", config.group_min_session_timeout_ms,
          "group.max.session.timeout.ms", config.group_max_session_timeout_ms)  # fmt: skip
    if 0 <= config.queued_max_request_bytes < config.socket_request_max_bytes:
        below("socket.request.max.bytes", config.socket_request_max_bytes,
              "queued.max.request.bytes", config.queued_max_request_bytes)  # fmt: skip
    overrides, wrong = parse_connection_overrides(config.max_connections_per_ip_overrides)
    problems += wrong
    if not config.max_connections_per_ip and not overrides:
        problems.append(
            "max.connections.per.ip: 0 lets no client connect where max.connections.per.ip.overrides names no address"
        )
    retention = (config.log_retention_ms, config.log_retention_minutes, config.log_retention_hours)
    if next(value for value in retention if value is not None) == 0:
        problems.append(
            "log.retention.ms: must be unlimited (-1) or at least 1: topics without retention.ms would lose all records"
        )
    if config.log_roll_ms == 0 or config.log_roll_ms < -1:
        problems.append(f"log.roll.ms: {config.log_roll_ms} is below the minimum 1")
    if config.zookeeper_set_acl:
        problems.append(
            "zookeeper.set.acl: not supported yet: the znodes would be open to all; remove the key"
        )
    per_thread = config.log_cleaner_dedupe_buffer_size // max(config.log_cleaner_threads, 1)
    if per_thread < MIN_OFFSET_MAP_BYTES:
        problems.append(
            f"log.cleaner.dedupe.buffer.size: {per_thread} bytes for each of log.cleaner.threads are below"
            f" {MIN_OFFSET_MAP_BYTES}"
        )
    if config.log_cleaner_io_max_bytes_per_second <= 0:
        problems.append("log.cleaner.io.max.bytes.per.second: must be above 0")
    if not config.log_cleanup_policy:
        problems.append("log.cleanup.policy: must name delete, compact or both")
    return problems
