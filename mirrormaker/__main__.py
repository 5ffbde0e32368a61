"""``kmirror``: mirrors topics between clusters. `python -m mirrormaker` is the same."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from kclient.cli.finite_range import FiniteRange
from kclient.cli.named_path import NamedPath
from kclient.errors import ConfigError, KafkaError
from kclient.standard_streams import open_standard_streams
from mirrormaker.config import FlowConfig, MirrorConfig
from mirrormaker.settings import pattern_list

if TYPE_CHECKING:
    from mirrormaker.recopy import Echo, Options

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Shown = Awaitable[tuple[int, dict[str, Any] | None]]
"""The exit code of a command, and its record if it has one."""


class _Commands(click.Group):
    """The commands. A missing extra is one line and exit code 1, help that cannot be printed one line and 70."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Be the process: parse its command line, and run the command."""
        open_standard_streams()
        try:
            return super().main(*args, **kwargs)
        except OSError as problem:
            if problem.filename is not None:
                raise
            _echo(f"kmirror: {problem.strerror or problem}")
            _discard_unwritten()
            sys.exit(70)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        from kclient.extras import what_to_install

        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as problem:
            advice = what_to_install(problem, "kmirror with a ZooKeeper", "broker")
            if advice is None:
                raise
            click.echo(advice, err=True)
            sys.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kbroker", prog_name="kmirror")
def main() -> None:
    """Copy topics from one cluster to another: whole batches, at the same offsets, each exactly once.

    Exit codes: 0 success, 1 failure, 2 invalid configuration, 3 a cluster is unreachable, 5 some
    partitions, groups or ACLs could not be copied, 130 Ctrl-C, 143 SIGTERM (run: 0).
    docs/mirroring.md has those of each command.
    """


@main.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
@click.option("--once", is_flag=True, help="Copy up to the source's present log ends, then exit.")
@click.option("-q", "--quiet", is_flag=True, help="No status line.")
@click.option("--metrics", metavar="FILE.prom", type=NamedPath(dir_okay=False, path_type=Path),
    help="Write metrics for Prometheus to this file every 5 seconds (node_exporter's textfile collector).")  # fmt: skip
def run(file: Path, once: bool, quiet: bool, metrics: Path | None) -> None:
    """Mirror with the configuration FILE (names as in connect-mirror-maker.properties)."""
    if metrics is not None:
        home = metrics.parent
        if not (home.is_dir() and os.access(home, os.W_OK | os.X_OK)):
            raise click.UsageError(f"--metrics: {home} is no directory that can be written to")
    config = _load(file, warn=False)  # the process prints all warnings

    def start(reactor: Any, on_signal: Callable[[Callable[[int], None]], None]) -> Awaitable[int]:
        from mirrormaker.app import MirrorProcess

        process = MirrorProcess(reactor, config, once=once, quiet=quiet, metrics=metrics)
        on_signal(lambda number: process.stop(130 if number == signal.SIGINT else 0))
        return process.run()

    sys.exit(_in_reactor(start))


@main.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
@click.option(
    "--max-lag",
    type=click.IntRange(0),
    help="Records of lag that a partition may have; default: alarm.lag.records.",
)
@click.option(
    "--settle",
    type=FiniteRange(0.1),
    default=3.0,
    show_default=True,
    help="Seconds between the two readings of a partition with lag or a problem.",
)
def status(file: Path, max_lag: int | None, settle: float) -> None:
    """Show the log ends, the lag and the state of every partition, from both clusters' logs.

    Exit codes: 0 every partition is in sync, starts later, or advances; 1 a direction cannot be
    used; 3 a cluster or a partition could not be read; 4 behind: no progress, an open transaction,
    over --max-lag, not at the target yet, or emptied there; 5 STOPPED: the target is no prefix of
    the source, or a gap or a conflict needs an operator. Of several, the first of 1, 5, 3, 4.
    """
    config = _load(file)

    def start(reactor: Any, _: object) -> Awaitable[int]:
        from mirrormaker.status import show_status

        return show_status(reactor, config, click.echo, max_lag=max_lag, settle=settle)

    sys.exit(_in_reactor(start))


