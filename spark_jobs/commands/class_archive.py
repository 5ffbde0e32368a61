"""`kaudit class-archive`: write the archive of Java classes with which Spark starts in half of the time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp

import click

from kclient.cli.named_path import NamedPath
from spark_jobs.commands.guard import not_done
from spark_jobs.commands.options import show, show_kept


@click.command("class-archive")
@click.argument(
    "file",
    required=False,
    type=NamedPath(dir_okay=False, path_type=Path),
)
def class_archive(file: Path | None) -> None:
    """Write FILE, an archive of the Java classes of Spark: later runs start in half of the processor time.

    It takes half a minute, and 160 MB. Without FILE it goes where every run looks for it, in ~/.cache/kbroker; for
    another FILE set KAUDIT_CLASS_ARCHIVE. Write it again after an upgrade of Java or PySpark.
    Exit code 70: FILE cannot be written, or Spark does not start.
    """
    from spark_jobs.class_archive import VARIABLE, NoClassArchive, archive_file
    from spark_jobs.session import SparkNotStarted

    started = time.monotonic()
    try:
        wanted = archive_file(os.environ) if file is None else file.absolute()
        show("Spark runs the self-test, and its JVM writes what it loaded", err=True)
        with _log_beside(wanted) as log:
            _write(wanted, log)
    except (NoClassArchive, SparkNotStarted) as problem:
        not_done(str(problem))
    except OSError as problem:
        not_done(f"cannot write {problem.filename or wanted}: {problem.strerror or problem}")
    seconds = time.monotonic() - started
    show_kept(f"{wanted}: {wanted.stat().st_size / 1e6:.0f} MB, in {seconds:.0f} s", wanted)
    if file is not None:
        show(f"set {VARIABLE}={wanted} for the runs that are to use it", err=True)


@contextmanager
def _log_beside(archive: Path) -> Iterator[Path]:
    """Yield a new file for Spark's output. It stays after an error that it may explain."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    number, name = mkstemp(".log", f"{archive.name}.", archive.parent)
    os.close(number)
    log = Path(name)
    try:
        yield log
    except BaseException:
        if not log.stat().st_size:
            log.unlink()
        raise
    log.unlink()


def _write(archive: Path, log: Path) -> None:
    """Run the self-test with a JVM that writes *archive* when it ends; its output goes to *log*."""
    from pyspark import SparkContext

    from spark_jobs.class_archive import (
        OFF,
        VARIABLE,
        NoClassArchive,
        remove_oldest,
        writing_options,
    )
    from spark_jobs.selftest import run_self_test
    from spark_jobs.session import JAVA_OPTIONS, driver_java_options, spark_session
    from spark_jobs.spark_settings import SparkSettings

    unfinished = archive.with_name(f"{archive.name}.{os.getpid()}")
    os.environ[VARIABLE] = OFF  # A JVM uses an archive or writes one.
    options = " ".join([driver_java_options(SparkSettings()), *writing_options(unfinished)])
    settings = SparkSettings(settings={JAVA_OPTIONS: options})
    try:
        with spark_session("kaudit class-archive", settings, log=log) as spark:
            run_self_test(spark, records=1000, faults=20)
        gateway = SparkContext._gateway  # PySpark has no public name for its JVM.
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        if not unfinished.exists():
            raise NoClassArchive(f"Java wrote no archive; its output is in {log}")
        unfinished.replace(archive)
    finally:
        unfinished.unlink(missing_ok=True)
    remove_oldest(archive)
