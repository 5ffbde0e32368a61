"""Which process holds the lock of a log directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kbroker.log.disk import OS_DISK
from kbroker.log.lock_holder import lock_holder
from kbroker.log.log_dir import LogDir

_CLAIM = """
import sys
from kbroker.log.disk import OS_DISK
from kbroker.log.log_dir import LogDir
LogDir.claim(OS_DISK, sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


def test_the_holder_is_the_process_that_locked_the_directory(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    assert lock_holder(directory) is None, "there is no directory"
    command = [sys.executable, "-c", _CLAIM, directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        assert lock_holder(directory) == other.pid
    assert lock_holder(directory) is None, "the file .lock stays, its lock does not"


def test_a_released_directory_has_no_holder(tmp_path: Path) -> None:
    LogDir.claim(OS_DISK, str(tmp_path)).release()
    assert os.path.exists(tmp_path / ".lock")
    assert lock_holder(str(tmp_path)) is None
