"""Samples resources of brokers and ZooKeeper every few seconds: memory, descriptors, threads, znodes, watches (S46).

Of a process: /proc. Open segments are not counted as descriptors as long as their files are there: a log that grows has
more of them, up to the broker's own limit; one that was deleted is. Of ZooKeeper: its word ``mntr``. A process that is
started again is another series, called ``broker-1 (2)``, for its memory starts at zero. What is paused is looked at
all the same: the kernel answers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from kbroker.local import zookeeper
from kbroker.local.zookeeper import Server
from tests.audits import growth
from tests.audits.growth import Growth

EVERY: Final = 3.0
SHORTEST: Final = 60.0
"""Seconds of a series below which it is not judged."""
_SEGMENTS: Final = (".log", ".index", ".timeindex")
_MNTR: Final = {"znodes": "zk_znode_count", "watches": "zk_watch_count"}

Key = tuple[str, str]
"""Kind of figure (of growth.ALLOWED), and of what."""


class Vitals(threading.Thread):
    """Samples until it is stopped. *pids* gives names and ids of running processes, *now* the seconds of the run."""

    def __init__(
        self,
        pids: Callable[[], dict[str, int]],
        zookeeper_servers: Iterable[Server],
        now: Callable[[], float],
    ) -> None:
        super().__init__(name="vitals", daemon=True)
        self._pids = pids
        self._servers = list(zookeeper_servers)
        self._now = now
        self._runs: dict[str, list[int]] = {}
        self._ending = threading.Event()
        self.series: dict[Key, list[tuple[float, float]]] = {}

    def finish(self) -> None:
        """Stop."""
        self._ending.set()
        self.join(10)

    def run(self) -> None:
        """Take samples."""
        while not self._ending.wait(EVERY):
            self.look()

    def look(self) -> None:
        """Take one sample of everything."""
        at = self._now()
        for name, pid in self._pids().items():
            figures = of_process(pid)
            pids = self._runs.setdefault(name, [])
            if pid not in pids:
                pids.append(pid)
            label = name if len(pids) == 1 else f"{name} ({len(pids)})"
            for kind, value in figures.items():
                self._add(kind, label, at, value)
        for server in self._servers:
            for kind, value in of_zookeeper(zookeeper.ask(server, "mntr")).items():
                self._add(kind, f"zookeeper-{server.number}", at, value)

    def _add(self, kind: str, of: str, at: float, value: float) -> None:
        self.series.setdefault((kind, of), []).append((at, value))

    def judge(self) -> list[Growth]:
        """Judge every series that is long enough."""
        return [
            growth.judge(kind, of, series)
            for (kind, of), series in sorted(self.series.items())
            if series[-1][0] - series[0][0] >= SHORTEST
        ]

    def to_csv(self) -> str:
        """Give all of it: kind, of, seconds, value."""
        rows = [
            f"{kind},{of},{at:.1f},{value:.0f}"
            for (kind, of), series in sorted(self.series.items())
            for at, value in series
        ]
        return "\n".join(["kind,of,seconds,value", *rows, ""])


def of_process(pid: int) -> dict[str, float]:
    """Return resident bytes, descriptors and threads of a process; nothing if it is gone."""
    home = Path(f"/proc/{pid}")
    try:
        status = (home / "status").read_text()
        open_files = [_target(link) for link in (home / "fd").iterdir()]
    except OSError:
        return {}
    found = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.M))
    if len(found) < 2:  # a zombie has no memory
        return {}
    return {
        "rss": int(found["VmRSS"]) * 1024.0,
        "descriptors": float(sum(not name.endswith(_SEGMENTS) for name in open_files)),
        "threads": float(found["Threads"]),
    }


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed meanwhile
        return ""


def of_zookeeper(mntr: str) -> dict[str, float]:
    """Return ZooKeeper's answer to mntr; nothing if it sent none."""
    answer = dict(line.split("\t", 1) for line in mntr.splitlines() if "\t" in line)
    return {kind: float(answer[name]) for kind, name in _MNTR.items() if name in answer}
