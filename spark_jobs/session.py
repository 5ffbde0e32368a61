"""Creates the SparkSession; no other module does."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jobs.class_archive import (
    OFF,
    SHARED_ARCHIVE,
    VARIABLE,
    NoClassArchive,
    archive_file,
    archive_options,
)
from spark_jobs.packed_environment import FOLDER, python_name
from spark_jobs.spark_settings import FOR_FEW_OFFSETS, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CLASS_PATHS = {"spark.driver.extraClassPath", "spark.driver.defaultJavaOptions"}
"""With these settings there is no class archive."""

WORKER_DAEMON = "spark_jobs.worker_daemon"
"""Set only where workers are sure to have this version of it: they run this interpreter, or a packed environment."""

CONF = Path(__file__).parent / "conf"
NO_CONF = CONF / "none"
"""Spark has its configuration directory on the class path, where a class archive allows none: there is nothing here."""


class SparkNotStarted(Exception):
    """Spark did not start; the text names its master and the cause."""


@contextlib.contextmanager
def _stderr_into(log: Path | None) -> Iterator[None]:
    """Redirect the stderr of processes started inside the block (the JVM and its workers) to *log*, if given."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    kept = os.dup(2)
    try:
        with log.open("ab") as stream:
            os.dup2(stream.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def spark_session(
    app: str, on: SparkSettings, *, log: Path | None = None
) -> Iterator[SparkSession]:
    """Yield a session that reads Kafka through `spark_jobs.kafka_reader` and stops at the end.

    *log* receives the stderr of Spark's processes. If this process holds an application (`held_application`), the
    session is one of it, with settings of its own.

    With a local master the defaults for a large cluster (200 shuffle partitions, a web UI, a Hive catalogue) would cost
    more than the job. They are off, and all sockets bind to loopback.

    Raise SparkNotStarted if Spark does not start with these settings. Raise it also if another application runs in this
    process: a process has one at most, and the job would stop it at its end.
    """
    if _held:
        yield _session_of(_held[0], on)
        return
    if _runs_here():
        raise SparkNotStarted(
            "a Spark application runs in this process already: stop it first, or run kaudit as a process of its own"
        )
    _set_python(on)
    java_options = driver_java_options(on)
    if on.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.appName(app)
        .master(on.master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.catalogImplementation", "in-memory")
    )
    if on.is_local:
        builder = (
            builder.config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
        )
    if on.is_local or on.environment is not None:
        builder = builder.config("spark.python.daemon.module", WORKER_DAEMON)
    if on.environment is not None:
        builder = builder.config("spark.archives", f"{on.environment.resolve()}#{FOLDER}")
        builder = builder.config("spark.executorEnv.PYTHONPATH", f"./{FOLDER}/lib")
    for name, value in {**_sql_settings(on), **on.settings, JAVA_OPTIONS: java_options}.items():
        builder = builder.config(name, value)
    try:
        with _stderr_into(log):
            session = builder.getOrCreate()
    except Exception as problem:
        seen = "" if log is None else f"; Spark's log is {log}"
        advice = ""
        if SHARED_ARCHIVE in java_options:
            advice = (
                "; if its archive of classes is damaged: `kaudit class-archive` writes another, "
                f"{VARIABLE}={OFF} does without"
            )
        raise SparkNotStarted(
            f"Spark does not start with --master {on.master}: {_first_cause(problem)}{seen}{advice}"
        ) from problem
    try:
        yield session
    finally:
        session.stop()


def _sql_settings(on: SparkSettings) -> dict[str, str]:
    """Return the settings of the queries, which a session of a running application may have, too."""
    settings = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
    }
    if on.is_local:
        settings["spark.sql.shuffle.partitions"] = "4"
    return {**settings, **(FOR_FEW_OFFSETS if on.reads_few_offsets else {})}


def _runs_here() -> bool:
    """Return whether this process has a Spark application. It has none before it imports PySpark."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


_held: list[SparkSession] = []
"""The session of the application that this process holds, if it holds one."""


@contextlib.contextmanager
def held_application(app: str, on: SparkSettings) -> Iterator[None]:
    """Hold one Spark application for all sessions of this process: to start another one takes longer than most jobs.

    Raise SparkNotStarted as `spark_session`.
    """
    with spark_session(app, on) as session:
        _held.append(session)
        try:
            yield
        finally:
            _held.clear()


def _session_of(held: SparkSession, on: SparkSettings) -> SparkSession:
    """Return a session of the application *held* with the settings *on*.

    Raise SparkNotStarted if these need an application of their own.
    """
    runs = held.sparkContext.master
    if runs != on.master or on.environment is not None:
        raise SparkNotStarted(
            f"this process holds a Spark application with --master {runs}: another master or environment needs its own"
        )
    session = held.newSession()
    for name, value in {**_sql_settings(on), **on.settings}.items():
        if session.conf.get(name, None) == value:
            continue
        if not session.conf.isModifiable(name):
            raise SparkNotStarted(
                f"{name}={value} cannot be set: this process holds a Spark application that runs already"
            )
        session.conf.set(name, value)
    return session


def driver_java_options(on: SparkSettings) -> str:
    """Return the options of the driver's JVM, and point SPARK_CONF_DIR away from any directory, unless it is set.

    Options of the user replace ours, apart from the configuration of Spark's own log.
    """
    own_conf = os.environ.setdefault("SPARK_CONF_DIR", str(NO_CONF)) == str(NO_CONF)
    options = on.settings.get(JAVA_OPTIONS, "").split()
    if own_conf and not any("log4j2.configurationFile" in option for option in options):
        options.insert(0, f"-Dlog4j2.configurationFile=file:{CONF / 'log4j2.properties'}")
    if JAVA_OPTIONS in on.settings:
        return " ".join(options)
    if on.is_local:
        options += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    archive = _class_archive(on)
    if archive is not None:
        options += archive_options(archive)
    return " ".join(options)


def lacks_class_archive(on: SparkSettings) -> bool:
    """Return whether Spark starts without an archive of its classes, and would use one if it were written."""
    archive = _class_archive(on)
    return archive is not None and not archive.exists()


def _class_archive(on: SparkSettings) -> Path | None:
    """Return the archive for Spark with these settings, written or not; None if it can use none."""
    own_conf = os.environ.get("SPARK_CONF_DIR", str(NO_CONF)) == str(NO_CONF)
    if not own_conf or (CLASS_PATHS | {JAVA_OPTIONS}) & on.settings.keys():
        return None
    with contextlib.suppress(NoClassArchive):
        return archive_file(os.environ)
    return None


def _first_cause(problem: Exception) -> str:
    """Return the line of an exception of Spark or Java that names the cause, without the stacks below it."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    of_java = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (of_java or lines or [type(problem).__name__])[0]


def _set_python(on: SparkSettings) -> None:
    """Choose the Python of Spark's workers."""
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if on.environment is None or on.is_local:
        # Workers must run this interpreter, because it has kclient and pyarrow.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return
    # Spark plans reads of a Python data source in a worker beside the driver, with the same command as on other hosts.
    # Here PATH must lead to this interpreter.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    os.environ.setdefault("PYSPARK_PYTHON", python_name())


def versions_of(spark: SparkSession) -> dict[str, str]:
    """Return the versions of Java, Spark and pyarrow that *spark* runs with."""
    import pyarrow as pa

    java = spark.sparkContext._jvm.System.getProperty("java.runtime.version")  # type: ignore[union-attr]
    return {"java": str(java), "spark": spark.version, "pyarrow": pa.__version__}
