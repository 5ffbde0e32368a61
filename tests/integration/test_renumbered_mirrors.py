"""Mirrors into a target that assigns the offsets: what a kill leaves there, and what kaudit makes of it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from kclient import AdminClient
from kclient.types import TopicPartition
from kclient.wire.batches import iterate
from tests.integration.test_mirror_transactions import ONE_BROKER
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.kaudit import reconciled
from tests.kit.mirrored_clusters import (
    deliver,
    make_topic,
    making_mirrors,
    produce,
    replace_in_log,
    values,
)
from tests.kit.mirrors import Mirror
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RENUMBERED = {
    "target.offsets": "renumber",
    "west.producer.linger.ms": "10",
    "west.producer.transaction.max.bytes": "5000",
    "east.consumer.max.partition.fetch.bytes": "3000",
}
AT_LEAST_ONCE = {**RENUMBERED, "exactly.once.source.support": "disabled"}
RECORDS = 2400
PARTITIONS = 2


def killed_while_it_copies(mirror: Mirror, target: Cluster, times: int) -> None:
    """Start *mirror* and kill -9 it, each time when the target has more than before."""
    for _ in range(times):
        before = held(target)
        mirror.start()
        eventually("more records", lambda: held(target) > before)  # noqa: B023
        mirror.kill()


def held(cluster: Cluster) -> int:
    """Return the number of records in the segments, also of aborted transactions."""
    logs = [cluster[1].data / f"orders-{n}" / f"{0:020}.log" for n in range(PARTITIONS)]
    return sum(
        batch.record_count
        for log in logs
        if log.exists()
        for batch in iterate(log.read_bytes())
        if not batch.is_control
    )


def has_open_transaction(cluster: Cluster) -> bool:
    """Return whether records of the topic wait for the end of their transaction."""
    tps = [TopicPartition("orders", n) for n in range(PARTITIONS)]
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        ends, stable = (
            admin.list_offsets(dict.fromkeys(tps, "latest"), read_committed=each)
            for each in (False, True)
        )
    return any(stable[tp].offset < ends[tp].offset for tp in tps)


def test_kaudit_proves_a_renumbered_mirror_that_was_killed_and_names_a_record_that_changed(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east, west = broker_clusters(1), broker_clusters(1, ONE_BROKER)
    make_topic(east, "orders", PARTITIONS)
    produce(east, "orders", RECORDS, partitions=PARTITIONS, **{"batch.num.messages": 20})
    with making_mirrors(tmp_path, east, west) as make:
        mirror = make(RENUMBERED)
        for _ in range(6):  # a kill between two transactions leaves none
            killed_while_it_copies(mirror, west, 1)
            if has_open_transaction(west):
                break
        assert mirror.run_once(60) == 0, mirror.output
    assert held(west) > RECORDS, "no kill left records of an aborted transaction"
    options = ("--renumbered", "--settle", "1s")
    code, report = reconciled(east, west, "orders", tmp_path / "whole", *options, "--complete")
    assert (code, report["verdict"], report["totals"]["verified"]) == (0, "CONSISTENT", RECORDS)

    # The target's log ends with the marker of the mirror's last transaction.
    assert deliver(east, "orders", b"not copied yet", partition=0) is None
    code, report = reconciled(east, west, "orders", tmp_path / "lagging", *options)
    assert (code, report["verdict"], report["totals"]["lagging"]) == (3, "LAGGING", 1)

    replace_in_log(west, "orders", b"key-1000", b"key-xxxx", has_right_crcs=True)
    code, report = reconciled(east, west, "orders", tmp_path / "damaged", *options)
    assert (code, report["verdict"]) == (1, "DIVERGED")
    assert report["totals"]["verified"] == RECORDS - 1
    (line,) = (tmp_path / "damaged" / "findings.jsonl").read_text().splitlines()
    found = json.loads(line)
    names = ("class", "topic", "partition", "src_offset", "field")
    assert [found[each] for each in names] == ["corrupt", "orders", 0, 500, "key"]


def test_without_transactions_a_killed_mirror_copies_each_record_at_least_once_and_in_order(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east, west = broker_clusters(1), broker_clusters(1)
    make_topic(east, "orders", PARTITIONS)
    written = [
        [b"%d of partition %d" % (n, partition) for n in range(2000)]
        for partition in range(PARTITIONS)
    ]
    for partition, of_one in enumerate(written):
        settings = {"batch.num.messages": 20}
        assert deliver(east, "orders", *of_one, partition=partition, **settings) is None
    with making_mirrors(tmp_path, east, west) as make:
        mirror = make(AT_LEAST_ONCE)
        code, output = mirror.ask("plan")
        assert code == 0, output
        assert "at least once" in output
        killed_while_it_copies(mirror, west, 4)
        copied = sum(len(set(values(west, "orders", n))) for n in range(PARTITIONS))
        assert 0 < copied < sum(map(len, written)), "the last kill came too late"
        assert mirror.run_once(60) == 0, mirror.output
    for partition, of_one in enumerate(written):
        found = values(west, "orders", partition)
        assert list(dict.fromkeys(found)) == of_one
        numbers = {value: n for n, value in enumerate(of_one)}
        for before, after in pairwise(found):
            assert numbers[after] <= numbers[before] + 1, "a repeat begins at an earlier record"
