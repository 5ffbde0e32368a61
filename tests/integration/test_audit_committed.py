"""kaudit compares what consumers with isolation.level=read_committed get from a mirror, beside its records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_mirror_transactions import (
    ONE_BROKER,
    committed,
    last_stable_offset,
    send,
    transactional,
)
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.kaudit import kaudit, reconciled
from tests.kit.mirrored_clusters import make_topic
from tests.kit.mirrors import Mirror
from tests.kit.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
]


def audited(east: Cluster, west: Cluster, out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of an audit, and its report.json."""
    return reconciled(east, west, "orders", out, "--settle", "1s", *options)


def findings(out: Path) -> list[tuple[str, int, int, int, str]]:
    """Return class, offsets, number and field of each finding."""
    lines = map(json.loads, (out / "findings.jsonl").read_text().splitlines())
    names = ("class", "src_offset", "last_offset", "records", "field")
    return [tuple(line[name] for name in names) for line in lines]


def test_a_lost_index_of_aborted_transactions_is_found_although_all_records_are_equal(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east, west = broker_clusters(1, ONE_BROKER), broker_clusters(1)
    make_topic(east, "orders")
    producer = transactional(east, "writer")
    send(producer, b"1", b"2")
    producer.commit_transaction(20)
    producer.begin_transaction()
    send(producer, b"aborted 1", b"aborted 2")
    producer.abort_transaction(20)
    other = transactional(east, "other")
    producer.begin_transaction()
    send(producer, b"3")
    send(other, b"in an open transaction")
    send(producer, b"4")
    producer.commit_transaction(20)
    mirror = Mirror(tmp_path / "mirror", east, west, None)
    assert mirror.run_once() == 0, mirror.output

    # The mirror copies up to the open transaction: it lacks the marker of the transaction before.
    code, report = audited(east, west, tmp_path / "behind")
    (partition,) = report["topics"][0]["partitions"]
    assert (code, report["verdict"], partition["last_stable"]) == (
        3,
        "LAGGING",
        {"source": 7, "target": 6},
    )
    assert report["read_committed"] == {"undecided_offsets": 1, "undecided_partitions": 1}
    assert (partition["proven_up_to"], partition["high"]) == (6, 7)

    other.commit_transaction(20)
    assert mirror.run_once() == 0, mirror.output
    code, report = audited(east, west, tmp_path / "whole", "--complete")
    assert (code, report["verdict"], report["totals"]["verified"]) == (0, "CONSISTENT", 11)
    assert report["read_committed"]["undecided_offsets"] == 0
    code, report = audited(east, west, tmp_path / "since", "--since", str(tmp_path / "behind"))
    assert (code, report["verdict"]) == (0, "CONSISTENT")
    everything = [b"1", b"2", b"3", b"in an open transaction", b"4"]
    assert committed(east, 5) == committed(west, 5) == everything

    west.terminate(1)
    (index,) = (west[1].data / "orders-0").glob("*.txnindex")
    index.unlink()
    west.start()
    eventually("the leader", lambda: last_stable_offset(west) == last_stable_offset(east))
    assert len(committed(west, 7)) == 7  # consumers get the records of the aborted transaction
    code, report = audited(east, west, tmp_path / "lost", "--complete")
    assert (code, report["verdict"]) == (1, "DIVERGED")
    assert findings(tmp_path / "lost") == [("visibility", 3, 4, 2, "aborted at the source")]
    assert report["totals"]["verified"] == 9
    explained = kaudit("explain", "--run", str(tmp_path / "lost"))
    assert explained.exit_code == 0, explained.output
    assert "no field differs now" in explained.stdout
    assert "isolation.level=read_committed" in explained.stdout
