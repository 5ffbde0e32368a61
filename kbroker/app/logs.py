"""The broker's log: one line per event on stderr, with time, level and a short name.

    2026-11-21 08:27:13.212 INFO  session: ZooKeeper session 0x1000 established, timeout 6 s

Control characters are escaped, so that the bytes of a client can neither break nor fake a line. Unhandled errors (a
failed Deferred that was collected) are counted; tests demand that the count is 0.
"""

from __future__ import annotations

import os
import sys
import time
from typing import IO, Any

from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from twisted.python.failure import Failure
from zope.interface import implementer

from kbroker.common.logger_levels import Level, LoggerLevels

_LEVELS = {
    LogLevel.debug: Level.DEBUG,
    LogLevel.info: Level.INFO,
    LogLevel.warn: Level.WARN,
    LogLevel.error: Level.ERROR,
    LogLevel.critical: Level.FATAL,
}
_ESCAPES = {c: f"\\x{c:02x}" for c in (*range(0x20), 0x7F, *range(0x80, 0xA0))}
_ESCAPES |= {0x0A: "\\n", 0x0D: "\\r", 0x09: " ", 0x2028: "\\u2028", 0x2029: "\\u2029"}

UNHANDLED = "Unhandled error"
"""The beginning of the line of an unhandled error."""


@implementer(ILogObserver)
class BrokerLog:
    """The observer of all log events of the process; *levels* decide which of them are written."""

    def __init__(self, levels: LoggerLevels, output: IO[str] | None = None) -> None:
        self._levels = levels
        self._output = output or sys.stderr
        self._second = -1
        self._stamp = ""
        self.unhandled_errors = 0
        """Number of unhandled errors."""

    def begin(self) -> None:
        """Take all events of Twisted's logger from now on."""
        globalLogBeginner.beginLoggingTo([self], redirectStandardIO=False, discardBuffer=True)

    def __call__(self, event: LogEvent) -> None:
        """Write one event."""
        level = _LEVELS.get(event.get("log_level") or LogLevel.info, Level.INFO)
        failure: Failure | None = event.get("log_failure")
        namespace = str(event.get("log_namespace", ""))
        unhandled = failure is not None and namespace.startswith("twisted.")
        if unhandled:
            self.unhandled_errors += 1
        if level < self._levels[namespace]:
            return
        text = formatEvent(event).translate(_ESCAPES)
        if unhandled and not text.startswith(UNHANDLED):
            text = f"{UNHANDLED}: {text}"
        now = event.get("log_time") or time.time()
        name = namespace.rpartition(".")[2] or "broker"
        line = f"{self._time(now)} {level.name:5} {name}: {text}\n"
        if failure is not None:
            line += _traceback(failure)
        try:
            self._output.write(line)
            self._output.flush()
        except (OSError, ValueError):
            return  # the reader of stderr is gone: the broker goes on without a log

    def _time(self, now: float) -> str:
        second = int(now)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._stamp}.{int(now * 1000) % 1000:03d}"


def _traceback(failure: Failure) -> str:
    try:
        text: Any = failure.getTraceback()
    except Exception:
        text = f"{failure.type}: {failure.value}\n"
    return "".join(f"    {line}\n" for line in str(text).splitlines())


def level_from_environment() -> Level:
    """Return the level of the root logger: KBROKER_LOG_LEVEL, one of Kafka's or Twisted's names, or INFO."""
    name = os.environ.get("KBROKER_LOG_LEVEL", "").upper()
    return Level.__members__.get("FATAL" if name == "CRITICAL" else name, Level.INFO)
