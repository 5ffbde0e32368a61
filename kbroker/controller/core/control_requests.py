"""Pending requests as wire messages, and the responses to them as events.

LeaderAndIsr 7, UpdateMetadata 8, StopReplica 4: the newest versions with a ZooKeeper controller. All brokers of a
cluster know them. Fields beyond Kafka's are gated by inter.broker.protocol.version
(docs/design/inter-broker-versions.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.common.log_dir_integrity import BrokerEpochs, broker_epochs
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.broker_request_queue import (
    PendingLeaderAndIsr,
    PendingRequest,
    PendingStopReplica,
    PendingUpdateMetadata,
)
from kbroker.controller.core.context import Broker, LogEnd
from kbroker.controller.core.effects import PartitionUpdate
from kbroker.controller.core.events import LeaderAndIsrAcked, StopReplicaAcked
from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import (
    EPOCH_DURING_DELETE,
    NO_LEADER,
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from kclient.wire.versions import ApiKey

LEADER_AND_ISR_VERSION: Final = 7
UPDATE_METADATA_VERSION: Final = 8
STOP_REPLICA_VERSION: Final = 4

INCREMENTAL: Final = 1
FULL: Final = 2
"""Values of `type`: a part of what there is, or all of it."""

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""By Kafka's number for them."""

Request = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
Response = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse


def request_for(
    pending: PendingRequest,
    *,
    controller_id: int,
    controller_epoch: int,
    broker: Broker,
    listener: str,
    is_extended: bool,
) -> tuple[ApiKey, int, Request]:
    """Build the wire message of a *pending* request to *broker*: (api key, version, request).

    *listener* is the inter-broker listener, by which brokers find each other. Without *is_extended* (see
    inter.broker.protocol.version) the request has Kafka's own fields only.
    """
    api, version, request = _extended_request(
        pending, controller_id, controller_epoch, broker, listener
    )
    if not is_extended:
        _remove_extensions(request)
    return api, version, request


def _remove_extensions(request: Request) -> None:
    """Reset the tagged fields of ours to what a broker assumes that does not receive them.

    The parts of a full UpdateMetadata stay: in one request it would be above the receiver's budget.
    """
    request.request_number = -1
    if isinstance(request, LeaderAndIsrRequest):
        for topic in request.topic_states:
            for state in topic.partition_states:
                state.isr_epochs, state.elr, state.elr_epochs = [], [], []
    elif isinstance(request, UpdateMetadataRequest):
        for live in request.live_brokers:
            live.epoch, live.is_shutting_down = -1, False


def _extended_request(
    pending: PendingRequest,
    controller_id: int,
    controller_epoch: int,
    broker: Broker,
    listener: str,
) -> tuple[ApiKey, int, Request]:
    match pending:
        case PendingLeaderAndIsr():
            return (
                ApiKey.LEADER_AND_ISR,
                LEADER_AND_ISR_VERSION,
                LeaderAndIsrRequest(
                    controller_id=controller_id,
                    controller_epoch=controller_epoch,
                    broker_epoch=broker.epoch,
                    type=INCREMENTAL,
                    topic_states=_leader_and_isr_topics(pending.partitions),
                    live_leaders=_live_leaders(pending.live_leaders, listener),
                    request_number=pending.number,
                ),
            )
        case PendingUpdateMetadata():
            return (
                ApiKey.UPDATE_METADATA,
                UPDATE_METADATA_VERSION,
                UpdateMetadataRequest(
                    controller_id=controller_id,
                    type=FULL if pending.full else INCREMENTAL,
                    controller_epoch=controller_epoch,
                    broker_epoch=broker.epoch,
                    topic_states=_metadata_topics(pending.partitions),
                    live_brokers=[_metadata_broker(b) for b in pending.live_brokers],
                    part=pending.part,
                    has_more=pending.has_more,
                    request_number=pending.number,
                ),
            )
        case PendingStopReplica():
            return (
                ApiKey.STOP_REPLICA,
                STOP_REPLICA_VERSION,
                StopReplicaRequest(
                    controller_id=controller_id,
                    controller_epoch=controller_epoch,
                    broker_epoch=broker.epoch,
                    topic_states=_stop_replica_topics(pending),
                    request_number=pending.number,
                ),
            )


def _leader_and_isr_topics(updates: Iterable[PartitionUpdate]) -> list[LeaderAndIsrTopicState]:
    topics: dict[object, LeaderAndIsrTopicState] = {}
    for update in updates:
        topic = topics.get(update.topic_id)
        if topic is None:
            topic = topics[update.topic_id] = LeaderAndIsrTopicState(update.topic, update.topic_id)
        state = update.state
        topic.partition_states.append(
            LeaderAndIsrPartitionState(
                partition_index=update.partition,
                controller_epoch=state.controller_epoch,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=list(state.isr),
                partition_epoch=state.zk_version,
                replicas=list(update.replicas),
                adding_replicas=list(update.adding_replicas),
                removing_replicas=list(update.removing_replicas),
                is_new=update.is_new,
                leader_recovery_state=state.leader_recovery_state,
                isr_epochs=list(state.isr_epochs),
                elr=[replica for replica, _ in state.elr],
                elr_epochs=[epoch for _, epoch in state.elr],
            )
        )
    return list(topics.values())


