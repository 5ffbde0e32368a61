"""The loads, each a separate process: `python -m benchmarks.load NAME BOOTSTRAP TOPIC COUNT SIZE [PARTITIONS]`.

A name that ends in -all uses acks=all. Prints one JSON object. Loads for brokers use librdkafka and are here; loads for
clients are in client_loads.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any

from benchmarks import client_loads, librdkafka


def rdkafka_produce(
    bootstrap: str, topic: str, count: int, size: int, partitions: int = 1, acks: str = "1"
) -> dict[str, float]:
    """Produce *count* messages of *size* bytes, linger 5 ms, at full speed."""
    producer = librdkafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "linger.ms": "5",
            "batch.size": "1000000" if size >= 1000 else "200000",
            "batch.num.messages": "10000",
            "queue.buffering.max.messages": "500000",
            "queue.buffering.max.kbytes": "1000000",
        },
        topic,
    )
    value = (bytes(range(256)) * (size // 256 + 1))[:size]
    elapsed = producer.produce(count, value, partitions)
    producer.close()
    return {"seconds": elapsed, "messages": count, "bytes": count * size}


def rdkafka_transactions(
    bootstrap: str, topic: str, count: int, size: int, partitions: int = 1, producers: int = 1
) -> dict[str, float]:
    """Commit *count* transactions of 100 records each, by *producers* at a time, each in a thread."""
    from confluent_kafka import Producer

    latencies: list[float] = []
    value = (bytes(range(256)) * (size // 256 + 1))[:size]

    def work(producer: Any, transactions: int) -> None:
        for _ in range(transactions):
            producer.begin_transaction()
            for record in range(100):
                producer.produce(topic, value, partition=record % partitions)
            began = time.perf_counter()
            producer.commit_transaction(60)
            latencies.append((time.perf_counter() - began) * 1000)

    made = [
        Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"bench-{number}",
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        for number in range(producers)
    ]
    for producer in made:
        producer.init_transactions(60)
    threads = [Thread(target=work, args=(producer, count // producers)) for producer in made]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    latencies.sort()
    return {
        "seconds": elapsed,
        "transactions": len(latencies),
        "p50_ms": latencies[len(latencies) // 2],
        "p99_ms": latencies[len(latencies) * 99 // 100],
    }


def rdkafka_consume(
    bootstrap: str, topic: str, count: int, size: int, partitions: int = 1
) -> dict[str, float]:
    """Consume *count* messages from the start."""
    consumer = librdkafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "queued.max.messages.kbytes": "200000",
            "queued.min.messages": "1000000",
            "fetch.message.max.bytes": "8000000",
            "fetch.max.bytes": "50000000",
            "check.crcs": "false",
        },
        topic,
    )
    elapsed, got = consumer.consume(count, partitions)
    consumer.close()
    return {"seconds": elapsed, "messages": got, "bytes": got * size}


def rdkafka_latency(
    bootstrap: str, topic: str, count: int, size: int, acks: str = "1"
) -> dict[str, float]:
    """Produce 500 messages per second; return latencies from produce to acknowledgement, in ms."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 0})
    latencies: list[float] = []

    def delivered(error: object, message: Any) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        latencies.append(message.latency() * 1000)

    value = b"x" * size
    producer.list_topics(topic, 10)
    for _ in range(100):
        producer.produce(topic, value, partition=0, on_delivery=lambda *_: None)
        producer.poll(0.002)
    producer.flush(10)
    due = time.monotonic()
    for _ in range(count):
        due += 0.002
        producer.produce(topic, value, partition=0, on_delivery=delivered)
        while (rest := due - time.monotonic()) > 0:
            producer.poll(rest)
    producer.flush(10)
    latencies.sort()
    return {
        "messages": len(latencies),
        "p50_ms": latencies[len(latencies) // 2],
        "p99_ms": latencies[int(len(latencies) * 0.99)],
    }


LOADS: dict[str, Callable[..., dict[str, float]]] = {
    "rdkafka-produce": rdkafka_produce,
    "rdkafka-consume": rdkafka_consume,
    "rdkafka-latency": rdkafka_latency,
    "rdkafka-produce-all": partial(rdkafka_produce, acks="all"),
    "rdkafka-latency-all": partial(rdkafka_latency, acks="all"),
    "rdkafka-transactions-1": rdkafka_transactions,
    "rdkafka-transactions-8": partial(rdkafka_transactions, producers=8),
    "confluent-kafka-produce": client_loads.confluent_produce,
    "confluent-kafka-consume": client_loads.confluent_consume,
    "confluent-kafka-loop-produce": client_loads.confluent_loop_produce,
    "confluent-kafka-loop-consume": client_loads.confluent_loop_consume,
    "aiokafka-produce": client_loads.aiokafka_produce,
    "aiokafka-consume": client_loads.aiokafka_consume,
    "kafka-python-produce": client_loads.kafka_python_produce,
    "kafka-python-consume": client_loads.kafka_python_consume,
    "kclient-produce": client_loads.kclient_produce,
    "kclient-consume": client_loads.kclient_consume,
    "kclient-loop-produce": client_loads.kclient_produce,
    "kclient-columns-produce": client_loads.kclient_columns_produce,
    "kclient-loop-consume": client_loads.kclient_loop_consume,
    "kclient-arrow-consume": client_loads.kclient_arrow_consume,
}


def main() -> None:
    """Run the load of the command line and print its figures."""
    name, bootstrap, topic, *numbers = sys.argv[1:]
    print(json.dumps(LOADS[name](bootstrap, topic, *map(int, numbers))))


if __name__ == "__main__":
    main()
