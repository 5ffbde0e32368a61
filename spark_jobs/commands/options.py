"""Options that several commands of `kaudit` have."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kclient.cli.finite_range import FiniteRange
from kclient.cli.named_path import NamedPath
from kclient.config import parse_addresses
from kclient.errors import ConfigError
from spark_jobs.spark_settings import SparkSettings, parse_settings
from spark_jobs.target_names import check_form

if TYPE_CHECKING:
    from spark_jobs.scope import Pair

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_MOST_DAYS = 36_500
"""The longest duration: neither Python nor Spark waits for more than 292 years."""

MOST_OFFSETS = 10**12
"""Of a window or a micro-batch: above what a partition has, and far below 2**63."""


def target_names(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Check --target-prefix."""
    try:
        return check_form(value)
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None


def addresses(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Check bootstrap servers: a wrong address is no cluster that cannot be read, which a script may wait for."""
    try:
        parse_addresses(value)
    except ConfigError as problem:
        raise click.BadParameter(str(problem)) from None
    return value


def with_cluster(name: str, meaning: str) -> Option:
    """Give a command the option *name* for the bootstrap servers of a cluster."""
    return click.option(name, required=True, metavar="BROKERS", callback=addresses, help=meaning)


_PAIR = (
    with_cluster("--source", "Bootstrap servers of the source."),
    with_cluster("--target", "Bootstrap servers of the target."),
    click.option(
        "--topics",
        required=True,
        metavar="REGEX",
        help="Topics to read; the whole name must match.",
    ),
    click.option("--names", default="source,target", metavar="A,B", help="Names of the clusters."),
    click.option(
        "--target-prefix",
        default="",
        metavar="TEXT",
        callback=target_names,
        help="The target's topics begin with this: 'SOURCE.' for kmirror's DefaultReplicationPolicy. With {} "
        "for the name it is their form: '{}.from.SOURCE'.",
    ),
)


_SPARK = (
    click.option("--master", default="local[*]", metavar="URL", help="Spark master."),
    click.option(
        "--conf",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting for Spark, such as spark.executor.memory=2g; several times for several.",
    ),
    click.option(
        "--environment",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The packages for workers on other hosts: an archive of `kaudit pack`.",
    ),
)

_QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")


def with_limits(done: str) -> Option:
    """Give a command --max-lag and --min-coverage; *done* is what it does with offsets, such as "compared"."""
    options = (
        click.option(
            "--max-lag", default=0, type=click.IntRange(0), help="Lag in records that is accepted."
        ),
        click.option(
            "--min-coverage",
            default=1.0,
            type=FiniteRange(0, 1),
            help=f"The share of offsets that must be {done} for exit code 0.",
        ),
    )
    return lambda command: _with(options, command)


def with_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* --quiet and the options of `with_spark`."""
    return _with((*_SPARK, _QUIET), command)


def with_spark(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* --master, --conf and --environment; `spark_settings` reads them."""
    return _with(_SPARK, command)


def spark_settings(options: dict[str, Any]) -> SparkSettings:
    """Return the Spark of `with_spark`; raise UsageError for a setting or an archive that kaudit cannot use."""
    from spark_jobs.packed_environment import NotAnEnvironment, check

    environment: Path | None = options["environment"]
    try:
        settings = parse_settings(options["conf"], with_environment=environment is not None)
        if environment is not None:
            check(environment)
    except (NotAnEnvironment, ValueError) as problem:
        raise click.UsageError(str(problem)) from None
    return SparkSettings(options["master"], settings, environment)


def with_out(*files: str) -> Option:
    """Give a command --out, the directory of *files*."""
    return click.option(
        "--out",
        type=NamedPath(file_okay=False, path_type=Path),
        metavar="DIR",
        help=f"Write {', '.join(files)} here.",
    )


def with_quiet(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* --quiet."""
    return _with((_QUIET,), command)


def with_hash_key(meaning: str) -> Option:
    """Give a command --hash-key; `spark_jobs.hash_key.read_hash_key` reads it."""
    return click.option(
        "--hash-key",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help=meaning,
    )


def with_pair(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* the options that name two clusters and their topics; `pair_of` reads them."""
    return _with(_PAIR, command)


def _with(options: Sequence[Option], command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def pair_of(options: dict[str, Any]) -> Pair:
    """Return the clusters and topics of `with_pair`; raise UsageError for wrong ones."""
    from spark_jobs.scope import Pair

    try:
        names = cluster_names(options["names"])
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    return Pair(
        options["source"],
        options["target"],
        names,
        pattern_of(options["topics"]),
        options["target_prefix"],
    )


def words_of(pair: Pair) -> list[str]:
    """Return the options of `with_pair` that name *pair* again, for a command line to print."""
    words = ["--source", pair.source, "--target", pair.target, "--topics", pair.topics.pattern]
    return words + (["--target-prefix", pair.target_prefix] if pair.target_prefix else [])


def cluster_names(text: str) -> tuple[str, str]:
    """Return the names of `--names`; raise ValueError if they are equal, or no report can have them."""
    source, _, target = text.partition(",")
    names = source or "source", target or "target"
    if names[0] == names[1]:
        raise ValueError(f"--names: the two clusters need different names, not {text!r}")
    if not text.isprintable():  # a line end, or bytes that are not UTF-8
        raise ValueError(f"--names: {text!r} has a character that cannot be printed")
    return names


def pattern_of(text: str) -> re.Pattern[str]:
    """Return `--topics`; raise UsageError if it is not a regular expression."""
    try:
        text.encode()  # bytes that are not UTF-8 are in no topic's name, and in no report
        return re.compile(text)
    except (re.error, OverflowError, RecursionError, UnicodeEncodeError) as problem:
        raise click.UsageError(f"--topics {text!r}: {problem}") from None


def duration_ms(text: str, option: str = "--bucket", *, with_ms: bool = False) -> int:
    """Return a duration such as 30s, 1m, 2h or 1d in ms; raise UsageError for anything else, or above 100 years.

    With *with_ms* 250ms is one, too.
    """
    found = re.fullmatch(r"([1-9]\d{0,8})(ms|[smhd])", text, re.ASCII)
    if found is None or (found[2] == "ms" and not with_ms):
        units, example = ("ms, s, m, h or d", "250ms") if with_ms else ("s, m, h or d", "1m")
        raise click.UsageError(
            f"{option} {text!r}: expected a number with {units}, as in {example}"
        )
    duration = int(found[1]) * _UNITS_MS[found[2]]
    if duration > _MOST_DAYS * _UNITS_MS["d"]:
        raise click.UsageError(f"{option} {text!r}: above {_MOST_DAYS}d, the longest duration")
    return duration


def progress_on_stderr(quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line of progress with the seconds since now."""
    started = time.monotonic()

    def progress(text: str) -> None:
        if not quiet:
            show(f"kaudit: {time.monotonic() - started:5.1f} s  {text}", err=True)

    return progress


def show(text: str, *, err: bool = False) -> None:
    """Print *text*; raise OSError if stdout does not take it. A closed pipe (`| head`) does not change the exit code.

    With *err* it goes to stderr, which has no result: what cannot be printed there is left out. Characters that the
    encoding of stdout lacks are printed as Python's escapes.
    """
    if err:
        with suppress(OSError):
            click.echo(text, err=True)
        return
    with suppress(BrokenPipeError):
        try:
            click.echo(text)
        except UnicodeEncodeError:  # Nothing of the text was written.
            known = sys.stdout.encoding
            click.echo(text.encode(known, "backslashreplace").decode(known))


def show_kept(text: str, kept: Path | None) -> None:
    """Print the result that the files *kept* have, too; raise OSError only if there are none.

    The exit code stays that of the result. So a script that reads the files finds the same one there.
    """
    try:
        show(text)
    except OSError as problem:
        if kept is None:
            raise
        cause = problem.strerror or problem
        show(f"kaudit: the result cannot be printed: {cause}; it is in {kept}", err=True)
