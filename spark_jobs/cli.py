"""`kaudit`: the command tree, reconcile and selftest. Exit codes: see spark_jobs.verdict."""

from __future__ import annotations

import json
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kclient.cli.named_path import NamedPath
from spark_jobs.commands.accepted_gaps import AcceptedHere, accepted_here, read_accepted_gaps
from spark_jobs.commands.class_archive import class_archive
from spark_jobs.commands.counts import counts
from spark_jobs.commands.diff import diff, parsed_schema
from spark_jobs.commands.explain import explain
from spark_jobs.commands.guard import guarded
from spark_jobs.commands.headers import headers
from spark_jobs.commands.latency import latency
from spark_jobs.commands.options import (
    MOST_OFFSETS,
    cluster_names,
    duration_ms,
    pattern_of,
    show,
    show_kept,
    spark_settings,
    target_names,
    with_cluster,
    with_hash_key,
    with_limits,
    with_run,
    with_spark,
)
from spark_jobs.commands.pack import pack
from spark_jobs.commands.profile import profile
from spark_jobs.commands.watch import watch
from spark_jobs.findings import DEFAULT_MAX_FINDINGS, FindingClass
from spark_jobs.hash_key import read_hash_key
from spark_jobs.settle import DEFAULT_ROUNDS, DEFAULT_SETTLE_S, Patience
from spark_jobs.verdict import ExitCode, Limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kclient.types import TopicPartition
    from spark_jobs.attribution import EvidenceRead
    from spark_jobs.comparison import Options
    from spark_jobs.cut import PartitionCut
    from spark_jobs.gap_ledger import LedgerRead
    from spark_jobs.hash_key import HashKey
    from spark_jobs.kept import Kept, Lineage
    from spark_jobs.later_looks import Moment
    from spark_jobs.reconcile import Reconciliation
    from spark_jobs.report.contents import AvroFields, Report
    from spark_jobs.scope import Pair
    from spark_jobs.snapshot import ClusterSnapshot
    from spark_jobs.spark_settings import SparkSettings


class _Commands(click.Group):
    """Ends with 70 for a closed pipe, where click ends with 1: no command with a result fails at one (`show`)."""

    def make_context(self, *words: Any, **more: Any) -> click.Context:
        """Parse the command line; `--help` and `--version` print here."""
        try:
            return super().make_context(*words, **more)
        except BrokenPipeError:
            sys.exit(ExitCode.INTERNAL)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, or print its help."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            sys.exit(ExitCode.INTERNAL)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="kbroker", prog_name="kaudit")
def kaudit() -> None:
    """Prove, with Spark, that a mirror holds the records of its source."""


kaudit.add_command(explain)
kaudit.add_command(diff)
kaudit.add_command(profile)
kaudit.add_command(counts)
kaudit.add_command(headers)
kaudit.add_command(latency)
kaudit.add_command(watch)
kaudit.add_command(pack)
kaudit.add_command(class_archive)


