"""Changes to the levels of loggers, as Kafka checks them (KIP-412)."""

from __future__ import annotations

import pytest

from kbroker.common.logger_levels import Level
from kbroker.metadata.core.config_entries import Change
from kbroker.metadata.core.logger_changes import checked_logger_changes
from kclient.wire.errors import InvalidConfig, InvalidRequest, KafkaError

SET, DELETE, APPEND, SUBTRACT = range(4)
LOGGERS = ("root", "kbroker.log", "kbroker.zk")


def test_levels_are_set_and_deleted() -> None:
    changes = [
        Change("root", SET, "FATAL"),
        Change("kbroker.log", SET, "TRACE"),
        Change("kbroker.zk", DELETE, None),
    ]
    assert checked_logger_changes(changes, LOGGERS) == {
        "root": Level.FATAL,
        "kbroker.log": Level.TRACE,
        "kbroker.zk": None,
    }


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (Change("kbroker.nothing", SET, "INFO"), InvalidConfig),
        (Change("kbroker.nothing", DELETE, None), InvalidConfig),
        (Change("kbroker.log", SET, "info"), InvalidConfig),
        (Change("kbroker.log", SET, "OFF"), InvalidConfig),
        (Change("kbroker.log", SET, None), InvalidConfig),
        (Change("kbroker.log", APPEND, "INFO"), InvalidRequest),
        (Change("kbroker.log", SUBTRACT, "INFO"), InvalidRequest),
        (Change("kbroker.log", 7, "INFO"), InvalidRequest),
        (Change("root", DELETE, None), InvalidRequest),
        (Change("kbroker.zk", DELETE, None), InvalidRequest),
    ],
)
def test_what_cannot_be_done_is_refused(change: Change, error: type[KafkaError]) -> None:
    with pytest.raises(error):
        checked_logger_changes([Change("kbroker.zk", SET, "DEBUG"), change], LOGGERS)
