"""A file system for every broker's log directory, which can be filled and freed (S16).

tmpfs: what is in it outlives every kill of a process, and it can be resized under a running broker. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.chaos.skipped import Skipped

ROOM_MIB = 512
TRIES = 20


class SmallDisks:
    """One per broker, at the places given."""

    def __init__(self, places: Mapping[int, Path]) -> None:
        self._places = dict(places)
        self._mounted: list[Path] = []

    def mount(self) -> None:
        """Make them; raise Skipped where that is not allowed."""
        for place in self._places.values():
            place.mkdir(parents=True, exist_ok=True)
            problem = _mount("-t", "tmpfs", "-o", f"size={ROOM_MIB}m", "tmpfs", str(place))
            if problem:
                self.unmount()
                raise Skipped(f"a file system of its own needs root: {problem}")
            self._mounted.append(place)

    def fill(self, n: int, spare: int) -> None:
        """Leave broker *n* *spare* bytes."""
        for _ in range(TRIES):  # it may have written more meanwhile than we would leave it
            problem = self._resize(n, self._used(n) + spare)
            if not problem:
                return
        raise AssertionError(f"the disk of broker {n} cannot be made small: {problem}")

    def free(self, n: int) -> int:
        """Return the bytes that broker *n* still has."""
        found = os.statvfs(self._places[n])
        return found.f_bavail * found.f_frsize

    def give_room(self, n: int) -> None:
        """Let broker *n* write again."""
        problem = self._resize(n, self._used(n) + (ROOM_MIB << 20))
        assert not problem, problem

    def unmount(self) -> None:
        """Undo all; what is in them is kept below the same paths."""
        while self._mounted:
            place = self._mounted.pop()
            kept = place.with_name(place.name + "-kept")
            shutil.copytree(place, kept)
            subprocess.run(["umount", "-l", str(place)], check=True)
            place.rmdir()
            kept.rename(place)

    def _used(self, n: int) -> int:
        found = os.statvfs(self._places[n])
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def _resize(self, n: int, size: int) -> str:
        return _mount("-o", f"remount,size={size}", str(self._places[n]))


def _mount(*arguments: str) -> str:
    """Return what mount complains of."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