@main.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
def plan(file: Path) -> None:
    """Show what a run would create and change at the target, and change nothing.

    Exit codes: 0 printed; 1 a run refuses the target; 3 a cluster is unreachable; 5 some topics
    cannot be created, changed or copied.
    """
    config = _load(file, warn=False)
    for warning in config.warnings:
        click.echo(f"configuration: {warning}", err=True)

    def start(reactor: Any, _: object) -> Awaitable[int]:
        from mirrormaker.status import show_plan

        return show_plan(reactor, config, click.echo)

    sys.exit(_in_reactor(start))


@main.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="json: an object a line, as kaudit --accepted-gaps reads them.",
)
def gaps(file: Path, form: str) -> None:
    """Show the gap ledger: the offsets that gap.policy=skip skipped, with their causes.

    Only the targets are read. Exit codes: 0 every ledger was read, also if it is empty; 1 a target
    refuses it; 3 a target is unreachable.
    """
    config = _load(file)

    def start(reactor: Any, _: object) -> Awaitable[int]:
        from mirrormaker.gaps import show_gaps

        def warn(text: str) -> None:
            click.echo(f"kmirror: {text}", err=True)

        return show_gaps(reactor, config, click.echo, warn, as_json=form == "json")

    sys.exit(_in_reactor(start))


@main.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
@click.option("--flow", help="The direction: 'east->west'.")
@click.option("--groups", default="", metavar="REGEXES", help="Groups; default: as the settings.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text",
    help="json: an object a line.")  # fmt: skip
def translate(file: Path, flow: str | None, groups: str, form: str) -> None:
    """Print the committed offsets of the source's groups as offsets of the target. Nothing is changed.

    With target.offsets=renumber an offset is never further than what the group has consumed; the
    last column states how many source offsets are consumed again at most.

    Exit codes: 0 printed; 1 a cluster refuses; 3 a cluster is unreachable; 5 some offsets are
    unknown, or left out: each topic, partition or group is named.
    """
    chosen = _flow(_load(file), flow, may_renumber=True)
    _check_patterns(groups, "--groups")

    def start(reactor: Any, _: object) -> Awaitable[int]:
        from mirrormaker.translate import show_translation

        def warn(text: str) -> None:
            click.echo(f"kmirror: {text}", err=True)

        return show_translation(reactor, chosen, groups, click.echo, warn, as_json=form == "json")

    sys.exit(_in_reactor(start))


@main.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
@click.option("--samples", type=click.IntRange(1), default=20, show_default=True,
    help="Offsets to read of each partition; the first and the last one are among them.")  # fmt: skip
@click.option("--seed", type=int, help="Read the offsets of an earlier run; default: new ones.")
@click.option("--max-lag", type=click.IntRange(0), default=0, show_default=True,
    help="Lag in offsets that is accepted.")  # fmt: skip
def verify(file: Path, samples: int, seed: int | None, max_lag: int) -> None:
    """Compare the ends of both logs and sampled batches, byte for byte. kaudit compares all records.

    Exit codes, as kaudit's, about what was compared: 0 no difference; 1 a batch differs, or the
    target is ahead; 3 lag over --max-lag; 4 a part could not be read; 5 of a partition nothing
    could be compared. Of several, the first of 4, 1, 5, 3.
    """
    config = _load(file)
    for flow in config.flows:
        _check_keeps_offsets(flow)

    def start(reactor: Any, _: object) -> Awaitable[int]:
        from mirrormaker.verify import show_verification

        chosen = secrets.randbelow(1 << 32) if seed is None else seed
        return show_verification(
            reactor, config, click.echo, samples=samples, seed=chosen, max_lag=max_lag
        )

    sys.exit(_in_reactor(start))


