"""Paths on command lines: the empty text of a variable that is not set is none. `Path("")` is the current directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kbroker.cli import kbroker
from kclient.cli.commands import kclient
from mirrormaker.__main__ import main as kmirror
from spark_jobs.cli import kaudit


def paths(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, click.Parameter]]:
    for each in command.params:
        if isinstance(each.type, click.Path):
            yield " ".join((*words, each.opts[-1])), each
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from paths(command.get_command(context, name), (*words, name))


PATHS = {
    label: path
    for name, group in (("kbroker", kbroker), ("kclient", kclient), ("kmirror", kmirror), ("kaudit", kaudit))
    for label, path in paths(group, (name,))
}  # fmt: skip


def test_the_paths_are_found() -> None:
    assert {
        "kbroker start file",
        "kbroker stop file",
        "kbroker check-config file",
        "kbroker local up --dir",
        "kbroker local purge --dir",
        "kbroker demo --dir",
        "kclient --command-config",
        "kclient topic list --command-config",
        "kclient produce paths",
        "kclient consume --avro",
        "kclient log dump paths",
        "kclient group import path",
        "kclient group export --file",
        "kclient group reset-offsets --from-file",
        "kclient reassign generate --topics-to-move-json-file",
        "kclient reassign execute --reassignment-json-file",
        "kmirror run file",
        "kmirror run --metrics",
        "kaudit pack file",
        "kaudit reconcile --out",
    } <= set(PATHS)


@pytest.mark.parametrize("label", PATHS)
def test_an_empty_path_is_a_usage_error(label: str) -> None:
    path = PATHS[label]
    with pytest.raises(click.BadParameter):
        path.type.convert("", path, None)


@pytest.mark.parametrize(
    "words", [("local", "purge", "--dir", ""), ("demo", "--dir", ""), ("stop", "")]
)
def test_kbroker_leaves_the_current_directory_alone_if_a_path_is_empty(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(kbroker, words)
    assert (done.exit_code, "the name is missing" in done.stderr) == (2, True), done.output
    assert not list(tmp_path.iterdir())


def test_a_name_of_a_directory_in_an_empty_variable_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Click takes an empty environment variable as one that is not set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBROKER_LOCAL_DIR", "")
    done = CliRunner().invoke(kbroker, ["local", "status"])
    assert f"{tmp_path / 'kbroker-local'} has no cluster" in done.stderr
