"""Closed standard streams (`>&-`): no socket and no file gets their numbers, and with it the text of a print."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

WORDS = {
    "kclient": ("-b", "{server}", "topic", "list"),
    "kbroker": ("start", "{file}"),
    "mirrormaker": ("plan", "{file}"),
}
SETTINGS = {
    "kclient": "",
    "kbroker": "broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={home}/logs\nzookeeper.connect={server}\n",
    "mirrormaker": "clusters=east,west\neast.bootstrap.servers={server}\nwest.bootstrap.servers={server}\n"
    "east->west.enabled=true\neast->west.topics=.*\n",
}


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("module", WORDS)
def test_a_connected_process_has_nothing_else_in_place_of_a_closed_stream(
    module: str, closed: str, tmp_path: Path
) -> None:
    """The server accepts and does not answer: the process waits with an open connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        file = tmp_path / "settings.properties"
        known = {
            "server": f"127.0.0.1:{listening.getsockname()[1]}",
            "home": tmp_path,
            "file": file,
        }
        file.write_text(SETTINGS[module].format(**known))
        words = [each.format(**known) for each in WORDS[module]]
        line = f'exec "$0" -m {module} "$@" {closed}'
        with subprocess.Popen(
            ["sh", "-c", line, sys.executable, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                connection, _ = listening.accept()
                with connection:
                    found = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
            finally:
                process.kill()
    assert found == ["/dev/null"] * 3
