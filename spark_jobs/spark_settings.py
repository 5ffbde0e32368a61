"""Which Spark runs a command, and with which settings: `--master`, `--conf` and `--environment`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

REFUSED: Final[Mapping[str, str]] = {
    "spark.master": "use --master",
    "spark.submit.deployMode": "kaudit is the driver itself: client mode",
    "spark.sql.session.timeZone": "reports are in UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "records pass between Spark and Python as Arrow",
}
"""Settings that `--conf` may not change, each with the reason."""

WITH_ENVIRONMENT: Final[Mapping[str, str]] = {
    "spark.archives": "--environment is the archive; put further files into it",
    "spark.executorEnv.PYTHONPATH": "--environment sets it",
}


FEW_OFFSETS: Final = 100_000
"""Offsets up to which a run on this machine is short: starting Spark takes longer than reading."""

FOR_FEW_OFFSETS: Final[Mapping[str, str]] = {
    # To generate and compile code for a query takes longer than to interpret it for a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # One partition after a shuffle needs no second plan that joins small ones.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""They save 4 s of the 17 s of processor time that an audit of one record takes."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """A Spark master, settings for the job, and the archive with the packages of its workers."""

    master: str = "local[*]"
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Path | None = None
    """What `kaudit pack` wrote. None: workers have this interpreter at the same path."""
    offsets: int | None = None
    """The most offsets that the job reads; None if that is unknown."""

    @property
    def is_local(self) -> bool:
        """Whether the driver's process is the only one: no worker can have other packages."""
        return self.master.startswith("local") and not self.master.startswith("local-cluster")

    @property
    def reads_few_offsets(self) -> bool:
        """Whether `FOR_FEW_OFFSETS` are the defaults of the job."""
        return self.is_local and self.offsets is not None and self.offsets <= FEW_OFFSETS


def parse_settings(texts: Iterable[str], *, with_environment: bool = False) -> dict[str, str]:
    """Return the settings of `--conf NAME=VALUE`, the last one of a name; raise ValueError for one that is refused.

    >>> parse_settings(["spark.executor.memory=2g", "spark.jars=a.jar,b.jar"])
    {'spark.executor.memory': '2g', 'spark.jars': 'a.jar,b.jar'}
    """
    refused = {**REFUSED, **(WITH_ENVIRONMENT if with_environment else {})}
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ValueError(f"--conf {text!r} is not NAME=VALUE, such as spark.executor.memory=2g")
        if not name.startswith("spark."):
            raise ValueError(
                f"--conf {text!r}: Spark ignores names that do not begin with 'spark.'"
            )
        if name in refused:
            raise ValueError(f"--conf {name} is not supported: {refused[name]}")
        found[name] = value
    return found
