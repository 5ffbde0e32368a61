"""Apache Kafka as the oracle: random requests get the same answers from both brokers (`tests.compat.lockstep`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.lockstep.drawing import clients_apis
from tests.compat.lockstep.known import ABSENT, Difference, differences
from tests.compat.lockstep.play import BROKER_SETTINGS, play, reason
from tests.kit.apache_kafka import running_kafka, with_kafka
from tests.kit.brokers import MakeCluster
from tests.kit.zookeeper import Ensemble

SEED = 1
REQUESTS = 800


@pytest.mark.slow
@pytest.mark.compat
@pytest.mark.timeout(300)
@with_kafka
def test_random_requests_get_kafkas_answers(
    broker_clusters: MakeCluster, zookeeper_server: Ensemble, tmp_path: Path
) -> None:
    cluster = broker_clusters(1, BROKER_SETTINGS)
    chroot = f"{zookeeper_server.connect}/lockstep-{tmp_path.name}"
    with running_kafka(tmp_path / "kafka", chroot, BROKER_SETTINGS) as kafka:
        outcome = play((cluster.bootstrap, kafka.bootstrap), SEED, REQUESTS)
    assert not outcome.unknown, "\n".join(outcome.unknown)
    assert set(outcome.compared) == set(clients_apis())


def answer(**partition: object) -> dict[str, object]:
    partitions = [{"partition_index": 0, "error_code": "NONE", **partition}]
    return {"topics": [{"name": "t", "partitions": partitions}], "error_code": "NONE"}


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        (answer(), answer(), []),
        (
            answer(offset=1),
            answer(offset=2),
            [Difference("X.topics[].partitions[].offset", 1, 2)],
        ),
        (
            answer(partition_index=1),
            answer(),
            [
                Difference("X.topics[].partitions[]", {"partition_index": 1, "error_code": "NONE"}, ABSENT),
                Difference("X.topics[].partitions[]", ABSENT, {"partition_index": 0, "error_code": "NONE"}),
            ],
        ),
        ("closed", answer(), [Difference("X", "closed", answer())]),
        (answer(), {**answer(), "error_code": "UNKNOWN_SERVER_ERROR", "topics": []}, []),
    ],
)  # fmt: skip
def test_what_differs_is_found(ours: object, theirs: object, found: list[Difference]) -> None:
    assert list(differences("X", ours, theirs)) == found


def test_only_what_is_meant_has_a_reason() -> None:
    path = "DESCRIBE_TRANSACTIONS.transaction_states[].transaction_start_time_ms"
    assert reason(Difference(path, -1, "now"))
    assert reason(Difference(path, "now", -1)) is None
    assert reason(Difference("OFFSET_FETCH.topics[].partitions[].committed_offset", 5, -1)) is None