@main.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
@click.option("--flow", help="The direction to promote the target of: 'east->west'.")
@click.option("--topics", default=".*", metavar="REGEXES", help="Source topics, as the setting.")
@click.option("--audit", metavar="DIR", type=NamedPath(file_okay=False, path_type=Path),
    help="Have kaudit prove every record before the target is opened; its report goes to DIR.")  # fmt: skip
@click.option(
    "--source-lost", is_flag=True, help="Promote without the source: it is not contacted."
)
@click.option("--no-groups", "without_groups", is_flag=True, help="Leave consumer groups out.")
@click.option("--source-id", metavar="ID", help="With --source-lost: the source's cluster id.")
@click.option("--producers-stopped", is_flag=True,
    help="Nothing writes to the source: for a source that cannot be made read-only.")  # fmt: skip
@click.option(
    "--abort", is_flag=True, help="End a promotion that was killed: the source is writable again."
)
@click.option("--target-id", metavar="ID",
    help="With --abort, if the target does not answer: its cluster id. No producer has written there.")  # fmt: skip
@click.option("--record", metavar="FILE", type=NamedPath(dir_okay=False, path_type=Path),
    help="Write the record of the promotion (JSON) to FILE instead of stdout.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the topics and their state; change nothing.")
def promote(file: Path, flow: str | None, abort: bool, record: Path | None, **options: Any) -> None:
    """Make the mirror topics of a target writable, and the source's topics their mirrors.

    Exit codes: 0 promoted, no record is left behind, or (--source-lost) their number is unknown; 1
    a cluster refuses a request; 2 invalid options; 3 a cluster is unreachable; 4 promoted, but the
    source has records behind the cut, has lost its fence, or a part of it could not be read; 5
    refused: nothing is promoted, or what is, is named, and so is what stays read-only at the
    source; 130 Ctrl-C, 143 SIGTERM: undone before the target is opened. A group with members at the
    target is named, and keeps its offsets there.
    """
    chosen = _flow(_load(file), flow)
    _check_promotion(options, abort=abort, record=record)
    _check_patterns(options["topics"])

    async def begin(reactor: Any) -> int:
        topics, target_id = options["topics"], options.pop("target_id")
        if abort:
            from mirrormaker.promotion_abort import PromotionAbort

            return await PromotionAbort(reactor, chosen, topics, target_id, _echo).run()
        from mirrormaker.promote import Options, show_promotion

        code, done = await show_promotion(reactor, chosen, Options(**options), _echo)
        _show_record(done, record)
        return code

    sys.exit(_in_reactor(_cancelled_by_signal(begin)))


def _check_promotion(options: Mapping[str, Any], *, abort: bool, record: Path | None) -> None:
    """Raise UsageError if *options* of `promote` cannot be together, or one would have no effect."""
    for name in ("source_id", "target_id"):
        if options[name] == "":
            raise click.UsageError(f"--{name.replace('_', '-')}: the cluster id is empty")
    if options["source_lost"] and (abort or options["producers_stopped"] or options["audit"]):
        raise click.UsageError("--source-lost needs no source: leave out the options about it")
    if abort and options["dry_run"]:
        raise click.UsageError("--abort has no --dry-run")
    if options["target_id"] is not None and not abort:
        raise click.UsageError("--target-id is for --abort")
    if options["source_id"] is not None and not options["source_lost"]:
        raise click.UsageError("--source-id is for --source-lost")
    if abort and options["producers_stopped"]:
        raise click.UsageError("--producers-stopped is not for --abort")
    for name, given in (("--audit", options["audit"]), ("--record", record)):
        if given is not None and (abort or options["dry_run"]):
            raise click.UsageError(
                f"{name} is for a promotion: leave it out with --abort and --dry-run"
            )


