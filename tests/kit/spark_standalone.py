"""Spark standalone on this machine: a master and workers, processes of their own with a Python that has no packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark

from kbroker.local.zookeeper import free_ports
from tests.kit.jvm import SHORT_LIVED
from tests.kit.waiting import eventually

HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


class SparkStandalone(NamedTuple):
    """A master with its workers."""

    master: str
    workers: Sequence[Path]
    """The directory of each worker; an executor has its own below it."""


@contextmanager
def spark_standalone(home: Path, workers: int = 2) -> Iterator[SparkStandalone]:
    """Start a master and *workers* of one core each, and kill them at the end."""
    home.mkdir(parents=True, exist_ok=True)
    port = free_ports(1)[0]
    url = f"spark://127.0.0.1:{port}"
    directories = [home / f"worker-{n}" for n in range(workers)]
    with ExitStack() as stack:
        listening = ("--host", "127.0.0.1", "--webui-port", "0", "--port")
        log = home / "master.log"
        stack.enter_context(_daemon(MASTER, *listening, str(port), log=log))
        for directory in directories:
            resources = ("--cores", "1", "--memory", "700m", "--work-dir", str(directory))
            stack.enter_context(
                _daemon(
                    WORKER, *listening, "0", *resources, url, log=home / f"{directory.name}.log"
                )
            )
        eventually(
            "the workers' registration",
            lambda: log.read_text().count("Registering worker") == workers,
            60,
        )
        yield SparkStandalone(url, directories)


@contextmanager
def _daemon(name: str, *words: str, log: Path) -> Iterator[None]:
    environment = {
        # The Python below the virtual environment: it has none of our packages.
        "PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin",
        "HOME": os.environ["HOME"],
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
    } | {each: os.environ[each] for each in ("JAVA_HOME",) if each in os.environ}
    with log.open("wb") as stream:
        command = [str(HOME / "bin" / "spark-class"), name, *words]
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    try:
        yield
    finally:
        process.kill()
        process.wait()
