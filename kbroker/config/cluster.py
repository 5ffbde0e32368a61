"""Settings of a broker in its cluster: identity, ZooKeeper, replication, topics, groups, transactions."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.common import protocol_version
from kbroker.config.setting import LONG_MAX, ConfigType, at_least, between, define, one_of

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
LONG, DOUBLE, SHORT, LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.SHORT, ConfigType.LIST

MIB = 1024 * 1024

RACK_AWARE_SELECTOR, LEADER_SELECTOR = "RackAwareReplicaSelector", "LeaderSelector"
REPLICA_SELECTORS = (RACK_AWARE_SELECTOR, LEADER_SELECTOR)
JAVA_SELECTORS = "org.apache.kafka.common.replica."
"""Kafka's classes are known by their names: there is no class to load here."""


@dataclass(frozen=True, kw_only=True)
class IdentitySettings:
    """The broker's identity and its ensemble."""

    broker_id: int = define(
        INT, -1, "This broker's id; -1: generated from ZooKeeper.", at_least(-1)
    )
    broker_id_generation_enable: bool = define(
        BOOLEAN, True, "Whether a broker without an id may have one generated."
    )
    reserved_broker_max_id: int = define(
        INT, 1_000, "Highest id one may configure where ids are generated.", at_least(0)
    )
    broker_rack: str = define(STRING, "", "Rack of the broker, for rack aware assignment.")
    zookeeper_connect: str = define(
        STRING, "", "ZooKeeper servers, host:port comma separated, with the cluster's chroot."
    )
    zookeeper_session_timeout_ms: int = define(
        INT, 18_000, "Session timeout requested from ZooKeeper.", at_least(500)
    )
    zookeeper_connection_timeout_ms: int = define(
        INT, -1, "Longest wait for ZooKeeper at start; -1: the session timeout.", at_least(-1)
    )
    zookeeper_max_in_flight_requests: int = define(
        INT,
        1_000,
        "Accepted, no effect yet: unanswered requests to ZooKeeper (Kafka: 10).",
        at_least(1),
    )
    zookeeper_set_acl: bool = define(
        BOOLEAN, False, "Whether znodes are created with ACLs for brokers only."
    )


