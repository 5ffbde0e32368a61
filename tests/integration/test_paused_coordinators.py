"""S31 with real processes: a coordinator is paused until it is replaced, and resumes with requests in its sockets."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from kclient.testing.raw_connection import RawConnection
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.describe_groups import DescribeGroupsRequest
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.schema.list_groups import ListGroupsRequest
from kclient.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kclient.wire.schema.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kclient.wire.versions import ApiKey
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SETTINGS = {
    "zookeeper.session.timeout.ms": "3000",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "replica.fetch.backoff.ms": "200",
}
OFFSETS, ALL = "__consumer_offsets", [1, 2, 3]
ROUNDS = 6
"""Without confirmations about every second round failed: it depends on which thread wakes up first."""
CONNECTIONS, PIPELINED = 20, 5
REFUSALS = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}


def commit(cluster: Cluster, offset: int) -> None:
    """Commit at whichever broker coordinates."""
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)]
    )

    def committed() -> bool:
        for broker in cluster.brokers.values():
            if broker.broker_id in sleeping(cluster):
                continue
            with RawConnection("127.0.0.1", broker.port) as connection:
                response = connection.ask(ApiKey.OFFSET_COMMIT, 8, request)
            if response.topics[0].partitions[0].error_code == ErrorCode.NONE:
                return True
        return False

    eventually(f"a commit of {offset}", committed)


def sleeping(cluster: Cluster) -> list[int]:
    """Return the brokers that are stopped."""
    found = []
    for broker in cluster.brokers.values():
        stat = Path(f"/proc/{broker.pid}/stat").read_text()
        if stat.rsplit(")", 1)[1].split()[0] == "T":
            found.append(broker.broker_id)
    return found


def fetch_request() -> OffsetFetchRequest:
    return OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic("t", [0])])


def test_s31_a_coordinator_that_resumes_answers_with_no_outdated_offset(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3, SETTINGS)
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3]])
    with RawConnection("127.0.0.1", cluster[1].port) as found:
        eventually(
            "a coordinator",
            lambda: found.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest("g")).node_id > 0,
        )
    committed = 10
    commit(cluster, committed)
    for number in range(ROUNDS):
        observer.in_sync(OFFSETS, 0, ALL)
        coordinator = observer.placement(OFFSETS).leader
        with ExitStack() as stack:
            connections = [
                stack.enter_context(RawConnection("127.0.0.1", cluster[coordinator].port))
                for _ in range(CONNECTIONS)
            ]
            (before,) = offsets(connections[0].ask(ApiKey.OFFSET_FETCH, 7, fetch_request()))
            assert before == (ErrorCode.NONE, committed)
            cluster.pause(coordinator)
            observer.led_by_another(OFFSETS, 0, coordinator)
            committed = 5000 + number
            commit(cluster, committed)
            for connection in connections:
                for _ in range(PIPELINED):
                    connection.send(ApiKey.OFFSET_FETCH, 7, fetch_request())
                connection.send(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(["g"]))
                connection.send(ApiKey.LIST_GROUPS, 4, ListGroupsRequest())
            cluster.resume(coordinator)
            answers, described, listed = [], [], []
            for connection in connections:
                for _ in range(PIPELINED):
                    answers += offsets(connection.receive(ApiKey.OFFSET_FETCH, 7))
                (group,) = connection.receive(ApiKey.DESCRIBE_GROUPS, 5).groups
                described.append(ErrorCode(group.error_code))
                listed += connection.receive(ApiKey.LIST_GROUPS, 4).groups
        assert len(answers) == CONNECTIONS * PIPELINED
        given = {answer for answer in answers if answer[0] not in REFUSALS}
        assert given <= {(ErrorCode.NONE, committed)}
        assert set(described) <= REFUSALS
        assert listed == []


def offsets(response: object) -> list[tuple[ErrorCode, int]]:
    """Return error and offset of every partition in the answer to an OffsetFetch."""
    return [
        (ErrorCode(partition.error_code), partition.committed_offset)
        for topic in response.topics  # type: ignore[attr-defined]
        for partition in topic.partitions
    ]
