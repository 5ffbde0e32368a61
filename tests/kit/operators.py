"""What operators do to a cluster: elections and reassignments by request, and znodes as classic tools write them.

Requests go to the controller, which is looked for again whenever it moved. Nothing of kclient is used but its codec.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from kbroker.common.topic_partition import TopicPartition
from kclient.wire import messages
from kclient.wire.error_codes import ErrorCode
from kclient.wire.framing import framed
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kclient.wire.schema.elect_leaders import ElectLeadersRequest, TopicPartitions
from kclient.wire.schema.list_partition_reassignments import ListPartitionReassignmentsRequest
from kclient.wire.versions import SERVED, ApiKey
from tests.kit.brokers import Cluster
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually
from tests.kit.zookeeper import zookeeper_at

REASSIGN = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"


class Operator:
    """Asks for elections and reassignments, and looks how they went."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._observer = Observer(cluster)

    def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, str]:
        """Ask for other replicas (None: call it off); the name of the error of each, "" for none."""
        topics: dict[str, ReassignableTopic] = {}
        for (topic, index), target in targets.items():
            replicas = None if target is None else list(target)
            asked = topics.setdefault(topic, ReassignableTopic(topic))
            asked.partitions.append(ReassignablePartition(index, replicas))
        answer = self._ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            AlterPartitionReassignmentsRequest(topics=list(topics.values())),
        )
        return {
            (topic.name, each.partition_index): _name(each.error_code)
            for topic in answer.responses
            for each in topic.partitions
        }

    def moving(self) -> dict[TopicPartition, tuple[list[int], list[int], list[int]]]:
        """Ask what is under way: replicas, those that are added and those that are removed."""
        answer = self._ask(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(topics=None)
        )
        return {
            (topic.name, each.partition_index): (
                each.replicas,
                each.adding_replicas,
                each.removing_replicas,
            )
            for topic in answer.topics
            for each in topic.partitions
        }

    def until_moved(self, timeout: float = 30.0) -> None:
        """Wait until nothing is under way."""
        eventually("all reassignments to be done", lambda: not self.moving(), timeout)

    def elect(self, kind: int, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Ask for preferred (0) or unclean (1) elections; the name of the error of each, "" for none."""
        topics: dict[str, TopicPartitions] = {}
        for topic, index in partitions:
            topics.setdefault(topic, TopicPartitions(topic)).partitions.append(index)
        answer = self._ask(
            ApiKey.ELECT_LEADERS, ElectLeadersRequest(kind, list(topics.values()), 10_000)
        )
        return {
            (topic.topic, each.partition_id): _name(each.error_code)
            for topic in answer.replica_election_results
            for each in topic.partition_result
        }

    def _ask(self, api: ApiKey, request: Any) -> Any:
        """Return the controller's answer."""

        def answered() -> Any:
            controller = self._observer.controller()
            if controller not in self._cluster.brokers:
                return None
            try:
                answer = ask_broker(self._cluster[controller].port, api, request)
            except OSError:
                return None
            return None if answer.error_code == ErrorCode.NOT_CONTROLLER else answer

        answer = eventually(f"the controller to answer {api.name}", answered)
        assert answer.error_code == 0, _name(answer.error_code)
        return answer


def ask_broker(port: int, api: ApiKey, request: Any, version: int | None = None) -> Any:
    """Ask the broker at *port* one thing over a connection of its own; the answer. OSError if none comes.

    *version* is the newest that brokers serve unless it is given.
    """
    version = SERVED[api].max if version is None else version
    header = RequestHeader(api, version, 7, "operator")
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(framed(messages.encode_request(header, request)))
        stream = connection.makefile("rb")
        prefix = stream.read(4)
        if len(prefix) < 4:
            raise ConnectionError("closed")
        (size,) = struct.unpack(">i", prefix)
        frame = stream.read(size)
        if len(frame) < size:
            raise ConnectionError("closed within an answer")
    return messages.decode_response(api, version, frame)[1]


def _name(code: int) -> str:
    return ErrorCode(code).name if code else ""


@contextmanager
def znodes_of(cluster: Cluster) -> Iterator[KazooClient]:
    """Give a ZooKeeper client in the cluster's chroot."""
    with zookeeper_at(cluster.zookeeper_connect) as client:
        yield client


def partitions_json(partitions: Mapping[TopicPartition, Sequence[int] | None]) -> bytes:
    """Write what a classic tool puts below /admin."""
    items = [
        {"topic": topic, "partition": index} | ({"replicas": list(replicas)} if replicas else {})
        for (topic, index), replicas in partitions.items()
    ]
    return json.dumps({"version": 1, "partitions": items}).encode()


def assignment_of(zookeeper: KazooClient, topic: str) -> dict[str, Any]:
    """Read a topic's znode as it is."""
    found: dict[str, Any] = json.loads(zookeeper.get(f"/brokers/topics/{topic}")[0])
    return found


def directories(cluster: Cluster, topic: str) -> dict[int, set[str]]:
    """Return the directories of *topic* by broker, those that are being deleted left out."""
    found: dict[int, set[str]] = {}
    for broker in cluster.brokers.values():
        names = {path.name for path in Path(broker.data).glob(f"{topic}-*") if path.is_dir()}
        found[broker.broker_id] = {name for name in names if not name.endswith("-delete")}
    return found


def until_directories(
    cluster: Cluster, topic: str, replicas: Mapping[int, Sequence[int]], timeout: float = 20.0
) -> None:
    """Wait until every broker holds exactly the partitions of *topic* that it is a replica of."""
    wanted = {
        broker_id: {f"{topic}-{index}" for index, ids in replicas.items() if broker_id in ids}
        for broker_id in cluster.brokers
    }
    eventually(
        f"the directories of {topic} to be {wanted}",
        lambda: directories(cluster, topic) == wanted,
        timeout,
    )
