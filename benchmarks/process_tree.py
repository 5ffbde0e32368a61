"""CPU seconds and memory of a process and everything it starts, read from /proc while it runs.

A Spark job is a driver, a JVM and Python workers that come and go; the kernel adds up CPU time only of children that
were waited for. So the processes of the session are read again and again, and the last value of each counts.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_EVERY_S = 0.1


@dataclass
class Tree:
    """What was measured of the processes of one session."""

    cpu_of: dict[int, float] = field(default_factory=dict)
    """CPU seconds of each process, as last read."""
    python_peak_mib: float = 0.0
    """The largest resident memory of a Python process other than the first."""

    @property
    def cpu(self) -> float:
        """CPU seconds of all processes; what a process used after its last reading is missing."""
        return sum(self.cpu_of.values())

    def read(self, session: int) -> None:
        """Read the processes of *session* once."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError):
                name, _, rest = (entry / "stat").read_text().rpartition(")")
                fields = rest.split()
                if int(fields[3]) != session:
                    continue
                pid = int(entry.name)
                self.cpu_of[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
                if "python" in name and pid != session:
                    resident = int((entry / "statm").read_text().split()[1]) * _PAGE / (1 << 20)
                    self.python_peak_mib = max(self.python_peak_mib, resident)


@contextlib.contextmanager
def measured(process: subprocess.Popen[bytes]) -> Iterator[Tree]:
    """Measure the session of *process*, which must lead it (start_new_session)."""
    tree, ended = Tree(), threading.Event()

    def watch() -> None:
        while not ended.is_set():
            tree.read(process.pid)
            time.sleep(_EVERY_S)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield tree
    finally:
        ended.set()
        thread.join()
