"""The fork server of this pytest process: brokers, mirrors and kclient start without the time of their imports.

What these processes share (modules, a hash seed) is right for a test that restarts a broker, not for one that looks at
the start or the memory of a process. Those spawn it: `broker_clusters(..., forked=False)`, `kbroker.local.processes`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from kbroker.local.cluster import broker_environment
from kbroker.testing.brokers import FORK_SERVER


def command_of(program: str, *words: str) -> list[str]:
    """Return the command that `popen` forks."""
    return [sys.executable, "-m", program, *words]


def popen(
    program: str,
    *words: str,
    environment: Mapping[str, str] | None = None,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start *program* in *environment*, or in ours."""
    inherited = os.environ if environment is None else environment
    return FORK_SERVER.popen(
        command_of(program, *words),
        env={**inherited, **broker_environment()},
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
    )


def run(
    program: str,
    *words: str,
    stdin: bytes = b"",
    timeout: float = 60.0,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run *program* on *stdin* to its end."""
    pipe = subprocess.PIPE
    process = popen(program, *words, environment=environment, stdin=pipe, stdout=pipe, stderr=pipe)
    with process:
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess((program, *words), process.returncode, out, err)
