"""The levels of the broker's loggers, which operators change while it runs (KIP-412). They end with the process. Pure.

A logger has the name of its module: ``kbroker.replica.isr_expiration``. Its level is its own, else that of the nearest
package with one (``kbroker.replica``), else that of ``root``. Levels have Kafka's names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import IntEnum

from twisted.logger import Logger

ROOT = "root"
"""The logger above all others."""


class Level(IntEnum):
    """What a logger writes: events of this level and above. The broker has no events of TRACE: it writes as DEBUG."""

    TRACE = 5
    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40
    FATAL = 50


class LoggerLevels:
    """The levels that were set, and those that follow from them.

    Twisted's own loggers have WARN at least, until they are set: their informational events repeat the broker's.
    """

    def __init__(self, root: Level = Level.INFO) -> None:
        quiet = max(root, Level.WARN)
        self._set = {ROOT: root, "twisted": quiet, "log_legacy": quiet}
        self._found: dict[str, Level] = {}

    def __getitem__(self, logger: str) -> Level:
        """Return the level of *logger*, which need not exist."""
        level = self._found.get(logger)
        if level is None:
            level = self._found[logger] = self._nearest(logger)
        return level

    def _nearest(self, logger: str) -> Level:
        name = logger
        while name:
            if name in self._set:
                return self._set[name]
            name = name.rpartition(".")[0]
        return self._set[ROOT]

    def set(self, logger: str, level: Level) -> None:
        """Give *logger*, and what is below it and has none, a level."""
        self._set[logger] = level
        self._found.clear()

    def unset(self, logger: str) -> None:
        """Let *logger* follow the one above it. *root* keeps its level."""
        if logger != ROOT:
            self._set.pop(logger, None)
            self._found.clear()

    @property
    def loggers(self) -> dict[str, Level]:
        """The loggers of all loaded modules, the packages above them, and what was set: each with its level."""
        names = set(self._set)
        for name in loaded_loggers():
            while name and name not in names:
                names.add(name)
                name = name.rpartition(".")[0]
        return {name: self[name] for name in sorted(names)}


def loaded_loggers() -> Iterator[str]:
    """Yield the names of the loggers of all modules of ours that are loaded."""
    for name, module in list(sys.modules.items()):
        logger = getattr(module, "log", None)
        if name.startswith(("kbroker.", "kclient.")) and isinstance(logger, Logger):
            yield logger.namespace
