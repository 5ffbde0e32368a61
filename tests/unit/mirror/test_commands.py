"""Options of kmirror's commands that are checked before a cluster is contacted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mirrormaker import __main__ as command_line
from mirrormaker.__main__ import main

IMPORT_EACH_FIRST = """
import importlib, sys
for name in sys.argv[1:]:
    for ours in [each for each in sys.modules if each.partition(".")[0] in ("mirrormaker", "kbroker")]:
        del sys.modules[ours]
    importlib.import_module(name)
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "kmirror.properties"
    file.write_text(
        "clusters = east, west\n"
        "east.bootstrap.servers = localhost:1\n"
        "west.bootstrap.servers = localhost:1\n"
        "east->west.enabled = true\n"
    )
    return str(file)


@pytest.mark.parametrize("command", [["failback"], ["repair", "--plan", "repair.json"]])
def test_a_command_that_removes_records_needs_a_directory_for_them(
    command: list[str], config: str
) -> None:
    done = CliRunner().invoke(main, [*command, config, "--execute"])
    assert done.exit_code == 2
    assert "--execute needs --export DIR" in done.output


@pytest.mark.parametrize(
    "command", [["promote"], ["failback"], ["repair", "--plan", "repair.json"]]
)
def test_a_wrong_pattern_of_topics_is_refused(command: list[str], config: str) -> None:
    done = CliRunner().invoke(main, [*command, config, "--topics", "("])
    assert done.exit_code == 2
    assert "--topics" in done.output


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["promote", "--source-id", "X"], "--source-lost"),
        (["promote", "--audit", "report", "--abort"], "--audit"),
        (["promote", "--audit", "report", "--dry-run"], "--audit"),
        (["promote", "--record", "record.json", "--abort"], "--record"),
        (["promote", "--record", "record.json", "--dry-run"], "--record"),
        (["promote", "--producers-stopped", "--abort"], "--producers-stopped"),
        (["promote", "--source-id", "X", "--abort"], "--source-lost"),
        *(
            ([*command, "--audit", "report", "--no-audit"], "--no-audit")
            for command in (
                ["failback"],
                ["repair", "--plan", "repair.json"],
                ["truncate", "--topics", "t"],
            )
        ),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(
    options: list[str], named: str, config: str
) -> None:
    command, *others = options
    done = CliRunner().invoke(main, [command, config, *others])
    assert (done.exit_code, named in done.output) == (2, True)


@pytest.mark.parametrize("options", [["--abort", "--target-id"], ["--source-lost", "--source-id"]])
def test_an_empty_cluster_id_is_refused(options: list[str], config: str) -> None:
    """An empty shell variable: --abort ended with 0 if no topic had a mark, the other one found no mirrors of it."""
    done = CliRunner().invoke(main, ["promote", config, *options, ""])
    assert (done.exit_code, f"{options[-1]}: the cluster id is empty" in done.output) == (2, True)


@pytest.mark.parametrize("command", [["--help"], ["--version"], ["promote", "--help"]])
def test_help_that_cannot_be_printed_is_one_line(command: list[str]) -> None:
    """It was a traceback with exit code 1, which the documentation has for a cluster that refuses."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mirrormaker", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (70, "kmirror: No space left on device\n")


@pytest.mark.parametrize("command", ["promote", "failback", "repair", "truncate"])
def test_the_help_has_the_exit_codes_of_signals_and_of_what_aged_out(command: str) -> None:
    text = " ".join(CliRunner().invoke(main, [command, "--help"]).output.split())
    assert "130 Ctrl-C, 143 SIGTERM" in text
    assert ("lost its fence" if command == "promote" else "only one cluster still has") in text


def test_every_option_with_a_fraction_is_a_finite_number() -> None:
    """NaN is in every range, because each comparison with it is false; infinite seconds never pass."""
    kinds = [each.type for command in main.commands.values() for each in command.params]
    numbers = [each for each in kinds if isinstance(each, click.types.FloatParamType)]
    assert numbers
    for each in numbers:
        for text in ("nan", "inf", "-inf"):
            with pytest.raises(click.BadParameter):
                each.convert(text, None, None)


def test_no_path_is_an_empty_text() -> None:
    """Such as of `--export "$UNSET"`. Before, it was the current directory: `Path("")` is `.`."""
    paths = [
        (command.name, each)
        for command in main.commands.values()
        for each in command.params
        if isinstance(each.type, click.Path)
    ]
    assert {"export", "audit", "record", "file"} <= {each.name for _, each in paths}
    for name, each in paths:
        with pytest.raises(click.BadParameter):
            each.process_value(click.Context(main.commands[str(name)]), "")


@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_a_settle_time_that_never_ends_is_refused(seconds: str, config: str) -> None:
    done = CliRunner().invoke(main, ["status", config, "--settle", seconds])
    assert (done.exit_code, "--settle" in done.output) == (2, True)


@pytest.mark.long
def test_what_a_command_imports_can_be_imported_first() -> None:
    """Tests of processes would not notice: they fork commands from a process with all modules (tests/kit)."""
    text = Path(command_line.__file__).read_text()
    names = set(re.findall(r"^ +from (mirrormaker\.\w+) import", text, re.M))
    assert len(names) > 8
    ended = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH_FIRST, *sorted(names)], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
