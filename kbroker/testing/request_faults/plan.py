"""The faults of requests of one cluster, in a file that its processes share.

Theory of operation
===================
The mapped file has 64-bit numbers: the generation of the plan, then a count for each fault by its number. The faults
themselves are JSON in a second file, which is replaced as a whole before the generation grows. A reader of the new
generation sees those faults, or newer ones. A use is counted under a lock of the file, so that a fault of three
requests has three, to whichever brokers they go.

Owner: one process writes (`replace`), brokers claim; each opens the file for itself.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from kbroker.testing.request_faults.fault import RequestFault

MOST: Final = 1 << 16
"""Faults of one cluster. Their numbers are not used again: a broker may still count one that has ended."""

_NUMBER = struct.Struct("=Q")
_SIZE = (1 + MOST) * _NUMBER.size


class FaultPlan:
    """The plan at *path*, which the first process to open it makes."""

    def __init__(self, path: Path) -> None:
        self._text = path.with_suffix(".json")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size != _SIZE:
            os.ftruncate(self._file, _SIZE)  # sparse: no blocks yet
        self._numbers = mmap.mmap(self._file, _SIZE)
        self._generation = 0
        self._faults: tuple[RequestFault, ...] = ()

    def close(self) -> None:
        """Close the file."""
        self._numbers.close()
        os.close(self._file)

    def replace(self, faults: Sequence[RequestFault]) -> None:
        """Have exactly these faults from the next request on."""
        beside = self._text.with_suffix(".new")
        beside.write_text(json.dumps([asdict(fault) for fault in faults]))
        os.replace(beside, self._text)
        with self._locked():
            self._write(0, self._read(0) + 1)

    def count(self, fault: RequestFault) -> int:
        """Return how many requests have had *fault*."""
        return self._read(1 + fault.number)

    def claim(self, api: int, broker: int, client_id: str) -> RequestFault | None:
        """Return the fault of a request that has arrived, and count it; None for most."""
        generation = self._read(0)
        if generation != self._generation:
            self._faults = tuple(
                RequestFault(**each) for each in json.loads(self._text.read_text())
            )
            self._generation = generation
        for fault in self._faults:
            if fault.is_for(api, broker, client_id) and self._use(fault):
                return fault
        return None

    def give_back(self, fault: RequestFault) -> None:
        """Take back a claim of *fault*."""
        with self._locked():
            self._write(1 + fault.number, self.count(fault) - 1)

    def _use(self, fault: RequestFault) -> bool:
        with self._locked():
            used = self.count(fault)
            if fault.times is not None and used >= fault.times:
                return False
            self._write(1 + fault.number, used + 1)
        return True

    def _read(self, place: int) -> int:
        number: int = _NUMBER.unpack_from(self._numbers, place * _NUMBER.size)[0]
        return number

    def _write(self, place: int, number: int) -> None:
        _NUMBER.pack_into(self._numbers, place * _NUMBER.size, number)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
