"""`kbroker start` and `kbroker check-config`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import click

from kclient.cli.named_path import NamedPath

OVERRIDE = click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting that replaces the file's; may be given many times.",
)
FILE = click.argument("file", type=NamedPath(path_type=Path))


@click.command()
@FILE
@OVERRIDE
def start(file: Path, overrides: tuple[str, ...]) -> None:
    """Run one broker with the settings in FILE (Kafka's server.properties).

    Prints `READY broker.id=...` on stdout when it serves; logs go to stderr. SIGTERM and Ctrl-C are
    controlled shutdowns.
    """
    gc.disable()  # what imports and the start make stays: `kbroker.app` enables it when ready
    from kbroker.app import exit_with, run

    exit_with(run(file, overrides))


@click.command("check-config")
@FILE
@OVERRIDE
def check_config(file: Path, overrides: tuple[str, ...]) -> None:
    """Check the settings in FILE without starting anything.

    Lists every problem, every setting that is unknown or has no effect, and those that are honoured, with their values.
    The exit code is 1 if a broker would refuse to start.
    """
    from kbroker.config import ConfigError, KafkaConfig

    try:
        config = KafkaConfig.load(file, overrides)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"problem: {problem}")
        sys.exit(1)
    for name in config.honoured:
        value = config.shown(name)
        click.echo(f"honoured: {name}={'(hidden)' if value is None else value}")
    for warning in config.warnings:
        click.echo(f"warning: {warning}")
    click.echo(f"{file}: {len(config.given)} settings, no problem")
