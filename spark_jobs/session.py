"""Creates the SparkSession; no other module does."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    app: str, *, master: str = "local[*]", log: Path | None = None
) -> Iterator[SparkSession]:
    """Yield a session that reads Kafka through `spark_jobs.data_source` and stops at the end.

    *log* receives the stderr of Spark's processes.

    With a local master the defaults for a large cluster (200 shuffle partitions, a web UI, a Hive catalogue) would
    cost more than the job; they are off, and all sockets bind to loopback.
    """
    # Workers must run this interpreter, because it has kclient and pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    from spark_jobs.data_source import KafkaBatchSource

    builder = (
        SparkSession.builder.appName(app)
        .master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.catalogImplementation", "in-memory")
    )
    if master.startswith("local"):
        builder = (
            builder.config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        )
    with _stderr_into(log):
        session = builder.getOrCreate()
    try:
        session.dataSource.register(KafkaBatchSource)
        yield session
    finally:
        session.stop()


def versions_of(spark: SparkSession) -> dict[str, str]:
    """Return the versions of Java, Spark and pyarrow that *spark* runs with."""
    import pyarrow as pa

    java = spark.sparkContext._jvm.System.getProperty("java.runtime.version")  # type: ignore[union-attr]
    return {"java": str(java), "spark": spark.version, "pyarrow": pa.__version__}
