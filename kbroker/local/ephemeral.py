"""A cluster in a temporary directory, of which nothing is left: not after Ctrl-C, an error, or `kill -9`.

A process of its own, the orphan reaper, purges the directory if this one ends without doing so.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kbroker.local import cluster, orphan_reaper
from kbroker.local.cluster import DEFAULT_BROKERS, DEFAULT_PORT, Progress
from kbroker.local.state import ClusterState, Directory
from kbroker.local.zookeeper import LocalError, free_ports, is_free


@contextmanager
def running(
    name: str,
    *,
    brokers: int | None,
    zookeepers: int | None,
    port: int | None,
    overrides: Sequence[str],
    progress: Progress,
) -> Iterator[tuple[Directory, ClusterState]]:
    """Run a cluster for the time of a block. Raise LocalError if it does not start."""
    number = DEFAULT_BROKERS if brokers is None else brokers
    cluster.check_number(number)  # before the search for so many free ports
    directory = Directory(Path(tempfile.mkdtemp(prefix="kbroker-local-")))
    orphan_reaper.start(os.getpid(), directory, purges=True)
    try:
        state = cluster.up(
            directory,
            name,
            brokers=brokers,
            zookeepers=zookeepers,
            port=port or _free_port(number),
            overrides=overrides,
            progress=progress,
            with_context=False,
        )
        yield directory, state
    finally:
        # A second Ctrl-C would leave half of it; the reaper would do the rest.
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        cluster.purge(directory, None, progress, gently=False)
        shutil.rmtree(directory.path, ignore_errors=True)


def _free_port(brokers: int) -> int:
    """Return the first of free consecutive ports: the usual ones, unless another cluster has them."""
    if all(map(is_free, range(DEFAULT_PORT, DEFAULT_PORT + brokers))):
        return DEFAULT_PORT
    return free_ports(brokers, consecutive=True)[0]


def run_command(words: Sequence[str], bootstrap: str) -> int:
    """Run a command that finds the cluster in KCLIENT_BOOTSTRAP_SERVERS and BROKERS; return its exit code."""
    environment = {**os.environ, "KCLIENT_BOOTSTRAP_SERVERS": bootstrap, "BROKERS": bootstrap}
    try:
        with subprocess.Popen(words, env=environment) as process:
            signal.signal(signal.SIGTERM, lambda *_: process.terminate())
            while True:
                try:
                    code = process.wait()
                    break
                except KeyboardInterrupt:
                    continue  # The command got it, too, and ends.
    except OSError as problem:
        raise LocalError(f"{words[0]}: {problem.strerror}") from problem
    return code if code >= 0 else 128 - code


def wait_for_the_end() -> None:
    """Wait for Ctrl-C or SIGTERM, also as a background job of a script, which ignores Ctrl-C by default."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        while True:
            signal.pause()
