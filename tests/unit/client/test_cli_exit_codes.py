"""Every command without a broker: one message with its cause and the next step, exit code 3, no traceback."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from twisted.python.failure import Failure

from kclient.cli.answers import code_for
from kclient.cli.exit_codes import FAILED, PARTLY_FAILED, UNREACHABLE, USAGE
from kclient.cli.run import exit_code
from tests.kit.fork_server import run
from tests.unit.client.test_cli_help import COMMANDS, WITHOUT_CONTACT

WITH_CONTACT = {
    words: command
    for words, command in COMMANDS.items()
    if words[:1] not in WITHOUT_CONTACT and not words[0].startswith("kafka-")
}


@pytest.mark.parametrize("words", WITH_CONTACT, ids=" ".join)
def test_a_command_names_the_broker_that_it_cannot_reach(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(
        '{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[4]}]}'
    )
    (tmp_path / "before.csv").write_text("billing,orders,0,1\n")
    line = WITH_CONTACT[words].examples[0].rpartition(" | ")[2]
    given = [word for word in shlex.split(line)[1:] if word != "-b" and ":9092" not in word]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("KCLIENT")},
        "XDG_CONFIG_HOME": str(tmp_path),
        "HOME": str(tmp_path),
    }
    done = run("kclient", *given, "-b", "127.0.0.1:1", "-y", stdin=b"x\n", environment=environment)
    shown = (done.stdout + done.stderr).decode()
    assert done.returncode == UNREACHABLE, shown
    assert "Traceback" not in shown
    assert "127.0.0.1:1: connection refused" in shown
    assert "KCLIENT_BOOTSTRAP_SERVERS" in shown or "Next:" in shown


def test_some_failures_have_their_own_exit_code() -> None:
    codes = [code_for(good, total) for good, total in ((0, 0), (2, 2), (1, 2), (0, 2))]
    assert codes == [0, 0, PARTLY_FAILED, FAILED]


@pytest.mark.parametrize(
    "setting", ["metadata.max.age.ms", "request.timeout.ms", "retry.backoff.ms"]
)
def test_a_negative_duration_is_a_usage_error_that_names_the_setting(setting: str) -> None:
    done = run("kclient", "-b", "127.0.0.1:1", "-X", f"{setting}=-5", "topic", "list")
    assert (done.returncode, done.stdout) == (USAGE, b"")
    assert f"{setting}: '-5' is below 0" in done.stderr.decode()


def test_the_traceback_of_a_bug_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """It went to Twisted's log, which prints nothing before it is started: exit code 1 was all."""
    try:
        raise ZeroDivisionError("a bug")
    except ZeroDivisionError:
        assert exit_code(Failure()) == FAILED
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" in shown.err
    assert "ZeroDivisionError: a bug" in shown.err
