"""Passes what the clients log to the standard library's logging, under the names of their modules.

The clients log with Twisted, which shows nothing until a program starts its logging. Programs of the blocking and the
async API use `logging`. There ``logging.basicConfig(level=logging.INFO)`` shows every message. Without any
configuration warnings go to stderr, as `logging` does it. Programs of the Twisted API have Twisted's log.
"""

from __future__ import annotations

import logging
from typing import Any

from twisted.logger import ILogObserver, LogLevel, formatEvent, globalLogPublisher
from zope.interface import provider

_LEVELS = {
    LogLevel.debug: logging.DEBUG,
    LogLevel.info: logging.INFO,
    LogLevel.warn: logging.WARNING,
    LogLevel.error: logging.ERROR,
    LogLevel.critical: logging.CRITICAL,
}


def use_standard_logging() -> None:
    """Pass the clients' messages on, from now on; more calls change nothing."""
    # The publisher would keep the same function twice.
    globalLogPublisher.removeObserver(_pass_on)
    globalLogPublisher.addObserver(_pass_on)


@provider(ILogObserver)
def _pass_on(event: dict[str, Any]) -> None:
    namespace = str(event.get("log_namespace", ""))
    if not namespace.startswith("kclient."):
        return
    logger, level = logging.getLogger(namespace), _LEVELS[event["log_level"]]
    if logger.isEnabledFor(level):
        failure = event.get("log_failure")
        problem = (
            None if failure is None else (failure.type, failure.value, failure.getTracebackObject())
        )
        logger.log(level, "%s", formatEvent(event), exc_info=problem)
