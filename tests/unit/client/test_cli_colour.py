"""Colours are for terminals: not in a pipe, not with NO_COLOR, not with --no-color."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.terminals import at_a_terminal


def shown(directory: Path, *words: str, **variables: str) -> str:
    """Return what `kclient` prints on a terminal."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environment = {**inherited, "XDG_CONFIG_HOME": str(directory), "TERM": "xterm", **variables}
    code, text = at_a_terminal(*words, environment=environment)
    assert code == 0
    return text


@pytest.mark.parametrize(
    ("words", "variables", "coloured"),
    [
        (("context", "list"), {}, True),
        (("context", "list"), {"NO_COLOR": ""}, True),
        (("context", "list"), {"NO_COLOR": "1"}, False),
        (("context", "list", "--no-color"), {}, False),
        (("--no-color", "context", "list"), {}, False),
        (("context", "list"), {"TERM": "dumb"}, False),
        (("context", "list", "-J"), {}, False),
    ],
)
def test_colours_on_a_terminal(
    tmp_path: Path, words: tuple[str, ...], variables: dict[str, str], coloured: bool
) -> None:
    text = shown(tmp_path, *words, **variables)
    assert text.strip()
    assert ("\x1b[" in text) is coloured


def test_there_are_no_colours_in_a_pipe(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "TERM": "xterm"}
    for words in (("context", "list"), ("context", "use", "nosuch")):
        ended = subprocess.run(
            [sys.executable, "-m", "kclient", *words],
            capture_output=True,
            env=environment,
            timeout=30,
            check=False,
        )
        assert ended.stdout + ended.stderr
        assert b"\x1b" not in ended.stdout + ended.stderr
