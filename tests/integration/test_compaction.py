"""Brokers compact the logs of topics with cleanup.policy=compact, through kill -9 and over damage (S34)."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from kclient.wire.batches import iterate
from kclient.wire.records import decode_batch
from tests.integration.test_mirror_transactions import ONE_BROKER, transactional
from tests.kit.brokers import Broker, Cluster, MakeCluster
from tests.kit.kaudit import kaudit, reconciled
from tests.kit.logs import open_log, read_bytes
from tests.kit.mirrored_clusters import making_mirrors
from tests.kit.mirrors import stored
from tests.kit.reactor_turns import TURN_MS, longest_turn, note_turns
from tests.kit.replicated import Observer, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

BROKER = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.retention.check.interval.ms": "300",
}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "16384",
    "min.cleanable.dirty.ratio": "0.01",
}
VALUE_BYTES = 100
AUDITS = int(os.environ.get("KBROKER_AUDITS", "3"))
"""How many audits a test makes while both logs change: design 4.6 has 20."""


class Written(NamedTuple):
    """A record that was acknowledged."""

    offset: int
    key: bytes
    value: bytes | None


class Writes:
    """Writes to partition 0 of a topic, and keeps what was acknowledged."""

    def __init__(self, cluster: Cluster, topic: str, *, idempotence: bool = True) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": idempotence,
                "linger.ms": 2,
                "batch.size": 4000,  # several batches in a segment
                "log_level": 0,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self.acknowledged: list[Written] = []
        self._number = 0

    def put(self, key: str, *, is_tombstone: bool = False, timestamp: int = 0) -> None:
        """Send a record; the value has a number that no other has."""
        self._number += 1
        value = None if is_tombstone else b"%d " % self._number + b"." * VALUE_BYTES
        encoded = key.encode()

        def delivered(error: KafkaError | None, message: object) -> None:
            if error is None:
                offset = message.offset()  # type: ignore[attr-defined]
                self.acknowledged.append(Written(offset, encoded, value))

        given = {"timestamp": timestamp} if timestamp else {}
        self._producer.produce(
            self._topic, value, encoded, partition=0, on_delivery=delivered, **given
        )
        self._producer.poll(0)

    def put_rounds(self, rounds: int, keys: int) -> None:
        """Send *rounds* records for each of *keys* keys, and one of a new key after each round."""
        for _ in range(rounds):
            for key in range(keys):
                self.put(f"key-{key}")
            self.put(f"once-{self._number}")
        self.flush()

    def flush(self) -> None:
        """Wait until all is acknowledged."""
        assert self._producer.flush(60) == 0

    def last(self) -> dict[bytes, Written]:
        """Return the last record of each key."""
        return {each.key: each for each in sorted(self.acknowledged)}


def read_all(bootstrap: str, topic: str, *, begin: int = OFFSET_BEGINNING) -> list[Written]:
    """Consume partition 0 from offset *begin* to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, begin)])
    found = []
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            problem = message.error()
            if problem is None:
                found.append(Written(message.offset(), message.key(), message.value()))
            elif problem.code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()
    raise AssertionError(f"{topic}-0 was not read to its end")


def check(found: list[Written], writes: Writes) -> None:
    """Check that the last record of each key is there, and that nothing was invented or moved."""
    offsets = [each.offset for each in found]
    assert offsets == sorted(set(offsets))
    written = set(writes.acknowledged)
    assert [each for each in found if each not in written] == []
    last = writes.last()
    missing = [each for each in last.values() if each not in found and each.value is not None]
    assert missing == []


def compacted_to(broker: Broker, name: str) -> int:
    """Return the first dirty offset of a partition, by the broker's log lines; -1 without one."""
    lines = [line for line in broker.log.splitlines() if f"compacted {name} up to offset" in line]
    return int(lines[-1].split("up to offset ")[1].split(":")[0]) if lines else -1


def wait_until_compacted(broker: Broker, name: str, offset: int = 1) -> None:
    eventually(
        f"{name} compacted on broker {broker.broker_id}",
        lambda: compacted_to(broker, name) >= offset,
        30,
    )


