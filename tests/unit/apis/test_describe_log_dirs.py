"""DescribeLogDirs: where replicas are, how large, and what a failed directory looks like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from kbroker.apis.api35_describe_log_dirs import DescribeLogDirs, spaces
from kclient.wire import messages
from kclient.wire.error_codes import ErrorCode
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from kclient.wire.versions import ApiKey
from tests.kit.logs import batch_of
from tests.unit.apis.kit import ApiBroker, broker_in, joined

SPACE = (1000, 400)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[ApiBroker]:
    """A broker with two log directories, a and b."""
    paths = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    with broker_in(tmp_path, {"log.dirs": paths}) as made:
        made.serve(
            ApiKey.DESCRIBE_LOG_DIRS,
            lambda: DescribeLogDirs(
                made.replica_manager, lambda paths: succeed(dict.fromkeys(paths, SPACE))
            ),
        )
        yield made


def describe(
    broker: ApiBroker, topics: dict[str, list[int]] | None = None, version: int = 4
) -> dict[str, Any]:
    wanted = None if topics is None else [DescribableLogDirTopic(*each) for each in topics.items()]
    header = RequestHeader(ApiKey.DESCRIBE_LOG_DIRS, version, 7, "c")
    answer = broker.ask_raw(messages.encode_request(header, DescribeLogDirsRequest(wanted)))
    assert isinstance(answer, Deferred)
    parts: list[Any] = []
    answer.addCallback(parts.append)
    _, response = messages.decode_response(ApiKey.DESCRIBE_LOG_DIRS, version, joined(parts[0]))
    assert (response.error_code, response.throttle_time_ms) == (0, 0)
    return {Path(result.log_dir).name: result for result in response.results}


def replicas(result: Any) -> dict[tuple[str, int], tuple[int, int, bool]]:
    return {
        (t.name, p.partition_index): (p.partition_size, p.offset_lag, p.is_future_key)
        for t in result.topics
        for p in t.partitions
    }


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_replica_is_in_its_directory_with_its_size(two: ApiBroker, version: int) -> None:
    two.fill(2, 0, 1)
    batch = len(batch_of(1000))
    found = describe(two, version=version)
    assert sorted(found) == ["a", "b"]
    assert replicas(found["a"]) | replicas(found["b"]) == {
        ("t", 0): (2 * batch, 0, False),
        ("t", 1): (0, 0, False),
        ("t", 2): (batch, 0, False),
    }
    assert len(replicas(found["a"])) in (1, 2), "spread over both"
    known = SPACE if version == 4 else (-1, -1)
    assert {(r.total_bytes, r.usable_bytes) for r in found.values()} == {known}


def test_only_the_requested_partitions_are_described_and_every_directory_is_listed(
    two: ApiBroker,
) -> None:
    two.fill(1, 1)
    found = describe(two, {"t": [1, 9], "unknown": [0]})
    assert sorted(found) == ["a", "b"]
    assert (replicas(found["a"]) | replicas(found["b"])).keys() == {("t", 1)}
    none = describe(two, {})
    assert [replicas(r) for r in none.values()] == [{}, {}]


def test_a_replica_behind_the_high_watermark_has_its_lag(two: ApiBroker) -> None:
    two.fill(3)
    two.replica_manager.partition("t", 0).leader_state.high_watermark = 5  # type: ignore[union-attr]
    found = describe(two)
    (behind,) = (replicas(found["a"]) | replicas(found["b"])).values()
    assert behind[1] == 2


def test_a_failed_directory_has_an_error_and_nothing_else(two: ApiBroker) -> None:
    two.fill(1, 1)
    before = describe(two)
    lost = next(name for name, result in before.items() if ("t", 0) in replicas(result))
    log = two.replica_manager.log_manager.get("t", 0)
    assert log is not None
    log.flush_failed(OSError(5, "no disk"))
    found = describe(two)
    assert found[lost].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (found[lost].topics, found[lost].total_bytes, found[lost].usable_bytes) == ([], -1, -1)
    (other,) = (result for name, result in found.items() if name != lost)
    assert (other.error_code, replicas(other).keys()) == (0, {("t", 1)})


def test_the_file_system_is_asked_for_its_space(tmp_path: Path) -> None:
    found = spaces([str(tmp_path), str(tmp_path / "nothing")])
    assert list(found) == [str(tmp_path)]
    total, usable = found[str(tmp_path)]
    assert 0 < usable <= total
