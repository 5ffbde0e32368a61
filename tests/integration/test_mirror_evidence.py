"""What kmirror states that it has copied, between two real clusters, and what kaudit makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kclient.mirror_evidence import CopiedTopic, Extent, header_hash
from kclient.types import TopicPartition
from kclient.wire.batches import iterate
from spark_jobs.attribute import batches_of
from spark_jobs.attribution import Attribution, Where
from spark_jobs.cluster import matching_topics, read_cluster, read_evidence
from spark_jobs.cut import OffsetRange
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.header_batches import HEADER_COLUMNS, header_rows
from spark_jobs.reader import fetch_ranges
from tests.kit.brokers import Cluster
from tests.kit.kaudit import reconciled
from tests.kit.mirrored_clusters import (
    MakeMirror,
    make_topic,
    produce,
    replace_in_log,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ENABLED = {"emit.evidence.enabled": "true"}


def hashes(cluster: Cluster, topic: str, partition: int) -> list[tuple[int, int]]:
    """Base offset and header hash of each batch on the broker's disk."""
    path = next(iter(cluster.brokers.values())).data / f"{topic}-{partition}"
    data = b"".join(each.read_bytes() for each in sorted(path.glob("*.log")))
    return [(info.base_offset, header_hash(data, info.position)) for info in iterate(data)]


def sums(
    cluster: Cluster, topic: str, partition: int, spans: Sequence[tuple[int, int]]
) -> list[Any]:
    """The extents that a digest of the broker's log has."""
    found = []
    for first, until in spans:
        inside = [h for at, h in hashes(cluster, topic, partition) if first <= at < until]
        total = sum(inside) % 2**64
        found.append(Extent(first, until, len(inside), total, total))
    return found


def header_rows_of(cluster: Cluster, ranges: Sequence[OffsetRange]) -> Iterator[dict[str, Any]]:
    names = [name for name, _ in HEADER_COLUMNS]
    for row in header_rows(fetch_ranges(cluster.bootstrap, ranges), ranges, ranges, 1):
        yield dict(zip(names, row, strict=True))


def test_evidence_of_each_run_is_that_of_both_logs_and_shows_which_one_changed(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 2)
    produce(east, "orders", 60, partitions=2, **{"batch.num.messages": 5})
    assert mirror(ENABLED).run_once() == 0
    produce(east, "orders", 40, partitions=2, **{"batch.num.messages": 5})
    assert mirror(ENABLED).run_once() == 0

    found = read_evidence("west", west.bootstrap)
    assert (found.topics, found.problem, found.copied.unreadable) == (
        ("east.evidence.internal",),
        "",
        0,
    )
    source = read_cluster("east", east.bootstrap, ["orders"])
    target = read_cluster("west", west.bootstrap, ["orders"])
    topic = CopiedTopic(source.cluster_id, source.topic_ids["orders"], target.topic_ids["orders"])
    for partition in range(2):
        extents = found.copied.extents(TopicPartition("orders", partition), topic)
        assert extents == sums(east, "orders", partition, [(0, 30), (30, 50)])
        assert extents == sums(west, "orders", partition, [(0, 30), (30, 50)])
    every = re.compile(".*")
    assert matching_topics("west", west.bootstrap, every) == ["orders"]

    # Offset 5 of partition 0 has this key: the CRC of its batch is wrong then.
    replace_in_log(west, "orders", b"key-10", b"key-xx")
    tp = TopicPartition("orders", 0)
    finding = Finding(FindingClass.UNDECODABLE, *tp, 5, 5)
    asked = Attribution([finding], found, (source, target), frozenset())
    read = []
    for cluster, ranges in zip((east, west), asked.to_read(), strict=True):
        rows = list(header_rows_of(cluster, ranges))
        read.append(batches_of("", [row for row in rows if row["unread"] is None])[0])
    (answer,) = asked.answers(read[0], read[1], [])
    assert answer.where is Where.TARGET


def test_an_audit_names_the_log_that_was_damaged_after_the_copy(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path
) -> None:
    for topic in ("orders", "payments"):
        make_topic(east, topic)
        produce(east, topic, 60, **{"batch.num.messages": 5})
    assert mirror(ENABLED).run_once() == 0
    replace_in_log(west, "orders", b"key-10", b"key-xx", has_right_crcs=True)
    replace_in_log(east, "payments", b"key-20", b"key-xx")
    key = tmp_path / "kaudit.key"
    key.write_text("of this test, and longer than 32 bytes")
    options = ("--complete", "--settle", "1s", "--hash-key", str(key))

    code, report = reconciled(east, west, "orders|payments", tmp_path / "report", *options)
    assert (code, report["verdict"]) == (1, "DIVERGED")
    lines = (tmp_path / "report" / "findings.jsonl").read_text().splitlines()
    assert [
        (each["class"], each["topic"], each["src_offset"], each["dst_offset"], each["where"])
        for each in map(json.loads, lines)
    ] == [
        ("corrupt", "orders", 10, 10, "target"),
        ("undecodable", "payments", 20, None, "source"),
    ]
    where = {name: count for name, count in report["evidence"]["where"].items() if count}
    assert where == {"target": 1, "source": 5}
