"""A run of many seeds that may be stopped and continued, on another machine too: a file has what was played.

All parts play the same code: the file has a hash of the sources that the simulation imports, and other sources are
refused. Seeds are played in their order, so the file needs only their number. A part that is killed loses the seeds
since the last save.
"""

from __future__ import annotations

import ast
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from kclient.replaced_file import replace_file
from tests.simulation.simulation import Result
from tests.simulation.tally import Tally

ROOT = Path(__file__).parents[2]
PACKAGES = ("kbroker", "kclient", "mirrormaker", "tests")
BEGIN = "tests.simulation.__main__"


class NotThisRun(Exception):
    """The file is of a run of other code, of other schedules, or of no run."""


def code_hash(root: Path = ROOT) -> str:
    """Return the SHA-256 of the Python sources that the simulation imports, and of those that they import.

    A change of kmirror's commands, which the simulation does not play, ends no run.
    """
    found = hashlib.sha256()
    for name, path in sorted(imported_sources(root).items()):
        found.update(f"{name}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def imported_sources(root: Path = ROOT) -> dict[str, Path]:
    """Return the sources of `BEGIN`, of all that it imports and of their packages, by module name.

    An import within a function counts, too.
    """
    found: dict[str, Path] = {}
    waiting = [BEGIN]
    while waiting:
        name = waiting.pop()
        path = _source(root, name)
        if path is None or name in found:
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imports(path, name)]
    return found


def _source(root: Path, name: str) -> Path | None:
    """Return the file of the module *name*, if it is one of `PACKAGES`."""
    if name.partition(".")[0] not in PACKAGES:
        return None
    path = root.joinpath(*name.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def _imports(path: Path, name: str) -> Iterator[str]:
    """Return the names that the module *name* imports: modules, or what is in them."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            outer = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            module = ".".join([*outer, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{each.name}" for each in node.names)


@dataclass
class RunInParts:
    """What was played of *seeds*."""

    code: str
    drawn: str
    """How schedules are made of seeds, and the known bug that is put in."""
    seeds: range
    tally: Tally
    seconds: float = 0.0
    """The sum over the parts."""
    parts: int = 0
    """Parts that were begun, this one included."""
    digest: int = 0
    """Of the traces of all seeds that were played: two runs of one code agree in it."""

    @property
    def left(self) -> range:
        """The seeds that are to be played."""
        return self.seeds[self.tally.done :]

    def take(self, result: Result) -> None:
        """Add one schedule."""
        self.tally.take(result)
        self.digest = zlib.crc32(result.digest.to_bytes(8, "little"), self.digest)

    def save(self, path: Path, seconds: float) -> None:
        """Write the run, with *seconds* of this part."""
        content = {
            "code": self.code,
            "drawn": self.drawn,
            "seeds": [self.seeds[0], self.seeds[-1]],
            "seconds": round(self.seconds + seconds, 1),
            "parts": self.parts,
            "digest": f"{self.digest:08x}",
            "tally": {each.name: getattr(self.tally, each.name) for each in fields(self.tally)},
        }
        replace_file(path, json.dumps(content, indent=1) + "\n")


def begin_or_continue(path: Path | None, seeds: range, drawn: str, code: str) -> RunInParts:
    """Return the run of the file *path*, or a new one if there is no file. Raise NotThisRun."""
    if path is None or not path.exists():
        return RunInParts(code, drawn, seeds, Tally(len(seeds)), parts=1)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["code"] != code:
            raise NotThisRun(
                f"{path}: a run of other sources, {content['code'][:12]}, not {code[:12]}"
            )
        if (content["drawn"], content["seeds"]) != (drawn, [seeds[0], seeds[-1]]):
            of = f"{content['drawn']} of seeds {content['seeds'][0]}..{content['seeds'][1]}"
            raise NotThisRun(f"{path}: a run of other schedules, {of}")
        tally = Tally(**content["tally"])
        tally.verbs = Counter(tally.verbs)
        digest = int(content["digest"], 16)
        return RunInParts(
            code, drawn, seeds, tally, content["seconds"], content["parts"] + 1, digest
        )
    except (ValueError, KeyError, TypeError) as problem:
        raise NotThisRun(f"{path} has no run: {problem!r}") from None