def cleaners() -> Iterator[tuple[int, int]]:
    """Yield the ids of the cleaner processes of this machine, and of their parents."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
                state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if b"kbroker.log.cleaner_process" in command and state != "Z":
                yield int(process.name), int(parent)


def cleaners_of(broker: Broker) -> list[int]:
    return [pid for pid, parent in cleaners() if parent == broker.pid]


def test_a_broker_compacts_and_its_cleaner_ends_with_it(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(1, BROKER)
    observer = Observer(cluster)
    observer.create("t", [[1]], {**COMPACTED, "delete.retention.ms": "500"})
    observer.create("plain", [[1]], {"segment.bytes": "16384"})
    writes, plain = Writes(cluster, "t"), Writes(cluster, "plain")
    assert not cleaners_of(cluster[1]), "no process before the first round"
    plain.put_rounds(10, 50)
    writes.put_rounds(20, 50)
    for key in range(10):
        writes.put(f"key-{key}", is_tombstone=True)
    for number in range(400):  # the tombstones are not in the active segment
        writes.put(f"other-{number % 40}")
    writes.flush()
    wait_until_compacted(cluster[1], "t-0", 1010)
    found = read_all(cluster.bootstrap, "t")
    check(found, writes)
    assert len(found) < 500, "1430 were written, of 110 keys"
    assert len(read_all(cluster.bootstrap, "plain")) == 510
    pids = cleaners_of(cluster[1])
    assert len(pids) == 1

    def without_tombstones() -> bool:
        for number in range(200):
            writes.put(f"other-{number % 40}")
        writes.flush()
        return all(each.value is not None for each in read_all(cluster.bootstrap, "t"))

    eventually("the tombstones to be gone", without_tombstones, 30)
    check(read_all(cluster.bootstrap, "t"), writes)

    cluster.kill(1)
    eventually("the end of the process", lambda: not set(pids) & {pid for pid, _ in cleaners()})
    cluster.start()
    check(read_all(cluster.bootstrap, "t"), writes)
    writes.put_rounds(20, 50)
    wait_until_compacted(cluster[1], "t-0", len(writes.acknowledged) - 200)
    pids = cleaners_of(cluster[1])
    assert len(pids) == 1
    cluster.terminate(1)
    assert not set(pids) & {pid for pid, _ in cleaners()}
    checkpoint = (cluster[1].data / "cleaner-offset-checkpoint").read_text()
    assert f"t 0 {compacted_to(cluster[1], 't-0')}" in checkpoint


def on_disk(broker: Broker, name: str) -> list[Written]:
    """Return the records of a partition in the log directory of a broker that does not run."""
    log = open_log(broker.data / name, segment_bytes=int(COMPACTED["segment.bytes"]))
    found = []
    offset = log.log_start_offset
    while data := read_bytes(log, offset):
        for info in iterate(data):
            found += [Written(r.offset, r.key or b"", r.value) for r in decode_batch(data, info)]
            offset = info.next_offset
    log.close(clean=False)
    return found


def holes(found: list[Written]) -> int:
    """Return how many offsets between the first and the last record have none."""
    return found[-1].offset - found[0].offset + 1 - len(found)


def test_a_follower_that_was_away_catches_up_over_holes(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(3, BROKER)
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3]], COMPACTED)
    writes = Writes(cluster, "t")
    writes.put_rounds(8, 50)
    for was_emptied in (False, True):
        cluster.kill(3)
        before = len(writes.acknowledged)
        writes.put_rounds(16, 50)
        for leader_or_follower in (1, 2):
            wait_until_compacted(cluster[leader_or_follower], "t-0", before + 600)
        if was_emptied:
            shutil.rmtree(cluster[3].data)
        cluster.start(3)
        observer.in_sync("t", 0, [1, 2, 3])
    cluster.terminate(1, 2)
    eventually("broker 3 to lead", lambda: observer.placement("t").leader == 3)
    found = read_all(cluster[3].address, "t")
    check(found, writes)
    assert holes(found) > 1000
    # A client may be at an offset that is gone.
    hole = next(n.offset + 1 for n, m in pairwise(found) if m.offset > n.offset + 1)
    assert read_all(cluster[3].address, "t", begin=hole) == [n for n in found if n.offset >= hole]
    cluster.terminate(3)
    for broker_id in (1, 2, 3):
        check(on_disk(cluster[broker_id], "t-0"), writes)


def test_s34_brokers_that_are_killed_while_they_compact_lose_and_invent_nothing(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(
        3,
        {
            **BROKER,
            "log.cleaner.backoff.ms": "100",
            "log.cleaner.io.max.bytes.per.second": "150000",
            "min.insync.replicas": "2",
            "replica.high.watermark.checkpoint.interval.ms": "500",
        },
    )
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3]], COMPACTED)
    writes = Writes(cluster, "t")
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.wait(0.005):
            for _ in range(5):
                number += 1
                key = f"once-{number}" if number % 37 == 0 else f"key-{number % 150}"
                writes.put(key, is_tombstone=number % 31 == 0)

    writer = threading.Thread(target=write)
    writer.start()
    kills: Counter[str] = Counter()
    deadline = time.monotonic() + 60
    try:
        while sum(kills.values()) < 8 and time.monotonic() < deadline:
            broker_id = sum(kills.values()) % 3 + 1
            name = being_replaced(cluster[broker_id], "t-0")
            if not name:
                continue
            cluster.kill(broker_id)
            kills[name.split(".", 1)[1]] += 1
            cluster.start(broker_id)
            observer.in_sync("t", 0, [1, 2, 3], 30)
    finally:
        is_over.set()
        writer.join()
    assert sum(kills.values()) == 8, kills
    recovered = re.compile("removed an unfinished compaction|completed the compaction")
    assert any(recovered.search(each.log) for each in cluster.brokers.values())
    writes.flush()
    written_meanwhile = len(writes.acknowledged)
    writes.put_rounds(8, 150)
    observer.in_sync("t", 0, [1, 2, 3])
    wait_until_compacted(cluster[observer.placement("t").leader], "t-0", written_meanwhile)
    found = read_all(cluster.bootstrap, "t")
    check(found, writes)
    assert holes(found) > 500, "little was compacted"
    cluster.terminate()
    for broker_id in (1, 2, 3):
        check(on_disk(cluster[broker_id], "t-0"), writes)


def being_replaced(broker: Broker, name: str) -> str:
    """Return the name of a file of a replacement that goes on in a partition's directory; or ""."""
    for path in (broker.data / name).iterdir():
        if path.name.endswith((".log.cleaned", ".log.swap")):
            return path.name
    return ""


