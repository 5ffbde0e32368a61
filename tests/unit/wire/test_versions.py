import pytest

from kclient.wire.errors import UnsupportedVersion
from kclient.wire.versions import (
    SERVED,
    SUPPORTED,
    ApiKey,
    VersionRange,
    is_flexible,
    negotiate,
    request_header_version,
    response_header_version,
)

# The highest versions of Kafka 3.9 in ZooKeeper mode, by its ApiVersions response.
KAFKA_3_9 = {
    ApiKey.PRODUCE: 11, ApiKey.FETCH: 17, ApiKey.LIST_OFFSETS: 9, ApiKey.METADATA: 12,
    ApiKey.LEADER_AND_ISR: 7, ApiKey.STOP_REPLICA: 4, ApiKey.UPDATE_METADATA: 8,
    ApiKey.CONTROLLED_SHUTDOWN: 3, ApiKey.OFFSET_COMMIT: 9, ApiKey.OFFSET_FETCH: 9,
    ApiKey.FIND_COORDINATOR: 6, ApiKey.JOIN_GROUP: 9, ApiKey.HEARTBEAT: 4, ApiKey.LEAVE_GROUP: 5,
    ApiKey.SYNC_GROUP: 5, ApiKey.DESCRIBE_GROUPS: 5, ApiKey.LIST_GROUPS: 5,
    ApiKey.API_VERSIONS: 4, ApiKey.CREATE_TOPICS: 7, ApiKey.DELETE_TOPICS: 6,
    ApiKey.DELETE_RECORDS: 2, ApiKey.INIT_PRODUCER_ID: 5, ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.DESCRIBE_CONFIGS: 4, ApiKey.ALTER_CONFIGS: 2, ApiKey.CREATE_PARTITIONS: 3, ApiKey.DELETE_GROUPS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1, ApiKey.OFFSET_DELETE: 0, ApiKey.DESCRIBE_CLUSTER: 1,
    ApiKey.DESCRIBE_PRODUCERS: 0,
}  # fmt: skip


def test_we_serve_no_version_that_kafka_3_9_does_not_have():
    for api, versions in SERVED.items():
        assert versions.max <= KAFKA_3_9.get(api, SUPPORTED[api].max), api
        assert 0 <= versions.min <= versions.max


def test_served_versions_are_supported_except_the_oldest_produce():
    for api, versions in SERVED.items():
        if api is not ApiKey.PRODUCE:
            assert versions.min in SUPPORTED[api], api
            assert versions.max in SUPPORTED[api], api
    assert SERVED[ApiKey.PRODUCE].min == 0  # advertised for librdkafka, refused when used


def test_the_served_apis_are_in_the_order_of_their_keys():
    assert list(SERVED) == sorted(SERVED)


def test_the_highest_version_of_both_sides_is_chosen():
    assert negotiate(ApiKey.METADATA, VersionRange(0, 12), VersionRange(4, 13)) == 12
    assert negotiate(ApiKey.METADATA, VersionRange(0, 12), VersionRange(0, 5)) == 5


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        (VersionRange(4, 17), VersionRange(0, 3), "supported here: 4-17; by the peer: 0-3"),
        (VersionRange(0, 0), VersionRange(1, 2), "supported here: 0; by the peer: 1-2"),
        (VersionRange(4, 17), None, "supported here: 4-17; by the peer: none"),
        (None, VersionRange(0, 1), "supported here: none; by the peer: 0-1"),
    ],
)
def test_no_version_in_common_names_both_ranges(ours, theirs, message):
    with pytest.raises(UnsupportedVersion, match=rf"FETCH \(api key 1\): {message}"):
        negotiate(ApiKey.FETCH, ours, theirs)


def test_flexible_versions_have_the_newer_headers():
    assert (request_header_version(3, 8), response_header_version(3, 8)) == (1, 0)
    assert (request_header_version(3, 9), response_header_version(3, 9)) == (2, 1)
    assert (request_header_version(17, 1), response_header_version(17, 1)) == (1, 0)


def test_an_api_versions_response_has_the_oldest_header_in_every_version():
    assert is_flexible(ApiKey.API_VERSIONS, 4)
    assert {response_header_version(ApiKey.API_VERSIONS, version) for version in range(5)} == {0}
    assert request_header_version(ApiKey.API_VERSIONS, 3) == 2


def test_an_int_is_as_good_as_an_api_key():
    assert SUPPORTED[3] is SUPPORTED[ApiKey.METADATA]
    assert 13 not in SUPPORTED[3]
