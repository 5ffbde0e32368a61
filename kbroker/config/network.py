"""Settings of the sockets: the listeners, and the limits that protect the broker from its peers.

Where Kafka's default is unlimited the default here is finite; the line of the setting states it.
Names that begin with `kbroker.` are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.config.setting import ConfigType, at_least, between, define

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
LONG, LIST = ConfigType.LONG, ConfigType.LIST

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Listeners and socket limits."""

    listeners: str = define(
        STRING,
        "PLAINTEXT://:9092",
        "Where to listen: NAME://host:port, comma separated.",
        dynamic=True,
    )
    advertised_listeners: str = define(
        STRING,
        "",
        "Addresses given to clients and brokers; empty: those of listeners.",
        dynamic=True,
    )
    listener_security_protocol_map: str = define(
        STRING,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "Security protocol of every listener name: NAME:PROTOCOL, comma separated.",
        dynamic=True,
    )
    inter_broker_listener_name: str = define(
        STRING,
        "",
        "Listener that brokers use among themselves; empty: the one named as the protocol, or the first one with it.",
    )
    security_inter_broker_protocol: str = define(
        STRING, "PLAINTEXT", "Protocol between brokers, where no listener name is given."
    )
    control_plane_listener_name: str = define(
        STRING, "", "Listener for the controller's requests; empty: the inter-broker listener."
    )
    socket_request_max_bytes: int = define(
        INT, 100 * MIB, "Largest request; a longer one closes the connection unread.", at_least(1)
    )
    socket_send_buffer_bytes: int = define(
        INT, -1, "SO_SNDBUF; -1: the system's own tuning (Kafka: 102400).", at_least(-1)
    )
    socket_receive_buffer_bytes: int = define(
        INT, -1, "SO_RCVBUF; -1: the system's own tuning (Kafka: 102400).", at_least(-1)
    )
    socket_listen_backlog_size: int = define(
        INT, 512, "Connections the kernel holds until they are accepted (Kafka: 50).", at_least(1)
    )
    max_connections: int = define(
        INT,
        20_000,
        "Connections of all clients together (Kafka: unlimited).",
        at_least(0),
        dynamic=True,
    )
    max_connections_per_ip: int = define(
        INT, 10_000, "Connections from one address (Kafka: unlimited).", at_least(0), dynamic=True
    )
    max_connections_per_ip_overrides: str = define(
        STRING,
        "",
        "Bounds for single addresses: address:count, comma separated (Kafka: names, too).",
        dynamic=True,
    )
    max_connection_creation_rate: int = define(
        INT,
        5_000,
        "New connections accepted per second (Kafka: unlimited).",
        at_least(1),
        dynamic=True,
    )
    connections_max_idle_ms: int = define(
        LONG, 600_000, "A connection silent for this long is closed; -1: never.", at_least(-1)
    )
    queued_max_requests: int = define(
        INT,
        500,
        "Accepted, no effect: one request per connection is processed at a time.",
        at_least(1),
    )
    queued_max_request_bytes: int = define(
        LONG,
        256 * MIB,
        "Bytes of requests held in memory as they arrive, all connections (Kafka: unlimited).",
        at_least(-1),
    )
    max_request_partition_size_limit: int = define(
        INT,
        2_000,
        "Accepted, no effect yet: partitions one describe request may ask for.",
        at_least(1),
    )
    kbroker_response_queue_max_bytes: int = define(
        LONG,
        64 * MIB,
        "Unsent response bytes in memory, all connections; slices are not counted.",
        at_least(MIB),
    )
    kbroker_write_stall_timeout_ms: int = define(
        INT,
        60_000,
        "A peer that takes no byte of its responses for this long is cut.",
        at_least(100),
    )
    kbroker_inter_broker_proof_required: bool = define(
        BOOLEAN,
        True,
        "Whether brokers must present a proof of their identity; false: a registered address is enough (upgrade).",
    )
    kbroker_close_timeout_ms: int = define(
        INT, 5_000, "Longest wait for the last bytes of a closing connection.", at_least(1)
    )
    request_timeout_ms: int = define(
        INT,
        30_000,
        "Longest wait for an answer of a transaction coordinator, and for the replicas of a transaction marker.",
        at_least(1),
    )
    fetch_max_bytes: int = define(
        INT, 55 * MIB, "Largest fetch response, whatever the client asks.", at_least(1024)
    )
    max_incremental_fetch_session_cache_slots: int = define(
        INT, 1_000, "Incremental fetch sessions kept (KIP-227); 0: none.", at_least(0)
    )
    num_network_threads: int = define(
        INT,
        3,
        "Accepted, no effect: one reactor thread serves the sockets.",
        at_least(1),
        dynamic=True,
    )
    num_io_threads: int = define(
        INT,
        8,
        "Accepted, no effect: one reactor thread runs the requests.",
        at_least(1),
        dynamic=True,
    )
    background_threads: int = define(
        INT,
        4,
        "Threads for slow disk work: fsync, deletes, compaction (Kafka: 10). A change counts from the next start.",
        between(1, 64),
        dynamic=True,
    )
