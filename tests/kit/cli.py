"""`kclient` on a cluster: run a command and look at what it prints and exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count
from typing import Any

from kclient import AdminClient, Producer
from tests.kit.brokers import Cluster
from tests.kit.fork_server import run

COMMAND = (sys.executable, "-m", "kclient")

_names = count(1)


class Started(subprocess.Popen[bytes]):
    """A command that runs on. If the block of its `with` fails it is killed: Popen would wait for its end for ever."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


class Cli:
    """Runs `kclient` on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.environment = environment_for(cluster.bootstrap)

    def run(
        self, *words: str, stdin: bytes = b"", code: int | None = 0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command; its exit code must be *code*, if that is not None."""
        done = run("kclient", *words, stdin=stdin, environment=self.environment)
        assert code in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
        return done

    def out(self, *words: str, stdin: bytes = b"") -> str:
        return self.run(*words, stdin=stdin).stdout.decode()

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "-J", code=code).stdout)

    def start(self, *words: str, **settings: Any) -> subprocess.Popen[bytes]:
        return Started(
            [*COMMAND, *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **settings,
        )

    def topic(self, partitions: int = 1, *lines: str) -> str:
        """Make a topic with a record per line, in turns over its partitions; without the command line."""
        name = f"topic-{next(_names)}"
        with AdminClient(bootstrap_servers=self.cluster.bootstrap) as admin:
            admin.create_topics({name: {"num_partitions": partitions}})
            admin.wait_for_topics([name])
        if lines:
            with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
                for number, line in enumerate(lines):
                    producer.send(name, line.encode(), partition=number % partitions)
        return name


def environment_for(bootstrap: str) -> dict[str, str]:
    """Return an environment without the settings of the user that runs the tests."""
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("KCLIENT")},
        "KCLIENT_BOOTSTRAP_SERVERS": bootstrap,
        "HOME": "/nonexistent",
    }
