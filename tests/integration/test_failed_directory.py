"""One of several log directories fails (S15): other brokers lead its partitions, the broker continues with the rest."""

from __future__ import annotations

import shutil

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.kit.brokers import MakeCluster
from tests.kit.replicated import Observer, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]


def test_other_brokers_lead_the_partitions_of_a_failed_directory_and_the_rest_stays(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(2, {"auto.leader.rebalance.enable": "false"})
    home = cluster[1].home
    cluster.terminate(1)
    cluster.start(1, log_dirs=f"{home / 'one'},{home / 'two'}")
    cluster.allowed.append(r"log director")
    controller = AdminClient({"bootstrap.servers": cluster[2].address, "log_level": 0})
    eventually("broker 1 to be back", lambda: 1 in controller.list_topics(timeout=3).brokers)
    observer = Observer(cluster)
    observer.create("t", [[1, 2]] * 4, {"segment.bytes": "1024"})

    def directories() -> dict[int, list[str]]:
        return {n: [d for d in ("one", "two") if (home / d / f"t-{n}").exists()] for n in range(4)}

    # A leader is in the metadata before it has its log.
    eventually("the logs of broker 1", lambda: all(directories().values()))
    held = directories()
    lost = [n for n in held if held[n] == ["two"]]
    assert len(lost) == 2, held

    shutil.rmtree(home / "two")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    failed = []
    for number in range(4 * 10):  # the next segment has no place
        producer.produce(
            "t", b"x" * 300, partition=number % 4,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
        producer.flush(20)
    assert failed == []
    for n in held:
        # After an expired session on a busy machine broker 2 may lead already, while broker 1 follows in the ISR.
        expected = (2, {2}) if n in lost else (1, {1, 2})
        eventually(
            f"t-{n} to be led by a replica that has it",
            lambda n=n, expected=expected: (
                ((p := observer.placement("t", n)).leader, p.isr) == expected
            ),
        )
