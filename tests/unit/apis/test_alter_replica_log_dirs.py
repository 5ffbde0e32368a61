"""AlterReplicaLogDirs: its answers, and a move that clients do not notice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from kbroker.apis.api34_alter_replica_log_dirs import AlterReplicaLogDirs
from kbroker.apis.api35_describe_log_dirs import DescribeLogDirs
from kclient.wire import messages
from kclient.wire.error_codes import ErrorCode
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kclient.wire.schema.describe_log_dirs import DescribeLogDirsRequest
from kclient.wire.versions import ApiKey
from tests.kit.log_managers import Pool
from tests.kit.logs import batch_of, records
from tests.unit.apis.kit import ApiBroker, broker_in, joined

NONE = ErrorCode.NONE


@pytest.fixture
def two(tmp_path: Path) -> Iterator[ApiBroker]:
    """A broker with two log directories, a and b."""
    paths = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    with broker_in(tmp_path, {"log.dirs": paths}, pool=Pool()) as made:
        manager = made.replica_manager
        made.serve(ApiKey.ALTER_REPLICA_LOG_DIRS, lambda: AlterReplicaLogDirs(manager))
        made.serve(
            ApiKey.DESCRIBE_LOG_DIRS, lambda: DescribeLogDirs(manager, lambda _paths: succeed({}))
        )
        yield made


def ask(broker: ApiBroker, api: ApiKey, version: int, request: Any) -> Any:
    answer = broker.ask_raw(messages.encode_request(RequestHeader(api, version, 7, "c"), request))
    assert isinstance(answer, Deferred)
    parts: list[Any] = []
    answer.addCallback(parts.append)
    return messages.decode_response(api, version, joined(parts[0]))[1]


def alter(
    broker: ApiBroker, path: str, *wanted: tuple[str, int], version: int = 2
) -> dict[tuple[str, int], ErrorCode]:
    topics = [AlterReplicaLogDirTopic(topic, [number]) for topic, number in wanted]
    request = AlterReplicaLogDirsRequest([AlterReplicaLogDir(path, topics)])
    response = ask(broker, ApiKey.ALTER_REPLICA_LOG_DIRS, version, request)
    return {
        (topic.topic_name, each.partition_index): ErrorCode(each.error_code)
        for topic in response.results
        for each in topic.partitions
    }


def copies(broker: ApiBroker) -> dict[str, tuple[int, int]]:
    """The directories of future replicas, with their sizes and lags."""
    response = ask(broker, ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(None))
    return {
        result.log_dir: (each.partition_size, each.offset_lag)
        for result in response.results
        for topic in result.topics
        for each in topic.partitions
        if each.is_future_key
    }


def other(broker: ApiBroker, number: int = 0) -> str:
    """The directory that partition *number* is not in."""
    manager = broker.replica_manager.log_manager
    (path,) = set(manager.online) - {manager.directory_of("t", number)}
    return path


@pytest.mark.parametrize("version", [1, 2])
def test_a_replica_moves_while_it_is_led(two: ApiBroker, version: int) -> None:
    two.fill(3)
    manager = two.replica_manager
    partition, target = manager.partition("t", 0), other(two)
    found = partition.log
    assert found is not None
    before = records(found)
    assert alter(two, target, ("t", 0), version=version) == {("t", 0): NONE}
    assert copies(two) == {target: (0, 3)}
    for _ in range(10):
        manager.log_schedule._go_on()
    assert manager.log_manager.directory_of("t", 0) == target
    assert copies(two) == {}
    moved = partition.log
    assert moved is manager.log_manager.get("t", 0)
    assert moved is not found
    assert records(moved) == before
    partition.append(batch_of(1000), 1, 1000)
    assert moved.log_end_offset == 4
    assert partition.high_watermark == 4
    assert alter(two, target, ("t", 0)) == {("t", 0): NONE}
    assert copies(two) == {}


def test_the_errors_are_those_of_kafka(two: ApiBroker, tmp_path: Path) -> None:
    two.fill(1)
    target = other(two)
    assert alter(two, str(tmp_path / "c"), ("t", 0)) == {("t", 0): ErrorCode.LOG_DIR_NOT_FOUND}
    assert alter(two, target, ("u", 0)) == {("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    longest = "x" * 249
    refused = alter(two, target, (longest, 0))
    assert refused == {(longest, 0): ErrorCode.INVALID_TOPIC_EXCEPTION}
    log = two.replica_manager.log_manager.get("t", 0)
    assert log is not None
    log.flush_failed(OSError(5, "no disk"))
    assert alter(two, target, ("t", 0)) == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR}


def test_a_replica_that_does_not_exist_yet_begins_in_the_preferred_directory(
    two: ApiBroker,
) -> None:
    two.fill(1)
    path = two.replica_manager.log_manager.directory_of("t", 0)
    assert path is not None
    assert alter(two, path, ("u", 0)) == {("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    two.fill(1, topic="u")
    assert two.replica_manager.log_manager.directory_of("u", 0) == path, "the other one has fewer"


def test_a_request_for_the_present_directory_ends_the_move(two: ApiBroker, tmp_path: Path) -> None:
    two.fill(1)
    path, target = two.replica_manager.log_manager.directory_of("t", 0), other(two)
    assert path is not None
    alter(two, target, ("t", 0))
    assert alter(two, path, ("t", 0)) == {("t", 0): NONE}
    assert copies(two) == {}
    assert not list(tmp_path.glob("*/*-future"))
    assert len(list(Path(target).glob("t-0.*-delete"))) == 1
