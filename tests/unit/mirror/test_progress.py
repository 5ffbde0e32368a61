"""The numbers and the line."""

from __future__ import annotations

import io

import pytest
from twisted.internet.task import Clock

from kclient.types import TopicPartition
from mirrormaker.app import RETURNED_AFTER, STATUS_EVERY, Console, MirrorProcess
from mirrormaker.config import MirrorConfig
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import LinkCounts, LogEnds
from mirrormaker.progress import Progress, count, line, seconds, size
from mirrormaker.runs import Run


def link_at(source_end: int, target_end: int) -> PartitionLink:
    link = PartitionLink(TopicPartition("t", 0))
    link.located(0, LogEnds(0, source_end, 0, target_end))
    return link


def some_run(timestamp: int) -> Run:
    return Run(memoryview(bytes(500)), 0, 10, 2, 10, 0, timestamp, 0, 0)


def test_rates_and_lags() -> None:
    link = link_at(30, 10)
    progress = Progress(100.0)
    progress.appended(link, some_run(5_000), 101.0)
    at = progress.snapshot([link], 102.0, 9_000)
    assert (at.records, at.bytes) == (10, 500)
    assert (at.bytes_per_second, at.records_per_second) == (250.0, 5.0)
    assert (at.lag_records, at.lag_bytes, at.lag_seconds) == (20, 1000, 4.0)


def test_without_lag_the_age_of_the_last_record_is_none() -> None:
    link = link_at(10, 10)
    progress = Progress(0.0)
    progress.appended(link, some_run(5_000), 1.0)
    at = progress.snapshot([link], 2.0, 1_000_000)
    assert (at.lag_records, at.lag_bytes, at.lag_seconds) == (0, 0, 0.0)


def test_a_link_that_is_removed_leaves_its_counts_to_the_flow() -> None:
    link = link_at(30, 10)
    progress = Progress(0.0)
    progress.appended(link, some_run(5_000), 1.0)
    link.append_rejected(link.generation, 20)
    assert (progress.copied_of(link).records, progress.copied_of(link).newest) == (10, 5_000)
    progress.removed(link)
    assert progress.copied_of(link).records == 0
    assert progress.records == 10
    assert progress.removed_counts == LinkCounts(rewinds=1, rejected=1)


def test_lag_is_unknown_before_the_logs_are_found() -> None:
    at = Progress(0.0).snapshot([PartitionLink(TopicPartition("t", 0))], 1.0, 1)
    assert (at.lag_records, at.lag_bytes, at.lag_seconds) == (None, None, None)
    assert "lag ? rec ? ?" in line("east->west", at)


def test_the_mean_rate_of_less_than_a_second_is_not_claimed() -> None:
    """1 KB that two appends brought within 50 us was 20 MB/s in the summary of --once."""
    progress = Progress(0.0)
    assert progress.mean_rate is None
    for now in (1.0, 1.00005):
        progress.appended(link_at(20, 10), some_run(1), now)
    assert progress.mean_rate is None
    progress.appended(link_at(20, 10), some_run(1), 3.0)
    assert progress.mean_rate == 500.0


def test_the_rate_is_of_the_last_seconds() -> None:
    link = link_at(10, 10)
    progress = Progress(0.0)
    progress.appended(link, some_run(1), 0.5)
    for now in range(1, 30):
        at = progress.snapshot([link], float(now), 1)
    assert at.bytes_per_second == 0


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (count(12004), "12 004"),
        (size(999), "999 B"),
        (size(11_800_000), "11.8 MB"),
        (size(337_000_000), "337 MB"),
        (seconds(3.14), "3.1 s"),
        (seconds(720), "12 m"),
        (seconds(18_000), "5.0 h"),
        (seconds(259_200), "3.0 d"),
    ],
)
def test_numbers_are_readable(shown: str, expected: str) -> None:
    assert shown == expected


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_status_line_stays_in_place_on_a_terminal() -> None:
    stream = Terminal()
    console = Console(stream, lambda: 0.0)
    console.status("a long line")
    console.status("short")
    console.write("news")
    assert stream.getvalue() == "\ra long line\rshort      \rnews \n"


class Closed(Terminal):
    """A stream of which the reader has ended, such as tee after Ctrl-C."""

    on_terminal = False

    def isatty(self) -> bool:
        return self.on_terminal

    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_process_without_a_reader_of_its_lines_runs_and_can_be_stopped(on_terminal: bool) -> None:
    """`kmirror run 2>&1 | tee log` ignored Ctrl-C: its first line is written before the mirrors are stopped."""
    stream = Closed()
    stream.on_terminal = on_terminal
    clock = Clock()
    config = MirrorConfig.of(
        {
            "clusters": "east, west",
            "east.bootstrap.servers": "a:1",
            "west.bootstrap.servers": "b:1",
            "east->west.enabled": "true",
        }
    )
    process = MirrorProcess(clock, config, once=False, stream=stream)
    process._tick()
    process._console.event("t-0", "refused")
    clock.advance(STATUS_EVERY)
    process.stop(0)
    assert [mirror._finished.called for mirror in process._mirrors] == [True]


def written(events: list[tuple[float, str, str]]) -> list[str]:
    """Return the lines of *events*, each at its time in seconds."""
    stream, now = io.StringIO(), [0.0]
    console = Console(stream, lambda: now[0])
    for moment, about, what in events:
        now[0] = moment
        console.event(about, what)
    return stream.getvalue().splitlines()


def test_a_cause_that_lasts_is_written_once() -> None:
    refused = [(2.0 * n, f"broker {n % 2}", "refused") for n in range(1800)]
    assert written(refused) == ["broker 0: refused", "broker 1: refused"]


def test_a_change_is_written_and_so_is_a_cause_that_returns() -> None:
    events = [(0.0, "a", "refused"), (2.0, "a", "timed out"), (4.0, "a", "refused")]
    returned = (4.0 + RETURNED_AFTER, "a", "refused")
    assert written(events) == ["a: refused", "a: timed out"]
    assert written([*events, returned]) == ["a: refused", "a: timed out", "a: refused"]


def test_many_causes_do_not_stay_in_memory_and_none_is_written_twice() -> None:
    several = [(n / 1000, f"t-{n}", "refused") for n in range(5000)] * 2
    assert len(written(several)) == 5000
    console = Console(io.StringIO(), iter(range(10**9)).__next__)
    for n in range(5000):
        console.event(f"t-{n}", "refused")
    assert len(console._last_seen) < 1500


def test_a_log_has_a_status_line_only_after_a_change() -> None:
    stream = io.StringIO()
    console = Console(stream, lambda: 0.0)
    for text in ("lag 1", "lag 1", "lag 0", "lag 0"):
        console.status(text)
    console.write("news")
    console.status("lag 0")
    assert stream.getvalue().splitlines() == ["lag 1", "lag 0", "news"]
