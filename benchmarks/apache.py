"""Apache Kafka 3.9.1's jars, fetched by Maven into a cache outside the tree: for comparison, not a dependency."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

VERSION = "3.9.1"
_MODULES = ("kafka_2.13", "kafka-tools", "connect-mirror")
STREAMS, CONNECT_FILE = "kafka-streams", "connect-file"
_FOR_SOME_TESTS = (STREAMS, CONNECT_FILE)


class NotAvailable(Exception):
    """Apache Kafka is not available; the message has the reason."""


def folder() -> Path:
    """Return the folder of the jars, which may not exist."""
    cache = Path(os.environ.get("KBROKER_CACHE", Path.home() / ".cache" / "kbroker"))
    return cache / f"kafka-{VERSION}"


def is_complete(where: Path, *others: str) -> bool:
    """Return whether *where* has the jars of all modules that are always needed, and of *others*."""
    return all(any(where.glob(f"{name}-{VERSION}.jar")) for name in (*_MODULES, *others))


def jars() -> Path:
    """Return the folder of jars, fetched on first use; raise NotAvailable if that fails.

    A folder of an earlier kbroker lacks the modules for some tests. It remains usable if these cannot be fetched.
    """
    target = folder()
    if is_complete(target, *_FOR_SOME_TESTS):
        return target
    maven = shutil.which("mvn")
    if maven is None and is_complete(target):
        return target
    if maven is None:
        raise NotAvailable("Apache Kafka is fetched by Maven, and mvn is not installed")
    dependencies = "".join(
        f"<dependency><groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId>"
        f"<version>{VERSION}</version></dependency>"
        for name in (*_MODULES, *_FOR_SOME_TESTS)
    )
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>kbroker</groupId>"
            f"<artifactId>peers</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
        )
        fetched = subprocess.run(
            [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={target}"],
            cwd=temporary,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    if not is_complete(target):
        lines = (fetched.stdout + fetched.stderr).strip().splitlines()
        raise NotAvailable(
            f"Maven could not fetch Apache Kafka: {lines[0] if lines else 'unknown error'}"
        )
    return target


if __name__ == "__main__":
    try:
        print(jars())
    except (NotAvailable, subprocess.TimeoutExpired, OSError) as not_available:
        raise SystemExit(f"Apache Kafka is not available: {not_available}") from None
