"""`kaudit explain` on a real broker: source and target are two topics of it, apart by the mirror's prefix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kclient import AdminClient, NewTopic, Producer, TopicPartition
from kclient.avro import AvroSerializer
from spark_jobs.avro_fields import Parsed
from spark_jobs.commands.run_directory import load_report
from spark_jobs.content_hash import content_hash
from spark_jobs.field_names import field_names
from spark_jobs.finding_places import Place
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.hash_key import PUBLIC
from spark_jobs.record_lookup import look_up
from spark_jobs.report.contents import Report
from spark_jobs.report.document import finding_lines
from spark_jobs.report.hashes import file_hash
from spark_jobs.stored_record import Stored
from tests.kit.brokers import Cluster, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

RUN = "20261122-000000-000000"


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(1)


class Audited:
    """A topic at both sides, and the directory of an audit of it."""

    def __init__(self, cluster: Cluster, home: Path, topic: str) -> None:
        self.cluster, self.out, self.topic = cluster, home / "report", topic
        self.out.mkdir()
        with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
            admin.create_topics([NewTopic(topic, 2, 1), NewTopic(f"copy.{topic}", 2, 1)])
            self.cluster_id = admin.describe_cluster().cluster_id

    def write(self, source: Sequence[Any], target: Sequence[Any]) -> None:
        """Write records of partition 0: (key, value) or (key, value, headers)."""
        with Producer({"bootstrap.servers": self.cluster.bootstrap}) as producer:
            for topic, records in ((self.topic, source), (f"copy.{self.topic}", target)):
                for key, value, *headers in records:
                    producer.send(
                        topic,
                        value,
                        key=key,
                        partition=0,
                        timestamp_ms=1_700_000_000_000,
                        headers=headers[0] if headers else (),
                    )
                producer.flush()

    def found(self, *findings: Finding, cluster_id: str | None = None) -> None:
        side = {
            "bootstrap": self.cluster.bootstrap,
            "cluster_id": self.cluster_id if cluster_id is None else cluster_id,
        }
        report: dict[str, Any] = {
            "meta": {"run_id": RUN},
            "source": {**side, "name": "east", "prefix": ""},
            "target": {**side, "name": "west", "prefix": "copy."},
            "findings": {"found": len(findings), "written": len(findings)},
        }
        lines = finding_lines(enumerate(findings, 1), window=10)
        (self.out / "findings.jsonl").write_text("".join(f"{line}\n" for line in lines))
        report["files"] = {"findings.jsonl": file_hash(self.out / "findings.jsonl")}
        (self.out / "report.json").write_text(json.dumps(report))

    def explain(self, *words: str, code: int = 0) -> str:
        return self.run("explain", *words, code=code)

    def run(self, command: str, *words: str, code: int = 0) -> str:
        before = {path.name: path.read_bytes() for path in self.out.iterdir()}
        done = subprocess.run(
            [sys.executable, "-m", "spark_jobs", command, "--run", str(self.out), *words],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "COLUMNS": "200"},
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert {path.name: path.read_bytes() for path in self.out.iterdir()} == before
        return done.stdout if code in (0, 3) else done.stderr


@pytest.fixture
def audited(cluster: Cluster, tmp_path: Path) -> Audited:
    return Audited(cluster, tmp_path, f"t{time.monotonic_ns() % 10**9}")


def finding(audited: Audited, kind: FindingClass, *offsets: int | None, **more: Any) -> Finding:
    return Finding(kind, audited.topic, 0, *offsets, **more)


def row(output: str, label: str) -> str:
    (line,) = [line for line in output.splitlines() if line[8:23].strip() == label]
    return line


def kclient_lines(output: str) -> list[list[str]]:
    lines = output.partition("to print the records again:\n")[2].splitlines()
    return [line.split()[1:] for line in lines]


def test_both_records_are_printed_and_so_is_the_line_that_prints_each(audited: Audited) -> None:
    audited.write(
        [(b"k0", b"first"), (b"k1", b'{"price": 7}', [("h", b"1")])],
        [(b"k0", b"first"), (b"k1", b'{"price": 8}', [("h", b"1")])],
    )
    audited.found(finding(audited, FindingClass.CORRUPT, 1, 1, field="value"))
    output = audited.explain()
    assert output.startswith(f"finding 1 of run {RUN}: corrupt, {audited.topic} partition 0\n")
    assert row(output, "value").startswith("DIFFERS")
    assert row(output, "key").startswith("equal")
    assert row(output, "headers").startswith("equal")
    assert "differs now: value\n" in output
    (changed,) = [line for line in output.splitlines() if '"price": 7' in line]
    assert '"price": 8' in changed
    assert " ! " in changed
    assert row(output, "CRC check").split() == ["CRC", "check", "right", "|", "right"]
    values = []
    for words in kclient_lines(output):
        done = subprocess.run(
            [sys.executable, "-m", "kclient", *words, "-q"], capture_output=True, timeout=60
        )
        (line,) = done.stdout.splitlines()
        values.append((json.loads(line)["offset"], json.loads(line)["value"]))
    assert values == [(1, '{"price": 7}'), (1, '{"price": 8}')]


def test_a_record_that_the_target_lacks_stands_beside_what_the_target_has_there(
    audited: Audited,
) -> None:
    audited.write([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], [(b"a", b"1"), (b"c", b"3")])
    audited.found(
        finding(audited, FindingClass.CORRUPT, 0, 0),
        finding(audited, FindingClass.MISSING, 1, None),
        finding(audited, FindingClass.TRUNCATED, 2, None, records=1, last_offset=2),
    )
    output = audited.explain("--finding", "2")
    assert "the same offset: the finding" in output
    assert "differs now: key, value\n" in output
    output = audited.explain("--finding", "3")
    assert "not in the log: it ends before offset 2" in " ".join(output.split())
    assert len(kclient_lines(output)) == 1
    assert "no field differs now" in audited.explain("--finding", "1")


def test_a_record_that_changed_since_the_audit_is_named(audited: Audited) -> None:
    audited.write([(b"a", b"1")], [(b"a", b"2")])
    tp = TopicPartition(audited.topic, 0)
    found = look_up(Place("east", audited.cluster.bootstrap, "", *tp, 0), timeout=10)
    assert isinstance(found, Stored)
    audited.found(
        finding(
            audited,
            FindingClass.CORRUPT,
            0,
            0,
            source_hash=content_hash(found),
            target_hash=content_hash(found),
        )
    )
    line = row(audited.explain(), "as audited")
    assert "yes, the same hash" in line.partition("|")[0]
    assert "NO, it has CHANGED since" in line.partition("|")[2]


def test_a_duplicate_stands_beside_its_other_copy_and_a_misrouted_record_beside_its_source(
    audited: Audited,
) -> None:
    audited.write([(b"a", b"1")], [(b"a", b"1"), (b"a", b"1")])
    audited.found(
        finding(audited, FindingClass.DUPLICATE, None, 1, first_target_offset=0),
        finding(audited, FindingClass.MISROUTED, 0, 0, target_partition=1),
    )
    output = audited.explain()
    assert "another copy" in output
    assert "differs now: offset\n" in output
    output = audited.explain("--finding", "2", code=3)
    assert f"copy.{audited.topic}-1 at 0" in "".join(output.split("\n", 4)[2:4])


def test_a_record_that_was_deleted_since_is_named_with_exit_code_3(audited: Audited) -> None:
    audited.write([(b"a", b"1")] * 5, [(b"a", b"2")] * 5)
    audited.found(finding(audited, FindingClass.CORRUPT, 1, 1, field="value"))
    with AdminClient({"bootstrap.servers": audited.cluster.bootstrap}) as admin:
        admin.delete_records({TopicPartition(audited.topic, 0): 3})
    output = audited.explain(code=3)
    assert "deleted: the log starts at offset 3" in " ".join(output.split())
    assert len(kclient_lines(output)) == 1


def test_a_batch_with_a_wrong_crc_is_shown_and_its_line_prints_it(audited: Audited) -> None:
    audited.write([(b"a", b"value")], [(b"a", b"value")])
    audited.found(finding(audited, FindingClass.UNDECODABLE, 0, None, field="east: CRC"))
    (segment,) = (audited.cluster[1].data / f"{audited.topic}-0").glob("*.log")
    with segment.open("r+b") as log:
        log.seek(-2, 2)
        log.write(b"E")
    output = audited.explain("--max-bytes", "100")
    assert row(output, "value").startswith("DIFFERS")
    assert "record batch is corrupt" in " ".join(row(output, "CRC check").split())
    words, _ = kclient_lines(output)
    assert "check.crcs=false" in words
    done = subprocess.run(
        [sys.executable, "-m", "kclient", *words, "-q"], capture_output=True, timeout=60
    )
    assert json.loads(done.stdout)["value"] == "valuE"


def test_avro_values_are_decoded(audited: Audited, tmp_path: Path) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "price", "type": "long"}]}
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(schema))
    encode = AvroSerializer(schema)
    audited.write([(b"a", encode({"price": 7}))], [(b"a", encode({"price": 8}))])
    audited.found(finding(audited, FindingClass.CORRUPT, 0, 0, field="value"))
    output = audited.explain("--avro", str(path))
    assert '"price": 7' in output
    assert '"price": 8' in output
    words, _ = kclient_lines(output)
    done = subprocess.run(
        [sys.executable, "-m", "kclient", *words, "-q"], capture_output=True, timeout=60
    )
    assert json.loads(done.stdout)["value"] == {"price": 7}


def test_diff_names_the_fields_that_differ_and_the_findings_without_two_records(
    audited: Audited, tmp_path: Path
) -> None:
    fields = [{"name": "price", "type": "long"}, {"name": "name", "type": "string"}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(schema))
    encode = AvroSerializer(schema)
    first, second = (encode({"price": price, "name": "a"}) for price in (7, 8))
    audited.write([(b"a", first), (b"b", first)], [(b"a", second), (b"b", b"not Avro")])
    audited.found(
        finding(audited, FindingClass.CORRUPT, 0, 0, field="value"),
        finding(audited, FindingClass.MISSING, 1, None),
        finding(audited, FindingClass.CORRUPT, 1, 1, field="value"),
    )
    lines = audited.run("diff", "--avro", str(path), "--finding", "1").splitlines()
    assert [line.strip() for line in lines if "->" in line] == ["price: 7 -> 8"]
    output = audited.run("diff", "--avro", str(path), "--format", "json", code=3)
    document = json.loads(output)
    assert [each["status"] for each in document["findings"]] == ["compared", "undecodable"]
    assert document["fields"] == {"price": 1}
    assert document["findings_of_one_side"] == 1


def test_diff_reads_each_record_with_the_schema_of_its_writer(
    audited: Audited, tmp_path: Path
) -> None:
    price = {"name": "price", "type": "long"}
    note = {"name": "note", "type": ["null", "string"], "default": None, "aliases": ["remark"]}
    schemas = {
        name: {"type": "record", "name": "Order", "fields": [price, *more]}
        for name, more in {
            "v1": [],
            "v2": [note],
            "v0": [{"name": "remark", "type": ["null", "string"]}],
        }.items()
    }
    for name, schema in schemas.items():
        (tmp_path / name).write_text(json.dumps(schema))
    v1, v2, v0 = (AvroSerializer(schemas[name]) for name in ("v1", "v2", "v0"))
    audited.write(
        [(b"a", v1({"price": 7})), (b"b", v0({"price": 7, "remark": "late"}))],
        [
            (b"a", v2({"price": 7, "note": "late"})),
            (b"b", v2({"price": 7, "note": "late"})),
        ],
    )
    audited.found(
        finding(audited, FindingClass.CORRUPT, 0, 0, field="value", records=2, last_offset=1),
        finding(audited, FindingClass.CORRUPT, 1, 1, field="value"),
    )
    words = [word for name in ("v2", "v1", "v0") for word in ("--avro", str(tmp_path / name))]
    lines = [line.strip() for line in audited.run("diff", *words).splitlines()]
    assert 'note: null (default, not written) -> "late"' in lines
    assert "no field differs; the bytes of the values differ" in lines
    assert "the finding has 2 records or offsets, up to offset 1; this is the first" in lines
    assert "2 findings: 2 compared" in lines
    assert "1 of them have more than one record: only the first one was compared" in lines
    assert lines[-1] == "note: differs in 1"


def test_the_page_names_the_fields_that_differ_and_no_value(audited: Audited) -> None:
    order = {"type": "record", "name": "Order", "fields": [{"name": "price", "type": "long"}]}
    note = {"type": "record", "name": "Note", "fields": [{"name": "text", "type": "string"}]}
    given = {name: Parsed(each, name) for name, each in (("order", order), ("note", note))}
    price, text = AvroSerializer(order), AvroSerializer(note)
    pairs = [
        (price({"price": 7}), price({"price": 8})),
        (text({"text": "a"}), text({"text": "b"})),
        (price({"price": 7}), b"no frame"),
        (text({"text": "c"}), text({"text": "c"})),
    ]
    audited.write(*([(b"k", pair[side]) for pair in pairs] for side in (0, 1)))
    kinds = ["value", "value", "value", "timestamp"]
    runs: list[dict[str, Any]] = [{}, {"records": 2, "last_offset": 2}, {}, {}]
    audited.found(*(
        finding(audited, FindingClass.CORRUPT, n, n, field=kind, **runs[n])
        for n, kind in enumerate(kinds)
    ))  # fmt: skip
    report = load_report(audited.out)
    lines = (audited.out / "findings.jsonl").read_text().splitlines()
    names = field_names(Report(report, lines, {}, b""), given, PUBLIC, 10.0)
    assert names[1] == ("Avro field price", "order")
    assert names[2] == ("Avro field text (of the first record)", "note")
    assert names[3].text.startswith("fields are not known: target: 8 bytes without an Avro frame")
    assert names[3].schema == ""
    assert list(names) == [1, 2, 3]


def test_another_cluster_than_the_audited_one_is_exit_code_4(audited: Audited) -> None:
    audited.write([(b"a", b"1")], [(b"a", b"1")])
    audited.found(finding(audited, FindingClass.CORRUPT, 0, 0), cluster_id="another")
    assert "the audit read another" in audited.explain(code=4)


def test_what_is_no_finding_of_an_audit_is_a_usage_error(audited: Audited) -> None:
    assert "no report.json" in audited.explain(code=2)
    audited.found()
    assert "the audit has no finding" in audited.explain(code=2)
    audited.found(finding(audited, FindingClass.CORRUPT, 0, 0))
    assert "no finding 7; it has 1" in audited.explain("--finding", "7", code=2)


def test_it_does_not_load_spark() -> None:
    code = (
        "import sys, spark_jobs.cli, spark_jobs.record_lookup, spark_jobs.record_text, spark_jobs.content_hash;"
        "print([m for m in ('pyspark', 'pandas', 'numpy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_findings_of_another_report_are_a_usage_error(audited: Audited) -> None:
    audited.found(finding(audited, FindingClass.CORRUPT, 0, 0))
    findings = audited.out / "findings.jsonl"
    findings.write_text(findings.read_text().replace("corrupt", "missing"))
    assert "not the file of report.json" in audited.explain(code=2)
