"""`kaudit pack`: one archive with the packages that Spark's workers on other hosts need, and the check of such a file.

The archive has the folder `lib`: spark_jobs, kclient and what they require, as installed here, without PySpark, which
belongs to the Spark of the workers. Spark unpacks it in the working directory of each executor (`spark.archives`), and
PYTHONPATH leads there. The workers' Python is their own: `python3.11` on their PATH, of the same minor version and
platform as here, because compiled packages fit no other.

`FACTS` in the archive names version, Python and platform; a driver of another version refuses the archive, because
driver and workers exchange pickled objects.
"""

from __future__ import annotations

import io
import json
import re
import sys
import sysconfig
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

import kclient
import spark_jobs
from kclient.replaced_file import replaced

FACTS: Final = "kaudit-environment.json"
FOLDER: Final = "environment"
"""The directory of an executor in which Spark unpacks the archive."""

OWN: Final = (Path(kclient.__file__).parent, Path(spark_jobs.__file__).parent)
NOT_NEEDED: Final = frozenset({"__pycache__", "tests", "include"})
OF_SPARK: Final = frozenset({"kbroker", "pyspark"})
"""Distributions that are not followed: ours is packed from `OWN`, and Spark brings its own PySpark."""

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^]]*)])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


class NotAnEnvironment(ValueError):
    """A file of `--environment` that this kaudit cannot use; the text names the cause."""


class NotPackable(Exception):
    """A package that workers need has no files that can be packed; the text names it."""


class Packed(NamedTuple):
    """What `pack` wrote."""

    files: int
    size: int
    distributions: list[str]


def facts() -> dict[str, str]:
    """Return what must be equal at the driver and in the archive."""
    return {
        "kbroker": metadata.version("kbroker"),
        "python": python_name(),
        "platform": sysconfig.get_platform(),
    }


def python_name() -> str:
    """Return the command of this minor version of Python, such as python3.11."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def pack(path: Path) -> Packed:
    """Write the archive of this environment to *path*, a .tar.gz; the file appears only when it is whole.

    Raise NotPackable for a package of which not all files are known.
    """
    names = sorted(required("kbroker", "audit") - OF_SPARK)
    places = dict(_own_files())
    for name in names:
        for place, file in _files(name):
            places.setdefault(place, file)
    write_archive(path, places)
    return Packed(len(places), path.stat().st_size, names)


def write_archive(path: Path, places: Mapping[str, Path]) -> None:
    """Write the archive *path* of the files of *places*, by their places below `lib`."""
    with (
        replaced(path) as beside,
        # Links to a cache of this machine (`uv --link-mode=symlink`) lead nowhere on another one: pack the files.
        tarfile.open(beside, mode="w:gz", compresslevel=1, dereference=True) as archive,
    ):
        # First, so that `check` reads no more than the beginning.
        text = json.dumps(facts(), sort_keys=True).encode()
        entry = tarfile.TarInfo(FACTS)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
        for place, file in places.items():
            archive.add(file, f"lib/{place}", recursive=False)


def check(path: Path) -> None:
    """Raise NotAnEnvironment if *path* is no archive of `pack`, or one of another version, Python or platform."""
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            found = archive.extractfile(FACTS)
            packed = json.loads(found.read()) if found is not None else None
    except (
        *(tarfile.TarError, zlib.error, EOFError, OSError),
        *(KeyError, ValueError, RecursionError),
    ) as problem:
        raise NotAnEnvironment(
            f"{path} is no archive of `kaudit pack`: {problem or type(problem).__name__}"
        ) from None
    for name, value in facts().items():
        if not isinstance(packed, dict) or packed.get(name) != value:
            held = packed.get(name) if isinstance(packed, dict) else None
            raise NotAnEnvironment(
                f"{path} was packed with {name} {held}, here it is {value}: run `kaudit pack` again"
            )


def required(name: str, *extras: str) -> set[str]:
    """Return the installed distributions that *name* with *extras* needs, and all that these need."""
    found: set[str] = set()
    asked: set[tuple[str, str]] = set()
    queue = [(name, extra) for extra in ("", *extras)]
    while queue:
        current, extra = queue.pop()
        if (current, extra) in asked or (current in OF_SPARK and current != name):
            continue
        asked.add((current, extra))
        try:
            requirements = metadata.requires(current) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        found.add(current)
        for requirement in requirements:
            only_for = _EXTRA.search(requirement)
            if (only_for.group(1) if only_for else "") != extra:
                continue
            match = _NAME.match(requirement)
            assert match is not None, requirement
            wanted = [each.strip() for each in (match.group(2) or "").split(",") if each.strip()]
            queue += [(_normal(match.group(1)), each) for each in ("", *wanted)]
    return found


def _normal(name: str) -> str:
    """Return the one spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _own_files() -> Iterator[tuple[str, Path]]:
    for package in OWN:
        for file in sorted(package.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield f"{package.name}/{file.relative_to(package)}", file


def _files(name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of an installed distribution below its directory of packages, each with its place there.

    Raise NotPackable if it has no list of its files, or only one that leads to another directory.
    """
    distribution = metadata.distribution(name)
    if distribution.files is None:
        raise NotPackable(f"{name} {distribution.version} has no list of its files (RECORD)")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        raise NotPackable(f"{name} {distribution.version} is an editable installation")
    for file in sorted(distribution.files):
        if file.parts[0] == ".." or file.is_absolute() or NOT_NEEDED.intersection(file.parts):
            continue
        located = Path(str(file.locate()))
        if located.is_file():
            yield str(file), located
