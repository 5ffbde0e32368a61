"""The largest request of each API, in bytes and in elements.

A request takes the reactor's time before anything is known about its sender. So each API has a budget: what an honest
client of a cluster with 10,000 topics and partitions may need, with room, and no more than is decoded in about 50 ms.
Elements are the values of all arrays, and the tagged fields (`kclient.wire.codec`); in Produce and Fetch, which have
their own codecs, topics and partitions. Bytes are those of the whole request. `socket.request.max.bytes` holds besides.

A request above its budget is not decoded further. It gets INVALID_REQUEST where the response has an error code for the
whole, with a message that names the limit where there is one; else the connection is closed with one log line.

A request of more than `at_once` bytes is decoded in a turn of its own (`common/shared_turns.py`).

Differs from Kafka: there only `socket.request.max.bytes` limits a request (100 MiB).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from kclient.wire.versions import ApiKey

KIB: Final = 1024
MIB: Final = 1024 * KIB
UNBOUNDED: Final = 1 << 31
"""No limit but that of every frame."""

FEW: Final = 100
MANY: Final = 20_000
"""10,000 partitions of as many topics."""


class RequestBudget(NamedTuple):
    """What one request may have."""

    max_bytes: int
    max_elements: int
    at_once: int = 4 * KIB
    """Bytes up to which a request is decoded in the turn in which it arrived."""
    answers_in_steps: bool = False
    """Whether a small request may have an answer that takes several turns to encode; that of a large one always may."""


BUDGETS: Final[Mapping[ApiKey, RequestBudget]] = MappingProxyType(
    {
        # Records are not decoded: their bytes cost a checksum and a write.
        ApiKey.PRODUCE: RequestBudget(UNBOUNDED, MANY, at_once=UNBOUNDED),
        # A session's requests name what changed; the first one, and those without a session, all partitions.
        ApiKey.FETCH: RequestBudget(2 * MIB, 12_000, at_once=32 * KIB),
        ApiKey.LIST_OFFSETS: RequestBudget(4 * MIB, MANY),
        ApiKey.METADATA: RequestBudget(4 * MIB, MANY),
        # Only brokers may send these. Our controllers name 500 partitions in a request, each with up to 7 elements a
        # replica: this is enough for a replication factor of 11. A controller would resend a refused one for ever.
        # The bytes are what keeps the decoding short: 15,000 partitions without replicas fit in them.
        ApiKey.LEADER_AND_ISR: RequestBudget(400 * KIB, 40_000),
        ApiKey.STOP_REPLICA: RequestBudget(1 * MIB, MANY),
        ApiKey.UPDATE_METADATA: RequestBudget(400 * KIB, 40_000),
        ApiKey.CONTROLLED_SHUTDOWN: RequestBudget(4 * KIB, FEW),
        # With metadata of 100 bytes for each of 10,000 partitions.
        ApiKey.OFFSET_COMMIT: RequestBudget(4 * MIB, MANY),
        ApiKey.OFFSET_FETCH: RequestBudget(4 * MIB, MANY, answers_in_steps=True),
        ApiKey.FIND_COORDINATOR: RequestBudget(4 * MIB, 10_000),
        # Subscription and user data of one member; the leader's SyncGroup has the assignments of all.
        ApiKey.JOIN_GROUP: RequestBudget(4 * MIB, 1000),
        ApiKey.HEARTBEAT: RequestBudget(256 * KIB, FEW),
        ApiKey.LEAVE_GROUP: RequestBudget(4 * MIB, 10_000),
        ApiKey.SYNC_GROUP: RequestBudget(16 * MIB, 10_000),
        ApiKey.DESCRIBE_GROUPS: RequestBudget(4 * MIB, 10_000, answers_in_steps=True),
        ApiKey.LIST_GROUPS: RequestBudget(64 * KIB, FEW, answers_in_steps=True),
        ApiKey.API_VERSIONS: RequestBudget(256 * KIB, FEW),
        # 10,000 partitions with three replicas each, or 5,000 topics with settings.
        ApiKey.CREATE_TOPICS: RequestBudget(4 * MIB, 40_000, answers_in_steps=True),
        ApiKey.DELETE_TOPICS: RequestBudget(4 * MIB, 10_000),
        ApiKey.DELETE_RECORDS: RequestBudget(4 * MIB, MANY),
        ApiKey.INIT_PRODUCER_ID: RequestBudget(64 * KIB, FEW),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: RequestBudget(4 * MIB, MANY),
        # The answer has 40 settings for each resource.
        ApiKey.DESCRIBE_CONFIGS: RequestBudget(4 * MIB, 5000, answers_in_steps=True),
        ApiKey.ALTER_CONFIGS: RequestBudget(4 * MIB, MANY),
        ApiKey.DESCRIBE_LOG_DIRS: RequestBudget(4 * MIB, MANY, answers_in_steps=True),
        ApiKey.CREATE_PARTITIONS: RequestBudget(4 * MIB, MANY),
        ApiKey.DELETE_GROUPS: RequestBudget(4 * MIB, 10_000),
        ApiKey.ELECT_LEADERS: RequestBudget(4 * MIB, MANY, answers_in_steps=True),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: RequestBudget(4 * MIB, MANY),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: RequestBudget(4 * MIB, 40_000),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: RequestBudget(4 * MIB, MANY, answers_in_steps=True),
        ApiKey.OFFSET_DELETE: RequestBudget(4 * MIB, MANY),
        ApiKey.DESCRIBE_CLUSTER: RequestBudget(4 * KIB, FEW),
    }
)
"""By API; every API that is served has one."""
