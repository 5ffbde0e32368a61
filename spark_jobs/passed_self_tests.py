"""Remembers that the self-test passed, so that it runs once per version and environment.

The self-test depends only on code and on Spark's settings. `environment_key` is a hash of these:

- the files of kaudit and kclient;
- the versions of Python, Java, Spark, and every package that kaudit requires;
- the settings: `--conf`, spark-defaults.conf, and the Python of the workers.

With a local master a run with the same key has the same self-test. So its result is taken from the file
`default_file`, and the report has its time. Workers on other hosts may have another environment: with another master
the self-test always runs.

A failed self-test is never remembered. A file that cannot be read or written only costs the time of the self-test.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import kclient
import spark_jobs
from kclient.replaced_file import replace_file
from spark_jobs.packed_environment import required

MOST_ENVIRONMENTS = 20
"""Environments that are remembered; the oldest is forgotten first."""

PACKAGES = (Path(kclient.__file__).parent, Path(spark_jobs.__file__).parent)

_AT_LEAST = ("pandas", "numpy", "pyarrow", "cramjam", "crc32c")
"""Packages that read the records, also where kaudit runs from its source and has no list of requirements."""


def default_file() -> Path:
    """Return the file below XDG_CACHE_HOME, or ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache else Path("~/.cache").expanduser()) / "kbroker" / "self-tests.json"


def environment_key(
    versions: Mapping[str, str],
    settings: Mapping[str, str],
    packages: Iterable[Path] = PACKAGES,
) -> str:
    """Return a hash of the environment: *versions* beside those of installed packages, Spark's *settings*, all files.

    *packages* are the directories of which every file counts.
    """
    digest = hashlib.sha256()
    facts = {
        "versions": {
            **versions,
            **_installed(),
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
        "settings": dict(settings),
        "defaults": _spark_defaults(),
        "workers": os.environ.get("PYSPARK_PYTHON", ""),
    }
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for package in packages:
        for file in sorted(package.rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"\0{file.relative_to(package)}\0{content}".encode())
    return digest.hexdigest()


def _installed() -> dict[str, str]:
    """Return the versions of the packages that kaudit requires."""
    found = {}
    for name in {*required("kbroker", "audit"), *_AT_LEAST}:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.distribution(name).version
    return found


def _spark_defaults() -> str:
    """Return the settings that Spark reads from its configuration directory; "" without such a file."""
    directory = os.environ.get("SPARK_CONF_DIR", "")
    with suppress(OSError):
        return (Path(directory) / "spark-defaults.conf").read_text(errors="replace")
    return ""


class PassedSelfTests:
    """The results of passed self-tests in *file*, by `environment_key`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def result(self, key: str) -> str | None:
        """Return the result with its time; None if none is remembered."""
        entry = self._read().get(key)
        if not isinstance(entry, dict) or {str} != {
            type(entry.get("result")),
            type(entry.get("at")),
        }:
            return None
        return f"{entry['result']} (on {entry['at']}, same version and environment)"

    def remember(self, key: str, result: str, at: str) -> None:
        """Write that the self-test passed with *result* at the time *at*."""
        entries = {name: entry for name, entry in self._read().items() if name != key}
        entries[key] = {"result": result, "at": at}
        kept = dict(list(entries.items())[-MOST_ENVIRONMENTS:])
        with suppress(OSError):
            replace_file(self._file, json.dumps(kept, indent=1))

    def _read(self) -> dict[str, object]:
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads(self._file.read_text())
            if isinstance(content, dict):
                return content
        return {}
