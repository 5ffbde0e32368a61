"""The table of the APIs served: one row for each, read by the request pipeline (`kbroker.apis`).

A row has no logic. What a stage needs to know about an API is a column here; the stage itself is in the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from kbroker.apis import handlers
from kbroker.apis.budgets import FEW, KIB, MANY, MIB, UNBOUNDED, RequestBudget
from kbroker.apis.gates import Gate
from kbroker.apis.handlers import HandlerDependencies
from kbroker.apis.request import AnyHandler, HandlerFactory
from kclient.wire.versions import SERVED, ApiKey, VersionRange


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """How one API is served."""

    key: ApiKey
    handler: Callable[[HandlerDependencies], AnyHandler]
    """Imports the handler's module and makes the handler, when the first request arrives."""
    budget: RequestBudget
    gate: Gate = Gate.NONE
    """What a request waits for before it is handled."""
    broker_field: str | None = None
    """The request's field with the sending broker's id: only a connection of that broker may send the request."""

    @property
    def versions(self) -> VersionRange:
        """The versions served and advertised."""
        return SERVED[self.key]


_ROWS: Final = (
    # Records are not decoded: their bytes cost a checksum and a write.
    ApiSpec(ApiKey.PRODUCE, handlers.produce, RequestBudget(UNBOUNDED, MANY, at_once=UNBOUNDED)),
    # A session's requests name what changed; the first one, and those without a session, all partitions.
    ApiSpec(ApiKey.FETCH, handlers.fetch, RequestBudget(2 * MIB, 12_000, at_once=32 * KIB)),
    ApiSpec(ApiKey.LIST_OFFSETS, handlers.list_offsets, RequestBudget(4 * MIB, MANY)),
    ApiSpec(ApiKey.METADATA, handlers.metadata, RequestBudget(4 * MIB, MANY), gate=Gate.METADATA),
    # Only brokers may send these. Our controllers name 500 partitions in a request, each with up to 7 elements a
    # replica: this is enough for a replication factor of 11. A controller would resend a refused one for ever.
    # The bytes are what keeps the decoding short: 15,000 partitions without replicas fit in them.
    ApiSpec(
        ApiKey.LEADER_AND_ISR,
        handlers.leader_and_isr,
        RequestBudget(400 * KIB, 40_000),
        gate=Gate.REGISTERED,
        broker_field="controller_id",
    ),
    ApiSpec(
        ApiKey.STOP_REPLICA,
        handlers.stop_replica,
        RequestBudget(1 * MIB, MANY),
        gate=Gate.REGISTERED,
        broker_field="controller_id",
    ),
    ApiSpec(
        ApiKey.UPDATE_METADATA,
        handlers.update_metadata,
        RequestBudget(400 * KIB, 40_000),
        gate=Gate.REGISTERED,
        broker_field="controller_id",
    ),
    ApiSpec(
        ApiKey.CONTROLLED_SHUTDOWN,
        handlers.controlled_shutdown,
        RequestBudget(4 * KIB, FEW),
        broker_field="broker_id",
    ),
    # With metadata of 100 bytes for each of 10,000 partitions.
    ApiSpec(ApiKey.OFFSET_COMMIT, handlers.offset_commit, RequestBudget(4 * MIB, MANY)),
    ApiSpec(
        ApiKey.OFFSET_FETCH,
        handlers.offset_fetch,
        RequestBudget(4 * MIB, MANY, answers_in_steps=True),
    ),
    ApiSpec(
        ApiKey.FIND_COORDINATOR,
        handlers.find_coordinator,
        RequestBudget(4 * MIB, 10_000),
        gate=Gate.METADATA,
    ),
    # Subscription and user data of one member; the leader's SyncGroup has the assignments of all.
    ApiSpec(ApiKey.JOIN_GROUP, handlers.join_group, RequestBudget(4 * MIB, 1000)),
    ApiSpec(ApiKey.HEARTBEAT, handlers.heartbeat, RequestBudget(256 * KIB, FEW)),
    ApiSpec(ApiKey.LEAVE_GROUP, handlers.leave_group, RequestBudget(4 * MIB, 10_000)),
    ApiSpec(ApiKey.SYNC_GROUP, handlers.sync_group, RequestBudget(16 * MIB, 10_000)),
    ApiSpec(
        ApiKey.DESCRIBE_GROUPS,
        handlers.describe_groups,
        RequestBudget(4 * MIB, 10_000, answers_in_steps=True),
    ),
    ApiSpec(
        ApiKey.LIST_GROUPS,
        handlers.list_groups,
        RequestBudget(64 * KIB, FEW, answers_in_steps=True),
    ),
    ApiSpec(ApiKey.API_VERSIONS, handlers.api_versions, RequestBudget(256 * KIB, FEW)),
    # 6,000 partitions with three replicas each, or 3,000 topics with settings: decoded in one turn.
    ApiSpec(
        ApiKey.CREATE_TOPICS,
        handlers.create_topics,
        RequestBudget(4 * MIB, 24_000, answers_in_steps=True),
    ),
    ApiSpec(ApiKey.DELETE_TOPICS, handlers.delete_topics, RequestBudget(4 * MIB, 10_000)),
    ApiSpec(ApiKey.DELETE_RECORDS, handlers.delete_records, RequestBudget(4 * MIB, MANY)),
    ApiSpec(ApiKey.INIT_PRODUCER_ID, handlers.init_producer_id, RequestBudget(64 * KIB, FEW)),
    ApiSpec(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        handlers.offset_for_leader_epoch,
        RequestBudget(4 * MIB, MANY),
    ),
    ApiSpec(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        handlers.add_partitions_to_txn,
        RequestBudget(4 * MIB, MANY, answers_in_steps=True),
    ),
    ApiSpec(ApiKey.ADD_OFFSETS_TO_TXN, handlers.add_offsets_to_txn, RequestBudget(8 * KIB, FEW)),
    ApiSpec(ApiKey.END_TXN, handlers.end_txn, RequestBudget(4 * KIB, FEW)),
    # Coordinators name 500 partitions in a request, each perhaps with a transaction of its own.
    ApiSpec(ApiKey.WRITE_TXN_MARKERS, handlers.write_txn_markers, RequestBudget(1 * MIB, 10_000)),
    ApiSpec(ApiKey.TXN_OFFSET_COMMIT, handlers.txn_offset_commit, RequestBudget(4 * MIB, MANY)),
    ApiSpec(ApiKey.DESCRIBE_ACLS, handlers.describe_acls, RequestBudget(128 * KIB, FEW)),
    ApiSpec(ApiKey.CREATE_ACLS, handlers.create_acls, RequestBudget(4 * MIB, 10_000)),
    ApiSpec(ApiKey.DELETE_ACLS, handlers.delete_acls, RequestBudget(4 * MIB, 10_000)),
    # The answer has 40 settings for each resource.
    ApiSpec(
        ApiKey.DESCRIBE_CONFIGS,
        handlers.describe_configs,
        RequestBudget(4 * MIB, 5000, answers_in_steps=True),
    ),
    ApiSpec(ApiKey.ALTER_CONFIGS, handlers.alter_configs, RequestBudget(4 * MIB, MANY)),
    ApiSpec(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        handlers.alter_replica_log_dirs,
        RequestBudget(4 * MIB, MANY, answers_in_steps=True),
    ),
    ApiSpec(
        ApiKey.DESCRIBE_LOG_DIRS,
        handlers.describe_log_dirs,
        RequestBudget(4 * MIB, MANY, answers_in_steps=True),
    ),
    ApiSpec(ApiKey.CREATE_PARTITIONS, handlers.create_partitions, RequestBudget(4 * MIB, MANY)),
    ApiSpec(ApiKey.DELETE_GROUPS, handlers.delete_groups, RequestBudget(4 * MIB, 10_000)),
    ApiSpec(
        ApiKey.ELECT_LEADERS,
        handlers.elect_leaders,
        RequestBudget(4 * MIB, MANY, answers_in_steps=True),
    ),
    ApiSpec(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        handlers.incremental_alter_configs,
        RequestBudget(4 * MIB, MANY),
    ),
    ApiSpec(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        handlers.alter_partition_reassignments,
        RequestBudget(4 * MIB, 40_000),
    ),
    ApiSpec(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        handlers.list_partition_reassignments,
        RequestBudget(4 * MIB, MANY, answers_in_steps=True),
    ),
    ApiSpec(ApiKey.OFFSET_DELETE, handlers.offset_delete, RequestBudget(4 * MIB, MANY)),
    ApiSpec(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        handlers.describe_client_quotas,
        RequestBudget(64 * KIB, FEW, answers_in_steps=True),
    ),
    ApiSpec(
        ApiKey.ALTER_CLIENT_QUOTAS, handlers.alter_client_quotas, RequestBudget(4 * MIB, 10_000)
    ),
    ApiSpec(
        ApiKey.DESCRIBE_CLUSTER,
        handlers.describe_cluster,
        RequestBudget(4 * KIB, FEW),
        gate=Gate.METADATA,
    ),
    ApiSpec(
        ApiKey.DESCRIBE_PRODUCERS,
        handlers.describe_producers,
        RequestBudget(4 * MIB, MANY, answers_in_steps=True),
    ),
    ApiSpec(
        ApiKey.DESCRIBE_TRANSACTIONS,
        handlers.describe_transactions,
        RequestBudget(4 * MIB, MANY, answers_in_steps=True),
    ),
    ApiSpec(
        ApiKey.LIST_TRANSACTIONS,
        handlers.list_transactions,
        RequestBudget(4 * MIB, MANY, answers_in_steps=True),
    ),
)

API_SPECS: Final[Mapping[int, ApiSpec]] = MappingProxyType({int(spec.key): spec for spec in _ROWS})
"""By API key; every API in `SERVED` has a row."""


def handler_factories(dependencies: HandlerDependencies) -> Mapping[ApiKey, HandlerFactory]:
    """Return the factories of all handlers of a broker."""
    return {spec.key: partial(spec.handler, dependencies) for spec in _ROWS}
