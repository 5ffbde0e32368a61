"""When the file of metrics is written, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from mirrormaker.__main__ import main
from mirrormaker.app import MirrorProcess
from mirrormaker.config import MirrorConfig
from mirrormaker.metrics import LINKS_PER_STEP
from mirrormaker.metrics_file import INTERVAL, TURN, MetricsFile
from mirrormaker.mirror import Mirror
from tests.unit.mirror.test_metrics import link_of, parsed

SETTINGS = """
clusters = east, west
east.bootstrap.servers = localhost:1
west.bootstrap.servers = localhost:1
east->west.enabled = true
"""


class SlowClock(Clock):
    """A reactor of which each look at the time takes *cost* seconds."""

    cost = 0.0
    turns = 0
    """Turns that ended with more to do."""

    def callLater(self, delay: float, *call: Any, **options: Any) -> Any:  # noqa: N802
        self.turns += delay == 0
        return super().callLater(delay, *call, **options)

    def seconds(self) -> float:
        self.rightNow += self.cost
        return super().seconds()


class Written:
    """A file of metrics on a clock; writes wait while *held*."""

    def __init__(self, home: Path) -> None:
        self.path = home / "mirror.prom"
        config = home / "mirror.properties"
        config.write_text(SETTINGS)
        self.clock = SlowClock()
        self.lines: list[tuple[str, str]] = []
        self.held: list[Deferred[None]] | None = None
        self.defects: list[Any] = []
        (flow,) = MirrorConfig.load(config).flows
        self.mirror = Mirror(self.clock, flow, once=False, report=lambda *_: None)
        self.file = MetricsFile(
            self.clock,
            self.path,
            [self.mirror],
            report=lambda *line: self.lines.append(line),
            in_thread=self._in_thread,
            wall_clock=lambda: 1000.0 + self.clock.rightNow,
        )

    def _in_thread(self, write: Callable[..., None], *arguments: Any) -> Deferred[None]:
        if self.held is None:
            return maybeDeferred(write, *arguments)
        waits: Deferred[None] = Deferred()
        waits.addCallback(lambda _: write(*arguments))
        self.held.append(waits)
        return waits

    def start(self) -> None:
        self.file.start(self.defects.append)

    def end(self, code: int | None) -> list[None]:
        done: list[None] = []
        Deferred.fromCoroutine(self.file.end(code)).addCallback(done.append)
        return done

    def value(self, name: str) -> float:
        ((_, value),) = parsed(self.path.read_text())[name].items()
        return value


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path)
    yield made
    assert not made.defects
    assert [each.name for each in tmp_path.glob(".*")] == [], "no file is left beside it"


def test_the_file_is_written_at_the_start_at_intervals_and_at_the_end(written: Written) -> None:
    written.start()
    assert written.value("mirror_updated_timestamp") == 1000.0
    written.clock.advance(INTERVAL - 0.1)
    assert written.value("mirror_updated_timestamp") == 1000.0
    written.clock.advance(0.2)
    assert written.value("mirror_updated_timestamp") == 1005.1
    assert written.value("mirror_running") == 1
    done = written.end(0)
    written.clock.advance(0.0)
    assert done
    assert (written.value("mirror_running"), written.value("mirror_exit_code")) == (0, 0)
    written.clock.advance(10 * INTERVAL)
    assert written.value("mirror_updated_timestamp") == 1005.1, "nothing is written after the end"
    assert not written.clock.getDelayedCalls()


def test_the_last_write_waits_for_the_one_under_way(written: Written) -> None:
    written.held = []
    written.start()
    done = written.end(3)
    written.clock.advance(1.0)
    (first,) = written.held
    first.callback(None)
    assert written.value("mirror_running") == 1
    written.clock.advance(0.0)
    _, last = written.held
    assert not done
    last.callback(None)
    assert done
    assert written.value("mirror_exit_code") == 3


def test_a_file_that_cannot_be_written_is_reported_and_tried_again(written: Written) -> None:
    written.path.mkdir()
    written.start()
    assert written.lines == [(f"metrics {written.path}", "cannot be written: Is a directory")]
    written.path.rmdir()
    written.clock.advance(INTERVAL)
    assert written.value("mirror_running") == 1
    assert len(written.lines) == 1
    written.end(0)
    written.clock.advance(0.0)


def test_many_partitions_are_read_in_several_turns(written: Written) -> None:
    for n in range(20 * LINKS_PER_STEP):
        link = link_of(n)
        written.mirror.flow.links[link.tp] = link
    written.clock.cost = TURN / 4.5
    written.start()
    written.clock.advance(0.0)
    written.clock.cost = 0.0
    assert written.clock.turns == 4, "21 steps, and a turn has five"
    assert written.path.read_text().count("\nmirror_lag_records{") == 20 * LINKS_PER_STEP
    written.end(0)
    written.clock.advance(0.0)


def test_a_defect_is_reported_and_the_end_does_not_wait_for_it(written: Written) -> None:
    """It waited for itself: what the process printed was an assertion of Twisted, and not the defect."""
    ended: list[Any] = []

    def end(failure: Any) -> None:
        written.defects.append(failure.value)
        Deferred.fromCoroutine(written.file.end(70)).addBoth(ended.append)

    defect = ValueError("a sample without a value")
    written.held = []
    written.file.start(end)
    (first,) = written.held
    first.errback(defect)
    written.held[1].callback(None)
    assert written.defects == [defect]
    assert ended == [None]
    assert written.value("mirror_exit_code") == 70
    written.defects.clear()


def test_a_defect_while_the_end_waits_is_reported(written: Written) -> None:
    written.held = []
    written.start()
    done = written.end(0)
    (first,) = written.held
    first.errback(defect := ValueError("a sample without a value"))
    assert [each.value for each in written.defects] == [defect]
    written.held[1].callback(None)
    assert done == [None]
    written.defects.clear()


def test_the_last_write_does_not_hide_what_ended_the_process(written: Written) -> None:
    process = MirrorProcess(written.clock, MirrorConfig(()), once=True)

    class Failing:
        async def end(self, code: int) -> None:
            raise ValueError(f"of the last write, {code}")

    async def run() -> int:
        raise LookupError("of the copy")

    process._metrics, process._run = Failing(), run  # type: ignore
    ended: list[Any] = []
    Deferred.fromCoroutine(process.run()).addBoth(ended.append)
    assert [str(each.value) for each in ended] == ["of the copy"]


@pytest.mark.parametrize("place", ["missing/mirror.prom", "mirror.properties/mirror.prom", "."])
def test_a_path_without_a_directory_to_write_to_is_refused(tmp_path: Path, place: str) -> None:
    config = tmp_path / "mirror.properties"
    config.write_text(SETTINGS)
    done = CliRunner().invoke(main, ["run", str(config), "--metrics", str(tmp_path / place)])
    assert done.exit_code == 2
    assert "--metrics" in done.output


@pytest.mark.parametrize("name", ["", "."])
def test_a_path_without_a_name_is_refused(tmp_path: Path, name: str) -> None:
    config = tmp_path / "mirror.properties"
    config.write_text(SETTINGS)
    done = CliRunner().invoke(main, ["run", str(config), "--metrics", name])
    assert done.exit_code == 2
    assert "--metrics" in done.output
