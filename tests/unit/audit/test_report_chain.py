"""Equal logs give equal bytes, and each report has the hash of the one before."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_jobs import cli
from spark_jobs.comparison import Options
from spark_jobs.cut import OffsetRange
from spark_jobs.engine import Differences, Engine, Modes, WindowRows
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.report.contents import build_report, json_text
from spark_jobs.report.files import PREVIOUS, remove_report, write_report
from spark_jobs.report.hashes import file_hash
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.verdict import ExitCode
from tests.kit.audit_faults import EVERY, Case, case_with
from tests.kit.audit_logs import MemoryEngine, audit, snapshot
from tests.kit.audit_reports import META, report_of


class InAnyOrder(MemoryEngine):
    """Returns rows and failures in another order for each seed, as Spark's tasks end in any order."""

    def __init__(self, case: Case, window: int, seed: int) -> None:
        super().__init__(case.source, case.target, window)
        self._rng = random.Random(seed)

    def _mixed(self, rows: Sequence[Any]) -> list[Any]:
        return self._rng.sample(list(rows), len(rows))

    def window_rows(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> WindowRows:
        answer = super().window_rows(cluster, ranges)
        return WindowRows(self._mixed(answer.rows), self._mixed(answer.failures))

    def differences(
        self,
        source: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        target: tuple[ClusterSnapshot, Sequence[OffsetRange]],
        modes: Modes,
    ) -> Differences:
        answer = super().differences(source, target, modes)
        mixed = {tp: answer.alignments[tp] for tp in self._mixed(list(answer.alignments))}
        return Differences(mixed, self._mixed(answer.failures))


def run_in_order(case: Case, seed: int) -> Reconciliation:
    engine: Engine = InAnyOrder(case, 15, seed)
    clusters = snapshot("source", case.source), snapshot("target", case.target)
    options = Options(15, case.complete)
    return reconcile(engine, *clusters, options, buckets=TimeBuckets.over((0, 1000)))


def without_meta(path: Path) -> bytes:
    document = json.loads(path.read_text())
    del document["meta"]
    return json_text(document).encode()


@pytest.mark.parametrize("seed", range(5))
def test_two_runs_over_equal_logs_write_the_same_bytes_outside_of_meta(
    tmp_path: Path, seed: int
) -> None:
    kinds = random.Random(seed).choice(EVERY), "unreadable", "unreadable", "undecodable"
    written = []
    for number in range(3):
        case = case_with(seed, *kinds)
        meta = {**META, "run_id": str(number), "ended_at": f"2026-01-01T00:00:0{number}Z"}
        out = tmp_path / str(number)
        write_report(out, build_report(run_in_order(case, number), meta))
        written.append(out)
    for name in ("digests.parquet", "findings.jsonl", "repair.json"):
        assert len({(out / name).read_bytes() for out in written}) == 1, name
    assert len({without_meta(out / "report.json") for out in written}) == 1


def test_a_report_has_the_hashes_of_its_files(tmp_path: Path) -> None:
    case = case_with(1, "missing")
    write_report(tmp_path, report_of(audit(case.source, case.target)))
    files = json.loads((tmp_path / "report.json").read_text())["files"]
    names = ("digests.parquet", "findings.jsonl", "repair.json")
    assert files == {name: file_hash(tmp_path / name) for name in names}


def test_the_earlier_report_is_kept_under_another_name_and_its_hash_is_known(
    tmp_path: Path,
) -> None:
    case = case_with(1, "missing")
    assert remove_report(tmp_path) is None
    write_report(tmp_path, report_of(audit(case.source, case.target)))
    earlier = (tmp_path / "report.json").read_bytes()
    assert remove_report(tmp_path) == sha256(earlier).hexdigest()
    assert (tmp_path / PREVIOUS).read_bytes() == earlier


def test_a_run_that_was_killed_does_not_break_the_chain(tmp_path: Path) -> None:
    case = case_with(1, "missing")
    write_report(tmp_path, report_of(audit(case.source, case.target)))
    killed = remove_report(tmp_path)
    assert remove_report(tmp_path) == killed


UNREACHABLE = ("--source", "127.0.0.1:1", "--target", "127.0.0.1:1", "--topics", "x", "--quiet")


def audit_unreachable(out: Path, *options: str) -> dict[str, Any]:
    arguments = ["reconcile", *UNREACHABLE, "--out", str(out), *options]
    assert CliRunner().invoke(cli.kaudit, arguments).exit_code == ExitCode.UNREADABLE
    document: dict[str, Any] = json.loads((out / "report.json").read_text())
    return document


def test_a_report_of_a_failed_run_is_a_link_of_the_chain(tmp_path: Path) -> None:
    first = audit_unreachable(tmp_path)
    assert first["meta"]["previous"] is None
    link = file_hash(tmp_path / "report.json")
    assert audit_unreachable(tmp_path)["meta"]["previous"] == link
    other = audit_unreachable(tmp_path / "other", "--previous", str(tmp_path / "report.json"))
    assert other["meta"]["previous"] == file_hash(tmp_path / "report.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"meta": 1}', '{"meta": {"run_id": ""}}'])
def test_a_file_that_is_no_report_is_refused_as_previous(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    arguments = [*UNREACHABLE, "--out", str(tmp_path), "--previous", str(tmp_path / "x.json")]
    result = CliRunner().invoke(cli.kaudit, ["reconcile", *arguments])
    assert result.exit_code == ExitCode.USAGE
    assert "not a report.json of kaudit" in result.output
