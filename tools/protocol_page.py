"""Writes docs/protocol.md: each API of Kafka 3.9, the versions served, what differs from Kafka, and the test.

    python tools/protocol_page.py            # writes the page
    python tools/protocol_page.py --check    # exit code 1 if the page is not that of the code

The versions come from the table that brokers use, what differs from the docstring of the handler ("Differs from
Kafka:", up to the end of the paragraph). The versions of Kafka are those of a 3.9 broker in ZooKeeper mode.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "protocol.md"
DIFFERS: Final = "Differs from Kafka:"

KAFKA: Final = {
    0: ("Produce", 11),
    1: ("Fetch", 17),
    2: ("ListOffsets", 9),
    3: ("Metadata", 12),
    4: ("LeaderAndIsr", 7),
    5: ("StopReplica", 4),
    6: ("UpdateMetadata", 8),
    7: ("ControlledShutdown", 3),
    8: ("OffsetCommit", 9),
    9: ("OffsetFetch", 9),
    10: ("FindCoordinator", 6),
    11: ("JoinGroup", 9),
    12: ("Heartbeat", 4),
    13: ("LeaveGroup", 5),
    14: ("SyncGroup", 5),
    15: ("DescribeGroups", 5),
    16: ("ListGroups", 5),
    17: ("SaslHandshake", 1),
    18: ("ApiVersions", 4),
    19: ("CreateTopics", 7),
    20: ("DeleteTopics", 6),
    21: ("DeleteRecords", 2),
    22: ("InitProducerId", 5),
    23: ("OffsetForLeaderEpoch", 4),
    24: ("AddPartitionsToTxn", 5),
    25: ("AddOffsetsToTxn", 4),
    26: ("EndTxn", 4),
    27: ("WriteTxnMarkers", 1),
    28: ("TxnOffsetCommit", 4),
    29: ("DescribeAcls", 3),
    30: ("CreateAcls", 3),
    31: ("DeleteAcls", 3),
    32: ("DescribeConfigs", 4),
    33: ("AlterConfigs", 2),
    34: ("AlterReplicaLogDirs", 2),
    35: ("DescribeLogDirs", 4),
    36: ("SaslAuthenticate", 2),
    37: ("CreatePartitions", 3),
    38: ("CreateDelegationToken", 3),
    39: ("RenewDelegationToken", 2),
    40: ("ExpireDelegationToken", 2),
    41: ("DescribeDelegationToken", 3),
    42: ("DeleteGroups", 2),
    43: ("ElectLeaders", 2),
    44: ("IncrementalAlterConfigs", 1),
    45: ("AlterPartitionReassignments", 0),
    46: ("ListPartitionReassignments", 0),
    47: ("OffsetDelete", 0),
    48: ("DescribeClientQuotas", 1),
    49: ("AlterClientQuotas", 1),
    50: ("DescribeUserScramCredentials", 0),
    51: ("AlterUserScramCredentials", 0),
    56: ("AlterPartition", 3),
    57: ("UpdateFeatures", 1),
    58: ("Envelope", 0),
    60: ("DescribeCluster", 1),
    61: ("DescribeProducers", 0),
    65: ("DescribeTransactions", 0),
    66: ("ListTransactions", 1),
    67: ("AllocateProducerIds", 0),
    68: ("ConsumerGroupHeartbeat", 0),
    69: ("ConsumerGroupDescribe", 0),
}
"""API key -> name and latest version of Kafka 3.9 in ZooKeeper mode; the first version of each is 0."""

SASL: Final = "SASL is not supported yet"
NOT_SERVED: Final = {
    17: SASL,
    36: SASL,
    38: SASL,
    39: SASL,
    40: SASL,
    41: SASL,
    50: SASL,
    51: SASL,
    56: "leaders write the ISR to ZooKeeper, as Kafka's do before 2.7",
    57: "there are no feature versions to update",
    58: "it is for brokers that forward requests to a KRaft controller",
    67: "brokers take blocks of producer ids from ZooKeeper, as Kafka's do before 3.0",
    68: "the group protocol of KIP-848 is not supported",
    69: "the group protocol of KIP-848 is not supported",
}
"""API key -> why no broker serves it."""

GROUPS: Final = "tests/integration/test_group_apis.py"
TOPICS: Final = "tests/integration/test_topic_store.py"
QUOTAS: Final = "tests/integration/test_client_quotas.py"
TESTS: Final = {
    0: "tests/unit/apis/test_produce.py",
    1: "tests/unit/apis/test_fetch.py",
    2: "tests/unit/apis/test_offsets.py",
    3: "tests/unit/apis/test_metadata.py",
    4: "tests/unit/apis/test_leader_and_isr_and_stop_replica.py",
    5: "tests/unit/apis/test_leader_and_isr_and_stop_replica.py",
    6: "tests/unit/apis/test_metadata.py",
    7: "tests/integration/test_controller.py",
    8: GROUPS,
    9: GROUPS,
    10: GROUPS,
    11: GROUPS,
    12: GROUPS,
    13: GROUPS,
    14: GROUPS,
    15: GROUPS,
    16: GROUPS,
    18: "tests/unit/apis/test_pipeline.py",
    19: TOPICS,
    20: TOPICS,
    21: "tests/unit/apis/test_offsets.py",
    22: "tests/integration/test_idempotent_producers.py",
    23: "tests/unit/apis/test_offsets.py",
    24: "tests/unit/apis/test_transaction_apis.py",
    25: "tests/unit/apis/test_transaction_apis.py",
    26: "tests/integration/test_transactions.py",
    27: "tests/unit/apis/test_write_txn_markers.py",
    28: "tests/unit/apis/test_transactional_offsets.py",
    29: "tests/unit/apis/test_acls.py",
    30: "tests/unit/apis/test_acls.py",
    31: "tests/unit/apis/test_acls.py",
    32: "tests/unit/apis/test_configs.py",
    33: TOPICS,
    34: "tests/unit/apis/test_alter_replica_log_dirs.py",
    35: "tests/unit/apis/test_describe_log_dirs.py",
    37: TOPICS,
    42: GROUPS,
    43: "tests/integration/test_elect_leaders.py",
    44: TOPICS,
    45: "tests/integration/test_reassignment.py",
    46: "tests/integration/test_reassignment.py",
    47: GROUPS,
    48: QUOTAS,
    49: QUOTAS,
    60: "tests/unit/apis/test_metadata.py",
    61: "tests/unit/apis/test_describe_producers.py",
    65: "tests/unit/apis/test_transaction_apis.py",
    66: "tests/unit/apis/test_transaction_apis.py",
}
"""API key -> the file with most of its tests."""

HEAD: Final = """# Protocol

