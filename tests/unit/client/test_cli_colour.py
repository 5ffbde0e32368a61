"""Colours are for terminals: not in a pipe, not with NO_COLOR, not with --no-color."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest


def at_a_terminal(directory: Path, *words: str, **variables: str) -> str:
    """Return what `kclient` prints on a terminal."""
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    ours, theirs = pty.openpty()
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "kclient", *words],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "XDG_CONFIG_HOME": str(directory), "TERM": "xterm", **variables},
            timeout=30,
            check=False,
        )
        assert ended.returncode == 0
        return os.read(ours, 4096).decode()
    finally:
        os.close(ours)
        os.close(theirs)


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
    shown = at_a_terminal(tmp_path, *words, **variables)
    assert shown.strip()
    assert ("\x1b[" in shown) is coloured


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
