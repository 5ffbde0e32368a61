"""The broker's log: one event is one line, whatever a client sent; unhandled errors are counted."""

from __future__ import annotations

import io

import pytest
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.app.logs import BrokerLog, level_from_environment
from kbroker.common.logger_levels import Level, LoggerLevels


def logged(level: Level = Level.INFO) -> tuple[BrokerLog, io.StringIO]:
    output = io.StringIO()
    return BrokerLog(LoggerLevels(level), output), output


def test_a_line_has_time_level_and_a_short_name() -> None:
    log, output = logged()
    Logger(namespace="kbroker.zk.session", observer=log).warn("session {id:#x}", id=255)
    date, clock, level, name, text = output.getvalue().split(None, 4)
    assert (len(date), len(clock)) == (10, 12)
    assert (level, name, text) == ("WARN", "session:", "session 0xff\n")


def test_what_a_client_sent_cannot_fake_a_line() -> None:
    log, output = logged()
    forged = "g\n2026-01-01 00:00:00.000 INFO  broker: all is well\r\x1b[2J\x85\u2028"
    Logger(namespace="a.b", observer=log).info("group {group}", group=forged)
    assert output.getvalue().count("\n") == 1
    assert "\x1b" not in output.getvalue()
    assert "\\n2026" in output.getvalue()


def test_what_is_below_the_level_is_left_out() -> None:
    log, output = logged(Level.WARN)
    Logger(namespace="a.b", observer=log).info("no")
    Logger(namespace="a.b", observer=log).warn("yes")
    assert "no" not in output.getvalue()
    assert "yes" in output.getvalue()


def test_an_unhandled_error_is_counted_and_marked() -> None:
    log, output = logged()
    Logger(namespace="twisted.internet.defer", observer=log).failure(
        "Unhandled error in Deferred:", Failure(ValueError("boom"))
    )
    Logger(namespace="kbroker.x", observer=log).failure("handled", Failure(ValueError("known")))
    assert log.unhandled_errors == 1
    assert "Unhandled error in Deferred" in output.getvalue()
    assert "boom" in output.getvalue()


def test_a_log_without_a_reader_stops_nothing() -> None:
    log, output = logged()
    output.close()
    Logger(namespace="a.b", observer=log).info("into the void")


def test_a_level_that_is_changed_holds_at_once_for_what_is_below() -> None:
    output = io.StringIO()
    levels = LoggerLevels()
    log = BrokerLog(levels, output)
    partition = Logger(namespace="kbroker.replica.partition", observer=log)
    partition.debug("before")
    levels.set("kbroker.replica", Level.DEBUG)
    partition.debug("during")
    levels.unset("kbroker.replica")
    partition.debug("after")
    assert [line.split()[-1] for line in output.getvalue().splitlines()] == ["during"]


@pytest.mark.parametrize(
    ("given", "level"),
    [("debug", Level.DEBUG), ("critical", Level.FATAL), ("Fatal", Level.FATAL), ("loud", Level.INFO), ("", Level.INFO)],
)  # fmt: skip
def test_the_level_of_the_environment(
    given: str, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBROKER_LOG_LEVEL", given)
    assert level_from_environment() is level
