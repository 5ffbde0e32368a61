"""Apache Kafka 3.9.1's jars, by Maven, into a cache outside the tree: a peer to measure against, never a dependency."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

VERSION = "3.9.1"
_MODULES = ("kafka_2.13", "kafka-tools", "connect-mirror")


class Absent(Exception):
    """Apache Kafka cannot be had here; the message says why."""


def folder() -> Path:
    """Return where the jars are, or would be."""
    cache = Path(os.environ.get("KBROKER_CACHE", Path.home() / ".cache" / "kbroker"))
    return cache / f"kafka-{VERSION}"


def is_complete(where: Path) -> bool:
    """Return whether all the modules that we ask for are in *where*."""
    return all(any(where.glob(f"{name}-*.jar")) for name in _MODULES)


def jars() -> Path:
    """Return the folder of jars, fetched on first use; Absent with the reason where that fails."""
    target = folder()
    if is_complete(target):
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise Absent("Apache Kafka is fetched by Maven, and there is no mvn here")
    dependencies = "".join(
        f"<dependency><groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId>"
        f"<version>{VERSION}</version></dependency>"
        for name in _MODULES
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
    if fetched.returncode or not is_complete(target):
        lines = (fetched.stdout + fetched.stderr).strip().splitlines()
        raise Absent(
            f"Maven could not fetch Apache Kafka: {lines[0] if lines else 'no reason given'}"
        )
    return target


if __name__ == "__main__":
    try:
        print(jars())
    except (Absent, subprocess.TimeoutExpired, OSError) as absent:
        raise SystemExit(f"no Apache Kafka to test against: {absent}") from None
