"""Every command without a broker: one message with its cause and the next step, exit code 3, no traceback."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from kclient.cli.answers import code_for
from kclient.cli.exit_codes import FAILED, PARTLY_FAILED, UNREACHABLE
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