@kaudit.command()
@with_cluster("--source", "Bootstrap servers of the source cluster.")
@with_cluster("--target", "Bootstrap servers of the target cluster, the mirror.")
@click.option(
    "--topics", required=True, metavar="REGEX", help="Topics to compare; the whole name must match."
)
@click.option(
    "--out", required=True, type=NamedPath(file_okay=False, path_type=Path), metavar="DIR"
)
@click.option(
    "--names",
    default="source,target",
    metavar="A,B",
    help="Names of the two clusters in the report.",
)
@click.option(
    "--window",
    type=click.IntRange(1, MOST_OFFSETS),
    help="Offsets per digest window. Default: 10000, or that of --since.",
)
@click.option(
    "--since",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The --out of an earlier run: compare only what it has not proven, and re-check a share.",
)
@click.option(
    "--recheck",
    default="1%",
    metavar="SHARE",
    help="With --since: the share of its windows to read again, the oldest first. 100% reads everything.",
)
@click.option(
    "--complete",
    is_flag=True,
    help="The mirror has caught up and stopped: records missing at the end are loss, not lag.",
)
@click.option(
    "--target-prefix",
    default="",
    metavar="TEXT",
    callback=target_names,
    help="The target's topics begin with this: 'SOURCE.' for kmirror's DefaultReplicationPolicy. With {} "
    "for the name it is their form: '{}.from.SOURCE'.",
)
@click.option(
    "--renumbered",
    is_flag=True,
    help="The target assigns its own offsets: records at other offsets are no findings, and records of aborted "
    "transactions are not compared.",
)
@click.option(
    "--accepted-gaps",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Offsets that the target may lack: a JSON object a line with topic, partition, from, until, cause.",
)
@click.option(
    "--no-ledger",
    is_flag=True,
    help="Ignore the gap ledger that kmirror writes at the target: its gaps are findings.",
)
@click.option(
    "--no-evidence",
    is_flag=True,
    help="Ignore what kmirror states it has copied: no finding names the log that has changed.",
)
@with_hash_key("The secret key of the hashes in the report. Default: a public one.")
@click.option(
    "--settle",
    default=f"{DEFAULT_SETTLE_S:g}s",
    metavar="DURATION",
    help="The wait before windows that differ are read again; a verdict rests on the last look.",
)
@click.option(
    "--settle-rounds",
    default=DEFAULT_ROUNDS,
    type=click.IntRange(0),
    show_default=True,
    help="How often at most. 0: the verdict is that of the first look.",
)
@with_limits("compared or explained")
@click.option(
    "--fail-on",
    default=",".join(each.value for each in FindingClass),
    metavar="CLASSES",
    help="Finding classes that make the exit code 1. The verdict is DIVERGED for a finding of any class.",
)
@click.option(
    "--max-findings",
    default=DEFAULT_MAX_FINDINGS,
    type=click.IntRange(1),
    help="Findings in findings.jsonl, and findings of a class in a partition that are not joined. Counts are exact.",
)
@click.option(
    "--avro",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Avro schema of values: report.html names the fields that differ in the first 20 corrupt records.",
)
@click.option(
    "--previous",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="report.json of the run before, for the hash chain. Default: the one in DIR.",
)
@click.option(
    "--self-test/--no-self-test",
    default=None,
    help="Run the self-test with seeded faults first, always or never. Default: once per version and environment.",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@with_run
def reconcile(**options: Any) -> None:
    """Compare TARGET with SOURCE record by record, up to a cut frozen at the start."""
    try:
        limits = Limits(options["max_lag"], options["min_coverage"], _classes(options["fail_on"]))
        options["names"] = cluster_names(options["names"])
        options["topics"] = pattern_of(options["topics"])
        options["accepted_gaps"] = read_accepted_gaps(options["accepted_gaps"])
        options["previous"] = _previous(options["previous"])
        options["avro"] = {str(path): parsed_schema("--avro", path) for path in options["avro"]}
        hash_key = read_hash_key(options["hash_key"])
        kept, window = _kept(options, hash_key)
        recheck = _share(options["recheck"])
        patience = Patience(
            duration_ms(options["settle"], "--settle") / 1000, options["settle_rounds"]
        )
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    from spark_jobs.comparison import Options

    run = _Run(
        options,
        Options(
            window,
            options["complete"],
            limits,
            options["renumbered"],
            kept=kept,
            recheck=recheck,
            hash_key=hash_key,
            patience=patience,
        ),
    )
    sys.exit(run.guarded())


@kaudit.command()
@click.option("--seeds", default=3, type=click.IntRange(1), help="How many cases.")
@click.option("--faults", default=40, type=click.IntRange(0, 2000), help="Faults per case.")
@with_spark
def selftest(seeds: int, faults: int, **options: Any) -> None:
    """Seed faults of nine classes into generated logs; all must be found and none invented. Equal logs have none.

    The classes gap and visibility are not seeded: they need retention and transactions.
    """
    on = spark_settings(options)
    sys.exit(guarded(lambda: _self_test(seeds, faults, on)))


def _kept(options: dict[str, Any], key: HashKey) -> tuple[Kept | None, int]:
    """Return what the run of `--since` kept, and the size of a window; raise ValueError if they do not fit."""
    from spark_jobs.comparison import DEFAULT_WINDOW_OFFSETS
    from spark_jobs.report.kept_files import KeptUnusable, load_kept

    window = options["window"]
    if options["since"] is None:
        return None, window or DEFAULT_WINDOW_OFFSETS
    if options["renumbered"]:
        raise ValueError(
            "--since cannot be used with --renumbered: its windows have no counterpart"
        )
    try:
        kept = load_kept(options["since"], key)
    except KeptUnusable as problem:
        raise ValueError(str(problem)) from None
    if window not in (None, kept.window):
        raise ValueError(f"--window {window}: the run of --since has windows of {kept.window}")
    return kept, kept.window


def _share(text: str) -> float:
    """Return `--recheck` as a number from 0.0 to 1.0; raise ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if found is None or float(found[1]) > 100:
        raise ValueError(f"--recheck {text!r}: expected a share from 0% to 100%")
    return float(found[1]) / 100


def _previous(path: Path | None) -> str | None:
    """Return the SHA-256 of the report at *path*; raise ValueError if it is no report."""
    from spark_jobs.report.hashes import file_hash

    if path is None:
        return None
    try:
        known = json.loads(path.read_text(encoding="utf-8"))["meta"]["run_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        known = None
    if not known:
        raise ValueError(f"--previous {path}: not a report.json of kaudit")
    return file_hash(path)


def _classes(text: str) -> frozenset[FindingClass]:
    known = {each.value: each for each in FindingClass}
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"--fail-on: unknown class {', '.join(unknown)}; the classes are {', '.join(known)}"
        )
    return frozenset(known[name] for name in names)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("kbroker", "pyspark"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


class _Run:
    """One run of `kaudit reconcile`."""

    def __init__(self, flags: dict[str, Any], options: Options) -> None:
        self._flags = flags
        self._options = options
        self._on = spark_settings(flags)
        self._out: Path = flags["out"]
        self._evidence: EvidenceRead | None = None
        self._accepted = AcceptedHere((), ())
        self._written = False
        self._started = time.monotonic()
        now = datetime.now(tz=UTC)
        self._meta: dict[str, object] = {
            "run_id": now.strftime("%Y%m%d-%H%M%S-%f"),
            "started_at": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "self_test": "not run",
            "self_test_passed": None,
            "previous": None,
            "previous_from": None,
            "versions": _versions(),
            "arguments": {
                "source": flags["names"][0],
                "target": flags["names"][1],
                "topics": flags["topics"].pattern,
            },
        }

    def guarded(self) -> int:
        """Reconcile and return the exit code; the report of an earlier run is removed first."""
        from spark_jobs.report.document import error_document
        from spark_jobs.report.files import remove_report, write_error

        def work() -> int:
            earlier = remove_report(self._out)
            self._meta["previous"] = self._flags["previous"] or earlier
            if self._meta["previous"] is not None:
                self._meta["previous_from"] = "file" if self._flags["previous"] else "out"
            return self._reconcile()

        def on_error(code: int, cause: str) -> None:
            if self._written:
                return  # The report is that of a finished run: what failed is behind it.
            self._end()
            write_error(self._out, error_document(code, cause, self._meta))

        return guarded(work, on_error)

    def _progress(self, text: str) -> None:
        if self._flags["quiet"]:
            return
        show(f"kaudit: {time.monotonic() - self._started:5.1f} s  {text}", err=True)

    def _pair(self) -> Pair:
        from spark_jobs.scope import Pair

        flags = self._flags
        clusters = flags["source"], flags["target"], flags["names"]
        return Pair(*clusters, flags["topics"], flags["target_prefix"])

    def _snapshots(self) -> tuple[ClusterSnapshot, ClusterSnapshot]:
        """Return source and target as they are at the cut, and read the ledger of the target."""
        from spark_jobs.cluster import read_evidence
        from spark_jobs.scope import paired

        flags = self._flags
        if not flags["no_evidence"]:
            # Before any log end: both logs then reach behind all that the mirror states here.
            self._evidence = read_evidence(flags["names"][1], flags["target"])
        # A mirror that renumbers does not copy aborted records, and leaves such records of its own.
        found = paired(
            self._pair(),
            self._progress,
            with_ledger=not flags["no_ledger"],
            read_committed=self._options.renumbered,
            stable=not self._options.renumbered,
        )
        accepted = self._named_gaps(found.source, found.target)
        self._options = replace(
            self._options,
            ledger=found.ledger,
            recreated=found.recreated,
            accepted=accepted.gaps,
            accepted_if=accepted.unchecked,
        )
        return found.source, found.target

    def _named_gaps(self, source: ClusterSnapshot, target: ClusterSnapshot) -> AcceptedHere:
        """Return the gaps of `--accepted-gaps` in an audit of both; name those that are now known to have no effect."""
        accepted = accepted_here(self._flags["accepted_gaps"], source, target)
        notice = accepted.since(self._accepted).notice
        if notice:
            show(f"kaudit: {notice}", err=True)  # With --quiet, too: it is no progress.
        self._accepted = accepted
        return accepted

    def _ledger(self) -> LedgerRead | None:
        """Return the gap ledger of the target; None with --no-ledger."""
        from spark_jobs.cluster import read_ledgers

        flags = self._flags
        return None if flags["no_ledger"] else read_ledgers(flags["names"][1], flags["target"])

    def _later(self, cuts: Sequence[PartitionCut]) -> Moment | str:
        """Wait for the settle time; return both clusters as they are then, or why they could not be read."""
        from spark_jobs.cluster import ClusterUnreadable
        from spark_jobs.later_looks import Moment
        from spark_jobs.recreated_topics import names_at_target, with_deleted
        from spark_jobs.scope import read_both

        found = self._options.recreated
        time.sleep(self._options.patience.settle_s)
        topics = sorted({cut.topic for cut in cuts})
        committed = self._options.renumbered
        ledgers: list[LedgerRead | None] = []
        try:
            source, target = read_both(
                self._pair(),
                topics,
                lambda: ledgers.append(self._ledger()),
                read_committed=committed,
                stable=not committed,
                renamed=names_at_target(found),
            )
        except ClusterUnreadable as problem:
            return str(problem)
        source = with_deleted(found, source, target)
        before = {cut.topic_partition: cut.high for cut in cuts}
        return Moment(source, target, self._lineage(source, target, before), ledgers[0])

    def _reconcile(self) -> int:
        from spark_jobs.attribute import attributed
        from spark_jobs.cluster import time_span
        from spark_jobs.kafka_reader import KafkaReader
        from spark_jobs.reconcile import TimeBuckets, reconcile
        from spark_jobs.session import lacks_class_archive, spark_session
        from spark_jobs.spark_engine import SparkEngine, SparkHeaders

        source, target = self._snapshots()
        self._check_clusters(source, target)
        kept = self._options.kept
        proofs = {} if kept is None else {tp: p.proof.end for tp, p in kept.partitions.items()}
        lineage = self._lineage(source, target, proofs)
        self._options = replace(self._options, lineage=lineage)
        buckets = TimeBuckets.over(time_span(source))
        log = self._out / "spark.log"
        self._on = replace(self._on, offsets=source.offsets + target.offsets)
        if lacks_class_archive(self._on):
            self._progress("Spark starts in half of the time after `kaudit class-archive`, once")
        with spark_session("kaudit", self._on, log=log) as spark:
            passed = self._self_test(spark)
            run = reconcile(
                SparkEngine(
                    KafkaReader(spark, key=self._options.hash_key),
                    self._options.window,
                    buckets,
                    max_findings=self._flags["max_findings"],
                ),
                source,
                target,
                self._options,
                buckets=buckets,
                progress=self._progress,
                self_test_failed=not passed,
                again=self._later,
            )
            if self._evidence is not None:
                headers = SparkHeaders(KafkaReader(spark), self._options.window)
                run = attributed(run, self._evidence, headers)
        self._report(run)
        return int(run.outcome.exit_code)

    def _self_test(self, spark: SparkSession) -> bool:
        """Run the self-test, unless it has passed before in this environment; return whether it passed."""
        from spark_jobs.passed_self_tests import PassedSelfTests, default_file, environment_key
        from spark_jobs.selftest import run_self_test
        from spark_jobs.session import versions_of

        wanted = self._flags["self_test"]
        if wanted is False:
            return True
        is_local = self._on.is_local
        known = PassedSelfTests(default_file())
        few = {
            "reads few offsets": str(self._on.reads_few_offsets)
        }  # Other code of Spark runs then.
        key = environment_key({**_versions(), **versions_of(spark), **few}, self._on.settings)
        earlier = known.result(key) if wanted is None and is_local else None
        if earlier is not None:
            self._meta |= {"self_test": earlier, "self_test_passed": True}
            return True
        self._progress("self-test: seeded faults of nine classes")
        tested = run_self_test(spark, records=1000, faults=20)
        self._meta |= {"self_test": str(tested), "self_test_passed": tested.passed}
        if tested.passed and is_local:
            known.remember(key, str(tested), str(self._meta["started_at"]))
        return tested.passed

    def _check_clusters(self, source: ClusterSnapshot, target: ClusterSnapshot) -> None:
        """Raise OtherClusters if `--since` is a run of other clusters."""
        from spark_jobs.commands.guard import OtherClusters

        kept = self._options.kept
        if kept is None:
            return
        for cluster, known in zip((source, target), kept.cluster_ids, strict=True):
            if not known or cluster.cluster_id != known:
                raise OtherClusters(
                    f"--since {self._flags['since']}: {cluster.name} ({cluster.bootstrap}) has cluster id "
                    f"{cluster.cluster_id or '(none)'}, the kept run read {known or '(none)'}"
                )
        if target.prefix != kept.prefix:
            raise OtherClusters(
                f"--since {self._flags['since']}: the kept run had --target-prefix {kept.prefix!r}"
            )

    def _lineage(
        self,
        source: ClusterSnapshot,
        target: ClusterSnapshot,
        proofs: Mapping[TopicPartition, int],
    ) -> Lineage:
        """Return leader epochs of both clusters before the cut, and before the ends of earlier *proofs*."""
        from spark_jobs.cut import freeze
        from spark_jobs.kept import Lineage
        from spark_jobs.leader_epochs import epochs_before

        at_cut = {
            each.topic_partition: each.high
            for each in freeze(target.ranges, source.ranges)
            if each.high > each.low
        }
        at_proof = {tp: proofs[tp] for tp in at_cut if tp in proofs}
        self._progress(f"leader epochs of {len(at_cut):,} partitions")
        found = [
            (epochs_before(cluster, at_cut), epochs_before(cluster, at_proof))
            for cluster in (source, target)
        ]
        return Lineage((found[0][0], found[1][0]), (found[0][1], found[1][1]))

    def _report(self, run: Reconciliation) -> None:
        from spark_jobs.report.contents import build_report
        from spark_jobs.report.files import write_report
        from spark_jobs.report.screen import first_screen

        self._named_gaps(run.source, run.target)  # As the last look knows them.
        self._end()
        report = build_report(run, self._meta, self._flags["max_findings"])
        report = replace(report, fields=self._field_names(report))
        page = write_report(self._out, report)
        self._written = True
        if self._flags["form"] == "json":
            text = json.dumps(report.document, sort_keys=True)
        else:
            findings = report.first_findings(8)
            text = first_screen(report.document, report=str(page), findings=findings)
        show_kept(text, self._out)

    def _field_names(self, report: Report) -> dict[int, AvroFields]:
        """Return the Avro fields that differ; none without --avro, or if a cluster cannot be read any more."""
        if not self._flags["avro"]:
            return {}
        from spark_jobs.cluster import ClusterUnreadable
        from spark_jobs.field_names import field_names

        try:
            return field_names(report, self._flags["avro"], self._options.hash_key, timeout=10.0)
        except ClusterUnreadable as problem:
            self._progress(f"no Avro field is named: {problem}")
            return {}

    def _end(self) -> None:
        self._meta["ended_at"] = f"{datetime.now(tz=UTC):%Y-%m-%dT%H:%M:%SZ}"
        self._meta["total_seconds"] = round(time.monotonic() - self._started, 3)


def _self_test(seeds: int, faults: int, on: SparkSettings) -> int:
    from spark_jobs.selftest import run_self_test
    from spark_jobs.session import spark_session

    passed = True
    with spark_session("kaudit selftest", on) as spark:
        for seed in range(1, seeds + 1):
            result = run_self_test(spark, seed=seed, faults=faults)
            show(f"seed {seed}: {result}")
            named = {
                "overlooked": result.overlooked,
                "invented": result.invented,
                "in equal logs": result.of_clean_run,
            }
            for what, wrong in named.items():
                for fault in wrong:
                    show(f"    {what}: {fault}")
            passed = passed and result.passed
    return ExitCode.CONSISTENT if passed else ExitCode.INTERNAL
