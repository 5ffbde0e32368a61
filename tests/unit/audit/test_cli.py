"""Exit codes of runs that end early: 1 always means that logs differ."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import spark_jobs.__main__
from kclient.mirror_ledger import TYPES, GapEntry, encode, view
from spark_jobs import cli, packed_environment, selftest, session
from spark_jobs.accounting import AcceptedGap
from spark_jobs.class_archive import NoClassArchive
from spark_jobs.cluster import ClusterUnreadable
from spark_jobs.commands.accepted_gaps import AcceptedLine, read_accepted_gaps
from spark_jobs.commands.diff import parsed_schema
from spark_jobs.commands.explain import _decoder
from spark_jobs.commands.guard import guarded
from spark_jobs.commands.options import show
from spark_jobs.finding_places import Place
from spark_jobs.packed_environment import FACTS
from spark_jobs.record_lookup import look_up
from spark_jobs.report.files import DIGESTS_REPORT
from spark_jobs.selftest import SelfTestResult
from spark_jobs.session import SparkNotStarted
from spark_jobs.verdict import ExitCode

SIDES = ("--source", "--target")
BASE = ("reconcile", "--source", "a:1", "--target", "b:1")


def test_no_path_is_an_empty_text() -> None:
    """Such as of `--out "$UNSET"`. Before, it was the current directory: `Path("")` is `.`."""
    paths = [
        (command, each)
        for command in cli.kaudit.commands.values()
        for each in command.params
        if isinstance(each.type, click.Path)
    ]
    assert {"out", "since"} <= {each.name for _, each in paths}
    for command, each in paths:
        with pytest.raises(click.BadParameter):
            each.process_value(click.Context(command), [""] if each.multiple else "")


@pytest.mark.parametrize(
    "wrong",
    [
        ("--topics", "x", "--names", "east,east"),
        ("--topics", "x", "--names", "\udcff,west"),  # a byte that is not UTF-8
        ("--topics", "x", "--names", "east\n,west"),
        ("--topics", "\udcff"),
        ("--topics", "x", "--fail-on", "nonsense"),
        ("--topics", "("),
        ("--topics", "a{99999999999}"),
        ("--topics", "(" * 5000 + ")" * 5000),
        ("--topics", "x", "--min-coverage", "nan"),
        ("--topics", "x", "--min-coverage", "inf"),
        ("--topics", "x", "--min-coverage", "1.5"),
    ],
)
def test_wrong_options_are_usage_errors_before_anything_is_removed(
    tmp_path: Path, wrong: tuple[str, ...]
) -> None:
    (tmp_path / "report.json").touch()
    result = CliRunner().invoke(cli.kaudit, [*BASE, "--out", str(tmp_path), *wrong])
    assert result.exit_code == ExitCode.USAGE
    assert (tmp_path / "report.json").exists()


@pytest.mark.parametrize("command", ["counts", "headers"])
def test_a_limit_that_is_no_number_is_refused_in_every_command(command: str) -> None:
    """NaN is in no range, and below nothing: it would switch the limit off."""
    words = ("--source", "a:1", "--target", "b:1", "--topics", "x", "--min-coverage", "nan")
    result = CliRunner().invoke(cli.kaudit, [command, *words])
    assert (result.exit_code, "nan is not a finite number" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("seconds", "problem"), [("nan", "a finite number"), ("inf", "in the range")]
)
def test_a_timeout_that_never_ends_is_refused(tmp_path: Path, seconds: str, problem: str) -> None:
    result = CliRunner().invoke(
        cli.kaudit, ["explain", "--run", str(tmp_path), "--timeout", seconds]
    )
    assert (result.exit_code, f"{seconds} is not {problem}" in result.output) == (2, True)


def _gap(**more: object) -> str:
    return json.dumps({"topic": "t", "partition": 0, "from": 1, "until": 2, "cause": "c"} | more)


@pytest.mark.parametrize(
    "line",
    [
        *("nonsense", '{"topic": "t"}', "[1]", "null", '"x"', "5"),
        pytest.param("[" * 100_000, id="nested"),
        *(_gap(**{"from": wrong}) for wrong in ("x", "1", 1.0, float("inf"), True, None, -1)),
        *(_gap(until=wrong) for wrong in (0, 2.9, float("nan"), 1 << 63)),
        *(_gap(partition=wrong) for wrong in (-1, 1.9, "0", 1 << 31)),
        *(_gap(topic=wrong) for wrong in (None, ["t"], "")),
        _gap(cause=None),
    ],
)
def test_a_wrong_line_of_accepted_gaps_is_named(tmp_path: Path, line: str) -> None:
    good = json.dumps({"topic": "t", "partition": 0, "from": 1, "until": 2, "cause": "known"})
    gaps = tmp_path / "gaps.jsonl"
    gaps.write_text(f"{good}\n{line}\n")
    options = ["--topics", "x", "--out", str(tmp_path), "--accepted-gaps", str(gaps)]
    result = CliRunner().invoke(cli.kaudit, [*BASE, *options])
    assert result.exit_code == ExitCode.USAGE
    assert "line 2" in result.output


_NESTED = "[" * 100_000


@pytest.mark.parametrize(
    "content", [_NESTED, "[5]", "5", '{"source": 5}'], ids=lambda text: text[:5]
)
@pytest.mark.parametrize(
    "command",
    [
        (*BASE, "--topics", "x", "--out", "{}/out", "--previous", "{}/report.json"),
        (*BASE, "--topics", "x", "--out", "{}/out", "--since", "{}"),
        (*BASE, "--topics", "x", "--out", "{}/out", "--avro", "{}/report.json"),
        ("explain", "--run", "{}"),
        ("diff", "--run", "{}", "--avro", "{}/report.json"),
        ("headers", *BASE[1:], "--topics", "x", "--environment", "{}/packed.tar.gz"),
    ],
    ids=lambda words: f"{words[0]} {words[-2]}",
)
def test_a_file_that_is_no_file_of_kaudit_is_a_wrong_option(
    tmp_path: Path, command: tuple[str, ...], content: str
) -> None:
    for name in ("report.json", "findings.jsonl", DIGESTS_REPORT):
        (tmp_path / name).write_text(content)
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo(FACTS)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content.encode()))
    result = CliRunner().invoke(cli.kaudit, [word.format(tmp_path) for word in command])
    assert (result.exit_code, str(tmp_path) in result.output) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    "text", [_NESTED, '{"type":"array","items":' * 3000 + '"int"' + "}" * 3000]
)
@pytest.mark.parametrize("read", [_decoder, lambda path: parsed_schema("--avro", path)])
def test_a_schema_with_too_many_levels_is_named(
    tmp_path: Path, read: Callable[[Path], object], text: str
) -> None:
    schema = tmp_path / "schema.avsc"
    schema.write_text(text)
    with pytest.raises(ValueError, match=f"--avro {schema}"):
        read(schema)


def test_a_removal_of_the_ledger_is_no_accepted_gap(tmp_path: Path) -> None:
    """The file may be the output of `kmirror gaps --format json`, which has all entries."""
    line = {"topic": "t", "partition": 0, "from": 1, "until": 2, "cause": "truncated"}
    gaps = tmp_path / "gaps.jsonl"
    lines = [{**line, "type": kind} for kind in ("removal", "gap", "lineage")]
    gaps.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    assert read_accepted_gaps(gaps) == (
        AcceptedLine(AcceptedGap("t", 0, 1, 2, "truncated"), at_target=False),
    )


def test_every_entry_of_a_ledger_is_a_line_of_accepted_gaps(tmp_path: Path) -> None:
    """`kmirror gaps --format json` prints them. A gap of *recreated* may be empty, and a cause may be missing."""
    spans = [(5, 5, "recreated"), (5, 9, ""), (0, 0, ""), (0, 7, "retention")]
    entries = [
        GapEntry("c", "t", partition, *span, type=kind)
        for kind in sorted(TYPES)
        for partition, span in enumerate(spans)
    ]
    printed = view(map(encode, entries)).sorted()
    assert len(printed) == len(entries)
    gaps = tmp_path / "gaps.jsonl"
    gaps.write_text("".join(f"{json.dumps(each.as_json())}\n" for each in printed))
    assert read_accepted_gaps(gaps) == (
        AcceptedLine(AcceptedGap("t", 1, 5, 9, ""), at_target=True, source_cluster_id="c"),
        AcceptedLine(AcceptedGap("t", 3, 0, 7, "retention"), at_target=True, source_cluster_id="c"),
    )


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (ClusterUnreadable("no broker"), ExitCode.UNREADABLE),
        (RuntimeError("a bug"), ExitCode.INTERNAL),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
@pytest.mark.parametrize("reportable", [True, False])
def test_a_run_that_ends_early_never_ends_with_1(
    problem: BaseException, code: ExitCode, reportable: bool
) -> None:
    reported = []

    def work() -> int:
        raise problem

    def report(exit_code: int, cause: str) -> None:
        reported.append(exit_code)
        if not reportable:
            raise OSError("read-only")

    assert guarded(work, report) == code
    assert reported == [code]


def test_a_file_that_cannot_be_written_is_named_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    def work() -> int:
        (tmp_path / "file" / "counts.csv").unlink(missing_ok=True)
        return 0

    assert guarded(work) == ExitCode.INTERNAL
    error = capsys.readouterr().err
    assert str(tmp_path / "file" / "counts.csv") in error
    assert "Traceback" not in error


@pytest.mark.parametrize("command", ["pack", "class-archive"])
def test_an_archive_that_cannot_be_written_is_no_wrong_option(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    # What is packed takes seconds, and an editable installation is refused.
    monkeypatch.setattr(packed_environment, "required", lambda *_: set())
    result = CliRunner().invoke(cli.kaudit, [command, str(tmp_path / "file" / "archive")])
    assert result.exit_code == ExitCode.INTERNAL
    assert f"kaudit: cannot write {tmp_path / 'file'}" in result.stderr


@pytest.mark.parametrize("problem", [NoClassArchive("no Java"), SparkNotStarted("no port")])
def test_an_archive_without_spark_is_no_wrong_option(
    tmp_path: Path, problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> None:
        raise problem

    monkeypatch.setattr(sys.modules["spark_jobs.commands.class_archive"], "_write", write)
    result = CliRunner().invoke(cli.kaudit, ["class-archive", str(tmp_path / "archive")])
    assert (result.exit_code, str(problem) in result.stderr) == (ExitCode.INTERNAL, True)


@pytest.mark.parametrize("command", ["pack", "class-archive"])
def test_an_archive_without_a_name_is_a_wrong_option(command: str) -> None:
    result = CliRunner().invoke(cli.kaudit, [command, ""])
    assert (result.exit_code, "FILE" in result.output) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("command", "directory"),
    [
        ("reconcile", "--out"),
        ("headers", "--out"),
        ("counts", "--out"),
        ("watch", "--checkpoint"),
        ("profile", "--out"),
    ],
)
def test_an_unreachable_cluster_is_4_in_every_command(
    tmp_path: Path, command: str, directory: str
) -> None:
    nowhere = "127.0.0.1:1"
    sides = ("--source", nowhere, "--target", nowhere)
    words = ("--cluster", nowhere) if command == "profile" else sides
    arguments = [command, *words, "--topics", "x", directory, str(tmp_path)]
    result = CliRunner().invoke(cli.kaudit, arguments)
    assert "connection refused" in result.output
    assert result.exit_code == ExitCode.UNREADABLE


@pytest.mark.parametrize(
    "address",
    ["b:99999", "b:0", "b:x", "b:²", "b:1,c:y", "", " ", ",", "a..b", "a" * 64, "\udcff:1"],
)
@pytest.mark.parametrize(
    ("command", "option"),
    [
        *((name, side) for name in ("reconcile", "headers", "counts", "watch") for side in SIDES),
        ("profile", "--cluster"),
        ("latency", "--target"),
    ],
)
def test_a_wrong_address_is_a_wrong_option(
    tmp_path: Path, command: str, option: str, address: str
) -> None:
    """4 is a cluster that cannot be read: a script may wait for it."""
    out = str(tmp_path)
    directory = {"reconcile": ["--out", out], "watch": ["--checkpoint", out]}.get(command, [])
    others = [] if option not in SIDES or command == "latency" else [*SIDES]
    words = [word for each in others if each != option for word in (each, "a:1")]
    words += [option, address, "--topics", "x", *directory]
    result = CliRunner().invoke(cli.kaudit, [command, *words])
    assert (result.exit_code, f"'{option}'" in result.stderr) == (2, True), result.output


def test_a_wrong_address_in_a_report_is_no_unreadable_cluster() -> None:
    place = Place("east", "a:99999", "id", "t", 0, 0)
    assert guarded(lambda: bool(look_up(place, 1.0))) == ExitCode.USAGE


@pytest.mark.parametrize("address", ["a:1,b", "[::1]:9092", "PLAINTEXT://süd.example:9092"])
def test_addresses_are_taken(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["spark_jobs.commands.latency"], "guarded", lambda _: 0)
    words = ["latency", "--target", address, "--topics", "x"]
    assert CliRunner().invoke(cli.kaudit, words).exit_code == 0


@pytest.mark.parametrize("name", ["archive.jsa", "archive.log"])
def test_the_log_of_a_class_archive_is_no_file_that_was_there(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "archive.log"
    notes.write_text("mine")
    logs = []

    def write(archive: Path, log: Path) -> None:
        archive.write_text("classes")
        log.write_text("Spark")
        logs.append(log)

    monkeypatch.setattr(sys.modules["spark_jobs.commands.class_archive"], "_write", write)
    result = CliRunner().invoke(cli.kaudit, ["class-archive", str(tmp_path / name)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / name).read_text() == "classes"
    assert notes.read_text() == ("classes" if name == notes.name else "mine")
    assert {path.name for path in tmp_path.iterdir()} == {name, notes.name}
    assert logs[0].parent == tmp_path


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["pack", "e.tar.gz"], ExitCode.CONSISTENT),
        (["class-archive", "classes"], ExitCode.CONSISTENT),
        (["selftest", "--seeds", "1"], ExitCode.CONSISTENT),
        (["selftest", "--nonsense"], ExitCode.USAGE),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_a_closed_pipe_does_not_change_the_exit_code_of_a_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: ExitCode,
    closed: str,
) -> None:
    """1 is DIVERGED: click ends with it for a closed pipe, and Python for an exception."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(packed_environment, "required", lambda *_: set())
    monkeypatch.setattr(
        sys.modules["spark_jobs.commands.class_archive"],
        "_write",
        lambda archive, _: archive.write_text("classes"),
    )
    monkeypatch.setattr(selftest, "run_self_test", lambda *_, **__: SelfTestResult(1, 1, (), ()))
    monkeypatch.setattr(session, "spark_session", lambda *_: nullcontext())
    monkeypatch.setattr(sys, "argv", ["kaudit", *words])
    with closed_pipe() as stream:
        monkeypatch.setattr(sys, closed, stream)
        assert spark_jobs.__main__._run() == code
        monkeypatch.undo()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["pack", "--help"]])
def test_help_that_cannot_be_printed_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kaudit", *words])
    with closed_pipe() as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert spark_jobs.__main__._run() == ExitCode.INTERNAL
        monkeypatch.undo()


@contextmanager
def closed_pipe() -> Iterator[io.TextIOWrapper]:
    """Yield a stream without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb", buffering=0) as raw:
        yield io.TextIOWrapper(raw, write_through=True)


def test_a_closed_pipe_does_not_change_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_pipe() as stream:
        monkeypatch.setattr(sys, "stdout", stream)

        def work() -> int:
            show("a result")
            return 0

        assert guarded(work) == ExitCode.CONSISTENT
        monkeypatch.undo()
