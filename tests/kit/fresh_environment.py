"""A virtual environment with a wheel in it, and only the dependencies that the wheel declares; without a download.

The dependencies are links to those of the environment of the tests. So a module that the wheel needs and does not
declare is missing here, as it is for a user.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


class FreshEnvironment:
    """The environment in *directory*, with *wheel* and what it requires without extras."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.programs = directory / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
        (self._packages,) = directory.glob("lib/python*/site-packages")
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--python"]
        words = ["install", "--no-deps", "--no-index", "--no-compile", str(wheel)]
        subprocess.run([*pip, str(self.programs / "python"), *words], check=True)
        (found,) = Distribution.discover(name="kbroker", path=[str(self._packages)])
        self._installed = found
        self._add()

    @contextmanager
    def extra(self, name: str) -> Iterator[None]:
        """Have what the extra *name* requires, too, for the block."""
        added = self._add(name)
        try:
            yield
        finally:
            for each in added:
                each.unlink()

    def _add(self, extra: str = "") -> list[Path]:
        """Link what the wheel requires for *extra*, and what that requires; return the new links."""
        wanted = [(self._installed, extra)]
        done: set[tuple[str, str]] = set()
        links: list[Path] = []
        while wanted:
            of, chosen = wanted.pop()
            if (of.name, chosen) in done:
                continue
            done.add((of.name, chosen))
            for needed in map(Requirement, of.requires or ()):
                if needed.marker is not None and not needed.marker.evaluate({"extra": chosen}):
                    continue
                found = distribution(needed.name)
                assert found.version in needed.specifier, (needed, found.version)
                links += self._link(found)
                wanted += [(found, name) for name in ("", *needed.extras)]
        return links

    def run(self, *words: str, directory: Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end, in *directory*, without the settings of a user."""
        return subprocess.run(
            [str(self.programs / words[0]), *words[1:]],
            env={"PATH": f"{self.programs}:{os.environ['PATH']}", "HOME": str(directory)},
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def _link(self, found: Distribution) -> Iterator[Path]:
        ours = Path(sysconfig.get_path("purelib"))
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = self._packages / name
            if (ours / name).exists() and not link.exists():
                link.symlink_to(ours / name)
                yield link
