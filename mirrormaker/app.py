"""The mirror process: its flows, the status line, signals, the summary and the exit code."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from kclient.errors import BootstrapError, ConnectError, KafkaError
from mirrormaker.config import MirrorConfig
from mirrormaker.metrics_file import MetricsFile
from mirrormaker.mirror import Mirror, MirrorStalled
from mirrormaker.progress import line, size

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
PARTLY = 5
BUG = 70
INTERRUPTED = 130

STATUS_EVERY = 1.0
"""Seconds between two status lines."""

RETURNED_AFTER = 60.0
"""Seconds without a cause after which it counts as a new one; all retries are more frequent."""

MOST_CAUSES = 1000
"""So many causes are remembered before those that ended are forgotten."""


class Console:
    """Writes lines, and one status line that is replaced in place on a terminal.

    Lines that cannot be written are left out: the process that reads them may have ended, and mirroring goes on.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float], *, quiet: bool = False) -> None:
        self._stream = stream
        self._clock = clock
        self._in_place = stream.isatty()
        self._shown = 0
        self._last_seen: dict[tuple[str, str], float] = {}
        self._remember = MOST_CAUSES
        self._last_status = ""
        self._quiet = quiet

    def write(self, text: str) -> None:
        """Write a line above the status line."""
        with suppress(OSError):
            self._write(text)
            self._stream.write("\n")
            self._stream.flush()
        self._shown = 0

    def event(self, about: str, what: str) -> None:
        """Write a line for a cause, once while it lasts, and again if it returns after `RETURNED_AFTER`."""
        now, cause = self._clock(), (about, what)
        last = self._last_seen.get(cause, float("-inf"))
        self._last_seen[cause] = now
        if now - last < RETURNED_AFTER:
            return
        if len(self._last_seen) > self._remember:
            self._last_seen = {
                each: at for each, at in self._last_seen.items() if now - at < RETURNED_AFTER
            }
            self._remember = max(MOST_CAUSES, 2 * len(self._last_seen))
        self.write(f"{about}: {what}")

    def status(self, text: str) -> None:
        """Show the status line; where lines stay (a log), only one that differs from the last."""
        if self._quiet:
            return
        if self._in_place:
            with suppress(OSError):
                self._write(text)
                self._stream.flush()
        elif text != self._last_status:
            self._last_status = text
            self.write(text)

    def _write(self, text: str) -> None:
        padding = " " * (self._shown - len(text)) if self._in_place else ""
        self._stream.write(f"\r{text}{padding}" if self._in_place else text)
        self._shown = len(text)


