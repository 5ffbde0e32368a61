"""`kbroker stop`: a controlled shutdown of the broker that `kbroker start FILE` runs."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import click

from kbroker.cli.start import FILE, OVERRIDE
from kclient.cli.finite_range import FiniteRange

_POLL_S = 0.05


@click.command()
@FILE
@OVERRIDE
@click.option(
    "--timeout",
    type=FiniteRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for the controlled shutdown.",
)
def stop(file: Path, overrides: tuple[str, ...], timeout: float) -> None:
    """Stop the broker that runs with FILE, and wait until it has ended (kafka-server-stop.sh).

    The broker is the process that holds the locks of the log.dirs in FILE. It gets SIGTERM: its leaders move to other
    brokers, then it ends. Exit code 1: no such broker runs, or it runs on after the timeout.
    """
    from kbroker.config import ConfigError, KafkaConfig
    from kbroker.log.lock_holder import lock_holder

    try:
        directories = KafkaConfig.load(file, overrides).directories
    except ConfigError as error:
        _fail(*error.problems)
    listed = ", ".join(directories)
    try:
        running = {process for each in directories if (process := lock_holder(each)) is not None}
        if len(running) != 1:
            _fail(
                f"several processes use log.dirs: {sorted(running)}; which one is the broker of {file} is not known"
                if running
                else f"no broker runs with {file}: its log.dirs are not locked ({listed})"
            )
        [process] = running
        os.kill(process, signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while process in map(lock_holder, directories):
            if time.monotonic() >= deadline:
                _fail(
                    f"process {process} has not ended within {timeout:g} s; wait longer with --timeout, or end it"
                    f" without a controlled shutdown: kill -9 {process}"
                )
            time.sleep(_POLL_S)
    except ProcessLookupError:
        pass  # It ended by itself in between.
    except OSError as error:
        _fail(str(error))
    click.echo(f"stopped: process {process}, {listed}", err=True)


def _fail(*problems: str) -> NoReturn:
    for problem in problems:
        click.echo(f"kbroker stop: {problem}", err=True)
    sys.exit(1)
