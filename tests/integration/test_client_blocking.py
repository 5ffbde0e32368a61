"""The blocking clients against real brokers: use in scripts, and failures."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from kclient import (
    AdminClient,
    BootstrapError,
    Consumer,
    KafkaTimeoutError,
    Producer,
    RecordMetadata,
    TopicPartition,
)
from kclient.errors import BufferExhausted, Cause, ClientClosed, RowsNotAcknowledged
from kclient.wire.errors import UnknownTopicOrPartition
from kclient.wire.records import Record, encode_batch
from tests.kit.brokers import Cluster, MakeCluster

pytestmark = pytest.mark.slow
QUICK = {"default.api.timeout.ms": 15_000, "max.block.ms": 15_000}


def make_topic(cluster: Cluster, name: str, partitions: int = 1, **configs: str) -> None:
    with AdminClient(QUICK, bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics({name: {"num_partitions": partitions, "configs": configs}})
        admin.wait_for_topics([name])


def read_all(cluster: Cluster, topic: str, partitions: int = 1) -> list[list[bytes]]:
    """Return the values of each partition, from its beginning to its end."""
    tps = [TopicPartition(topic, p) for p in range(partitions)]
    found: dict[TopicPartition, list[bytes]] = {tp: [] for tp in tps}
    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        consumer.assign(tps)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(tps)
        deadline = time.monotonic() + 20
        while any(consumer.position(tp) < ends[tp] for tp in tps):
            assert time.monotonic() < deadline, "reading takes too long"
            for tp, records in consumer.poll(timeout=0.5).items():
                found[tp] += [record.value for record in records]
    return [found[tp] for tp in tps]


def run_script(text: str, *arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_sent_is_read_back_whatever_the_codec(
    broker_clusters: MakeCluster, codec: str
) -> None:
    cluster = broker_clusters()
    make_topic(cluster, "t")
    headers = [("a", b"1"), ("a", None), ("é", b"")]
    with Producer(QUICK, bootstrap_servers=cluster.bootstrap, compression_type=codec) as producer:
        sent = [
            producer.send(
                "t",
                None if i % 7 == 0 else b"v%d" % i * 50,
                None if i % 5 == 0 else b"k%d" % i,
                headers=headers,
                timestamp_ms=1_700_000_000_000 + i,
            )
            for i in range(300)
        ]
        _, late = wait(sent, timeout=15)
        assert not late
        assert [future.result().offset for future in sent] == list(range(300))
    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        records = []
        deadline = time.monotonic() + 15
        while len(records) < 300:
            assert time.monotonic() < deadline
            records += [r for found in consumer.poll(timeout=0.5).values() for r in found]
    for i, record in enumerate(records):
        assert record.offset == i
        assert record.value == (None if i % 7 == 0 else b"v%d" % i * 50)
        assert record.key == (None if i % 5 == 0 else b"k%d" % i)
        assert record.timestamp == 1_700_000_000_000 + i
        assert list(record.headers) == headers


def test_acknowledged_records_are_there_once_and_in_order_though_brokers_are_killed(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(2)
    make_topic(cluster, "t", partitions=4)
    with Producer(
        QUICK, bootstrap_servers=cluster.bootstrap, request_timeout_ms=3000, linger_ms=2
    ) as producer:
        sent = []
        for i in range(12_000):
            sent.append(producer.send("t", b"%08d" % i, partition=i % 4))
            if i in (3000, 7000):
                cluster.kill(1 if i == 3000 else 2)
                time.sleep(0.3)
                cluster.start(1 if i == 3000 else 2, wait=False)
            if i % 100 == 0:
                time.sleep(0.01)
        assert producer.flush(60) == 0
    offsets = [future.result() for future in sent]
    for partition, values in enumerate(read_all(cluster, "t", 4)):
        assert values == [b"%08d" % i for i in range(partition, 12_000, 4)]
        mine = [where.offset for where in offsets if where.partition == partition]
        assert all(offset in (n, -1) for n, offset in enumerate(mine))


def test_columns_wait_for_memory_in_the_callers_thread_though_the_broker_is_killed(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters()
    make_topic(cluster, "t", partitions=2)
    rows = [b"%08d" % i for i in range(20_000)]
    small: dict[str, Any] = {"buffer_memory": 50_000, "batch_size": 5000, "linger_ms": 0}
    with Producer(QUICK, bootstrap_servers=cluster.bootstrap, **small) as producer:
        cluster.kill(1)
        restarting = threading.Timer(0.5, cluster.start, (1,), {"wait": False})
        restarting.start()
        sent = producer.send_columns("t", rows, partition=1)
        assert restarting.finished.is_set(), "the rows did not wait"
        last = producer.send("t", b"last", partition=1)
        assert sent.result(60).row_count == 20_000
        assert last.result(60).offset in (20_000, -1)
        restarting.join()
    assert read_all(cluster, "t", 2) == [[], [*rows, b"last"]]
    with Producer(
        QUICK, bootstrap_servers=cluster.bootstrap, max_block_ms=300, **small
    ) as producer:
        producer.partitions_for("t")
        cluster.kill(1)
        sent = producer.send_columns("t", rows, partition=0)
        producer.close(0)
        problem = sent.exception(60)
        assert isinstance(problem, RowsNotAcknowledged)
        assert list(problem.rows) == list(range(20_000))


def test_whole_batches_pass_through_unchanged_and_in_order(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters()
    make_topic(cluster, "t")
    batch = encode_batch([Record(0, 5, b"k", b"v%d" % i) for i in range(10)], codec=4)
    with Producer(QUICK, bootstrap_servers=cluster.bootstrap) as producer:
        assert producer.send_batch_bytes("t", 0, memoryview(batch)) == 0
        assert producer.send_batch_bytes("t", 0, memoryview(batch)) == 10
    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        found = consumer.poll_batches(timeout=5)[TopicPartition("t", 0)]
    assert [info.record_count for info, _ in found] == [10] * len(found)


def test_when_no_broker_is_reached_the_error_has_the_cause_for_each_address() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        closed_port = listening.getsockname()[1]
    with (
        pytest.raises(BootstrapError) as caught,
        Producer(bootstrap_servers=f"no-such-host.invalid:9092,127.0.0.1:{closed_port}"),
    ):
        pass
    assert [attempt.cause for attempt in caught.value.attempts] == [Cause.DNS, Cause.REFUSED]
    assert f"127.0.0.1:{closed_port}: connection refused" in str(caught.value)


def test_a_port_that_is_not_kafkas_is_named_as_such() -> None:
    server = subprocess.Popen(
        [
            sys.executable,
            "-u",
            "-c",
            "import socket\ns = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1])\n"
            "c, _ = s.accept()\nc.recv(100)\nc.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n')\ninput()",
        ],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        with pytest.raises(BootstrapError, match="not a Kafka port"):
            AdminClient(bootstrap_servers=f"127.0.0.1:{port}").start()
    finally:
        server.communicate("\n", timeout=5)


def test_a_topic_that_does_not_exist_fails_the_send_within_max_block(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(1, {"auto.create.topics.enable": "false"})
    with Producer(bootstrap_servers=cluster.bootstrap, max_block_ms=1000) as producer:
        began = time.monotonic()
        with pytest.raises(UnknownTopicOrPartition, match="'nope'"):
            producer.send("nope", b"v")
        assert time.monotonic() - began < 5


def test_a_stopped_broker_fills_the_memory_then_sends_are_refused_then_all_arrives(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters()
    make_topic(cluster, "t")
    with Producer(
        bootstrap_servers=cluster.bootstrap,
        buffer_memory=100_000,
        batch_size=10_000,
        max_block_ms=500,
    ) as producer:
        producer.send_and_wait("t", b"first")
        cluster.pause(1)
        accepted: list[Future[RecordMetadata]] = []

        def send_until_refused() -> None:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                accepted.append(producer.send("t", b"x" * 1000))

        with pytest.raises(BufferExhausted, match=r"buffer\.memory"):
            send_until_refused()
        assert len(accepted) > 50
        assert producer.flush(0.2) == len(accepted)
        cluster.resume(1)
        assert producer.flush(20) == 0
        assert all(future.result().offset > 0 for future in accepted)


def test_a_broker_that_is_down_is_logged_once_as_basicconfig_shows_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    done = run_script(
        """
        import logging, sys
        from kclient import Producer
        logging.basicConfig(level=logging.WARNING)
        producer = Producer({"bootstrap.servers": sys.argv[1], "max.block.ms": 1500})
        try:
            producer.send("t", b"v").result(5)
        except Exception as problem:
            print(problem)
        producer.close()
        """,
        address,
    )
    assert address in done.stdout, done
    assert done.stderr.count(address) == 1, done.stderr
    assert done.stderr.startswith("WARNING:kclient."), done.stderr


def test_a_commit_with_a_timeout_ends_when_the_broker_is_gone(broker_clusters: MakeCluster) -> None:
    """It ended in AlreadyCalledError, and the consumer was of no use after it."""
    cluster = broker_clusters()
    make_topic(cluster, "t")
    tp = TopicPartition("t", 0)
    with Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"}) as consumer:
        consumer.assign([tp])
        consumer.commit({tp: 1}, timeout=15)
        cluster.pause(1)
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(KafkaTimeoutError):
                consumer.commit({tp: 2}, timeout=1)
            assert time.monotonic() - began < 5
        cluster.resume(1)
        consumer.commit({tp: 3}, timeout=15)
        found = consumer.committed([tp])[tp]
        assert found is not None
        assert found.offset == 3


def test_records_never_delivered_fail_with_the_reason_and_close_is_bounded(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters()
    make_topic(cluster, "t")
    producer = Producer[bytes, bytes](
        bootstrap_servers=cluster.bootstrap,
        delivery_timeout_ms=2000,
        request_timeout_ms=1000,
    ).start()
    producer.send_and_wait("t", b"first")
    cluster.kill(1)
    lost = producer.send("t", b"lost")
    with pytest.raises(KafkaTimeoutError, match=r"refuses connections"):
        lost.result(20)
    given_up = producer.send("t", b"given up")
    began = time.monotonic()
    result = producer.close(1.0)
    assert time.monotonic() - began < 3
    assert result.undelivered == 1
    with pytest.raises(ClientClosed):
        given_up.result(1)
    with pytest.raises(ClientClosed):
        producer.send("t", b"after")


def test_a_producer_left_open_delivers_at_the_end_of_the_process(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters()
    make_topic(cluster, "t")
    ended = run_script(
        """
        import sys, kclient
        producer = kclient.Producer(bootstrap_servers=sys.argv[1], linger_ms=10_000)
        for i in range(100):
            producer.send("t", f"v{i}")
        """,
        cluster.bootstrap,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(read_all(cluster, "t")[0]) == 100


def test_a_forked_child_makes_clients_of_its_own_and_may_not_use_its_parents(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters()
    make_topic(cluster, "t")
    ended = run_script(
        """
        import os, sys, kclient
        from kclient.errors import ClientClosed
        parents = kclient.Producer(bootstrap_servers=sys.argv[1]).start()
        parents.send_and_wait("t", "parent")
        child = os.fork()
        if not child:
            try:
                parents.flush()
            except ClientClosed as problem:
                assert "fork" in str(problem)
            else:
                os._exit(3)
            with kclient.Producer(bootstrap_servers=sys.argv[1]) as own:
                own.send_and_wait("t", "child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        parents.send_and_wait("t", "parent again")
        parents.close()
        """,
        cluster.bootstrap,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert read_all(cluster, "t") == [[b"parent", b"child", b"parent again"]]


@pytest.mark.parametrize(
    "waiting",
    [
        "kclient.Consumer('t', bootstrap_servers=sys.argv[1], group_id='g').poll(timeout=60)",
        "next(iter(kclient.Consumer('t', bootstrap_servers=sys.argv[1], group_id='g')))",
        "kclient.Producer(bootstrap_servers=sys.argv[1], acks='all').send('nope', 'v').result()",
    ],
)
def test_control_c_ends_a_waiting_call_within_a_second_or_so(
    broker_clusters: MakeCluster, waiting: str
) -> None:
    cluster = broker_clusters(1, {"auto.create.topics.enable": "false"})
    make_topic(cluster, "t")
    process = subprocess.Popen(
        [
            sys.executable,
            "-u",
            "-c",
            # A shell that runs tests in its background has SIGINT ignored, by all that they start, too.
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"import sys, kclient\nprint('begun')\n{waiting}",
            cluster.bootstrap,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 10)[0]
        process.stdout.readline()
        time.sleep(1.0)  # let it get to where it waits
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, errors = process.communicate(timeout=10)
        assert "KeyboardInterrupt" in errors
        assert process.returncode in (-signal.SIGINT, 130, 1)
        assert time.monotonic() - began < 3
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.mark.parametrize("loop", ["asyncio.run(main())", "aio.run(main)"])
def test_one_program_runs_on_asyncio_and_on_twisted(
    broker_clusters: MakeCluster, loop: str
) -> None:
    cluster = broker_clusters()
    ended = run_script(
        """
        import asyncio, sys
        from kclient import aio
        async def main():
            async with aio.AdminClient(bootstrap_servers=sys.argv[1]) as admin:
                await admin.create_topics(["t"])
                await admin.wait_for_topics(["t"])
            async with aio.Producer(bootstrap_servers=sys.argv[1]) as producer:
                for i in range(3):
                    await producer.send("t", f"v{i}")
            async with aio.Consumer(
                "t", bootstrap_servers=sys.argv[1], group_id="g", auto_offset_reset="earliest"
            ) as consumer:
                async for record in consumer:
                    print(record.value.decode())
                    if record.offset == 2:
                        break
        """
        + f"\n        {loop}\n",
        cluster.bootstrap,
    )
    assert (ended.stdout, ended.stderr) == ("v0\nv1\nv2\n", "")
    assert ended.returncode == 0
