"""`kaudit watch`: compares two growing clusters record by record, with a running verdict."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kclient.cli.named_path import NamedPath
from spark_jobs.commands.guard import DoesNotFit, OtherClusters, guarded
from spark_jobs.commands.options import (
    MOST_OFFSETS,
    duration_ms,
    pair_of,
    progress_on_stderr,
    show_kept,
    spark_settings,
    with_pair,
    with_run,
    words_of,
)

if TYPE_CHECKING:
    from kclient.types import TopicPartition
    from spark_jobs.running_verdict import Side
    from spark_jobs.scope import Pair
    from spark_jobs.spark_settings import SparkSettings
    from spark_jobs.watch_checkpoint import Checkpoint, Start
    from spark_jobs.watch_stream import LogEnds, Pace


@click.command()
@with_pair
@click.option(
    "--checkpoint",
    "directory",
    required=True,
    type=NamedPath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="State of the watch, watch.json and spark.log. A watch with the same DIR continues there.",
)
@click.option(
    "--from",
    "begin",
    type=click.Choice(["latest", "earliest"]),
    default="latest",
    help="Where a new watch begins: at the lower log end, or the higher log start, of both clusters.",
)
@click.option(
    "--settle",
    default="60s",
    metavar="TIME",
    help="How long a record may wait for its counterpart: 30s, 1m.",
)
@click.option("--for", "duration", metavar="TIME", help="End after this time. Default: at Ctrl-C.")
@click.option("--every", default="5s", metavar="TIME", help="Time between micro-batches.")
@click.option(
    "--max-offsets",
    default=100_000,
    type=click.IntRange(1, MOST_OFFSETS),
    help="Offsets that a micro-batch reads of each cluster.",
)
@click.option(
    "--max-pending",
    default=200_000,
    type=click.IntRange(1),
    help="Waiting records that the watch keeps; with more, it ends with INCOMPLETE.",
)
@with_run
def watch(**options: Any) -> None:
    """Compare records of both clusters as they arrive, until Ctrl-C or --for.

    The verdict covers the offsets that it names and no others. Exit code 0: EQUAL, 1: DIVERGED, 3: LAGGING or
    INCOMPLETE, 4: a cluster or a part of a log could not be read.
    """
    pair = pair_of(options)
    settle, every = (duration_ms(options[each], f"--{each}") / 1000 for each in ("settle", "every"))
    duration = options["duration"]
    seconds = None if duration is None else duration_ms(duration, "--for") / 1000
    on = spark_settings(options)
    progress = progress_on_stderr(options["quiet"])

    def work() -> int:
        from spark_jobs.watch_checkpoint import Checkpoint, CheckpointUnusable
        from spark_jobs.watch_stream import Pace

        checkpoint = Checkpoint(options["directory"], limit=options["max_pending"])
        pace = Pace(settle, every, options["max_offsets"])
        try:
            with checkpoint.locked():
                checkpoint.remove_verdict()
                start, unwatched = _start(pair, options["begin"], checkpoint, progress)
                return _watch(
                    pair,
                    start,
                    checkpoint,
                    pace,
                    unwatched=unwatched,
                    seconds=seconds,
                    on=on,
                    log=options["directory"] / "spark.log",
                    progress=progress,
                )
        except CheckpointUnusable as problem:
            raise DoesNotFit(str(problem)) from None

    sys.exit(guarded(work))


def _watch(
    pair: Pair,
    start: Start,
    checkpoint: Checkpoint,
    pace: Pace,
    *,
    unwatched: Sequence[str],
    seconds: float | None,
    on: SparkSettings,
    log: Path,
    progress: Callable[[str], None],
) -> int:
    from spark_jobs.session import spark_session
    from spark_jobs.watch_report import Ended, document, screen
    from spark_jobs.watch_stream import Clusters, WatchStream

    with spark_session("kaudit watch", on, log=log) as spark, _stop_signals() as stopped:
        stream = WatchStream(
            Clusters(pair.source, pair.target, pair.target_prefix),
            start,
            checkpoint,
            pace,
            log_ends=_log_ends(pair),
            progress=progress,
        )
        begun = time.monotonic()
        stream.run(
            spark,
            lambda: (
                stopped.is_set() or (seconds is not None and time.monotonic() - begun >= seconds)
            ),
        )
        outcome = stream.outcome(unwatched)
    reason = "stopped" if stopped.is_set() else "ended"
    ended = Ended(
        pair.names,
        start.cluster_ids,
        pair.target_prefix,
        time.monotonic() - begun,
        reason,
        words_of(pair),
    )
    checkpoint.save_verdict(document(stream.state, outcome, ended))
    show_kept(screen(stream.state, outcome, ended), log.parent)
    return outcome.exit_code


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set. A second signal ends the process without a verdict."""
    stopped = threading.Event()
    before = {}

    def stop(*_: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _log_ends(pair: Pair) -> LogEnds:
    """Return a function that looks up log ends; a cluster that cannot be read has none."""
    from kclient import AdminClient
    from kclient.types import TopicPartition
    from kclient.wire.errors import KafkaError
    from spark_jobs.running_verdict import Side
    from spark_jobs.target_names import name_at_target

    def ends(side: Side, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        at_source = side is Side.SOURCE
        bootstrap, prefix = (pair.source, "") if at_source else (pair.target, pair.target_prefix)
        named = {
            TopicPartition(name_at_target(prefix, tp.topic), tp.partition): tp for tp in partitions
        }
        try:
            with AdminClient(
                {"bootstrap.servers": bootstrap, "default.api.timeout.ms": 10_000}
            ) as admin:
                found = admin.list_offsets(dict.fromkeys(named, "latest"), raise_errors=False)
        except KafkaError:
            return {}
        return {
            named[tp]: each.offset for tp, each in found.items() if not isinstance(each, KafkaError)
        }

    return ends


def _start(
    pair: Pair, begin: str, checkpoint: Checkpoint, progress: Callable[[str], None]
) -> tuple[Start, list[str]]:
    """Return where the watch begins, or began, and what of the scope is not watched.

    Raise DoesNotFit, or ClusterUnreadable for a cluster or a topic that cannot be read now.
    """
    from spark_jobs.cluster import ClusterUnreadable
    from spark_jobs.scope import paired
    from spark_jobs.watch_start import (
        begin_at,
        compacted_topics,
        not_described,
        problem_with,
        unwatched,
    )

    known = checkpoint.load_start()
    source, target, recreated, _ = paired(pair, progress)
    compacted = compacted_topics(source, target)
    if compacted:
        raise DoesNotFit(
            f"compacted topics cannot be watched, because compaction removes records of one log first: "
            f"{', '.join(compacted)}. `kaudit reconcile` compares them"
        )
    if known is None:
        start = begin_at(begin, pair.topics.pattern, source, target, recreated)
        if not start.starts:
            for cluster in (source, target):
                for tp, cause in sorted(cluster.unreadable.items()):
                    raise ClusterUnreadable(f"{cluster.name}: {tp}: {cause}")
            raise DoesNotFit("no partition is in both clusters")
        checkpoint.save_start(start)
        progress(f"a new watch of {len(start.starts):,} partitions")
    else:
        problem = problem_with(known, pair.topics.pattern, source, target)
        if problem is not None:
            raise OtherClusters(f"--checkpoint: {problem}")
        silent = not_described(known, source, target)
        if silent is not None:
            raise ClusterUnreadable(silent)
        start = known
        progress(f"continuing the watch of {len(start.starts):,} partitions")
    return start, unwatched(start, source, target, recreated)
