"""`kaudit explain` reads the files of every report, and finds the two places of every class of finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kclient.wire.batches import parse
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs.cli import kaudit
from spark_jobs.commands.explain import _exit_code
from spark_jobs.commands.run_directory import finding_of, load_findings, load_report
from spark_jobs.finding_places import Side, places
from spark_jobs.report.files import write_report
from spark_jobs.stored_record import Absent, Undecodable
from spark_jobs.verdict import ExitCode
from tests.kit.audit_faults import EVERY
from tests.kit.audit_reports import audited, report_of


def line(**fields: Any) -> dict[str, Any]:
    known = (
        "src_offset",
        "dst_offset",
        "first_dst_offset",
        "dst_partition",
        "src_hash",
        "dst_hash",
    )
    return {"topic": "t", "partition": 2, "class": "corrupt", **dict.fromkeys(known), **fields}


CLUSTERS: dict[str, Any] = {
    "source": {"name": "east", "bootstrap": "a:1", "cluster_id": "A", "prefix": ""},
    "target": {"name": "west", "bootstrap": "b:1", "cluster_id": "B", "prefix": "east."},
}


def shown(side: Side) -> tuple[str, str, int, int, bool, str | None]:
    place = side.place
    return (
        place.cluster,
        place.topic,
        place.partition,
        place.offset,
        side.named,
        side.audited_hash,
    )


@pytest.mark.parametrize(
    ("finding", "left", "right"),
    [
        (
            line(src_offset=7, dst_offset=8, src_hash="aa", dst_hash="bb"),
            ("east", "t", 2, 7, True, "aa"),
            ("west", "east.t", 2, 8, True, "bb"),
        ),
        (
            line(src_offset=7, src_hash="aa"),
            ("east", "t", 2, 7, True, "aa"),
            ("west", "east.t", 2, 7, False, None),
        ),
        (
            line(dst_offset=8, dst_hash="bb"),
            ("east", "t", 2, 8, False, None),
            ("west", "east.t", 2, 8, True, "bb"),
        ),
        (
            line(src_offset=7, dst_offset=8, dst_partition=5, src_hash="aa", dst_hash="aa"),
            ("east", "t", 2, 7, True, "aa"),
            ("west", "east.t", 5, 8, True, "aa"),
        ),
        (
            line(**{"class": "duplicate"}, dst_offset=8, first_dst_offset=3, dst_hash="bb"),
            ("west", "east.t", 2, 3, True, "bb"),
            ("west", "east.t", 2, 8, True, "bb"),
        ),
    ],
)
def test_the_two_places_of_a_finding(
    finding: dict[str, Any], left: tuple[object, ...], right: tuple[object, ...]
) -> None:
    assert tuple(map(shown, places(finding, CLUSTERS))) == (left, right)


def test_exit_code_3_only_for_a_record_that_the_finding_names() -> None:
    sides = places(line(src_offset=7), CLUSTERS)
    gone = Absent("deleted")
    assert _exit_code(sides, (gone, gone)) is ExitCode.NO_VERDICT_YET
    other = places(line(dst_offset=7), CLUSTERS)
    assert _exit_code((other[0], other[0]), (gone, gone)) is ExitCode.CONSISTENT
    data = encode_batch([Record(7, 0, None, b"v")], base_offset=7)
    damaged = Undecodable(parse(data), data, "not records")
    assert _exit_code(sides, (damaged, gone)) is ExitCode.NO_VERDICT_YET


@pytest.mark.parametrize("kind", EVERY)
def test_every_class_of_finding_in_a_report_has_its_places(tmp_path: Path, kind: str) -> None:
    report = report_of(audited(1, kind))
    write_report(tmp_path, report)
    document = load_report(tmp_path)
    findings = load_findings(tmp_path, document)
    for number, text in enumerate(report.lines, 1):
        finding = finding_of(findings, number, tmp_path)
        assert finding == json.loads(text)
        assert any(side.named for side in places(finding, document))


def test_a_run_that_ended_early_has_nothing_to_explain(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"verdict": "ERROR", "cause": "no broker"}))
    done = CliRunner().invoke(kaudit, ["explain", "--run", str(tmp_path)])
    assert done.exit_code == ExitCode.USAGE
    assert "ended early: no broker" in " ".join(done.output.split())
