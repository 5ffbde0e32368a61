"""The orphan reaper: stops the clusters of a directory when a given process ends, for any reason.

Demos and test runs start clusters with `kbroker local up --die-with PID`: the clusters stop even when the caller is
killed. The reaper is a process of its own: ``python -m kbroker.local.orphan_reaper PID DIR``.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import time
from pathlib import Path

from kbroker.local.cluster import broker_environment, down, purge
from kbroker.local.processes import ProcessIdentity, start_in_background
from kbroker.local.state import Directory


def start(pid: int, directory: Directory, *, purges: bool = False) -> None:
    """Start the process that waits for the end of *pid*, and stops the clusters then, or *purges* them."""
    what = ["purge"] if purges else []
    start_in_background(
        [sys.executable, "-m", "kbroker.local.orphan_reaper", str(pid), str(directory.path), *what],
        log=Path(os.devnull),
        cwd=Path("/"),
        environment=broker_environment(),
    )


def wait_for_end(pid: int) -> None:
    """Wait until process *pid* is gone."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            select.select([descriptor], [], [])
            return
    watched = ProcessIdentity.of(pid)
    while watched is not None and watched.alive:
        time.sleep(0.5)


if __name__ == "__main__":
    wait_for_end(int(sys.argv[1]))
    where = Directory(Path(sys.argv[2]))
    if where.path.is_dir() and sys.argv[3:] == ["purge"]:
        purge(where, None, lambda _text: None, gently=False)
        shutil.rmtree(where.path, ignore_errors=True)
    elif where.path.is_dir():
        down(where, None, lambda _text: None)
