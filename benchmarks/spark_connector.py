"""Spark's own Kafka connector, fetched by Maven into a cache outside the tree: for comparison, not a dependency."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)


class NotAvailable(Exception):
    """The connector is not available; the message has the reason."""


def jars() -> list[Path]:
    """Return the connector's jars, fetched on first use; raise NotAvailable if that fails."""
    cache = Path(os.environ.get("KBROKER_CACHE", Path.home() / ".cache" / "kbroker"))
    target = cache / "spark-kafka-4.2.0"
    found = []
    for artifact in ARTIFACTS:
        _, name, version = artifact.split(":")
        jar = target / f"{name}-{version}.jar"
        if not jar.exists():
            _fetch(artifact, target)
        found.append(jar)
    return found


def _fetch(artifact: str, target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotAvailable("Spark's Kafka connector is fetched by Maven, and mvn is not installed")
    command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
    try:
        fetched = subprocess.run(
            [*command, f"-DoutputDirectory={target}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise NotAvailable(f"Maven did not fetch {artifact} within 120 s") from problem
    if fetched.returncode:
        lines = (fetched.stdout + fetched.stderr).strip().splitlines()
        raise NotAvailable(
            f"Maven could not fetch {artifact}: {lines[0] if lines else 'unknown error'}"
        )
