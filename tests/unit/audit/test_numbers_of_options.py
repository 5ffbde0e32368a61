"""Every number and duration of a command line works, or is refused with a line before anything is read."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from kclient.config import CommonConfig
from spark_jobs.cli import kaudit
from spark_jobs.commands.options import MOST_OFFSETS, duration_ms
from spark_jobs.watch_stream import trigger_interval

PAIR = ("--source", "a:1", "--target", "b:1", "--topics", "x")
COMMANDS = {
    "reconcile": (*PAIR, "--out", "out"),
    "headers": PAIR,
    "counts": PAIR,
    "watch": (*PAIR, "--checkpoint", "out"),
    "profile": ("--cluster", "a:1", "--topics", "x"),
    "latency": ("--target", "a:1", "--topics", "x"),
    "selftest": (),
    "explain": ("--run", "."),
    "diff": ("--run", ".", "--avro", "schema"),
}
DURATIONS = {"--settle", "--for", "--every", "--bucket", "--last", "--max-p99"}
TOO_MUCH = ["99999999999999999999", "1e400", "nan", "inf", "-1", "9" * 5000]
TOO_LONG = ["999999999d", "36501d", "876001h", "-1s", "1e400s", "nans", "", "0s", "9" * 5000 + "s"]


def _options() -> Iterator[tuple[str, str]]:
    for name, command in kaudit.commands.items():
        for each in command.params:
            if (
                isinstance(each.type, click.IntRange | click.FloatRange)
                or each.opts[0] in DURATIONS
            ):
                yield name, each.opts[0]


@pytest.fixture(autouse=True)
def _no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema").write_text('"int"')
    for name in COMMANDS:
        module = sys.modules.get(f"spark_jobs.commands.{name}", sys.modules["spark_jobs.cli"])
        monkeypatch.setattr(module, "guarded", lambda *_: 0)


@pytest.mark.parametrize(("command", "option"), sorted(set(_options())))
def test_what_is_too_large_is_a_wrong_option(command: str, option: str) -> None:
    for value in TOO_LONG if option in DURATIONS else TOO_MUCH:
        result = CliRunner().invoke(kaudit, [command, *COMMANDS[command], option, value])
        if value == TOO_MUCH[0] and result.exit_code == 0:
            # Python's own numbers have no limit, and no other part gets these.
            assert option in {
                "--settle-rounds",
                "--max-lag",
                "--max-findings",
                "--max-pending",
                "--seeds",
            }
            continue
        assert isinstance(result.exception, SystemExit), (value, result.exception)
        # `explain` and `diff` also refuse a directory without a report, behind their numbers.
        assert (result.exit_code, "Error: " in result.stderr) == (2, True), (value, result.output)
        behind = value == TOO_MUCH[0] and option != "--timeout" and "report.json" in result.stderr
        assert option in result.stderr or behind, (value, result.output)


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("reconcile", "--window", MOST_OFFSETS),
        ("headers", "--window", MOST_OFFSETS),
        ("watch", "--max-offsets", MOST_OFFSETS),
        ("reconcile", "--settle", "36500d"),
        ("watch", "--every", "36500d"),
        ("watch", "--for", "36500d"),
        ("latency", "--last", "876000h"),
    ],
)
def test_the_largest_values_are_taken(command: str, option: str, value: object) -> None:
    result = CliRunner().invoke(kaudit, [command, *COMMANDS[command], option, str(value)])
    assert result.exit_code == 0, result.output


def test_every_part_takes_the_largest_values() -> None:
    seconds = duration_ms("36500d") / 1000
    assert (time.monotonic() + seconds) * 1e9 < 2**63
    assert float(trigger_interval(seconds).split()[0]) * 1e6 < 2**63
    offsets = np.array([0, 2**63 - 1 - MOST_OFFSETS], np.int64)
    assert ((offsets // MOST_OFFSETS + 1) * MOST_OFFSETS > offsets).all()
    CommonConfig.load({"bootstrap.servers": "a:1", "default.api.timeout.ms": 10**9})
