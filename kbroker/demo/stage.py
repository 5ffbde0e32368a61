"""What the demo's steps use: the project's other programs run as from a shell, and a numbered, timed report."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from kbroker.local.zookeeper import is_free


class DemoFailed(Exception):
    """A step did not do what it must; the text names the step and where to look."""


class Narrator:
    """Prints the steps, numbered and timed; progress in place on a terminal."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._step = 0
        self._tty = sys.stderr.isatty()
        self._last_percent = -1

    def step(self, title: str) -> None:
        """Begin the next numbered step."""
        self._step += 1
        self.line(f"\n[{self._step}] {title}   ({time.monotonic() - self._started:.0f} s)")

    def line(self, text: str) -> None:
        """Write one line."""
        click.echo(text)

    def progress(self, what: str, done: int, total: int, rate: float) -> None:
        """Show how far something is; every tenth as a line where there is no terminal."""
        percent = 100 * done // total if total else 100
        text = f"    {what}: {done:,} of {total:,} records, {rate:,.0f}/s"
        if self._tty:
            bar = "#" * (percent // 4)
            click.echo(f"\r    [{bar:<25}] {percent:3d} %{text[3:]}   ", nl=False, err=True)
            if done >= total:
                click.echo(err=True)
        elif percent // 20 != self._last_percent // 20 or done >= total:
            self.line(text)
        self._last_percent = percent

    def elapsed(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._started


def run_module(module: str, *arguments: str, expect: Sequence[int] = (0,)) -> str:
    """Run `python -m module` with its stderr shown; return its stdout. DemoFailed for another exit code."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in expect:
        raise DemoFailed(
            f"`{shown(module, arguments)}` ended with {done.returncode}, expected {' or '.join(map(str, expect))}"
            + (f":\n{done.stdout[-2000:]}" if done.stdout else "")
        )
    return done.stdout


def shown(module: str, arguments: Sequence[str]) -> str:
    """Return a command as a person would type it."""
    names = {
        "kbroker": "kbroker",
        "kclient": "kclient",
        "mirrormaker": "kmirror",
        "spark_jobs": "kaudit",
    }
    return " ".join([names.get(module, module), *arguments])


def free_ports(wanted: int, count: int) -> int:
    """Return *wanted* if it and the next count - 1 ports are free, else the first such run above it."""
    port = wanted
    while port < 60_000:
        taken = next((n for n in range(port, port + count) if not is_free(n)), None)
        if taken is None:
            return port
        port = taken + 1
    raise DemoFailed(f"no {count} free ports in a row from {wanted} on")


class LocalClusters:
    """Clusters of `kbroker local` in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def up(self, name: str, *, brokers: int, zookeepers: int, port: int) -> str:
        """Start a cluster; return its brokers as host:port,..."""
        out = run_module(
            *("kbroker", "local", "up", "--dir", str(self.directory), "--name", name),
            *("--brokers", str(brokers), "--zookeepers", str(zookeepers), "--port", str(port)),
            # Whatever happens to this process, nothing is left running.
            *("--die-with", str(os.getpid())),
            *("--override", "group.initial.rebalance.delay.ms=0"),
        )
        last = out.strip().splitlines()[-1]
        if not last.startswith("BROKERS="):
            raise DemoFailed(
                f"`kbroker local up` did not print the addresses of its brokers:\n{out}"
            )
        return last.removeprefix("BROKERS=")

    def down(self, name: str) -> None:
        """Stop one cluster's brokers."""
        run_module("kbroker", "local", "down", "--dir", str(self.directory), "--name", name)

    def down_all(self) -> None:
        """Stop every broker and ZooKeeper."""
        run_module("kbroker", "local", "down", "--dir", str(self.directory))

    def log_directory(self, name: str, broker: int, topic: str, partition: int) -> Path:
        """Return where *broker* of cluster *name* keeps one partition."""
        return self.directory / name / f"broker-{broker}" / "data" / f"{topic}-{partition}"
