"""What the C library keeps of freed memory, in a process of its own: the thresholds are those of the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

MIB = 1 << 20

KEEPS = """
import threading
from kbroker.app.allocator import limit_kept_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def work():
    bytearray(30 << 20)  # freed: without a limit glibc maps no block of this size from now on
    blocks = [bytearray(10 << 20) for _ in range(4)]
    del blocks

%s
began = resident()
# The arena of a thread that has ended is used again: all four run at the same time.
barrier = threading.Barrier(4)
def run():
    barrier.wait()
    work()
    barrier.wait()

threads = [threading.Thread(target=run) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(resident() - began)
"""


def kept(call: str, **variables: str) -> int:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **variables}
    script = [sys.executable, "-c", KEEPS % call]
    return int(subprocess.run(script, env=environment, check=True, capture_output=True).stdout)


@pytest.mark.long
def test_freed_blocks_of_every_thread_are_returned() -> None:
    if kept("") < 100 * MIB:
        pytest.skip("this C library returns freed blocks by itself")
    assert kept("limit_kept_memory()") < 8 * MIB


@pytest.mark.long
def test_variables_of_the_environment_win() -> None:
    variables = {"MALLOC_MMAP_THRESHOLD_": str(32 * MIB), "MALLOC_TRIM_THRESHOLD_": str(64 * MIB)}
    if kept("", **variables) < 100 * MIB:
        pytest.skip("this C library returns freed blocks by itself")
    assert kept("limit_kept_memory()", **variables) > 100 * MIB