<!-- written by tools/protocol_page.py; do not edit -->

The APIs of Kafka 3.9 in ZooKeeper mode: the versions that Kafka and kbroker serve, and what differs. Clients learn the
versions by ApiVersions. A version that is not served closes the connection, as in Kafka.

The lowest versions that clients can use are those of Kafka 4.0, which removed what is below (KIP-896). Java clients
from 2.1 on (2018) do not need it. Neither do the releases of librdkafka, Sarama, KafkaJS and kafka-python of the end of
2021. Fetch 0 to 3 carry message sets, which batches replaced in Kafka 0.11. Produce 0 to 2 are listed for librdkafka,
which takes a broker without them for one without compression; such a request is refused.

Beside the test in the table, each API has one with its largest requests
(`tests/integration/test_largest_requests.py`). Another one compares its messages in every version with those of Apache
Kafka's classes (`tests/compat/test_wire_against_kafka.py`).

| API | Kafka | kbroker | what differs | test |
|---|---|---|---|---|
"""

NOT_SERVED_HEAD: Final = """
## Not served

| API | Kafka | why |
|---|---|---|
"""


def page() -> str:
    """Return the page."""
    from kbroker.apis.api_specs import API_SPECS

    rows = []
    for key in sorted(API_SPECS):
        name, latest = KAFKA[key]
        versions = API_SPECS[key].versions
        differs = difference(handler_of(key)) or "no difference known"
        test = TESTS[key]
        cells = (
            f"{name} ({key})",
            f"0-{latest}",
            str(versions),
            differs,
            f"[{Path(test).name}](../{test})",
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    missing = [
        f"| {name} ({key}) | 0-{latest} | {NOT_SERVED[key]} |\n"
        for key, (name, latest) in KAFKA.items()
        if key not in API_SPECS
    ]
    return HEAD + "".join(rows) + NOT_SERVED_HEAD + "".join(missing)


def handler_of(key: int) -> Path:
    """Return the module of an API's handler."""
    (path,) = (ROOT / "kbroker" / "apis").glob(f"api{key:02d}_*.py")
    return path


def difference(path: Path) -> str:
    """Return what the docstring of a handler has behind "Differs from Kafka:", as one line."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    _, found, rest = text.partition(DIFFERS)
    return " ".join(rest.partition("\n\n")[0].split()) if found else ""


def main() -> int:
    """Write the page, or compare it."""
    sys.path.insert(0, str(ROOT))
    text = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
