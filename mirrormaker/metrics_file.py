"""Writes the file of metrics of a running kmirror: every few seconds, and once more at the end.

Theory of operation
===================
The samples are read on the reactor's thread, where the links are, in turns of at most `TURN` seconds. A thread writes
them beside the file and renames them into it. So a slow disk delays no batch, and a reader never sees half of a file.

The file of a process that was killed stays as it was, with the time of its last write. At an ordinary end the last file
states that kmirror does not run, with its exit code and counts. It has no lag, because nothing measures it any more.

An error of the disk is reported, and records are copied on.

In: the mirrors of a process   Out: a file, lines for the operator   Owner: `mirrormaker.app`
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from kclient.consumer.wakeup import Wakeup
from kclient.net.waiting import sleep
from kclient.replaced_file import replaced
from mirrormaker.metrics import Direction, Samples
from mirrormaker.mirror import Mirror

INTERVAL = 5.0
"""Seconds between the end of a write and the begin of the next one."""

TURN = 0.02
"""Seconds after which a turn of the reactor reads no further step."""


class MetricsFile:
    """The file at *path* about *mirrors*. *report* gets (subject, problem) for the operator.

    *in_thread* calls a function in a thread; *wall_clock* returns the seconds since the epoch.
    """

    def __init__(
        self,
        reactor: Any,
        path: Path,
        mirrors: Sequence[Mirror],
        *,
        report: Callable[[str, str], None],
        in_thread: Callable[..., Deferred[None]] | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._reactor = reactor
        self._path = path
        self._mirrors = mirrors
        self._report = report
        self._in_thread = in_thread or self._in_pool
        self._wall_clock = wall_clock
        self._wakeup = Wakeup(reactor)
        self._running: Deferred[None] | None = None
        self._is_ending = False

    def start(self, defect: Callable[[Any], None]) -> None:
        """Write the file now and every `INTERVAL` seconds; *defect* gets a failure that is a bug.

        It may await `end`.
        """
        self._running = Deferred.fromCoroutine(self._run())
        # A Deferred that is awaited by its own errback never ends.
        self._running.addBoth(self._has_run).addErrback(defect)

    def _has_run(self, result: Any) -> Any:
        self._running = None
        return result

    async def end(self, exit_code: int | None) -> None:
        """Write the last file, with the exit code of kmirror if it is known. Raise what is a bug."""
        self._is_ending = True
        self._wakeup.wake()
        if self._running is not None:
            await self._running  # two writes would use one file beside the path
        await self._write(has_ended=True, exit_code=exit_code)

    async def _run(self) -> None:
        while not self._is_ending:
            await self._write()
            if not self._is_ending:
                await self._wakeup.wait(INTERVAL)

    async def _write(self, *, has_ended: bool = False, exit_code: int | None = None) -> None:
        samples, began = Samples(), self._reactor.seconds()
        for mirror in self._mirrors:
            for _ in samples.read(self._direction(mirror, has_ended, exit_code)):
                if self._reactor.seconds() - began >= TURN:
                    await sleep(self._reactor, 0)
                    began = self._reactor.seconds()
        try:
            await self._in_thread(_replace, self._path, samples.text())
        except OSError as problem:
            about = f"metrics {self._path}"
            self._report(about, f"cannot be written: {problem.strerror or problem}")

    def _direction(self, mirror: Mirror, has_ended: bool, exit_code: int | None) -> Direction:
        """Return what the metrics of *mirror* are read from now."""
        now = self._reactor.seconds()
        settings, groups = mirror.config.settings, mirror.groups
        is_counted = settings.sync_group_offsets and groups.is_synchronized
        return Direction(
            source=mirror.config.source,
            target=mirror.config.target,
            links=list(mirror.flow.links.values()),
            progress=mirror.flow.progress,
            idle_time=lambda link: mirror.alarms.idle_time(link, mirror.flow.answered_at, now),
            age=lambda timestamp_ms: self._wall_clock() - timestamp_ms / 1000,
            updated=self._wall_clock(),
            is_conditional=not settings.renumbers,
            conflicts=len(mirror.topics.conflicts),
            skipped=len(mirror.topics.skipped),
            gap_entries=mirror.ledger.written,
            groups_not_copied=len(groups.problems) if is_counted else None,
            has_ended=has_ended,
            exit_code=exit_code,
        )

    def _in_pool(self, write: Callable[..., None], *arguments: Any) -> Deferred[None]:
        pool = self._reactor.getThreadPool()
        done: Deferred[None] = deferToThreadPool(self._reactor, pool, write, *arguments)
        return done


def _replace(path: Path, parts: Iterable[str]) -> None:
    with replaced(path) as beside, beside.open("w", encoding="utf-8") as file:
        file.writelines(parts)