class MirrorProcess:
    """All flows of one configuration file; `run` returns the exit code. *metrics* is the file of metrics, if any."""

    def __init__(
        self,
        reactor: Any,
        config: MirrorConfig,
        *,
        once: bool,
        quiet: bool = False,
        stream: TextIO | None = None,
        metrics: Path | None = None,
    ) -> None:
        self._reactor = reactor
        self._console = Console(stream or sys.stderr, reactor.seconds, quiet=quiet)
        self._config = config
        self._once = once
        self._mirrors = [
            Mirror(reactor, flow, once=once, report=self._reporter(flow.name), is_worker=not once)
            for flow in config.flows
        ]
        self._metrics = None
        if metrics is not None:
            self._metrics = MetricsFile(reactor, metrics, self._mirrors, report=self._console.event)
        self._started = reactor.seconds()
        self._timer: Any = None
        self._asked_to_stop: Deferred[int] | None = None
        self._stop_code = OK

    def _reporter(self, name: str) -> Callable[[str, str], None]:
        return lambda about, what: self._console.event(f"{name}  {about}", what)

    async def run(self) -> int:
        """Mirror until done (once) or stopped; return the exit code."""
        try:
            code = await self._run()
        except Exception:
            with suppress(Exception):  # it may only follow from what ended the process
                await self._write_last_metrics(BUG)
            raise
        await self._write_last_metrics(code)
        return code

    async def _write_last_metrics(self, code: int) -> None:
        if self._metrics is not None:
            await self._metrics.end(code)

    async def _run(self) -> int:
        for warning in self._config.warnings:
            self._console.write(f"configuration: {warning}")
        for mirror in self._mirrors:
            config = mirror.config
            self._console.write(
                f"{config.name}: {config.source_client.bootstrap_servers} -> "
                f"{config.target_client.bootstrap_servers}"
                + ("  up to the source's present log ends" if self._once else "")
                + f"  ({config.settings.guarantee})"
            )
        self._tick()
        running = [mirror.run() for mirror in self._mirrors]
        ended: Deferred[Any] = DeferredList(running, fireOnOneErrback=True, consumeErrors=True)
        self._ended = ended
        if self._metrics is not None:
            self._metrics.start(self._defect)
        code = OK
        try:
            await ended
        except Exception as problem:
            code = self._report_failure(Failure())
            if code == FAILED and not isinstance(_cause(problem), KafkaError):
                raise
        finally:
            if self._timer is not None and self._timer.active():
                self._timer.cancel()
            for mirror in self._mirrors:
                await mirror.stop()
        self._print_summary()
        return code or self._exit_code()

    def stop(self, code: int) -> None:
        """Stop within seconds; the process exits with *code* unless a link failed."""
        self._stop_code = code
        self._console.write("stopping: waiting for appends in flight")
        for mirror in self._mirrors:
            stopping: Deferred[None] = Deferred.fromCoroutine(mirror.stop())
            stopping.addErrback(lambda failure: self._console.write(str(failure.value)))

    def _defect(self, failure: Failure) -> None:
        if not self._ended.called:
            self._ended.errback(failure)

    def _report_failure(self, failure: Failure) -> int:
        problem = _cause(failure.value or RuntimeError("unknown error"))
        if isinstance(problem, KafkaError):
            self._console.write(f"kmirror: {problem}")
        unreachable = isinstance(problem, MirrorStalled | BootstrapError | ConnectError)
        return UNREACHABLE if unreachable else FAILED

    def _exit_code(self) -> int:
        bad = sum(
            len(mirror.flow.stopped_links) + len(mirror.topics.conflicts)
            for mirror in self._mirrors
        )
        total = sum(
            len(mirror.flow.links) + len(mirror.topics.conflicts) for mirror in self._mirrors
        )
        if bad:
            return FAILED if bad == total else PARTLY
        groups = [mirror.groups for mirror in self._mirrors]
        if any(each.problems or each.checkpoint_problem for each in groups):
            return PARTLY
        if any(mirror.topics.acls.problem for mirror in self._mirrors):
            return PARTLY
        return self._stop_code

    # --- status

    def _tick(self) -> None:
        self._timer = self._reactor.callLater(STATUS_EVERY, self._tick)
        for mirror in self._mirrors if not self._once else ():
            now = self._reactor.seconds()
            links = mirror.flow.links.values()
            for text in mirror.alarms.look(links, mirror.flow.answered_at, now):
                self._console.write(f"{mirror.config.name}  {text}")
        self._console.status("   ".join(self._lines()))

    def _lines(self) -> list[str]:
        now, wall = self._reactor.seconds(), time.time_ns() // 1_000_000
        return [
            "  |  ".join(
                part
                for part in (
                    line(m.config.name, m.flow.progress.snapshot(m.flow.links.values(), now, wall)),
                    str(m.workers or ""),
                    str(m.groups),
                    str(m.alarms),
                )
                if part
            )
            for m in self._mirrors
        ]

    def _print_summary(self) -> None:
        elapsed = self._reactor.seconds() - self._started
        for mirror, text in zip(self._mirrors, self._lines(), strict=True):
            rate = mirror.flow.progress.mean_rate
            measured = "" if rate is None else f", {size(rate)}/s while copying"
            self._console.write(f"{text}  |  {elapsed:.1f} s{measured}")
            for link in mirror.flow.stopped_links:
                self._console.write(f"  stopped {link.tp}: {link.problem}")
            for name, conflict in mirror.topics.conflicts.items():
                self._console.write(f"  not mirrored {name}: {conflict}")
            for group, problem in mirror.groups.problems.items():
                self._console.write(f"  group {group or '(all)'} not copied: {problem}")
            if mirror.groups.checkpoint_problem:
                self._console.write(f"  checkpoints: {mirror.groups.checkpoint_problem}")
            if mirror.topics.acls.problem:
                self._console.write(f"  ACLs not copied: {mirror.topics.acls.problem}")
            for link in mirror.flow.links.values():
                for gap in link.gaps[:10]:
                    self._console.write(f"  gap {link.tp} {gap}")


def _cause(problem: BaseException) -> BaseException:
    """Return the exception inside a DeferredList's FirstError."""
    inner = getattr(problem, "subFailure", None)
    return problem if inner is None else inner.value
