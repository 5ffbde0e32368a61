"""MirrorMaker 2's client library reads kmirror's heartbeats and checkpoints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient as ForeignAdmin
from confluent_kafka.admin import NewTopic

from kclient.blocking import AdminClient
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.kit.apache_kafka import java, with_kafka
from tests.kit.brokers import MakeCluster
from tests.kit.mirrors import Mirror
from tests.kit.waiting import eventually

PROGRAM = Path(__file__).parent / "java" / "RemoteClusters.java"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(200),
    with_kafka,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK, not only a JRE"),
]

SETTINGS = {
    "emit.heartbeats.enabled": "true",
    "emit.checkpoints.enabled": "true",
    "emit.checkpoints.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
}


def found(bootstrap: str, policy: str) -> list[str]:
    """Return the lines of the Java program."""
    done = subprocess.run(
        java("256m", str(PROGRAM), bootstrap, policy, "east", "billing"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("policy", "copy"),
    [("IdentityReplicationPolicy", "t"), ("DefaultReplicationPolicy", "east.t")],
)
def test_it_finds_the_source_and_translates_offsets(
    broker_clusters: MakeCluster, tmp_path: Path, policy: str, copy: str
) -> None:
    east, west = broker_clusters(1), broker_clusters(1)
    at_east = {"bootstrap.servers": east.bootstrap, "log_level": 0}
    foreign = ForeignAdmin(at_east)
    foreign.create_topics([NewTopic("t", 2, 1)])["t"].result(10)
    producer = Producer(at_east)
    for n in range(200):
        producer.produce("t", b"%d" % n, partition=n % 2)
    assert producer.flush(20) == 0
    settings = {**SETTINGS, "replication.policy.class": policy, "topics": "t"}
    copier = Mirror(tmp_path / "mirror", east, west, settings)
    copier.start()
    try:
        with AdminClient({"bootstrap.servers": east.bootstrap}) as client:
            for offset in (10, 70):
                given = {
                    TopicPartition("t", 0): OffsetAndMetadata(offset, "a note", 0),
                    TopicPartition("t", 1): OffsetAndMetadata(500),
                }
                client.alter_group_offsets("billing", given)
                client.alter_group_offsets("other", {TopicPartition("t", 0): 3})
                expected = [f"offset {copy}-0 {offset} a note", f"offset {copy}-1 100 "]
                lines = eventually(
                    f"checkpoints of {offset}",
                    lambda e=expected: _lines(west.bootstrap, policy, e),
                    90,
                )
        assert "upstream [east]" in lines
        assert "hops 1" in lines
        assert "heartbeats [east.heartbeats, heartbeats]" in lines
        assert "checkpoints [east.checkpoints.internal]" in lines
        assert "heartbeat heartbeats east west 0" in lines
        assert "heartbeat east.heartbeats west east 0" in lines
        if policy == "DefaultReplicationPolicy":
            assert "remote [east.heartbeats, east.t]" in lines
        assert copier.stop() == 0
        with AdminClient({"bootstrap.servers": west.bootstrap}) as client:
            assert not client.list_group_offsets("billing"), "checkpoints commit nothing"
    finally:
        copier.kill()
    assert "cannot be" not in copier.output


def _lines(bootstrap: str, policy: str, expected: list[str]) -> list[str]:
    """Return the lines of the Java program once it finds the *expected* offsets and the mirrored heartbeats."""
    lines = found(bootstrap, policy)
    offsets = [line for line in lines if line.startswith("offset ")]
    ready = (
        offsets == expected and "hops 1" in lines and "heartbeat east.heartbeats none" not in lines
    )
    return lines if ready else []
