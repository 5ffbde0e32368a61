"""The first commands of a new user: the list of settings, and commands without their extras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kclient.cli.commands import kclient
from kclient.extras import what_to_install


@pytest.mark.parametrize("words", [["-X", "list"], ["topic", "list", "-X", "list"]])
def test_the_settings_are_listed_with_or_without_a_command(words: list[str]) -> None:
    """Without a command the answer was "Missing command"."""
    ended = CliRunner().invoke(kclient, words)
    assert ended.exit_code == 0
    assert "linger.ms " in ended.output


@pytest.mark.parametrize(
    ("missing", "module", "words", "line", "code"),
    [
        (
            "kazoo", "kbroker", "start {directory}/server.properties",
            "kbroker start needs kazoo, which is not installed: pip install 'kbroker[broker]'", 1,
        ),
        (
            "numpy", "spark_jobs", "counts --source a:1 --target b:1 --topics t",
            "kaudit: this command needs numpy, which is not installed: pip install 'kbroker[audit]'", 70,
        ),
    ],
)  # fmt: skip
def test_a_command_without_its_extra_prints_one_line(
    missing: str, module: str, words: str, line: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "server.properties").write_text(
        f"broker.id=1\nzookeeper.connect=127.0.0.1:1\nlog.dirs={tmp_path}/log\n"
        "listeners=PLAINTEXT://127.0.0.1:0\n"
    )
    script = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['x', *{words.format(directory=tmp_path).split()!r}];"
        f"from {module}.__main__ import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, ended.stderr) == (code, f"{line}\n")


def test_a_missing_module_of_our_own_is_no_missing_extra() -> None:
    problem = ModuleNotFoundError("No module named 'kclient.nope'", name="kclient.nope")
    assert what_to_install(problem, "kclient", "avro") is None
