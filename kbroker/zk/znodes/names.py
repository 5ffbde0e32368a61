"""Names that become path elements, and the fixed paths.

Topics are checked against Kafka's own rule (letters, digits, `.`, `_`, `-`, at most 249) because that alphabet needs no
escaping. Everything else a client may choose (group, member, user, client id) is percent-encoded, byte for byte of its
UTF-8. It is reversible, so that a listing gives the names back, and the same that Kafka's Sanitizer does for users and
client ids. An ordinary name stays itself, so that existing tools find `/consumers/my-group`. `.` and `..` alone, which
ZooKeeper refuses as path elements, become `%2E` and `%2E%2E`.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from kbroker.zk.errors import UnsafeName

BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
BROKER_SEQUENCE = "/brokers/seqid"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
INTER_BROKER_SECRET = "/cluster/inter_broker_secret"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "/config/changes/config_change_"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGES = "/isr_change_notification"
ISR_CHANGE_PREFIX = "/isr_change_notification/isr_change_"
LOG_DIR_EVENTS = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = "/log_dir_event_notification/log_dir_event_"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
CONSUMERS = "/consumers"
TRANSACTIONS = "/transactions"
TRANSACTIONAL_IDS = "/transactions/ids"
PENDING_OFFSETS = "/transactions/pending"

PERSISTENT_PATHS = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
    "/cluster",
    TRANSACTIONS,
    TRANSACTIONAL_IDS,
    PENDING_OFFSETS,
)
"""Made at the start of every broker where missing, so that watches and creates find parents."""

LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def checked_topic(name: str) -> str:
    """Return *name* if it is a legal topic name, else raise UnsafeName."""
    if LEGAL_TOPIC.fullmatch(name) is None or name in (".", ".."):
        raise UnsafeName(f"not a legal topic name: {name!r:.300}")
    return name


def escape(name: str) -> str:
    """Make one path element out of any non-empty name; `unescape` gives it back."""
    if not name:
        raise UnsafeName("an empty name cannot be part of a path")
    if name in (".", ".."):
        return name.replace(".", "%2E")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise UnsafeName(f"not encodable as UTF-8: {name!r:.300}") from error


def unescape(element: str) -> str:
    """Return the name that `escape` made this path element of."""
    return unquote(element)
