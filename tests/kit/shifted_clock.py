"""The wall clock of one broker process, shifted from outside while it runs (S35). libfaketime is not needed.

The process finds a ``sitecustomize`` on its path, which imports this module before anything else: from then on
`time.time` is the machine's clock plus the offset in a file that we write. All of Python's wall clock that our code
and its libraries use is read there (`tests/unit/app/test_wall_clock.py`); the monotonic clock is left alone, as it
is when an operator or ntpd sets the clock of a machine.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

_OFFSET = struct.Struct("d")
_VARIABLE = "KBROKER_TESTS_CLOCK_OFFSET"


class ShiftedClock:
    """The clock of the process that is started with `environment`."""

    def __init__(self, directory: Path, python_path: str) -> None:
        directory.mkdir(parents=True)
        (directory / "sitecustomize.py").write_text("import tests.kit.shifted_clock\n")
        file = directory / "offset"
        file.write_bytes(bytes(_OFFSET.size))
        self._file = file
        self.environment = {
            "PYTHONPATH": os.pathsep.join((str(directory), python_path)),
            _VARIABLE: str(file),
        }

    def shift(self, seconds: float) -> None:
        """Set it so many seconds ahead of the machine's clock, or behind it where *seconds* is negative."""
        with self._file.open("r+b") as file:
            file.write(_OFFSET.pack(seconds))


def _shift_this_process(path: str) -> None:
    with open(path, "rb") as file:
        offset = mmap.mmap(file.fileno(), _OFFSET.size, prot=mmap.PROT_READ)
    true_time, true_time_ns, unpack = time.time, time.time_ns, _OFFSET.unpack_from

    def shifted() -> float:
        return true_time() + float(unpack(offset)[0])

    def shifted_ns() -> int:
        return true_time_ns() + int(unpack(offset)[0] * 1e9)

    time.time, time.time_ns = shifted, shifted_ns


if _VARIABLE in os.environ:
    _shift_this_process(os.environ[_VARIABLE])
