"""`kaudit pack`: write the archive that `--environment` takes."""

from __future__ import annotations

from pathlib import Path

import click

from kclient.cli.named_path import NamedPath
from spark_jobs.commands.guard import not_done
from spark_jobs.commands.options import show_kept


@click.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
def pack(file: Path) -> None:
    """Write FILE, a .tar.gz of the packages that Spark's workers on other hosts need.

    The workers need Spark, and this minor version of Python on their PATH; `--environment FILE` sends them the rest.
    Exit code 70: FILE cannot be written, or a package cannot be packed.
    """
    import pyarrow  # noqa: F401 - without the extra the archive is of no use

    from spark_jobs.packed_environment import NotPackable, python_name
    from spark_jobs.packed_environment import pack as write

    try:
        packed = write(file)
    except NotPackable as problem:
        not_done(f"{problem}: workers would lack it; install it from a wheel, and pack again")
    except OSError as problem:
        not_done(f"cannot write {file}: {problem.strerror or problem}")
    show_kept(
        f"{file}: {packed.size / 1e6:.1f} MB, {packed.files:,} files of kaudit, kclient and "
        f"{', '.join(packed.distributions)}; workers need {python_name()}",
        file,
    )