@dataclass(frozen=True, kw_only=True)
class ReplicationSettings:
    """Replication, election and shutdown."""

    default_replication_factor: int = define(
        INT, 1, "Replicas of topics created without a replication factor.", at_least(1)
    )
    min_insync_replicas: int = define(
        INT, 1, "In-sync replicas without which acks=all is refused.", at_least(1), dynamic=True
    )
    replica_lag_time_max_ms: int = define(
        LONG, 30_000, "A follower behind for this long leaves the ISR."
    )
    replica_socket_timeout_ms: int = define(
        INT, 30_000, "Longest wait of a follower for an answer."
    )
    replica_socket_receive_buffer_bytes: int = define(
        INT, 65_536, "Accepted, no effect: the system tunes the buffer."
    )
    replica_fetch_max_bytes: int = define(
        INT, MIB, "Bytes a follower requests per partition.", at_least(0)
    )
    replica_fetch_wait_max_ms: int = define(
        INT,
        500,
        "Longest wait of a follower's fetch; stays below replica.lag.time.max.ms.",
    )
    replica_fetch_min_bytes: int = define(INT, 1, "Bytes a follower's fetch waits for.")
    replica_fetch_response_max_bytes: int = define(
        INT, 10 * MIB, "Bytes a follower requests per fetch.", at_least(0)
    )
    replica_fetch_backoff_ms: int = define(
        INT,
        1_000,
        "Longest pause of a follower after errors; the first ones are shorter.",
        at_least(0),
    )
    num_replica_fetchers: int = define(
        INT,
        1,
        "Accepted, no effect yet: fetch connections to every leader's broker.",
        at_least(1),
        dynamic=True,
    )
    leader_replication_throttled_rate: int = define(
        LONG,
        LONG_MAX,
        "Bytes per second that followers of throttled replicas get from this broker (KIP-73).",
        at_least(0),
        dynamic=True,
    )
    follower_replication_throttled_rate: int = define(
        LONG,
        LONG_MAX,
        "Bytes per second that throttled replicas on this broker fetch (KIP-73).",
        at_least(0),
        dynamic=True,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = define(
        LONG,
        LONG_MAX,
        "Bytes per second that all moves of replicas between log directories of this broker copy (KIP-113).",
        at_least(0),
        dynamic=True,
    )
    replica_high_watermark_checkpoint_interval_ms: int = define(
        LONG, 5_000, "How often high watermarks are written to disk.", at_least(1)
    )
    unclean_leader_election_enable: bool = define(
        BOOLEAN,
        False,
        "Elect a replica out of the ISR when none in it is alive: loses records.",
        dynamic=True,
    )
    auto_leader_rebalance_enable: bool = define(
        BOOLEAN,
        True,
        "Whether the controller moves leadership back to preferred replicas.",
    )
    leader_imbalance_per_broker_percentage: int = define(
        INT, 10, "Share of a broker's preferred partitions led elsewhere that is left alone."
    )
    leader_imbalance_check_interval_seconds: int = define(
        LONG,
        300,
        "How often the balance of leaders is looked at.",
        at_least(1),
    )
    controlled_shutdown_enable: bool = define(
        BOOLEAN, True, "Whether leadership is moved away before the broker stops."
    )
    controlled_shutdown_max_retries: int = define(INT, 3, "Attempts at a controlled shutdown.")
    controlled_shutdown_retry_backoff_ms: int = define(
        LONG, 1_000, "Pause between those attempts (Kafka: 5000)."
    )
    controller_socket_timeout_ms: int = define(
        INT, 30_000, "Longest wait of the controller for a broker."
    )
    replica_selector_class: str = define(
        STRING,
        "",
        "Which replica consumers read from: RackAwareReplicaSelector names one in the consumer's rack (KIP-392).",
        one_of(
            "", *(prefix + name for name in REPLICA_SELECTORS for prefix in ("", JAVA_SELECTORS))
        ),
    )
    inter_broker_protocol_version: str = define(
        STRING,
        protocol_version.VERSIONS[-1],
        "Version of the protocol between brokers, 3.4-IV0 to 3.9-IV0; extensions are sent from 3.9-IV0 on.",
        protocol_version.problem,
    )
    fetch_purgatory_purge_interval_requests: int = define(
        INT, 1_000, "Accepted, no effect: a finished wait is forgotten at once."
    )
    producer_purgatory_purge_interval_requests: int = define(
        INT, 1_000, "Accepted, no effect: a finished wait is forgotten at once."
    )
    delete_records_purgatory_purge_interval_requests: int = define(
        INT, 1, "Accepted, no effect: a finished wait is forgotten at once."
    )


def _no_policy(value: str) -> str | None:
    if not value:
        return None
    return (
        "is a Java class, which cannot run here: what it forbids would be allowed; remove the key"
    )


@dataclass(frozen=True, kw_only=True)
class QuotaSettings:
    """Windows that client quotas are measured over."""

    quota_window_num: int = define(
        INT,
        11,
        "Samples that client quotas of bytes and request time are measured over.",
        at_least(1),
    )
    quota_window_size_seconds: int = define(
        INT, 1, "Length of each of these samples, in seconds.", at_least(1)
    )
    controller_quota_window_num: int = define(
        INT,
        11,
        "Samples of quota that a client may use at once for controller mutations (KIP-599).",
        at_least(1),
    )
    controller_quota_window_size_seconds: int = define(
        INT, 1, "Length of each of these samples, in seconds.", at_least(1)
    )


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """Creation and deletion of topics."""

    num_partitions: int = define(
        INT, 1, "Partitions of topics created without a count.", at_least(1)
    )
    auto_create_topics_enable: bool = define(
        BOOLEAN, True, "Whether asking for an unknown topic's metadata creates it."
    )
    delete_topic_enable: bool = define(BOOLEAN, True, "Whether topics can be deleted.")
    create_topic_policy_class_name: str = define(
        STRING, "", "Refused: policies are Java classes, which cannot run here.", _no_policy
    )
    alter_config_policy_class_name: str = define(
        STRING, "", "Refused: policies are Java classes, which cannot run here.", _no_policy
    )


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """Consumer groups and their offsets."""

    group_min_session_timeout_ms: int = define(
        INT, 6_000, "Shortest session timeout a member may request."
    )
    group_max_session_timeout_ms: int = define(
        INT, 1_800_000, "Longest session timeout a member may request."
    )
    group_initial_rebalance_delay_ms: int = define(
        INT, 3_000, "Time an empty group waits for more members before its first rebalance."
    )
    group_max_size: int = define(
        INT, 1_000, "Members of one group (Kafka: unlimited).", at_least(1)
    )
    offset_metadata_max_bytes: int = define(INT, 4_096, "Metadata of one committed offset.")
    offsets_topic_num_partitions: int = define(
        INT, 50, "Partitions of __consumer_offsets: groups are spread over them.", at_least(1)
    )
    offsets_topic_replication_factor: int = define(
        SHORT,
        3,
        "Replicas of __consumer_offsets, at most as many as brokers are alive.",
        at_least(1),
    )
    offsets_topic_segment_bytes: int = define(
        INT,
        100 * MIB,
        "segment.bytes of __consumer_offsets, which stays empty: offsets live in ZooKeeper.",
        at_least(1),
    )
    offsets_topic_compression_codec: int = define(
        INT, 0, "Accepted, no effect: offsets live in ZooKeeper."
    )
    offsets_load_buffer_size: int = define(
        INT, 5 * MIB, "Accepted, no effect: offsets live in ZooKeeper.", at_least(1)
    )
    offsets_commit_required_acks: int = define(
        SHORT, -1, "Accepted, no effect: offsets live in ZooKeeper."
    )
    offsets_retention_minutes: int = define(
        INT, 7 * 24 * 60, "Age at which an empty group's offsets are dropped.", at_least(1)
    )
    offsets_retention_check_interval_ms: int = define(
        LONG, 600_000, "How often those ages are looked at.", at_least(1)
    )
    offsets_commit_timeout_ms: int = define(
        INT,
        5_000,
        "Longest wait for an offset commit to be stored in ZooKeeper.",
        at_least(1),
    )


@dataclass(frozen=True, kw_only=True)
class TransactionSettings:
    """Transactions and producer ids."""

    transactional_id_expiration_ms: int = define(
        INT,
        604_800_000,
        "Idle time after which a transactional id is forgotten.",
        at_least(1),
    )
    transaction_max_timeout_ms: int = define(
        INT,
        900_000,
        "Longest transaction timeout a producer may request.",
        at_least(1),
    )
    transaction_state_log_num_partitions: int = define(
        INT,
        50,
        "Partitions of __transaction_state: transactional ids are spread over them.",
        at_least(1),
    )
    transaction_state_log_replication_factor: int = define(
        SHORT,
        3,
        "Replicas of __transaction_state, at most as many as brokers are alive.",
        at_least(1),
    )
    transaction_state_log_min_isr: int = define(
        INT, 2, "min.insync.replicas of __transaction_state, which stays empty.", at_least(1)
    )
    transaction_state_log_segment_bytes: int = define(
        INT,
        100 * MIB,
        "segment.bytes of __transaction_state, which stays empty: transactions live in ZooKeeper.",
        at_least(1),
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = define(
        INT,
        10_000,
        "Wait between two looks for transactions beyond their timeout.",
        at_least(1),
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = define(
        INT,
        3_600_000,
        "Wait between two looks for transactional ids that expired.",
        at_least(1),
    )
    producer_id_expiration_ms: int = define(
        INT,
        86_400_000,
        "Idle time after which a producer id's sequences are forgotten.",
        at_least(1),
        dynamic=True,
    )
    producer_id_expiration_check_interval_ms: int = define(
        INT, 600_000, "Wait between two looks for producer ids that expired.", at_least(1)
    )
    transaction_partition_verification_enable: bool = define(
        BOOLEAN,
        True,
        "Whether the coordinator is asked before the first batch of a transaction (KIP-890).",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class CleanerSettings:
    """Log compaction."""

    log_cleaner_enable: bool = define(
        BOOLEAN, True, "Whether topics with cleanup.policy=compact are compacted."
    )
    log_cleaner_threads: int = define(
        INT, 1, "Logs compacted at a time, each by a process.", at_least(0), dynamic=True
    )
    log_cleaner_io_max_bytes_per_second: float = define(
        DOUBLE,
        1.7976931348623157e308,
        "Bytes a second that all rounds of compaction read and write; each has an equal share.",
        dynamic=True,
    )
    log_cleaner_dedupe_buffer_size: int = define(
        LONG,
        128 * MIB,
        "Memory for the offset maps of log.cleaner.threads rounds; 24 bytes a key.",
        dynamic=True,
    )
    log_cleaner_io_buffer_size: int = define(
        INT,
        524_288,
        "Read and write buffers of log.cleaner.threads rounds.",
        at_least(0),
        dynamic=True,
    )
    log_cleaner_io_buffer_load_factor: float = define(
        DOUBLE,
        0.9,
        "How full the offset map of a round may get.",
        between(0, 1),
        dynamic=True,
    )
    log_cleaner_backoff_ms: int = define(
        LONG,
        15_000,
        "Wait between two looks for logs to compact, at least 100 ms.",
        at_least(0),
        dynamic=True,
    )