def _recopy_options(source: str, target: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds the options of failback and repair (`_recopy`); the help names both clusters so."""
    directory = NamedPath(file_okay=False, path_type=Path)
    options = [
        click.option("--export", metavar="DIR", type=directory,
            help=f"Where the records go that only {target} has. --execute needs it."),
        click.option("--execute", is_flag=True, help="Do it; without this option nothing is changed."),
        click.option("--export-head", is_flag=True,
            help=f"Also export, and remove, what is below {source}'s log start."),
        click.option("--audit", metavar="DIR", type=directory,
            help="The directory for kaudit's report; default: audit below DIR of --export."),
        click.option("--no-audit", "without_audit", is_flag=True, help="Do not run kaudit at the end."),
        click.option("--no-groups", "without_groups", is_flag=True, help="Leave consumer groups out."),
        click.option("--record", metavar="FILE", type=NamedPath(dir_okay=False, path_type=Path),
            help="Write the record (JSON) to FILE instead of stdout."),
    ]  # fmt: skip

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@main.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
@click.option("--flow", help="From the promoted cluster to the returned one: 'west->east'.")
@click.option("--topics", default=".*", metavar="REGEXES", help="Topics, as the setting.")
@_recopy_options("the promoted cluster", "the returned cluster")
def failback(file: Path, flow: str | None, topics: str, **options: Any) -> None:
    """Make a cluster that was lost, and returned, the mirror of the promoted one.

    Records that only the returned cluster has are exported to files, then its topics are created
    again and copied. Without --execute the command only searches where the logs diverge. A command
    that was killed is continued by the same command.

    Exit codes: 0 the topics are mirrors and kaudit found them CONSISTENT, but for offsets that
    only one cluster still has, or a dry run; 1 a cluster refuses; 2 invalid options; 3 a cluster
    is unreachable; 4 the topics are mirrors, but kaudit did not prove it, or committed offsets are
    not restored; 5 refused; 130 Ctrl-C, 143 SIGTERM: nothing is undone, what is changed is named.
    """

    def show(reactor: Any, chosen: FlowConfig, options: Options, echo: Echo) -> _Shown:
        from mirrormaker.failback import show_failback

        return show_failback(reactor, chosen, options, topics, echo)

    _recopy(_flow(_load(file), flow), topics, show, **options)


@main.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
@click.option("--plan", required=True, type=NamedPath(dir_okay=False, path_type=Path),
    help="repair.json of kaudit.")  # fmt: skip
@click.option("--flow", help="The direction of the audit: 'east->west'.")
@click.option("--topics", default=".*", metavar="REGEXES", help="Topics of the plan.")
@_recopy_options("the source", "the target")
def repair(file: Path, plan: Path, flow: str | None, topics: str, **options: Any) -> None:
    """Apply the repair plan of kaudit to mirror topics.

    A topic with a difference below its log end is created again and copied whole; what only the
    target has is exported first. Without --execute the command prints what it would do. Stop
    kmirror run before.

    Exit codes: 0 repaired and CONSISTENT, but for offsets that only one cluster still has, or a
    dry run; 1 a cluster refuses; 2 invalid options; 3 a cluster is unreachable; 4 copied, but
    kaudit did not prove it, committed offsets are not restored, or ranges are left that no copy
    repairs; 5 refused; 130 Ctrl-C, 143 SIGTERM: nothing is undone, what is changed is named.
    """

    def show(reactor: Any, chosen: FlowConfig, options: Options, echo: Echo) -> _Shown:
        from mirrormaker.repair import show_repair

        return show_repair(reactor, chosen, options, plan, topics, echo)

    _recopy(_flow(_load(file), flow), topics, show, **options)


@main.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
@click.option("--flow", help="The direction of the mirror: 'east->west'.")
@click.option("--topics", required=True, metavar="REGEXES", help="Topics, as the setting.")
@_recopy_options("the source", "the target")
def truncate(file: Path, flow: str | None, topics: str, **options: Any) -> None:
    """Remove from mirror topics what the source does not have, or has otherwise.

    For a mirror that stopped because the source lost records, or created its topic again. The
    records are exported, and the gap ledger names them; then the topic is created again and copied
    whole. Without --execute the command only searches where the logs diverge. Each truncation has
    its own --export DIR; a command that was killed is continued by the same command.

    Exit codes: 0 truncated and CONSISTENT, but for offsets that only one cluster still has, or a
    dry run; 1 a cluster refuses; 2 invalid options; 3 a cluster is unreachable; 4 copied, but
    kaudit did not prove it, or committed offsets are not restored, or the target has no mirror of
    a topic; 5 refused; 130 Ctrl-C, 143 SIGTERM: nothing is undone, what is changed is named.
    """

    def show(reactor: Any, chosen: FlowConfig, options: Options, echo: Echo) -> _Shown:
        from mirrormaker.truncation import show_truncation

        return show_truncation(reactor, chosen, options, topics, echo)

    _recopy(_flow(_load(file), flow), topics, show, **options)


@main.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--kind", type=click.Choice(["tail", "differing", "head", "all"]), default="all")
def exported(directory: Path, kind: str) -> None:
    """Print the records that a failback, a repair or a truncation exported to DIRECTORY: a JSON object a line.

    Keys, values and headers as `kclient consume -f json` prints them. Every file is compared
    with its manifest first. Exit codes: 0 printed; 1 a manifest or a file is damaged, or it has
    batches with a wrong CRC, or that cannot be decoded. Those are exported as they were, and not
    printed. The records of the other batches were printed.
    """
    from mirrormaker.exported import show_exported
    from mirrormaker.tail_export import BadExport

    try:
        show_exported(directory, kind, click.echo)
    except BadExport as problem:
        click.echo(f"kmirror: {problem}", err=True)
        sys.exit(1)


def _recopy(
    chosen: FlowConfig,
    topics: str,
    show: Callable[[Any, FlowConfig, Options, Echo], _Shown],
    *,
    record: Path | None,
    **options: Any,
) -> NoReturn:
    """Check the options of failback and repair (`_recopy_options`), run *show*, and write its record."""
    if options["execute"] and options["export"] is None:
        raise click.UsageError("--execute needs --export DIR")
    if options["audit"] is not None and options["without_audit"]:
        raise click.UsageError("--audit DIR cannot be with --no-audit")
    _check_patterns(topics)

    async def begin(reactor: Any) -> int:
        from mirrormaker.recopy import Options

        code, done = await show(reactor, chosen, Options(**options), _echo)
        _show_record(done, record)
        return code

    sys.exit(_in_reactor(_cancelled_by_signal(begin)))


def _echo(line: str) -> None:
    """Print *line* on stderr, if it can be: steps and their undo do not depend on a reader of the output."""
    with suppress(OSError):
        click.echo(line, err=True)


def _check_patterns(patterns: str, option: str = "--topics") -> None:
    try:
        pattern_list(patterns)
    except ValueError as problem:
        raise click.UsageError(f"{option}: {problem}") from None


def _show_record(done: dict[str, Any] | None, file: Path | None) -> None:
    """Write the record of a command to *file*, or print it."""
    if done is not None:
        text = json.dumps(done, indent=2, sort_keys=True)
        if file is None or not _written(file, text):
            try:
                click.echo(text)
            except OSError as problem:
                _echo(f"kmirror: the record cannot be printed: {problem.strerror}")


def _written(file: Path, text: str) -> bool:
    """Write *text* to *file*; return False, and report why, if that is not possible."""
    try:
        file.write_text(f"{text}\n")
    except OSError as problem:
        _echo(f"kmirror: {file} cannot be written: {problem.strerror}")
        return False
    return True


def _flow(config: MirrorConfig, name: str | None, *, may_renumber: bool = False) -> FlowConfig:
    """Return the flow with this name, or the only one; refuse one that renumbers unless *may_renumber*."""
    names = [each.name for each in config.flows]
    if name is None and len(names) > 1:
        raise click.UsageError(f"--flow: name one of {', '.join(names)}")
    found = [each for each in config.flows if name in (None, each.name)]
    if not found:
        raise click.UsageError(f"--flow: {name!r} is not one of {', '.join(names)}")
    if not may_renumber:
        _check_keeps_offsets(found[0])
    return found[0]


def _check_keeps_offsets(flow: FlowConfig) -> None:
    """Refuse a command that compares records by their offsets."""
    if flow.settings.renumbers:
        raise click.UsageError(
            f"{flow.name} has target.offsets=renumber: the target's records have other offsets, and this command"
            " needs the same"
        )


def _load(file: Path, *, warn: bool = True) -> MirrorConfig:
    """Read the configuration; with *warn* print which of its names may be mistakes."""
    try:
        config = MirrorConfig.load(file)
    except ConfigError as problem:
        click.echo(f"kmirror: {problem}", err=True)
        sys.exit(2)
    for mistake in config.mistakes if warn else ():
        click.echo(f"configuration: {mistake}", err=True)
    return config


def _cancelled_by_signal(
    begin: Callable[[Any], Coroutine[Any, Any, int]],
) -> Callable[[Any, Callable[[Callable[[int], None]], None]], Awaitable[int]]:
    """Return a start for `_in_reactor` of a command that changes a cluster: it undoes its steps, or names their state.

    The first signal cancels its coroutine. The exit code is then 128 and the signal's number.
    """

    async def run(reactor: Any, on_signal: Callable[[Callable[[int], None]], None]) -> int:
        from twisted.internet.defer import CancelledError, Deferred

        signals: list[int] = []

        def cancel(number: int) -> None:
            signals.append(number)
            name = signal.Signals(number).name
            try:
                _echo(f"kmirror: {name} ends the command; a second signal ends it at once")
            finally:
                running.cancel()

        on_signal(cancel)  # called by the reactor, so after the next line
        running = Deferred.fromCoroutine(begin(reactor))
        try:
            return await running
        except CancelledError:
            if not signals:
                raise
            return 128 + signals[0]

    return run


def _in_reactor(start: Callable[[Any, Any], Awaitable[int]]) -> int:
    """Run the reactor until *start*'s coroutine ends; return its exit code.

    The first SIGINT or SIGTERM goes to the registered listener, the second ends the process.
    """
    from twisted.internet import reactor as _reactor
    from twisted.internet.defer import Deferred
    from twisted.logger import (
        FilteringLogObserver,
        LogLevel,
        LogLevelFilterPredicate,
        globalLogBeginner,
        textFileLogObserver,
    )

    reactor: Any = _reactor
    quiet = FilteringLogObserver(
        textFileLogObserver(sys.stderr), [LogLevelFilterPredicate(LogLevel.error)]
    )
    globalLogBeginner.beginLoggingTo([quiet], redirectStandardIO=False)
    codes: list[int] = []
    listeners: list[Callable[[int], None]] = []

    def signalled(number: int, _frame: object) -> None:
        if listeners:
            reactor.callFromThread(listeners.pop(), number)
        else:
            codes.append(128 + number)
            reactor.callFromThread(_stop, reactor)

    def ended(result: Any) -> None:
        problem = getattr(result, "value", None)
        if isinstance(problem, KafkaError):
            _echo(f"kmirror: {problem}")
            codes.append(3 if problem.retriable else 1)
        elif problem is not None:
            _echo(result.getTraceback())
            codes.append(70)
        else:
            codes.append(result)
        _stop(reactor)

    def begin() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signalled)
        running: Any = start(reactor, listeners.append)
        Deferred.fromCoroutine(running).addBoth(ended)

    reactor.callWhenRunning(begin)
    reactor.run(installSignalHandlers=False)
    _discard_unwritten()
    return codes[0] if codes else 1


def _discard_unwritten() -> None:
    """Discard output that cannot be written: Python ends with 120 if it cannot flush a stream."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _stop(reactor: Any) -> None:
    if reactor.running:
        reactor.stop()


if __name__ == "__main__":
    main()
