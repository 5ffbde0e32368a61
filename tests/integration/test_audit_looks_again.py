"""`kaudit reconcile` looks again before its verdict: what the mirror copies meanwhile is no finding."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from kclient import AdminClient, NewTopic, Producer
from spark_jobs.hash_key import read_hash_key
from spark_jobs.verdict import ExitCode
from tests.kit.audit_reports import violations
from tests.kit.brokers import MakeCluster
from tests.kit.kaudit import kaudit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SETTLE_S = 33.0
"""A time that nothing else waits for."""
SENT_MS = int(time.time() * 1000)


def write(bootstrap: str, topic: str, numbers: range, wrong: int = -1) -> None:
    """Write the records *numbers*; that at *wrong* has another value."""
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for n in numbers:
            value = b"other" if n == wrong else b"value %d" % n
            producer.send(topic, value, key=b"k%d" % n, partition=0, timestamp_ms=SENT_MS + n)
        producer.flush()


def test_what_is_copied_during_the_wait_vanishes_and_a_keyed_hash_is_that_of_the_record(
    broker_clusters: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = broker_clusters(1).bootstrap
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(name, 1, 1) for name in ("t", "copy.t")])
    write(bootstrap, "t", range(40))
    write(bootstrap, "copy.t", range(38), wrong=7)
    key = tmp_path / "kaudit.key"
    key.write_text("of this test, and longer than 32 bytes")
    sleep, left = time.sleep, [range(38, 40)]

    def copy_the_end(seconds: float) -> None:
        """Take the place of the waits: in the first one the mirror copies the last two records."""
        if seconds == SETTLE_S:
            while left:
                write(bootstrap, "copy.t", left.pop())
        else:
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", copy_the_end)
    out = tmp_path / "report"

    def audit(*words: str) -> tuple[Result, dict[str, Any]]:
        done = kaudit(
            *("reconcile", "--source", bootstrap, "--target", bootstrap, "--topics", "t"),
            *("--target-prefix", "copy.", "--out", str(out), "--master", "local[2]", "--quiet"),
            *("--no-self-test", "--complete", "--settle", f"{SETTLE_S:.0f}s", *words),
        )
        report: dict[str, Any] = json.loads((out / "report.json").read_text())
        assert violations("report", report) == []
        return done, report

    done, report = audit("--hash-key", str(key), "--window", "10", "--format", "json")
    assert done.exit_code == ExitCode.DIVERGED, done.output
    assert json.loads(done.stdout) == report
    assert report["windows"]["offsets"] == 10
    settle = report["settle"]
    assert {name: count for name, count in settle["vanished"].items() if count} == {"truncated": 2}
    assert (settle["partitions"], settle["standing"], settle["problem"]) == (1, 0, "")
    # The window of the damaged record was compared record by record at each look.
    assert report["read"]["windows_drilled"] == 1
    (line,) = (out / "findings.jsonl").read_text().splitlines()
    finding = json.loads(line)
    assert (finding["class"], finding["src_offset"], finding["field"]) == ("corrupt", 7, "value")

    assert report["hash_key"] == read_hash_key(key).name
    explained = kaudit("explain", "--run", str(out), "--hash-key", str(key))
    assert explained.exit_code == 0, explained.output
    assert explained.stdout.count("yes, the same hash") == 2, explained.stdout
    without = kaudit("explain", "--run", str(out))
    assert without.exit_code == 0, without.output
    assert "yes, the same hash" not in without.stdout
    # The text is broken into lines where the terminal is narrow.
    assert without.stdout.count("not checked") == 2, without.stdout