def test_compact_and_delete_do_both(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(1, BROKER)
    configs = {**COMPACTED, "cleanup.policy": "compact,delete", "retention.ms": "3600000"}
    Observer(cluster).create("t", [[1]], configs)
    writes = Writes(cluster, "t")
    now_ms = int(time.time() * 1000)
    for number in range(1000):
        writes.put(f"old-{number}", timestamp=now_ms - 2 * 3600_000)
    writes.flush()
    writes.put_rounds(20, 50)
    wait_until_compacted(cluster[1], "t-0", 1800)

    def is_done() -> list[Written]:
        found = read_all(cluster.bootstrap, "t")
        old = sum(each.key.startswith(b"old") for each in found)
        return found if old < 200 and len(found) < 600 else []

    found = eventually("retention", is_done)
    recent = {key: each for key, each in writes.last().items() if key.startswith(b"key")}
    assert set(recent.values()) <= set(found) <= set(writes.acknowledged)
    cluster.terminate()
    start_offsets = (cluster[1].data / "log-start-offset-checkpoint").read_text()
    assert int(start_offsets.split("t 0 ")[1].split()[0]) > 500


def test_a_damaged_partition_is_set_aside_and_named_and_others_are_compacted(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(1, BROKER)
    observer = Observer(cluster)
    never = {**COMPACTED, "min.cleanable.dirty.ratio": "1"}
    observer.create("damaged", [[1]], never)
    observer.create("healthy", [[1]], never)
    damaged, healthy = Writes(cluster, "damaged"), Writes(cluster, "healthy")
    for writes in (damaged, healthy):
        writes.put_rounds(20, 50)
    segments = sorted((cluster[1].data / "damaged-0").glob("*.log"))
    with segments[2].open("r+b") as file:
        file.seek(100)  # within the records of the first batch
        file.write(b"?")
    for topic in ("damaged", "healthy"):
        observer.configure(topic, {"min.cleanable.dirty.ratio": "0.01"})
    wait_until_compacted(cluster[1], "healthy-0")
    aside = "damaged-0 is served, but not compacted until this broker restarts: "
    eventually("the line about it", lambda: aside in cluster[1].log)
    (line,) = [each for each in cluster[1].log.splitlines() if aside in each]
    assert str(segments[2]) in line
    damaged.put_rounds(1, 50)  # it is served
    healthy.put_rounds(20, 50)
    wait_until_compacted(cluster[1], "healthy-0", 1500)
    check(read_all(cluster.bootstrap, "healthy"), healthy)
    assert cluster[1].log.count(aside) == 1
    # Segments before it may have been compacted when those behind them were not synced yet.
    assert compacted_to(cluster[1], "damaged-0") <= int(segments[2].stem)
    assert [each.stat().st_size for each in segments[:2]] != [0, 0]


def test_a_damaged_replica_is_copied_again_when_its_directory_is_moved_away(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    cluster = broker_clusters(2, BROKER)
    observer = Observer(cluster)
    observer.create("t", [[1, 2]], {**COMPACTED, "min.cleanable.dirty.ratio": "1"})
    writes = Writes(cluster, "t")
    writes.put_rounds(20, 50)
    with sorted((cluster[2].data / "t-0").glob("*.log"))[2].open("r+b") as file:
        file.seek(100)
        file.write(b"?")
    observer.configure("t", {"min.cleanable.dirty.ratio": "0.01"})
    wait_until_compacted(cluster[1], "t-0")
    eventually("the line about it", lambda: "t-0 is served, but not compacted" in cluster[2].log)
    cluster.terminate(2)
    (cluster[2].data / "t-0").rename(tmp_path / "aside")
    cluster.start(2)
    observer.in_sync("t", 0, [1, 2])
    writes.put_rounds(10, 50)
    wait_until_compacted(cluster[2], "t-0")
    cluster.terminate(2)
    check(on_disk(cluster[2], "t-0"), writes)


def test_no_turn_of_a_broker_that_compacts_is_long(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    cluster = broker_clusters(1, BROKER, start=False)
    broker = cluster[1]
    note_turns(broker, tmp_path / "turns")
    cluster.start()
    observer = Observer(cluster)
    topics = ("narrow", "wide")
    for topic in topics:
        never = {**COMPACTED, "segment.bytes": "8192", "min.cleanable.dirty.ratio": "1"}
        observer.create(topic, [[1]], never)
    narrow, wide = Writes(cluster, "narrow"), Writes(cluster, "wide")
    narrow.put_rounds(400, 50)
    wide.put_rounds(2, 10_000)
    segments = [len(list((broker.data / f"{topic}-0").glob("*.log"))) for topic in topics]
    assert min(segments) > 250, "two groups of 100 segments, and more"
    time.sleep(1.5)  # until the handlers are made (`RequestPipeline.make_handlers`)
    began = time.monotonic()
    for topic in topics:  # a group has 100 segments: its files are renamed in one turn
        observer.configure(topic, {"segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"})
    while min(compacted_to(broker, f"{topic}-0") for topic in topics) < 1:
        assert time.monotonic() < began + 60, "not compacted within a minute"
        wide.put_rounds(1, 10)  # requests meanwhile
        time.sleep(0.05)
    for topic, writes in zip(topics, (narrow, wide), strict=True):
        directory = broker.data / f"{topic}-0"
        eventually(
            "one segment of each group", lambda at=directory: len(list(at.glob("*.log"))) < 30, 30
        )
        check(read_all(cluster.bootstrap, topic), writes)
    turn, stacks = longest_turn(tmp_path / "turns", began, time.monotonic())
    assert turn <= TURN_MS, stacks


def test_settings_of_the_cleaner_change_while_the_broker_runs(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(1, {**BROKER, "log.cleaner.backoff.ms": "3600000"})
    observer = Observer(cluster)
    observer.create("t", [[1]], COMPACTED)
    writes = Writes(cluster, "t")
    writes.put_rounds(20, 50)
    # Throttled to less than the log in a minute: the round is under way until the rate changes.
    observer.configure_broker(1, {"log.cleaner.io.max.bytes.per.second": "1000.0"})
    assert compacted_to(cluster[1], "t-0") == -1
    observer.configure_broker(1, {"log.cleaner.backoff.ms": "200"})
    (throttled,) = eventually("the cleaner", lambda: cleaners_of(cluster[1]))
    observer.configure_broker(1, {"log.cleaner.io.max.bytes.per.second": "1000000000.0"})
    wait_until_compacted(cluster[1], "t-0")
    assert throttled not in cleaners_of(cluster[1])
    assert "ended early" not in cluster[1].log
    check(read_all(cluster.bootstrap, "t"), writes)
    refused = {"log.cleaner.enable": "false"}
    with pytest.raises(KafkaException, match="dynamically"):
        observer.configure_broker(1, refused)


def test_a_shutdown_does_not_wait_for_a_throttled_round(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(1, {**BROKER, "log.cleaner.io.max.bytes.per.second": "1000"})
    Observer(cluster).create("t", [[1]], COMPACTED)
    writes = Writes(cluster, "t")
    writes.put_rounds(20, 50)
    (pid,) = eventually("the cleaner", lambda: cleaners_of(cluster[1]))
    cluster.terminate(timeout=15)  # the round would take minutes
    assert pid not in {each for each, _ in cleaners()}
    assert compacted_to(cluster[1], "t-0") == -1
    check(on_disk(cluster[1], "t-0"), writes)
    cluster.start(log_cleaner_io_max_bytes_per_second="1e9")
    wait_until_compacted(cluster[1], "t-0")
    check(read_all(cluster.bootstrap, "t"), writes)


@pytest.mark.timeout(300)
def test_a_mirror_copies_the_holes_and_the_audit_finds_no_violation(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east = broker_clusters(1, BROKER)
    west = broker_clusters(1, {**BROKER, "log.cleaner.enable": "false"})
    Observer(east).create("t", [[1]], COMPACTED)
    writes = Writes(east, "t")
    writes.put_rounds(30, 50)
    wait_until_compacted(east[1], "t-0", 1300)
    with making_mirrors(tmp_path, east, west) as make:
        mirror = make()
        mirror.start()
        for _ in range(2):
            writes.put_rounds(15, 50)
            eventually("the copy", lambda: covers(west, writes))
            mirror.kill()
            writes.put_rounds(15, 50)
            wait_until_compacted(east[1], "t-0", len(writes.acknowledged) - 200)
            mirror.start()
        eventually("the copy", lambda: covers(west, writes))
        assert mirror.stop() == 0, mirror.output
        copied = read_all(west.bootstrap, "t")
        check(copied, writes)
        assert 1000 < holes(copied) < holes(read_all(east.bootstrap, "t"))
        audited(east, west, tmp_path / "one")
        # Both sides compact from now on, each on its own.
        west.terminate()
        west.start(log_cleaner_enable="true")
        wait_until_compacted(west[1], "t-0", len(writes.acknowledged) - 200)
        check(read_all(west.bootstrap, "t"), writes)
        assert len(read_all(west.bootstrap, "t")) < len(copied)
        writes.put_rounds(5, 50)
        assert mirror.run_once() == 0, mirror.output
        check(read_all(west.bootstrap, "t"), writes)
        audited(east, west, tmp_path / "two")


class Load:
    """Writes to three topics of a cluster until it ends, each in a way of its own.

    `t` is compacted and has tombstones; its producer is idempotent. Retention deletes the start of `retained`; its
    producer is not idempotent. `paid` has transactions, of which a third is aborted.
    """

    def __init__(self, cluster: Cluster) -> None:
        observer = Observer(cluster)
        observer.create("t", [[1]], COMPACTED)
        observer.create("retained", [[1]], {"segment.bytes": "16384", "retention.bytes": "65536"})
        observer.create("paid", [[1]], {"segment.bytes": "16384"})
        self.compacted = Writes(cluster, "t")
        self._retained = Writes(cluster, "retained", idempotence=False)
        self._cluster = cluster
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(2)
        self._ends: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._ends = [self._threads.submit(each) for each in (self._write, self._pay)]
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for each in self._ends:
            each.result(30)
        self._threads.shutdown()
        self.compacted.flush()
        self._retained.flush()

    def _write(self) -> None:
        number = 0
        while not self._is_over.wait(0.01):
            number += 1
            self.compacted.put(f"key-{number % 150}", is_tombstone=number % 31 == 0)
            self._retained.put(f"key-{number % 150}")

    def _pay(self) -> None:
        producer = transactional(self._cluster, "payer")
        number = 0
        while not self._is_over.wait(0.05):
            for _ in range(5):
                number += 1
                producer.produce("paid", b"%d" % number, b"key-%d" % (number % 20))
            if number % 3:
                producer.commit_transaction(20)
            else:
                producer.abort_transaction(20)
            producer.begin_transaction()
        producer.commit_transaction(20)


def first_offset(cluster: Cluster, topic: str) -> int:
    """Return where the first segment of partition 0 begins."""
    segments = (cluster[1].data / f"{topic}-0").glob("*.log")
    return min((int(each.stem) for each in segments), default=0)


@pytest.mark.timeout(1200 if AUDITS > 4 else 300)
def test_audits_while_both_logs_are_written_compacted_and_deleted_find_no_difference(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    """What compaction, retention and open transactions change meanwhile is explained, or out of scope."""
    east, west = broker_clusters(1, {**BROKER, **ONE_BROKER}), broker_clusters(1, BROKER)
    load = Load(east)
    load.compacted.put_rounds(30, 50)
    verdicts: Counter[str] = Counter()
    with making_mirrors(tmp_path, east, west) as make:
        # A source that deletes what was not copied yet is no fault, either: its gap is in the ledger.
        mirror = make({"gap.policy": "skip"})
        mirror.start()
        wait_until_compacted(west[1], "t-0", 1000)
        with load:
            eventually("retention", lambda: first_offset(west, "retained") > 0, 60)
            before = [
                (compacted_to(c[1], "t-0"), first_offset(c, "retained")) for c in (east, west)
            ]
            for number in range(AUDITS):
                _, report = reconciled(east, west, "t|retained|paid", tmp_path / f"audit-{number}")
                found = {name: n for name, n in report["totals"]["findings"].items() if n}
                assert found == {}, (number, report["verdict"])
                verdicts[report["verdict"]] += 1
            after = [(compacted_to(c[1], "t-0"), first_offset(c, "retained")) for c in (east, west)]
        for topic in ("t", "retained", "paid"):
            eventually("the copy", lambda: stored(west, topic)[-1:] == stored(east, topic)[-1:])  # noqa: B023
        assert mirror.stop() == 0, mirror.output
    assert verdicts.keys() <= {"CONSISTENT", "LAGGING", "INCOMPLETE"}, verdicts
    for earlier, later in zip(before, after, strict=True):
        assert later[0] > earlier[0], "no log was compacted meanwhile"
        assert later[1] > earlier[1], "retention deleted nothing meanwhile"
    code, report = reconciled(east, west, "t|paid", tmp_path / "end", "--complete")
    assert (code, report["verdict"]) == (0, "CONSISTENT")
    assert report["read_committed"]["undecided_offsets"] == 0
    check(read_all(west.bootstrap, "t"), load.compacted)


def covers(cluster: Cluster, writes: Writes) -> bool:
    """Return whether the end of a copy is that of the source."""
    return read_all(cluster.bootstrap, "t")[-1:] == sorted(writes.acknowledged)[-1:]


def audited(source: Cluster, target: Cluster, out: Path) -> None:
    """Compare the clusters; what only one of them has was compacted in the other."""
    result = kaudit(
        "reconcile",
        *("--source", source.bootstrap, "--target", target.bootstrap),
        *("--topics", "t", "--out", str(out)),
    )
    assert result.exit_code == 0, result.output
