"""Completion in a shell: the names are looked up in the cluster of the line; a lookup that fails is silent."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from kclient.cli.commands import kclient
from tests.kit.cli import environment_for
from tests.kit.fork_server import run
from tests.unit.client.test_cli_help import COMMANDS


def completed(line: str, **environment: str) -> list[str]:
    """Return what a shell offers at the end of *line*."""
    words = line.split(" ")
    ended = run(
        "kclient",
        environment={
            **environment_for("127.0.0.1:1"),
            "_KCLIENT_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            **environment,
        },
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    return [each.partition(",")[2] for each in ended.stdout.decode().split()]


@pytest.mark.long
def test_commands_are_completed() -> None:
    assert completed("kclient gr") == ["group"]
    assert completed("kclient -X list topic trim") == ["trim-prefix"]


def test_a_cluster_that_does_not_answer_has_no_names() -> None:
    began = time.monotonic()
    assert completed("kclient topic describe ") == []
    assert completed("kclient -X nonsense topic describe ") == []
    assert time.monotonic() - began < 20


def test_contexts_are_completed(tmp_path: Path) -> None:
    file = tmp_path / "kclient" / "contexts.toml"
    file.parent.mkdir()
    file.write_text("[contexts.prod]\n[contexts.pay]\n[contexts.test]\n")
    here = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert completed("kclient context use p", **here) == ["pay", "prod"]
    assert completed("kclient topic list --context t", **here) == ["test"]
    file.write_text("[")
    assert completed("kclient context use p", **here) == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_names_of_topics_and_groups_have_a_lookup(words: tuple[str, ...]) -> None:
    for each in COMMANDS[words].params:
        shown = str(each.metavar or each.name).strip("[]").split(".")[0].split("[")[0]
        if shown.lower() in ("topic", "group") and words != ("topic", "create"):
            assert type(each.type).__name__ == "_Name", each.name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str) -> None:
    ended = CliRunner().invoke(kclient, ["completion", shell])
    assert ended.exit_code == 0
    assert f"_KCLIENT_COMPLETE={shell}_complete" in ended.output
