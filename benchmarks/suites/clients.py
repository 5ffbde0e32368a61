"""Python clients on one kbroker: 100 B, one partition."""

from __future__ import annotations

from pathlib import Path

from benchmarks.contenders import (
    create_topic,
    delete_topic,
    load,
    print_progress,
    zookeeper_classpath,
)
from benchmarks.processes import our_broker, zookeeper
from benchmarks.results import Figure

COUNTS = {
    "aiokafka": 500_000,
    "kclient": 1_000_000,
    "kafka-python": 300_000,
    "confluent-kafka": 2_000_000,
}


def clients_suite(directory: Path, rounds: int, divide: int) -> tuple[list[Figure], list[str]]:
    """Each client produces to its own topic and consumes it."""
    produce = Figure("client produce 100 B", "msg/s", goal="beyond aiokafka", goal_ratio=1.0)
    consume = Figure("client consume 100 B", "msg/s", goal="beyond aiokafka", goal_ratio=1.0)
    with (
        zookeeper(directory / "zookeeper", zookeeper_classpath()) as port,
        our_broker(directory / "broker", port) as broker,
    ):
        for turn in range(rounds):
            for name, number in COUNTS.items():
                print_progress(f"round {turn + 1}: {name}")
                topic, count = f"{name}-{turn}", number // divide
                label = "ours" if name == "kclient" else name
                create_topic(broker.bootstrap, topic)
                got = load(f"{name}-produce", broker.bootstrap, topic, count, 100)
                produce.add(label, got["messages"] / got["seconds"])
                got = load(f"{name}-consume", broker.bootstrap, topic, count, 100)
                consume.add(label, got["messages"] / got["seconds"])
                delete_topic(broker.bootstrap, topic)
    return [produce, consume], [
        "ours is kclient's blocking API; acks=1, no idempotence, one process, one partition, "
        "on a broker of ours; confluent-kafka is C"
    ]
