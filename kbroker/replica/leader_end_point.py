"""LeaderEndPoint: the range of a leader's log, requested by a follower with a log end outside that range.

Owner: the reactor's thread
"""

from __future__ import annotations

from kbroker.replica.fetcher_state import PartitionFetchState
from kbroker.replica.offset_lookup import EARLIEST
from kclient.net.connection import Connection
from kclient.wire.errors import for_code
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.schema.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kclient.wire.versions import ApiKey

LIST_OFFSETS_VERSION = 6
OFFSET_FOR_LEADER_EPOCH_VERSION = 4


async def fetch_earliest_offset(connection: Connection, each: PartitionFetchState) -> int:
    """Return the leader's log start offset; raise its KafkaError, or the connection's."""
    topic, index = each.partition.key
    epoch = each.follower_state.leader_epoch
    asked = ListOffsetsPartition(
        partition_index=index, current_leader_epoch=epoch, timestamp=EARLIEST
    )
    request = ListOffsetsRequest(
        replica_id=each.partition.role.broker_id,
        topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
    )
    response = await connection.request(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, request)
    answer = response.topics[0].partitions[0]
    _raise_for(answer.error_code, each)
    return int(answer.offset)


async def fetch_latest_offset(connection: Connection, each: PartitionFetchState) -> int:
    """Return the end of the leader's own epoch, which is its log end."""
    topic, index = each.partition.key
    epoch = each.follower_state.leader_epoch
    asked = OffsetForLeaderPartition(
        partition=index, current_leader_epoch=epoch, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=each.partition.role.broker_id,
        topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])],
    )
    response = await connection.request(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, OFFSET_FOR_LEADER_EPOCH_VERSION, request
    )
    answer = response.topics[0].partitions[0]
    _raise_for(answer.error_code, each)
    return int(answer.end_offset)


def _raise_for(error_code: int, each: PartitionFetchState) -> None:
    if error_code:
        raise for_code(error_code)(repr(each.partition))
