"""Real brokers with slow and recorded syncs of segment files: when each began and ended, and how much it covered.

The process finds a `sitecustomize` on its path that puts a function of ours in the place of the disk's fdatasync. The
clock is the machine's monotonic one, the same in all processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.kit.brokers import Broker

_PROGRAM = """
import os, time
from kbroker.log import disk

def observed(fd, real=disk.OsDisk.fsync):
    path = os.readlink(f"/proc/self/fd/{fd}")
    if not path.endswith(".log"):
        return real(fd)
    began, size = time.monotonic(), os.fstat(fd).st_size
    time.sleep(float(os.environ["SYNC_SECONDS"]))
    real(fd)
    with open(os.environ["SYNC_RECORD"], "a") as record:
        record.write(f"{began} {time.monotonic()} {size} {path}\\n")

disk.OsDisk.fsync = staticmethod(observed)
"""


@dataclass(frozen=True)
class Sync:
    """One sync of a segment file."""

    began: float
    ended: float
    size: int
    """Bytes of the file when it began: what it covers at least."""
    path: str


def observe(broker: Broker, directory: Path, seconds: float) -> Path:
    """Have each sync of *broker*, which is not started yet, take *seconds*; return the file that records them."""
    place = directory / "observed"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(_PROGRAM)
    record = directory / f"syncs-{broker.broker_id}"
    record.touch()
    broker.environment |= {
        "PYTHONPATH": f"{place}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "SYNC_RECORD": str(record),
        "SYNC_SECONDS": str(seconds),
    }
    return record


def syncs(record: Path, partition: str) -> list[Sync]:
    """Return the syncs of a partition's log ("t-0") that have ended."""
    found = []
    for line in record.read_text().splitlines():
        began, ended, size, path = line.split(" ", 3)
        if Path(path).parent.name == partition:
            found.append(Sync(float(began), float(ended), int(size), path))
    return found
