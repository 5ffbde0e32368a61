"""The identity of a log directory: one process locks it, and it belongs to one broker of one cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclient.wire.errors import (
    InconsistentClusterId,
    KafkaStorageError,
)
from tests.kit.log_managers import Brokers


def test_a_second_broker_is_kept_out(brokers: Brokers) -> None:
    brokers("a").start()
    with pytest.raises(KafkaStorageError, match="in use by another process"):
        brokers("b", "a").start()
    brokers("b").start()  # and what it had locked before that is free again


def test_a_directory_named_twice_is_refused(brokers: Brokers) -> None:
    with pytest.raises(KafkaStorageError, match="twice"):
        brokers("a", "./a").start()


def test_a_file_in_the_place_of_a_directory_is_named(brokers: Brokers, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(KafkaStorageError, match=f"{tmp_path}/a cannot be used"):
        brokers().start()


def test_the_wrong_broker_and_the_wrong_cluster_are_refused(
    brokers: Brokers, tmp_path: Path
) -> None:
    brokers().start().close()
    before = (tmp_path / "a" / "meta.properties").read_text()
    with pytest.raises(KafkaStorageError, match="belongs to broker 1, not 2"):
        brokers().start(broker_id=2)
    with pytest.raises(InconsistentClusterId, match=r"belongs to cluster east.*of cluster west"):
        brokers("a", "b").start(cluster_id="west")
    assert (tmp_path / "a" / "meta.properties").read_text() == before
    assert not (tmp_path / "b" / "meta.properties").exists()
    assert before.splitlines()[1:4] == ["version=0", "broker.id=1", "cluster.id=east"]


def test_directories_of_two_brokers_are_not_mixed(brokers: Brokers) -> None:
    brokers("a").start(broker_id=1).close()
    brokers("b").start(broker_id=2).close()
    with pytest.raises(KafkaStorageError, match="must not mix"):
        brokers("a", "b").start(broker_id=1)


def test_the_stored_broker_id_is_known_before_the_cluster_is(brokers: Brokers) -> None:
    brokers().start(broker_id=8).close()
    assert brokers().log_dirs.stored_identity()[:2] == (8, "east")


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 50, b"version=1\nnode.id=1\n", b"broker.id=x\n", b"nonsense", b"\xff\xfe"],
    ids=["empty", "zeros", "kraft", "words", "no key", "binary"],
)
def test_a_damaged_meta_properties_is_named(
    brokers: Brokers, tmp_path: Path, content: bytes
) -> None:
    brokers().start().close()
    (tmp_path / "a" / "meta.properties").write_bytes(content)
    with pytest.raises(KafkaStorageError, match=r"meta\.properties"):
        brokers().start()
    assert (tmp_path / "a" / "meta.properties").read_bytes() == content


def test_a_meta_properties_of_kafka_is_understood(brokers: Brokers, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "meta.properties").write_text(
        "#\n#Sat Nov 21 08:00:00 UTC 2026\nbroker.id=4\nversion=0\ncluster.id=abc_-1\n"
    )
    assert brokers().start(broker_id=4, cluster_id="abc_-1").online == [str(tmp_path / "a")]
