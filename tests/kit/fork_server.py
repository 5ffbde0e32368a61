"""The fork server of this pytest process: brokers, mirrors and kclient start without the time of their imports.

In the kit and not in the product: what these processes share (modules, a hash seed) is right for a test that
restarts a broker, not for one that looks at the start or the memory of a process. Those spawn it:
`broker_clusters(..., forked=False)`, or `kbroker.local.processes`.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from kbroker.local import processes
from kbroker.local.cluster import broker_environment
from kbroker.local.fork_server import ForkServer

FORK_SERVER = ForkServer(("kbroker", "kclient", "mirrormaker"), broker_environment())
"""It begins with the first command."""

atexit.register(FORK_SERVER.close)


def command_of(program: str, *words: str) -> list[str]:
    """Return the command that `popen` forks."""
    return [sys.executable, "-m", program, *words]


def start_bound_to_us(
    command: Sequence[str],
    *,
    output: IO[bytes],
    stdout: int | IO[bytes] | None = None,
    environment: Mapping[str, str],
    forked: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a process as `processes.start_bound_to_us` does, and unless it is to be *forked*, by that."""
    if not forked:
        return processes.start_bound_to_us(
            command, output=output, stdout=stdout, environment=environment
        )
    return FORK_SERVER.popen(
        command,
        bound_to_us=True,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=output if stdout is None else stdout,
        stderr=output,
    )


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
