"""A command that waits for the cluster shows it at a terminal, and nothing of it is left beside its output."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.terminals import at_a_terminal


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """An address that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def shown(home: Path, *words: str, stdin_is_terminal: bool = False) -> tuple[int, str]:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(home), "TERM": "xterm"}
    return at_a_terminal(*words, environment=environment, stdin_is_terminal=stdin_is_terminal)


def screen(text: str) -> list[str]:
    """Return the lines that a terminal shows at the end."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        cells = ""
        for part in line.split("\r"):
            cells = part + cells[len(part) :]
        lines.append(cells.rstrip())
    return lines


def test_a_terminal_shows_the_wait_from_the_third_second_on_and_nothing_of_it_at_the_end(
    tmp_path: Path, silent_broker: str
) -> None:
    list_topics = ("-b", silent_broker, "-m", "4", "topic", "list")
    produce = ("-b", silent_broker, "-m", "4", "produce", "t")
    with ThreadPoolExecutor() as at_once:
        plain = at_once.submit(shown, tmp_path, *list_topics)
        without = [
            at_once.submit(shown, tmp_path, *list_topics, "-q"),
            at_once.submit(shown, tmp_path, *list_topics, "-v"),
            at_once.submit(shown, tmp_path, *produce, stdin_is_terminal=True),
        ]
        from_a_file = at_once.submit(shown, tmp_path, *produce)
        in_a_pipe = subprocess.run(
            [sys.executable, "-m", "kclient", *list_topics],
            capture_output=True,
            env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
            timeout=30,
            check=False,
        )
    code, text = plain.result()
    assert code == 3, text
    assert "\rwaiting for the cluster, 3 s" in text
    lines = screen(text)
    assert "no broker could be reached" in lines[0]
    assert not [line for line in lines if "waiting" in line]
    assert "waiting for the cluster" in from_a_file.result()[1]
    assert not [each.result() for each in without if "waiting for" in each.result()[1]]
    assert b"waiting" not in in_a_pipe.stderr
