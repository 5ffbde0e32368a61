"""The images and projects of compose/ on a real Docker engine, without a registry.

The base image is made by debootstrap (`compose/base-image.sh`). Images stay, so that the next run finds their layers;
containers, volumes and networks go. Without an engine, or what it needs, the tests are skipped with the reason.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.kit.waiting import eventually

COMPOSE = Path(__file__).parents[2] / "compose"

IMAGES = {
    "KBROKER_IMAGE": "kbroker-test",
    "KBROKER_SPARK_IMAGE": "kbroker-test-spark",
    "ZOOKEEPER_IMAGE": "kbroker-test-zookeeper",
}
"""Variables of the compose files; the tags differ from those of a user."""

BUILD_SECONDS = 900.0


@contextmanager
def engine() -> Iterator[Any]:
    """Give a client of the Docker engine; skip the test if none answers."""
    client = None
    try:
        client = docker.from_env(timeout=60)
        client.ping()
    except docker.errors.DockerException as error:
        if client is not None:
            client.close()
        pytest.skip(f"no Docker engine answers: {error}")
    try:
        yield client
    finally:
        client.close()


def compose_command() -> list[str]:
    """Return the words that run Compose v2 or 1.29; skip the test if there is neither."""
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]) is None:
            continue
        tried = subprocess.run([*words, "version"], capture_output=True, timeout=60, check=False)
        if tried.returncode == 0:
            return words
    pytest.skip("neither `docker compose` nor docker-compose runs here")


def base_image(client: Any) -> str:
    """Return the name of the base image. $BASE_IMAGE names another one than that of debootstrap."""
    if given := os.environ.get("BASE_IMAGE"):
        return given
    script = COMPOSE / "base-image.sh"
    name = f"kbroker-test-base:{hashlib.sha256(script.read_bytes()).hexdigest()[:12]}"
    if client.images.list(name):
        return name
    if os.geteuid() != 0 or not (shutil.which("debootstrap") and shutil.which("docker")):
        pytest.skip(
            "the base image needs root, debootstrap and the docker command; or set BASE_IMAGE"
        )
    run([str(script), name], timeout=BUILD_SECONDS)
    return name


def run(
    words: list[str], timeout: float, environment: dict[str, str] | None = None, code: int = 0
) -> str:
    """Run a command of this machine; return what it prints on stdout."""
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == code, (
        words,
        done.returncode,
        done.stdout[-3000:],
        done.stderr[-3000:],
    )
    return done.stdout


@dataclass(frozen=True)
class Project:
    """One directory of compose/ as a project of its own: commands of Compose, and its containers."""

    client: Any
    command: list[str]
    directory: str
    environment: dict[str, str]

    @property
    def name(self) -> str:
        """The project's name: a label of all that it makes."""
        return f"kbroker-test-{self.directory}-{os.getpid()}"

    def compose(self, *words: str, timeout: float = 120) -> str:
        """Run a command of Compose in this project; return what it prints on stdout."""
        file = COMPOSE / self.directory / "compose.yaml"
        return run(
            [*self.command, "-p", self.name, "-f", str(file), *words],
            timeout,
            {**os.environ, **self.environment},
        )

    def up(self) -> None:
        """Start all services; return when each is healthy and none was started twice."""
        self.compose("up", "-d")
        eventually(
            "every container is healthy", lambda: set(self.health().values()) == {"healthy"}, 90
        )
        restarted = [each.name for each in self.containers() if each.attrs["RestartCount"]]
        assert restarted == []

    def containers(self) -> list[Any]:
        """Return the containers of the project, those that have ended too."""
        return list(self.client.containers.list(all=True, filters=self._label, ignore_removed=True))

    def container(self, service: str) -> Any:
        """Return the container of a service."""
        (found,) = [
            each
            for each in self.containers()
            if each.labels["com.docker.compose.service"] == service
        ]
        return found

    def health(self) -> dict[str, str]:
        """Return the health of each container."""
        return {each.name: each.attrs["State"]["Health"]["Status"] for each in self.containers()}

    def shell(self, service: str, script: str) -> str:
        """Run a shell script in the container of *service*; return what it prints on stdout."""
        code, (out, err) = self.container(service).exec_run(["sh", "-c", script], demux=True)
        assert code == 0, (script, code, out, err)
        return (out or b"").decode()

    def remove(self) -> None:
        """Remove containers, networks and volumes; fail if any is left."""
        # Compose v2 leaves what only services of another profile use.
        self.compose("--profile", "audit", "down", "-v", "--remove-orphans", "-t", "5")
        left = [
            *self.containers(),
            *self.client.networks.list(filters=self._label),
            *self.client.volumes.list(filters=self._label),
        ]
        assert left == []

    @property
    def _label(self) -> dict[str, str]:
        return {"label": f"com.docker.compose.project={self.name}"}


@contextmanager
def project(
    client: Any, command: list[str], directory: str, variables: dict[str, str]
) -> Iterator[Project]:
    """Give a project with these variables of its compose file; leave nothing of it."""
    made = Project(client, command, directory, variables)
    try:
        yield made
    finally:
        # pytest shows it with a test that failed.
        sys.stdout.write(made.compose("logs", "--no-color", "--tail=50"))
        made.remove()
