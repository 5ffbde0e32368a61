"""Builders for tests of the log: batches, logs, what is in them, and a disk that fails on order."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kbroker.config.log import LogConfig
from kbroker.log.disk import OS_DISK, Buffer, Disk, OsDisk
from kbroker.log.flush_work import FlushWork
from kbroker.log.unified_log import AppendResult, LogListener, UnifiedLog
from kclient.wire.batches import iterate, parse
from kclient.wire.records import Record, decode_batch, encode_batch


def batch_of(
    *timestamps: int,
    value: bytes = b"v",
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: int = 0,
) -> bytes:
    """One batch with a record per timestamp (ms), all with the same value."""
    records = [
        Record(offset=base_offset + n, timestamp=at, key=None, value=value, headers=())
        for n, at in enumerate(timestamps)
    ]
    return encode_batch(records, codec=codec, base_offset=base_offset, leader_epoch=leader_epoch)


def config(**settings: Any) -> LogConfig:
    """Kafka's defaults with *settings* in place."""
    return LogConfig(**settings)


class IgnoredEvents:
    """A listener of a log that handles no event."""

    def failed(self, error: OSError) -> None:
        """Ignore a failed write or sync."""

    def rolled(self) -> None:
        """Ignore a roll."""

    def truncated(self, log_end_offset: int) -> None:
        """Ignore a truncation."""

    def flush_due(self) -> None:
        """Ignore an append that waits for a sync."""


IGNORED = IgnoredEvents()


def open_log(
    directory: Path,
    *,
    listener: LogListener = IGNORED,
    disk: Disk = OS_DISK,
    clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    now_ms: int = 0,
    **settings: Any,
) -> UnifiedLog:
    """Open (and create where missing) the log of *directory*."""
    directory.mkdir(exist_ok=True)
    return UnifiedLog.open(
        str(directory),
        config(**settings),
        listener,
        now_ms=now_ms,
        disk=disk,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
    )


def append(
    log: UnifiedLog,
    *timestamps: int,
    value: bytes = b"v",
    epoch: int = 0,
    now_ms: int = 0,
) -> AppendResult:
    """Append one batch as leader."""
    batch = batch_of(*(timestamps or (0,)), value=value)
    return log.append_as_leader(batch, parse(batch), epoch, now_ms)


def two_flushes(log: UnifiedLog, *epochs: int) -> list[FlushWork]:
    """Return the work of two flushes, each begun after an append, by default of epoch 0."""
    flushes = []
    for epoch in epochs or (0, 0):
        append(log, 1, epoch=epoch)
        flush = log.start_flush()
        assert flush is not None
        flushes.append(flush)
    return flushes


def read_bytes(log: UnifiedLog, offset: int, max_bytes: int = 1 << 20, **options: Any) -> bytes:
    """What one fetch from *offset* would send."""
    return b"".join(part.read() for part in log.read(offset, max_bytes, **options).slices)


def records(log: UnifiedLog, **options: Any) -> list[tuple[int, bytes | None]]:
    """Every (offset, value) that a consumer reading from the start gets, batch after batch."""
    found = []
    offset = log.log_start_offset
    while data := read_bytes(log, offset, **options):
        for info in iterate(data):
            for record in decode_batch(data, info):
                if record.offset >= offset:
                    found.append((record.offset, record.value))
            offset = info.next_offset
    return found


def held_batches(log: UnifiedLog) -> list[tuple[int, int, bytes]]:
    """What a follower reads of the log: base offset, leader epoch and the batch behind its stamp."""
    found = []
    offset = log.log_start_offset
    while data := read_bytes(log, offset):
        for info in iterate(data):
            found.append((info.base_offset, info.leader_epoch, data[info.position + 16 : info.end]))
            offset = info.next_offset
    return found


class FaultyDisk(OsDisk):
    """The real disk; a plan makes calls fail, or write short."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self._plans: dict[str, list[tuple[int, Callable[[], object]]]] = {}
        self._short: list[int] = []
        for name in (
            "open",
            "fsync",
            "ftruncate",
            "rename",
            "unlink",
            "sync_dir",
            "mkdir",
            "pread",
        ):
            setattr(self, name, self._wrapped(name, getattr(OsDisk, name)))

    def fail(self, call: str, error: int = errno.EIO, *, after: int = 0, times: int = 1) -> None:
        """Let *call* raise OSError(*error*): the next time, or after *after* more successes."""

        def refuse() -> object:
            raise OSError(error, os.strerror(error))

        self._plans.setdefault(call, []).append((after, refuse))
        for _ in range(times - 1):
            self._plans[call].append((0, refuse))

    def break_down(self, call: str) -> None:
        """Let *call* raise what no disk is expected to raise, the next time."""

        def raise_it() -> object:
            raise MemoryError

        self._plans.setdefault(call, []).append((0, raise_it))

    def write_short(self, *sizes: int) -> None:
        """Let the next writes take only so many bytes, one size per write."""
        self._short += sizes

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int, /) -> int:  # type: ignore[override]
        """Write, unless a plan makes the call fail."""
        if self._short:
            size = self._short.pop(0)
            whole = b"".join(buffers)
            return os.pwritev(fd, [whole[:size]], offset) if size else 0
        self._plan("pwritev")
        return os.pwritev(fd, buffers, offset)

    def _plan(self, name: str) -> None:
        plans = self._plans.get(name)
        if plans:
            after, act = plans[0]
            if after:
                plans[0] = (after - 1, act)
            else:
                plans.pop(0)
                act()

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments[0]))
            self._plan(name)
            return real(*arguments)

        return call
