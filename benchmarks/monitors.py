"""Monitors of a cluster during operations, each a process: `python -m benchmarks.monitors NAME ARGS`.

A monitor prints READY when it has started, and one JSON object when its stdin is closed.

    stall TOPIC PORT ...          small produces and fetches, one partition per broker: their latencies
    leaders TOPIC COUNT PORT ...  polls every few ms which broker leads each partition: the longest time without a
    leader
    steady TOPIC COUNT BOOTSTRAP  idempotent acks=all produces to COUNT partitions: failures, the longest delivery
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.plain_client import PlainClient, small_batch

STALL_EVERY_S = 0.01
LEADERS_EVERY_S = 0.01
STEADY_RATE = 200


class Monitor:
    """A running monitor; `end` returns its figures."""

    def __init__(self, name: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.monitors", name, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.strip() != b"READY":
            self._process.kill()
            raise RuntimeError(f"the monitor {name} did not start")

    def end(self) -> dict[str, float]:
        """Stop it; return its figures."""
        output, _ = self._process.communicate(b"", 60)
        figures: dict[str, float] = json.loads(output.splitlines()[-1])
        return figures


def percentile(values: list[float], part: float) -> float:
    """Return the value below which *part* of the sorted *values* lie; 0 for no values."""
    return values[min(int(len(values) * part), len(values) - 1)] if values else 0.0


class _Threads:
    """A loop per broker, until stdin is closed. A broker that is down, or returns errors, is retried."""

    def __init__(self, ports: list[int], every: float) -> None:
        self.ended = threading.Event()
        self._every = every
        self._threads = [
            threading.Thread(target=self._loop, args=(index, port), daemon=True)
            for index, port in enumerate(ports)
        ]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        print("READY", flush=True)
        sys.stdin.read()
        self.ended.set()
        for thread in self._threads:
            thread.join(5)

    def _loop(self, index: int, port: int) -> None:
        broker: PlainClient | None = None
        while not self.ended.wait(self._every):
            try:
                broker = broker or PlainClient(port)
                self.measure(index, broker)
            except (OSError, RuntimeError):
                if broker is not None:
                    broker.close()
                broker = None
                self.broker_lost(index)

    def measure(self, index: int, broker: PlainClient) -> None:
        """Send one request."""
        raise NotImplementedError

    def broker_lost(self, index: int) -> None:
        """Handle a broker that does not answer."""


class _Stall(_Threads):
    def __init__(self, topic: str, ports: list[int]) -> None:
        super().__init__(ports, STALL_EVERY_S)
        self._topic = topic
        self._batch = small_batch()
        self.produces: list[float] = []
        self.fetches: list[float] = []
        self.longest = (0.0, 0.0, 0)
        """(ms, start by the machine's monotonic clock, broker) of each request."""

    def measure(self, index: int, broker: PlainClient) -> None:
        began = time.monotonic()
        offset = broker.produce(self._topic, index, self._batch)
        middle = time.monotonic()
        broker.fetch(self._topic, index, offset)
        ended = time.monotonic()
        for taken, since, until in (
            (self.produces, began, middle),
            (self.fetches, middle, ended),
        ):
            took = (until - since) * 1000
            taken.append(took)
            self.longest = max(self.longest, (took, since, index))


def stall(topic: str, *ports: str) -> dict[str, float]:
    """Measure the latencies of small requests, in ms."""
    watch = _Stall(topic, [int(port) for port in ports])
    watch.run()
    both = sorted(watch.produces + watch.fetches)
    return {
        "count": len(both),
        "p50_ms": percentile(both, 0.5),
        "p99_ms": percentile(both, 0.99),
        "max_ms": both[-1] if both else 0.0,
        "longest_began": watch.longest[1],
        "longest_at": watch.longest[2],
    }


class _Leaders(_Threads):
    def __init__(self, topic: str, count: int, ports: list[int]) -> None:
        super().__init__(ports, LEADERS_EVERY_S)
        self._topic = topic
        self._partitions = list(range(count))
        self._led: list[set[int]] = [set() for _ in ports]
        self._lock = threading.Lock()
        self._seen: set[int] = set()
        self.since: dict[int, float] = {}
        """The time at which a partition was first seen without its leader."""
        self.gaps: list[float] = []

    def measure(self, index: int, broker: PlainClient) -> None:
        self._take(index, broker.led(self._topic, self._partitions))

    def broker_lost(self, index: int) -> None:
        self._take(index, set())

    def _take(self, index: int, led: set[int]) -> None:
        with self._lock:
            now = time.monotonic()
            self._led[index] = led
            anywhere = set().union(*self._led)
            for partition in self.since.keys() & anywhere:
                self.gaps.append((now - self.since.pop(partition)) * 1000)
            self._seen |= anywhere
            for partition in self._seen - anywhere:
                self.since.setdefault(partition, now)


def leaders(topic: str, count: str, *ports: str) -> dict[str, float]:
    """Measure how long a partition had no leader, in ms."""
    watch = _Leaders(topic, int(count), [int(port) for port in ports])
    watch.run()
    gaps = sorted(watch.gaps)
    return {
        "count": len(gaps),
        "p50_ms": percentile(gaps, 0.5),
        "max_ms": gaps[-1] if gaps else 0.0,
        "leaderless": len(watch.since),
    }


def steady(topic: str, count: str, bootstrap: str) -> dict[str, float]:
    """Produce STEADY_RATE messages per second; count failures and measure delivery times in ms."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    partitions = int(count)
    latencies: list[float] = []
    failures: list[str] = []

    def delivered(error: object, message: Any) -> None:
        if error is not None:
            failures.append(str(error))
        else:
            latencies.append(message.latency() * 1000)

    producer.list_topics(topic, 10)
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    reader = threading.Thread(target=wait_for_the_end, daemon=True)
    print("READY", flush=True)
    reader.start()
    due, sent = time.monotonic(), 0
    while not ended.is_set():
        producer.produce(topic, bytes(100), partition=sent % partitions, on_delivery=delivered)
        sent += 1
        due += 1 / STEADY_RATE
        while (rest := due - time.monotonic()) > 0:
            producer.poll(rest)
        producer.poll(0)
    undelivered = producer.flush(30)
    latencies.sort()
    return {
        "sent": sent,
        "failed": len(failures) + undelivered,
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
        "max_ms": latencies[-1] if latencies else 0.0,
    }


MONITORS: dict[str, Callable[..., dict[str, float]]] = {
    "stall": stall,
    "leaders": leaders,
    "steady": steady,
}


def main() -> None:
    """Run the monitor of the command line and print its figures."""
    name, *arguments = sys.argv[1:]
    print(json.dumps(MONITORS[name](*arguments)), flush=True)


if __name__ == "__main__":
    main()
