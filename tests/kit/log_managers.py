"""Log directories with just the parts of a broker that they need."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.log.claimed_log_dirs import ClaimedLogDirs
from kbroker.log.disk import OS_DISK, Disk, OsDisk
from kbroker.log.log_manager import LogManager
from kclient.wire.errors import KafkaError
from tests.kit.logs import FaultyDisk, append, config

ID = UUID("0e579ef6-5c4e-4664-9cf4-cd2b01bee5f1")
"""The topic id of logs where the topic does not matter."""


class Pool(ThreadPoolExecutor):
    """Runs what it is given at once, or when `run` is called where it *holds*."""

    def __init__(self, *, holds: bool = False) -> None:
        super().__init__(1)
        self.holds = holds
        self.waiting: list[Callable[[], None]] = []

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                result = work(*args, **kwargs)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        if self.holds:
            self.waiting.append(run)
        else:
            run()
        return future

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class Broker:
    """The parts of a broker that LogManager needs."""

    def __init__(
        self,
        *paths: Path,
        disk: Disk = OS_DISK,
        holds: bool = False,
        new_manager: Callable[..., LogManager] = LogManager,
        **settings: Any,
    ):
        self.now_ms = 0
        self.failures: list[tuple[str, list[tuple[str, int]]]] = []
        self.pool = Pool(holds=holds)
        self.config = config(**settings)
        self.log_dirs = ClaimedLogDirs(tuple(map(str, paths)), disk=disk)
        self.dirs = new_manager(
            self.log_dirs,
            config_of=lambda topic: self.config,
            executor=self.pool,
            call_owner=lambda call: call(),
            now_ms=lambda: self.now_ms,
            on_failure=lambda path, error, logs: self.failures.append((path, logs)),
            on_flush=lambda _partition: None,
            on_move=lambda _partition, _path, _error: None,
            boot_id="this-boot",
        )

    def start(self, broker_id: int = 1, cluster_id: str = "east") -> LogManager:
        try:
            self.log_dirs.take_identity(broker_id, cluster_id)
            self.dirs.load()
        except KafkaError:
            self.dirs.release()
            raise
        return self.dirs


Brokers = Callable[..., Broker]
"""Makes brokers: ``brokers("a", "b", disk=...)``, on directories of these names."""


class Unreadable(FaultyDisk):
    """A disk of which the directory *path* cannot be read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = str(path)

    def listdir(self, path: str, /) -> list[str]:  # type: ignore[override]
        """List, unless it is that one."""
        if path == self._path:
            raise OSError(errno.EIO, "I/O error")
        return OS_DISK.listdir(path)


class Synced(OsDisk):
    """The real disk with its syncs counted; all at once where it *can*."""

    def __init__(self, *, can: bool = True) -> None:
        self.syncs: Counter[str] = Counter()
        self._can = can

    def fsync(self, fd: int, /) -> None:  # type: ignore[override]
        self.syncs["fsync"] += 1

    def sync_dir(self, path: str, /) -> None:
        self.syncs["sync_dir"] += 1

    def sync_all(self, _fd: int, paths: Sequence[str], /) -> bool:
        self.syncs["sync_all"] += 1
        return self._can


def start(path: str, disk: Any, *, threads: int = 1) -> LogManager:
    """Start the logs of a broker."""
    log_dirs = ClaimedLogDirs((path,), disk=disk)
    dirs = LogManager(
        log_dirs,
        config_of=lambda _topic: config(),
        executor=Pool(),
        call_owner=lambda call: call(),
        now_ms=lambda: 0,
        on_failure=lambda *what: pytest.fail(f"{what}"),
        on_flush=lambda _partition: None,
        on_move=lambda _partition, _path, _error: None,
        recovery_threads=threads,
    )
    log_dirs.take_identity(1, "east")
    dirs.load()
    return dirs


def fill(dirs: LogManager, count: int, *, epoch: int = 0) -> None:
    """Append a record to each of *count* logs."""
    for number in range(count):
        append(dirs.create("t", number, ID), 1, epoch=epoch)
