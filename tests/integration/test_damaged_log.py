"""A log that cannot be opened: the broker starts without it, and names the partition, the byte and the remedy."""

from __future__ import annotations

import pytest

from kbroker.log.clean_shutdown_file import CLEAN_SHUTDOWN
from tests.kit.brokers import MakeCluster
from tests.kit.mirrored_clusters import deliver, make_topic, values
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_partition_with_damage_in_synced_bytes_is_offline_and_is_named(
    broker_clusters: MakeCluster,
) -> None:
    """Found by the scenario bank: the partition was offline, and its log had no line about it."""
    cluster = broker_clusters(1)
    for topic in ("damaged", "whole"):
        make_topic(cluster, topic)
        for value in (b"first", b"second", b"third"):  # a batch each
            assert deliver(cluster, topic, value) is None
    cluster.terminate(1)
    (cluster[1].data / CLEAN_SHUTDOWN).unlink()  # as if it had been killed after its last sync
    (segment,) = (cluster[1].data / "damaged-0").glob("*.log")
    content = segment.read_bytes()
    half = len(content) // 2
    segment.write_bytes(content[:half] + bytes(len(content) - half))
    cluster.start(1)
    (line,) = [each for each in cluster[1].log.splitlines() if "is offline on this broker" in each]
    assert " ERROR " in line
    assert f"damaged-0 is offline on this broker: {segment}: byte " in line
    assert "move the partition's directory out of the log directory" in line
    assert values(cluster, "whole", 0) == [b"first", b"second", b"third"]
    assert segment.stat().st_size == len(content)

    cluster.terminate(1)
    (cluster[1].data / "damaged-0").rename(cluster[1].data.parent / "aside")
    lines = len(cluster[1].log.splitlines())
    cluster.start(1)
    eventually("the other topic", lambda: values(cluster, "whole", 0))
    assert not [e for e in cluster[1].log.splitlines()[lines:] if "is offline on this broker" in e]
