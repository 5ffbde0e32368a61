"""The APIs of Kafka's protocol: their keys, the versions that `kclient.wire` supports, the versions that brokers serve.

`SUPPORTED` are the versions that `kclient.wire` can encode and decode, in both directions. `SERVED` are the versions in
our broker's ApiVersions: APIs with a handler, up to the version of a Kafka 3.9 broker in ZooKeeper mode. A new API
becomes visible to clients by a line in `SERVED` only.

Produce 0 to 2 are advertised although they cannot be encoded. Without them librdkafka assumes a broker too old for
Snappy, LZ4 and KIP-98 features (KAFKA-18659). Such a request is rejected.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from kclient.wire.errors import UnsupportedVersion


class ApiKey(IntEnum):
    """The api key field of request headers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    ALTER_PARTITION = 56
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


class VersionRange(NamedTuple):
    """The versions *min* to *max* of one API, both included."""

    min: int
    max: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.min <= version <= self.max

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"


class _Api(NamedTuple):
    """One line of the table below."""

    supported: VersionRange
    flexible_since: int  # first version with tagged fields (KIP-482); 99 = none


def _api(lowest: int, highest: int, flexible_since: int = 99) -> _Api:
    return _Api(VersionRange(lowest, highest), flexible_since)


_APIS: Mapping[ApiKey, _Api] = MappingProxyType(
    {
        ApiKey.PRODUCE: _api(3, 11, 9),
        ApiKey.FETCH: _api(4, 17, 12),
        ApiKey.LIST_OFFSETS: _api(1, 9, 6),
        ApiKey.METADATA: _api(0, 12, 9),
        ApiKey.LEADER_AND_ISR: _api(5, 7, 4),
        ApiKey.STOP_REPLICA: _api(3, 4, 2),
        ApiKey.UPDATE_METADATA: _api(7, 8, 6),
        ApiKey.CONTROLLED_SHUTDOWN: _api(3, 3, 3),
        ApiKey.OFFSET_COMMIT: _api(2, 9, 8),
        ApiKey.OFFSET_FETCH: _api(1, 9, 6),
        ApiKey.FIND_COORDINATOR: _api(0, 6, 3),
        ApiKey.JOIN_GROUP: _api(0, 9, 6),
        ApiKey.HEARTBEAT: _api(0, 4, 4),
        ApiKey.LEAVE_GROUP: _api(0, 5, 4),
        ApiKey.SYNC_GROUP: _api(0, 5, 4),
        ApiKey.DESCRIBE_GROUPS: _api(0, 5, 5),
        ApiKey.LIST_GROUPS: _api(0, 5, 3),
        ApiKey.SASL_HANDSHAKE: _api(0, 1),
        ApiKey.API_VERSIONS: _api(0, 4, 3),
        ApiKey.CREATE_TOPICS: _api(2, 7, 5),
        ApiKey.DELETE_TOPICS: _api(1, 6, 4),
        ApiKey.DELETE_RECORDS: _api(0, 2, 2),
        ApiKey.INIT_PRODUCER_ID: _api(0, 5, 2),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: _api(2, 4, 4),
        ApiKey.ADD_PARTITIONS_TO_TXN: _api(0, 5, 3),
        ApiKey.ADD_OFFSETS_TO_TXN: _api(0, 4, 3),
        ApiKey.END_TXN: _api(0, 4, 3),
        ApiKey.WRITE_TXN_MARKERS: _api(1, 1, 1),
        ApiKey.TXN_OFFSET_COMMIT: _api(0, 4, 3),
        ApiKey.DESCRIBE_ACLS: _api(1, 3, 2),
        ApiKey.CREATE_ACLS: _api(1, 3, 2),
        ApiKey.DELETE_ACLS: _api(1, 3, 2),
        ApiKey.DESCRIBE_CONFIGS: _api(1, 4, 4),
        ApiKey.ALTER_CONFIGS: _api(0, 2, 2),
        ApiKey.ALTER_REPLICA_LOG_DIRS: _api(1, 2, 2),
        ApiKey.DESCRIBE_LOG_DIRS: _api(1, 4, 2),
        ApiKey.SASL_AUTHENTICATE: _api(0, 2, 2),
        ApiKey.CREATE_PARTITIONS: _api(0, 3, 2),
        ApiKey.DELETE_GROUPS: _api(0, 2, 2),
        ApiKey.ELECT_LEADERS: _api(0, 2, 2),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: _api(0, 1, 1),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: _api(0, 0, 0),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: _api(0, 0, 0),
        ApiKey.OFFSET_DELETE: _api(0, 0),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: _api(0, 1, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: _api(0, 1, 1),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _api(0, 0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _api(0, 0, 0),
        ApiKey.ALTER_PARTITION: _api(2, 3, 0),
        ApiKey.DESCRIBE_CLUSTER: _api(0, 1, 0),
        ApiKey.DESCRIBE_PRODUCERS: _api(0, 0, 0),
        ApiKey.DESCRIBE_TRANSACTIONS: _api(0, 0, 0),
        ApiKey.LIST_TRANSACTIONS: _api(0, 1, 0),
    }
)

SUPPORTED: Mapping[ApiKey, VersionRange] = MappingProxyType(
    {key: api.supported for key, api in _APIS.items()}
)
"""The versions that `kclient.wire` encodes and decodes; the client's side of every negotiation."""

_SERVED_APIS = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DELETE_GROUPS,
    ApiKey.ELECT_LEADERS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.OFFSET_DELETE,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
)

# APIs with an advertised range that differs from the supported one.
_SERVED_DIFFERENTLY: Mapping[ApiKey, VersionRange] = {
    ApiKey.PRODUCE: VersionRange(0, 11),
}

SERVED: Mapping[ApiKey, VersionRange] = MappingProxyType(
    {key: _SERVED_DIFFERENTLY.get(key, SUPPORTED[key]) for key in _SERVED_APIS}
)
"""The versions that our broker advertises, in the order of the keys."""


_FLEXIBLE_SINCE = {int(key): api.flexible_since for key, api in _APIS.items()}


def is_flexible(api_key: int, version: int) -> bool:
    """Return whether this version of the API uses compact types and tagged fields (KIP-482).

    Raise ValueError for an api key outside of `ApiKey`.
    """
    since = _FLEXIBLE_SINCE.get(api_key)
    if since is None:
        raise ValueError(f"{api_key} is not a known api key")
    return version >= since


def request_header_version(api_key: int, version: int) -> int:
    """Return 2 for flexible versions, else 1.

    Both begin with api key, api version, correlation id and client id (a plain nullable string even in 2). 2 has a
    tagged-field section after them.
    """
    return 2 if is_flexible(api_key, version) else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return 1 for flexible versions, else 0; always 0 for ApiVersions.

    A client that does not know the broker's versions yet could not find the body of an ApiVersions response after
    tagged fields (KIP-511).
    """
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if is_flexible(api_key, version) else 0


def negotiate(api: ApiKey, ours: VersionRange | None, theirs: VersionRange | None) -> int:
    """Return the highest version that both sides support; raise UnsupportedVersion with both ranges if there is none.

    None means that the side does not have the API.
    """
    if ours is not None and theirs is not None:
        version = min(ours.max, theirs.max)
        if version >= max(ours.min, theirs.min):
            return version
    raise UnsupportedVersion(
        f"{api.name} (api key {int(api)}): supported here: {ours or 'none'}; "
        f"by the peer: {theirs or 'none'}"
    )
