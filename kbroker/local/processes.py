"""Processes of local clusters: identified later and from another shell, stopped within a bounded time.

The kernel reuses process ids. So a process is identified by its id and its start time, as the kernel reports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PR_SET_PDEATHSIG = 1
HAS_PROC = Path("/proc/self/stat").exists()


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that cannot be mistaken for another one with the same id."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Identify the process now running under *pid*; None if there is none, or only a zombie."""
        started = _start_time(pid)
        return cls(pid, started) if started else None

    @classmethod
    def from_json(cls, value: Any) -> ProcessIdentity | None:
        """Read what `to_json` wrote; None if it is not that."""
        if not isinstance(value, dict):
            return None
        pid, started = value.get("pid"), value.get("started")
        return cls(pid, started) if isinstance(pid, int) and isinstance(started, str) else None

    def to_json(self) -> dict[str, Any]:
        """Give what is stored in the state of a local cluster."""
        return {"pid": self.pid, "started": self.started}

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return _start_time(self.pid) == self.started

    @property
    def paused(self) -> bool:
        """Whether this very process is stopped by SIGSTOP (Linux)."""
        return HAS_PROC and self.alive and _stat(self.pid)[:1] == ["T"]

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False if the process is gone."""
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def _start_time(pid: int) -> str:
    """Return the start time of *pid* in a form of this system; empty if it does not run."""
    if HAS_PROC:
        fields = _stat(pid)
        if not fields or fields[0] in "ZX":
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
        return f"{boot}-{fields[19]}"
    result = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = result.stdout.strip().partition(" ")
    return "" if not state or state.startswith("Z") else started.strip()


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return stat[stat.rindex(")") + 2 :].split()


def stop(process: ProcessIdentity, *, timeout: float) -> bool:
    """SIGTERM, wait up to *timeout* seconds, then SIGKILL. True if SIGTERM was enough."""
    if not process.signal(signal.SIGTERM):
        return True
    process.signal(signal.SIGCONT)
    if _wait_for_end(process, timeout):
        return True
    process.signal(signal.SIGKILL)
    _wait_for_end(process, 5.0)
    return False


def _wait_for_end(process: ProcessIdentity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.alive:
        _reap(process.pid)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    _reap(process.pid)
    return True


def _reap(pid: int) -> None:
    """Reap *pid* if it is a child of this process: else it would remain a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def start_in_background(
    command: Sequence[str],
    *,
    log: Path,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
) -> ProcessIdentity:
    """Start a process that outlives this one and its terminal; its output is appended to *log*."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            env=None if environment is None else {**os.environ, **environment},
            start_new_session=True,
        )
    identity = ProcessIdentity.of(process.pid)
    process.returncode = 0  # nothing waits for it: no ResourceWarning for the dropped object
    return identity or ProcessIdentity(process.pid, "ended at once")


def bind_to_us() -> Callable[[], None]:
    """Return what a new child calls to be killed by the kernel when the thread that started it ends (Linux)."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl if HAS_PROC else None
    parent = os.getpid()

    def bind() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

    return bind


def start_bound_to_us(
    command: Sequence[str],
    *,
    output: IO[bytes],
    stdout: int | IO[bytes] | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when the calling thread ends (Linux).

    So not even a `kill -9` of a test run leaves anything behind. Its output goes to *output*, or
    its standard output to *stdout*.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output if stdout is None else stdout,
        stderr=output,
        cwd=cwd,
        env=None if environment is None else {**os.environ, **environment},
        preexec_fn=bind_to_us(),
    )
