"""When the log manager's work is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from kbroker.common.turns import THINGS_PER_TURN
from kbroker.config import KafkaConfig
from kbroker.replica.log_schedule import LogSchedule, checkpoint_interval_ms
from tests.kit.inline_cleaner import CompactingBroker, filled

MARK = "replica.high.watermark.checkpoint.interval.ms"
POINT = "log.flush.offset.checkpoint.interval.ms"
START = "log.flush.start.offset.checkpoint.interval.ms"


def config(**settings: str) -> KafkaConfig:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaConfig.of({"zookeeper.connect": "zk:2181", **given})


def started(clock: Clock, path: Path, **settings: str) -> tuple[CompactingBroker, LogSchedule]:
    """Return a broker's logs, and their schedule on *clock*; the high watermarks are 8."""
    broker = CompactingBroker(path / "a")
    broker.start()
    given = config(**settings)
    schedule = LogSchedule(
        clock, given, broker.dirs, lambda _key: 8, lambda _key: None, lambda _key: None
    )
    schedule.reconfigure(given)
    schedule.start()
    return broker, schedule


def test_logs_are_compacted_after_the_backoff_which_may_change(tmp_path: Path) -> None:
    clock = Clock()
    broker, schedule = started(clock, tmp_path, log_cleaner_backoff_ms="15000")
    log = filled(broker, 0)
    clock.pump([1] * 14)
    assert log.clean_below is None
    clock.pump([1])
    assert log.clean_below == 6
    other = filled(broker, 1)
    schedule.reconfigure(config(log_cleaner_backoff_ms="2000"))
    clock.pump([1] * 2)
    assert other.clean_below == 6
    # Not without a pause, whatever is asked for.
    schedule.reconfigure(config(log_cleaner_backoff_ms="0"))
    clock.pump([1] * 2)
    assert min(each.getTime() for each in clock.getDelayedCalls()) > clock.seconds()
    schedule.stop()
    assert not clock.getDelayedCalls()


@pytest.mark.long
def test_many_dirty_logs_are_looked_at_in_several_turns(tmp_path: Path) -> None:
    clock = Turns()
    broker, schedule = started(clock, tmp_path, log_cleaner_backoff_ms="1000")
    logs = [filled(broker, number) for number in range(THINGS_PER_TURN)]
    for each in logs[:-1]:
        each.config = each.config.overridden({"min.cleanable.dirty.ratio": "1"})
    clock.advance(1)
    assert logs[-1].clean_below == 6
    assert clock.zero_delays == 1, "a look, and the next one"
    schedule.stop()


class Turns(Clock):
    """A clock that counts the calls for the next turn."""

    zero_delays = 0

    def callLater(self, delay: float, *rest: Any, **named: Any) -> Any:  # noqa: N802
        self.zero_delays += delay == 0
        return super().callLater(delay, *rest, **named)


def test_no_log_is_compacted_where_the_cleaner_is_off(tmp_path: Path) -> None:
    clock = Clock()
    broker, schedule = started(clock, tmp_path, log_cleaner_enable="false")
    log = filled(broker)
    clock.pump([20] * 3)
    assert log.clean_below is None
    schedule.stop()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 5_000),
        ({POINT: "700"}, 700),
        ({START: "800"}, 800),
        ({MARK: "90000"}, 60_000),
        ({MARK: "90000", POINT: "0", START: "0"}, 90_000),
    ],
)
def test_all_checkpoints_are_written_at_the_shortest_of_their_intervals(
    given: dict[str, str], expected: int
) -> None:
    config = KafkaConfig.of({"zookeeper.connect": "zk:2181", **given})
    assert checkpoint_interval_ms(config) == expected
