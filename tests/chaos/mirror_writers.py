"""Producers of a mirrored pair of clusters: they go to the other cluster when theirs has become read-only."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.chaos.client_thread import ClientThread
from tests.chaos.recorder import Recorder

LIFETIME = 20.0
"""Mean seconds that a writer uses one producer."""
DELIVERY_TIMEOUT_MS = 60_000
REQUEST_TIMEOUT_MS = 5_000
KINDS = (("none", True), ("gzip", False), ("snappy", True), ("lz4", False), ("zstd", True))
"""Of each writer the codec, and whether it is idempotent. All have acks=all."""

Place = tuple[str, int]
"""A topic and a partition."""


class Written(NamedTuple):
    """An acknowledged record: the cluster that acknowledged it, and its value."""

    cluster: str
    value: bytes


class Ledger:
    """What was acknowledged, of all writers. Thread-safe."""

    def __init__(self) -> None:
        self.written: dict[Place, dict[int, Written]] = defaultdict(dict)
        self.placeless: dict[Place, list[Written]] = defaultdict(list)
        """Records with an unknown offset: the response to a retry was DUPLICATE_SEQUENCE_NUMBER."""
        self.twice: list[str] = []
        """Offsets that were acknowledged for two records."""
        self.refusals: Counter[str] = Counter()
        """Per error, how many records were not acknowledged."""
        self.alone: dict[Place, dict[int, Written]] = defaultdict(dict)
        """What a lost cluster acknowledged at offsets that the other one did not receive: see `lose`."""
        self._lost: tuple[str, Mapping[Place, int]] | None = None
        self._lock = threading.Lock()

    def lose(self, cluster: str, ends: Mapping[Place, int]) -> None:
        """From now on, and before, what *cluster* acknowledges at or behind *ends* is its own alone."""
        with self._lock:
            self._lost = cluster, ends
            for place, written in self.written.items():
                for offset in [n for n, one in written.items() if self._is_alone(place, n, one)]:
                    self.alone[place][offset] = written.pop(offset)

    def _is_alone(self, place: Place, offset: int, written: Written) -> bool:
        if self._lost is None:
            return False
        cluster, ends = self._lost
        return written.cluster == cluster and offset >= ends.get(place, 0)

    def found(self) -> None:
        """The lost cluster has become a mirror: what it acknowledges later is in both."""
        with self._lock:
            self._lost = None

    def acknowledged(self, place: Place, offset: int | None, written: Written) -> None:
        """Note one record."""
        with self._lock:
            if offset is None:
                self.placeless[place].append(written)
                return
            if self._is_alone(place, offset, written):
                self.alone[place][offset] = written
                return
            before = self.written[place].setdefault(offset, written)
        if before != written:
            self.twice.append(f"{place[0]}-{place[1]}@{offset}: {before} and {written}")

    @property
    def records(self) -> int:
        """How many records were acknowledged."""
        with self._lock:
            every = [*self.written.values(), *self.placeless.values()]
            return sum(len(each) for each in every)

    def at(self, cluster: str) -> int:
        """Return how many records *cluster* acknowledged."""
        with self._lock:
            return sum(
                one.cluster == cluster for each in self.written.values() for one in each.values()
            )


class MirrorWriter(ClientThread):
    """Produces about *rate* records a second to *places* of the cluster *at*, with one producer after another."""

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        ledger: Ledger,
        bootstraps: Mapping[str, str],
        places: Callable[[], Sequence[Place]],
        *,
        at: str,
        codec: str,
        idempotent: bool,
        rate: float,
        seed: int,
    ) -> None:
        super().__init__(name, recorder, seed=seed)
        self.at = at
        self._ledger = ledger
        self._bootstraps = bootstraps
        self._places = places
        self._rate = rate
        self._written = 0
        self._settings: dict[str, Any] = {
            "acks": "all",
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "linger.ms": 20,
            "log_level": 0,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 2000,
        }

    def run_client(self) -> None:
        """Produce until the producer has had its time, or its cluster refuses it."""
        over = _Over()
        at = self.at
        producer = Producer({**self._settings, "bootstrap.servers": self._bootstraps[at]})
        until = time.monotonic() + 3 + self._chance.expovariate(1 / LIFETIME)
        while (
            not (self._ending.is_set() or over.reason or self.at != at) and time.monotonic() < until
        ):
            self._produce(producer, at, over)
            with suppress(KafkaException):  # a fatal one reaches `delivered`, too
                producer.poll(self._chance.uniform(0.5, 1.5) / self._rate)
        producer.flush(DELIVERY_TIMEOUT_MS / 1000 if self._ending.is_set() else 10)
        producer.purge()
        producer.flush(1)
        if over.reason == "POLICY_VIOLATION" and self.at == at:
            self.at = next(name for name in self._bootstraps if name != at)
            time.sleep(0.5)

    def _produce(self, producer: Producer, cluster: str, over: _Over) -> None:
        chance, places = self._chance, self._places()
        if not places:
            return
        topic, partition = place = chance.choice(places)
        self._written += 1
        value = f"{self.name}-{self._written}-".encode() + _filling(chance)

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                self._ledger.acknowledged(place, message.offset(), Written(cluster, value))
                return
            self._ledger.refusals[error.name()] += 1
            if error.fatal() or error.name() in ("POLICY_VIOLATION", "_FATAL"):
                over.reason = error.name()

        headers: Any = {"n": str(self._written)} if chance.random() < 0.2 else None
        key = None if chance.random() < 0.3 else str(chance.randrange(50))
        try:
            producer.produce(
                topic, value, key, partition=partition, headers=headers, on_delivery=delivered
            )
        except (BufferError, KafkaException) as error:
            over.reason = str(error)


class _Over:
    """Why a producer is not to be used any more; "" as long as it may be."""

    reason = ""


def _filling(chance: random.Random) -> bytes:
    """Return some bytes, a part of which compresses; rarely many."""
    size = 20_000 if chance.random() < 0.01 else chance.randrange(300)
    return chance.randbytes(size // 4) + b"." * size
