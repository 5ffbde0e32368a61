"""`kclient` as a process of its own, forty times a test: forked from one that has imported everything already.

    python -m tests.kit.kclient_processes

reads one request a line, {"words", "stdin", "stdout", "stderr"} with paths of files, forks a child that runs the
command on them, and answers with its exit code. Importing Twisted takes half a second; forking does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self


class KclientProcesses:
    """Runs commands, each in a fresh process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.kclient_processes"],
            env={**environment, "PYTHONPATH": os.getcwd()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(10)
        self._parent.stdout.close()
        self._directory.cleanup()

    def run(self, words: tuple[str, ...], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        """Run `kclient` *words* and wait for its end."""
        paths = {n: Path(self._directory.name, n) for n in ("stdin", "stdout", "stderr")}
        paths["stdin"].write_bytes(stdin)
        request = {"words": words, **{name: str(path) for name, path in paths.items()}}
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(request).encode() + b"\n")
        self._parent.stdin.flush()
        code = int(self._parent.stdout.readline())
        return subprocess.CompletedProcess(
            words, code, paths["stdout"].read_bytes(), paths["stderr"].read_bytes()
        )


def main() -> None:
    """Serve requests until standard input ends."""
    import twisted.internet.epollreactor  # noqa: F401 (imported for the children; a reactor is not made)

    import kclient.admin.client
    import kclient.cli.cluster
    import kclient.cli.consume
    import kclient.cli.group
    import kclient.cli.info
    import kclient.cli.produce
    import kclient.cli.reassign
    import kclient.cli.topic
    import kclient.consumer.client
    import kclient.producer.producer  # noqa: F401

    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(request)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(request: dict[str, str]) -> None:
    """Be the command, on its files."""
    from kclient.__main__ import main as kclient

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(request[name], flags), number)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.argv = ["kclient", *request["words"]]
    code = 1
    try:
        kclient()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
