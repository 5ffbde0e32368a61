"""The levels of loggers: the nearest that was set decides."""

from __future__ import annotations

import kbroker.replica.replica_manager
from kbroker.common.logger_levels import ROOT, Level, LoggerLevels


def test_the_nearest_level_decides() -> None:
    levels = LoggerLevels()
    levels.set("kbroker.replica", Level.ERROR)
    levels.set("kbroker.replica.partition", Level.DEBUG)
    assert levels["kbroker.replica.partition"] is Level.DEBUG
    assert levels["kbroker.replica.purgatory"] is Level.ERROR
    assert levels["kbroker.replicas"] is Level.INFO
    levels.set(ROOT, Level.WARN)
    assert levels["kbroker.log"] is Level.WARN
    levels.unset("kbroker.replica.partition")
    assert levels["kbroker.replica.partition"] is Level.ERROR
    levels.unset("kbroker.replica")
    assert levels["kbroker.replica.partition"] is Level.WARN
    levels.unset(ROOT)
    assert levels["anything"] is Level.WARN


def test_informational_events_of_twisted_are_shown_only_on_request() -> None:
    levels = LoggerLevels(Level.DEBUG)
    assert levels["twisted.internet.tcp"] is levels["log_legacy"] is Level.WARN
    assert LoggerLevels(Level.ERROR)["twisted.internet"] is Level.ERROR
    levels.set("twisted", Level.INFO)
    assert levels["twisted.internet.tcp"] is Level.INFO


def test_the_loggers_of_loaded_modules_and_their_packages_are_listed() -> None:
    levels = LoggerLevels()
    levels.set("kbroker.replica", Level.ERROR)
    found = levels.loggers
    assert kbroker.replica.replica_manager.log.namespace == "kbroker.replica.replica_manager"
    assert found["kbroker.replica.replica_manager"] is found["kbroker.replica"] is Level.ERROR
    assert found[ROOT] is found["kbroker"] is Level.INFO
    assert "kbroker.replica.core" not in found, "it has no logger"
