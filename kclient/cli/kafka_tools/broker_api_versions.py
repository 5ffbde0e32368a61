"""kafka-broker-api-versions: the APIs of each broker, with the versions that kclient can use."""

from __future__ import annotations

from typing import Any

from kclient.cli.kafka_tools.options import Given, Option
from kclient.cli.kafka_tools.tool import (
    Failure,
    Tool,
    admin_settings,
    print_error,
    print_message,
    require,
    run_admin,
)
from kclient.errors import KafkaError

NAMES = [
    "Produce",
    "Fetch",
    "ListOffsets",
    "Metadata",
    "LeaderAndIsr",
    "StopReplica",
    "UpdateMetadata",
    "ControlledShutdown",
    "OffsetCommit",
    "OffsetFetch",
    "FindCoordinator",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "DescribeGroups",
    "ListGroups",
    "SaslHandshake",
    "ApiVersions",
    "CreateTopics",
    "DeleteTopics",
    "DeleteRecords",
    "InitProducerId",
    "OffsetForLeaderEpoch",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "WriteTxnMarkers",
    "TxnOffsetCommit",
    "DescribeAcls",
    "CreateAcls",
    "DeleteAcls",
    "DescribeConfigs",
    "AlterConfigs",
    "AlterReplicaLogDirs",
    "DescribeLogDirs",
    "SaslAuthenticate",
    "CreatePartitions",
    "CreateDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
    "DeleteGroups",
    "ElectLeaders",
    "IncrementalAlterConfigs",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "OffsetDelete",
    "DescribeClientQuotas",
    "AlterClientQuotas",
    "DescribeUserScramCredentials",
    "AlterUserScramCredentials",
    "Vote",
    "BeginQuorumEpoch",
    "EndQuorumEpoch",
    "DescribeQuorum",
    "AlterPartition",
    "UpdateFeatures",
    "Envelope",
    "FetchSnapshot",
    "DescribeCluster",
    "DescribeProducers",
    "BrokerRegistration",
    "BrokerHeartbeat",
    "UnregisterBroker",
    "DescribeTransactions",
    "ListTransactions",
    "AllocateProducerIds",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
    "ControllerRegistration",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
    "AssignReplicasToDirs",
    "ListClientMetricsResources",
    "DescribeTopicPartitions",
    "ShareGroupHeartbeat",
    "ShareGroupDescribe",
    "ShareFetch",
    "ShareAcknowledge",
    "AddRaftVoter",
    "RemoveRaftVoter",
    "UpdateRaftVoter",
    "InitializeShareGroupState",
    "ReadShareGroupState",
    "WriteShareGroupState",
    "DeleteShareGroupState",
    "ReadShareGroupStateSummary",
]
"""The APIs of Kafka 3.9 by their key."""

NOT_OF_CLIENTS = frozenset([52, 53, 54, 59, 62, 63, 70, 73, 82])
"""Keys of APIs between controllers of KRaft: a broker without them is no reason for a line."""

OPTIONS = (
    Option("bootstrap-server", "The brokers to connect to; required.", "server(s) to use for bootstrapping"),
    Option("command-config", "Properties file of the admin client.", "command config property file"),
)  # fmt: skip


def main(given: Given) -> int | None:
    """Check the command line and print the versions."""
    require(given, "bootstrap-server")
    try:
        settings = admin_settings(given)
    except Failure as problem:
        return print_error(problem)

    async def body(admin: Any) -> int:
        brokers = (await admin.describe_cluster()).brokers
        for broker_id, broker in sorted(brokers.items()):
            rack = "null" if broker.rack is None else broker.rack
            broker_text = f"{broker.host}:{broker.port} (id: {broker_id} rack: {rack})"
            try:
                connection = await admin.cluster.connection(broker_id)
            except KafkaError as problem:
                print(f"{broker_text} -> ERROR: {problem}")
                continue
            lines = ",\n\t".join(lines_of(connection.api_versions))
            print(f"{broker_text} -> (\n\t{lines}\n)")
        return 0

    return run_admin(TOOL.print_usage, settings, body, print_message)


def lines_of(found: Any) -> list[str]:
    """Return a line for each API in *found*, and for those that clients of Kafka 3.9 know."""
    from kclient.wire.versions import SUPPORTED, ApiKey

    lines = {}
    for key, name in enumerate(NAMES):
        if key not in NOT_OF_CLIENTS:
            lines[key] = f"{name}({key}): UNSUPPORTED"
    for key, versions in found.items():
        name = NAMES[key] if key < len(NAMES) else "UNKNOWN"
        shown = str(versions.min)
        if versions.max != versions.min:
            shown += f" to {versions.max}"
        ours = SUPPORTED.get(ApiKey(key)) if key in ApiKey._value2member_map_ else None
        usable = ""
        if ours is not None and ours.max < versions.min:
            usable = " [unusable: node too new]"
        elif ours is not None and versions.max < ours.min:
            usable = " [unusable: node too old]"
        elif ours is not None:
            usable = f" [usable: {min(ours.max, versions.max)}]"
        lines[key] = f"{name}({key}): {shown}{usable}"
    return [lines[key] for key in sorted(lines)]


TOOL = Tool(
    "kafka-broker-api-versions",
    "This tool helps to retrieve broker version information.",
    OPTIONS,
    main,
    differs=(
        "[usable: N] is the version that kclient uses, not the one of Kafka's Java client; an API that kclient does "
        "not have gets none.",
    ),
)