def _live_leaders(brokers: Iterable[Broker], listener: str) -> list[LeaderAndIsrLiveLeader]:
    leaders = []
    for broker in brokers:
        endpoint = next((e for e in broker.endpoints if e.listener == listener), None)
        if endpoint is not None:
            leaders.append(LeaderAndIsrLiveLeader(broker.broker_id, endpoint.host, endpoint.port))
    return leaders


def _metadata_topics(updates: Iterable[PartitionUpdate]) -> list[UpdateMetadataTopicState]:
    topics: dict[object, UpdateMetadataTopicState] = {}
    for update in updates:
        topic = topics.get(update.topic_id)
        if topic is None:
            topic = topics[update.topic_id] = UpdateMetadataTopicState(
                update.topic, update.topic_id
            )
        state = update.state
        topic.partition_states.append(
            UpdateMetadataPartitionState(
                partition_index=update.partition,
                controller_epoch=state.controller_epoch,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=list(state.isr),
                zk_version=state.zk_version,
                replicas=list(update.replicas),
                offline_replicas=list(update.offline_replicas),
            )
        )
    return list(topics.values())


def _metadata_broker(broker: Broker) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        broker.broker_id,
        [
            UpdateMetadataEndpoint(
                e.port, e.host, e.listener, SECURITY_PROTOCOLS.index(e.security_protocol)
            )
            for e in broker.endpoints
            if e.security_protocol in SECURITY_PROTOCOLS
        ],
        broker.rack,
        broker.epoch,
        broker.is_shutting_down,
    )


def _stop_replica_topics(pending: PendingStopReplica) -> list[StopReplicaTopicState]:
    topics: dict[str, StopReplicaTopicState] = {}
    for stop in pending.stops:
        name, index = stop.partition
        topic = topics.setdefault(name, StopReplicaTopicState(name))
        topic.partition_states.append(
            StopReplicaPartitionState(index, stop.leader_epoch, stop.delete)
        )
    return list(topics.values())


def event_for(
    pending: PendingRequest, response: Response, broker: Broker
) -> LeaderAndIsrAcked | StopReplicaAcked | None:
    """Convert the response to a *pending* request: the event for the state machine, or None if it reports nothing.

    Errors of the whole request (STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH) are the caller's.
    """
    if isinstance(pending, PendingLeaderAndIsr) and isinstance(response, LeaderAndIsrResponse):
        names = {u.topic_id: u.topic for u in pending.partitions}
        errors: dict[int, set[TopicPartition]] = {
            ErrorCode.KAFKA_STORAGE_ERROR: set(),
            ErrorCode.INELIGIBLE_REPLICA: set(),
        }
        ends: dict[TopicPartition, LogEnd] = {}
        online: set[TopicPartition] = set()
        offline = {
            (u.topic, u.partition)
            for u in pending.partitions
            if broker.broker_id in u.offline_replicas
        }
        epochs = {
            (u.topic, u.partition): u.state.leader_epoch
            for u in pending.partitions
            if u.state.leader == NO_LEADER
        }
        for topic in response.topics:
            if topic.topic_id in names:
                for partition in topic.partition_errors:
                    key = (names[topic.topic_id], partition.partition_index)
                    if partition.error_code in errors:
                        errors[partition.error_code].add(key)
                    elif partition.error_code == ErrorCode.NONE and key in offline:
                        online.add(key)
                    if partition.log_end_offset >= 0 and key in epochs:
                        ends[key] = LogEnd(
                            epochs[key],
                            partition.last_epoch,
                            partition.log_end_offset,
                            _intact(partition),
                        )
        storage_errors, incomplete = map(frozenset, errors.values())
        if not storage_errors and not incomplete and not ends and not online:
            return None
        return LeaderAndIsrAcked(
            broker.broker_id, broker.epoch, storage_errors, incomplete, ends, frozenset(online)
        )
    if isinstance(pending, PendingStopReplica) and isinstance(response, StopReplicaResponse):
        failed: set[TopicPartition] = {
            (error.topic_name, error.partition_index)
            for error in response.partition_errors
            if error.error_code != ErrorCode.NONE
        }
        # Only deletions of topics wait for this. Replicas that were moved away are not in the tables any more. A
        # response about them must not count for a deletion that came later.
        asked = frozenset(
            s.partition for s in pending.stops if s.delete and s.leader_epoch == EPOCH_DURING_DELETE
        )
        if response.error_code != ErrorCode.NONE:
            failed.update(asked)
        if asked:
            return StopReplicaAcked(broker.broker_id, broker.epoch, asked - failed, asked & failed)
    return None


def _intact(partition: LeaderAndIsrPartitionError) -> BrokerEpochs | None:
    """Return what the log of a leaderless partition's replica covers."""
    if partition.intact_since < 0:
        return None
    return broker_epochs((partition.intact_since, partition.intact_until))
