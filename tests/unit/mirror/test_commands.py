"""Options of kmirror's commands that are checked before a cluster is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mirrormaker.__main__ import main


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
