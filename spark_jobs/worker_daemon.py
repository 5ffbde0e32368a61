"""The process that Spark forks its Python workers from: `spark.python.daemon.module`.

Spark's own daemon imports nothing before it forks, so each worker imports pyspark, pyarrow, pandas and kaudit again.
That is more processor time than a small audit needs for the rest of its tasks. Here they are imported once.

Spark puts its own pyspark first on the path, in an archive without byte code: Python compiles what it imports from it
in every process. Where the archive is a part of an installed pyspark, that one is imported instead. A worker with the
environment of `kaudit pack` has no other pyspark than the archive's.

A worker collects garbage after each task. What the daemon imported is never garbage, so it is frozen: a collection
does not visit it.

numpy's arrays of a chunk are a few hundred kilobytes each. glibc would return their memory to the system at once, and
the system clears it for the next array. That is a tenth of the time of a digest. A worker keeps some of it instead.

What is imported here must work after `os.fork`, which copies no threads. Arrow and OpenBLAS start theirs again in the
forked process, and kclient starts its reactor's when a consumer needs it.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

FOR_TASKS = "pyspark.worker"
"""The module of the workers that run tasks. Those that plan a query are few, and import what they need."""

IMPORTED = (
    "pandas.util",
    "pyspark.worker",
    "kclient.blocking.consumer",
    "spark_jobs.header_audit",
    "spark_jobs.kafka_reader",
    "spark_jobs.selftest",
)
"""What tasks import, or what imports it."""


KEPT_BYTES = 64 << 20
"""Freed memory at the end of the heap that a worker keeps."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt (malloc.h)."""
_MOST_IN_HEAP = 32 << 20
"""The largest allocation that glibc takes from the heap, at most."""


def keep_freed_memory() -> bool:
    """Have this process, and those that it forks, keep `KEPT_BYTES`; return whether its C library does that."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False  # not glibc
    return bool(
        mallopt(_M_MMAP_THRESHOLD, _MOST_IN_HEAP) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    )


def without_archives(path: Sequence[str], installed: str | None) -> list[str]:
    """Return the module search path *path* without the archives of Spark's own pyspark, if they are of *installed*.

    That is the `__init__.py` of the pyspark found behind them: another version must not take the place of Spark's.
    """
    if installed is None:
        return list(path)
    folder = Path(installed).parent / "python" / "lib"
    return [each for each in path if Path(each).parent != folder or not each.endswith(".zip")]


def _prefer_installed_pyspark() -> None:
    others = [each for each in sys.path if not each.endswith(".zip")]
    found = PathFinder.find_spec("pyspark", others)
    sys.path = without_archives(sys.path, found.origin if found is not None else None)


def _import_for_tasks() -> None:
    keep_freed_memory()
    for name in IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Import what tasks need, and then be Spark's daemon until Spark closes its standard input."""
    _prefer_installed_pyspark()
    if FOR_TASKS in sys.argv[1:]:
        _import_for_tasks()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
