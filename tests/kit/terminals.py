"""Commands of kclient at a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress


def at_a_terminal(
    *words: str, environment: Mapping[str, str], stdin_is_terminal: bool = False
) -> tuple[int, str]:
    """Return the exit code of `kclient`, with stdout and stderr at a terminal, and all that it wrote there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "kclient", *words],
        stdin=theirs if stdin_is_terminal else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=dict(environment),
    ) as process:
        os.close(theirs)
        written = b""
        with suppress(OSError):  # the other end is closed
            while piece := os.read(ours, 4096):
                written += piece
        os.close(ours)
        return process.wait(30), written.decode()
