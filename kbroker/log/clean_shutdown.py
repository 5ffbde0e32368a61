"""Close every log of a directory cleanly, so that the next start recovers none: a few syncs for thousands of logs.

Theory of operation
===================
A clean log is synced before its recovery point moves, and before the marker of a clean shutdown is written. Log by log
that takes up to seven syncs each, with a journal commit for every sync. So many logs take the steps of `FlushWork`
together. The file system is synced as a whole between the steps, once for the content, once for the names. Where that
is not reliable (`Disk.sync_all`), and for a few logs, each log is synced by itself, several at a time.

Invariants:
1. No recovery point moves before everything below it was synced.
2. The former leader epochs keep their name until the new ones are on the disk.
3. A log with nothing to sync costs no sync.

Owner: a thread of the pool, when the logs are no longer in use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kbroker.log.flush_work import FlushWork
from kbroker.log.log_dir import in_threads
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.errors import KafkaStorageError

FEW: Final = 16
"""Up to so many logs are synced one by one: the file system may hold much unsynced data of other processes."""

THREADS: Final = 4
"""Threads, unless the broker has one recovery thread: the syncs wait for the disk at the same time."""


def close_all(
    logs: Sequence[UnifiedLog], sync_all: Callable[[Sequence[str]], bool], *, threads: int
) -> bool:
    """Close *logs*; return whether all of them are synced. *sync_all* is given their directories. Slow.

    Raise OSError, and any error that is not of the disk: then all logs are closed, and none counts as synced.
    """
    threads = max(threads, THREADS) if threads > 1 else 1
    try:
        return _all_synced(logs, sync_all, threads)
    finally:
        for log in logs:
            log.close(clean=False)


def _all_synced(
    logs: Sequence[UnifiedLog], sync_all: Callable[[Sequence[str]], bool], threads: int
) -> bool:
    started = in_threads(threads, _start, logs)
    clean = all(good for good, _ in started)
    works = [(log, work) for log, (_, work) in zip(logs, started, strict=True) if work is not None]
    # A former work of a log may have failed: then that log is not clean.
    alone = [each for each in works if each[1].is_behind_another]
    together = [each for each in works if not each[1].is_behind_another]
    if len(together) <= FEW or not _synced_together(together, sync_all, threads):
        alone += together
    return all(in_threads(threads, _sync, alone)) and clean


def _start(log: UnifiedLog) -> tuple[bool, FlushWork | None]:
    """Write what is not in a file yet; return whether that went well, and what to sync."""
    try:
        return True, log.start_close()
    except (OSError, KafkaStorageError):
        return False, None


def _synced_together(
    works: Sequence[tuple[UnifiedLog, FlushWork]],
    sync_all: Callable[[Sequence[str]], bool],
    threads: int,
) -> bool:
    """Sync all at once; False where that cannot be done. Raise OSError: nothing is known then."""
    directories = [work.directory for _, work in works]
    in_threads(threads, FlushWork.write, [work for _, work in works])
    if not sync_all(directories):
        return False
    in_threads(threads, FlushWork.publish, [work for _, work in works])
    if not sync_all(directories):
        return False
    for log, work in works:
        log.finish_flush(work)
    return True


def _sync(item: tuple[UnifiedLog, FlushWork]) -> bool:
    """Sync one log by itself; return whether that went well."""
    log, work = item
    is_behind_another = work.is_behind_another
    try:
        work.run()
    except OSError:
        return False
    except Exception:
        # The work before it may have failed by that error, and has raised it (S15).
        if is_behind_another:
            return False
        raise
    log.finish_flush(work)
    return True
