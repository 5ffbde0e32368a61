"""`kaudit headers`: batch headers and CRCs of two clusters, compared without decoding a record."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kclient.replaced_file import replace_file
from spark_jobs.commands.guard import guarded
from spark_jobs.commands.options import (
    MOST_OFFSETS,
    pair_of,
    progress_on_stderr,
    show_kept,
    spark_settings,
    with_limits,
    with_out,
    with_pair,
    with_run,
    words_of,
)
from spark_jobs.verdict import Limits

if TYPE_CHECKING:
    from spark_jobs.headers import HeaderAudit
    from spark_jobs.scope import Pair, Paired
    from spark_jobs.spark_settings import SparkSettings

_FILE = "headers.json"


@click.command()
@with_pair
@with_out(_FILE)
@click.option(
    "--window", default=10_000, type=click.IntRange(1, MOST_OFFSETS), help="Offsets per window."
)
@with_limits("compared")
@with_run
def headers(**options: Any) -> None:
    """Compare batch headers and CRCs, for mirrors that keep bytes; windows that differ are compared by content.

    Equal headers prove equal records up to what CRC-32C does not notice; `kaudit reconcile` compares records. Exit code
    0: equal, 1: records differ or a CRC is wrong, 3: lag is above --max-lag or a window is open, 4: a part could not be
    read, 5: too much has aged out. There is one look; `kaudit reconcile` looks again at what differs.
    """
    pair = pair_of(options)
    limits = Limits(options["max_lag"], options["min_coverage"])
    progress = progress_on_stderr(options["quiet"])
    on = spark_settings(options)
    out: Path | None = options["out"]

    def work() -> int:
        from spark_jobs.headers_report import document, json_text, screen

        began = datetime.now(tz=UTC), time.monotonic()
        if out is not None:
            (out / _FILE).unlink(missing_ok=True)
        found, at_cut = _audit(pair, options["window"], limits, on, out, progress)
        meta = {
            "started_at": f"{began[0]:%Y-%m-%dT%H:%M:%SZ}",
            "seconds": round(time.monotonic() - began[1], 3),
            "topics": options["topics"],
        }
        made = document(found, (at_cut.source, at_cut.target), meta, at_cut.recreated)
        if out is not None:
            replace_file(out / _FILE, json_text(made))
        show_kept(screen(made, _next(pair)), out)
        return int(found.exit_codes[0])

    sys.exit(guarded(work))


def _next(pair: Pair) -> str:
    return f"kaudit reconcile {shlex.join(words_of(pair))} --out DIR"


def _audit(
    pair: Pair,
    window: int,
    limits: Limits,
    on: SparkSettings,
    out: Path | None,
    progress: Callable[[str], None],
) -> tuple[HeaderAudit, Paired]:
    from spark_jobs.header_audit import audit_headers
    from spark_jobs.kafka_reader import KafkaReader
    from spark_jobs.scope import paired
    from spark_jobs.session import spark_session
    from spark_jobs.spark_engine import SparkHeaders

    at_cut = paired(pair, progress)
    log = None if out is None else out / "spark.log"
    clusters = at_cut.source, at_cut.target
    on = replace(on, offsets=sum(each.offsets for each in clusters))
    with spark_session("kaudit headers", on, log=log) as spark:
        engine = SparkHeaders(KafkaReader(spark), window)
        return audit_headers(engine, clusters, window, limits, progress), at_cut
