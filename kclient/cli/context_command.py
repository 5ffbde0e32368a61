"""`kclient context`: clusters by name (kclient/contexts.py). These commands contact no cluster."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.exit_codes import FAILED, USAGE
from kclient.cli.help import Group
from kclient.cli.names import CONTEXT
from kclient.cli.output import print_error, show
from kclient.cli.settings import Settings, chosen_context
from kclient.config import CONFIGS
from kclient.contexts import (
    VARIABLE,
    Context,
    changing,
    default_file,
    is_secret,
    load_all,
    load_project,
)
from kclient.errors import ConfigError

_BOOTSTRAP = "bootstrap.servers"


def _reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except (ConfigError, OSError) as problem:
            print_error(problem)
            raise SystemExit(USAGE if isinstance(problem, ConfigError) else FAILED) from None

    return wrapped


@click.group(cls=Group)
def context() -> None:
    """Name clusters in contexts.toml; choose one for commands without -b.

    The file is kclient/contexts.toml below XDG_CONFIG_HOME, or ~/.config. --context or KCLIENT_CONTEXT choose a context
    for one command or one shell. A kclient.toml of the same form in the current directory, or above it in the same
    repository, comes before contexts.toml; these commands read that file, and do not change it.
    """


@context.command("list", examples=("kclient context list",))
@with_settings
@_reports_errors
def list_(settings: Settings) -> None:
    """List the contexts; the current one is marked *."""
    contexts = load_all()
    rows = [
        {
            "current": name == contexts.current,
            "name": name,
            "bootstrap_servers": str(each.settings.get(_BOOTSTRAP, "")),
            "local_directory": each.directory,
            "file": str(each.file),
        }
        for name, each in contexts.by_name.items()
    ]
    columns: tuple[str, ...] = (
        *("current", "name", "bootstrap_servers"),
        *("local_directory", "file"),
    )
    if settings.is_text:
        rows = [
            {
                **row,
                "name": f"{row['name']}{'*' * bool(row['current'])}",
                "local_directory": row["local_directory"] or "-",
            }
            for row in rows
        ]
        columns = columns[1:-1] if settings.format == "text" else columns[1:]
    show(rows, columns, settings.format)
    _note_variables(settings)


def _note_variables(settings: Settings) -> None:
    """Print what comes before the current context of contexts.toml: a variable of this shell, or the project's file."""
    for name in ("KCLIENT_BOOTSTRAP_SERVERS", VARIABLE):
        value = os.environ.get(name)
        if value:
            settings.note(f"{name}={value} is set: it comes before the current context")
            return
    project = load_project()
    if project.current is not None:
        settings.note(
            f"{project.file} has the current context {project.current}: it comes before that of {default_file()}"
        )


@context.command(
    "show", examples=("kclient context show", "kclient context show staging --format json")
)
@click.argument("name", required=False, type=CONTEXT)
@with_settings
@_reports_errors
def show_(settings: Settings, name: str | None) -> None:
    """Show the settings of a context: NAME, else that of --context or KCLIENT_CONTEXT, else the current one."""
    if name is not None:
        chosen: Context | None = load_all().named(name)
    else:
        chosen = chosen_context(settings.context_name)
    if chosen is None:
        raise ConfigError(
            "there is no current context: `kclient context use NAME` makes one current"
        )
    rows = [
        {"context": chosen.name, "name": key, "value": "[hidden]" if is_secret(key) else str(value)}
        for key, value in chosen.entries.items()
    ]
    show(rows, ("context", "name", "value"), settings.format)


@context.command("use", examples=("kclient context use staging",))
@click.argument("name", type=CONTEXT)
@with_settings
@_reports_errors
def use(settings: Settings, name: str) -> None:
    """Make NAME the current context: commands without -b use it."""
    with changing(default_file()) as versions:
        versions.append(versions[0].with_current(name))
    settings.note(f"The current context is {name}.")
    _note_variables(settings)


@context.command(
    "add",
    examples=(
        "kclient context add prod -b kafka-1:9092,kafka-2:9092 -X client.id=ada",
        "kclient context add staging -F client.properties --use --replace",
    ),
)
@click.argument("name")
@click.option("--use", "use_it", is_flag=True, help="Make it the current context.")
@click.option("--replace", "replacing", is_flag=True, help="Replace the context of that name.")
@with_settings
@_reports_errors
def add(settings: Settings, name: str, use_it: bool, replacing: bool) -> None:
    """Add the context NAME with the client settings of -b, -F and -X.

    It is the current one if there is no other. Settings are checked; the cluster is not contacted.
    """
    if not name.isprintable() or not name or name != name.strip():
        raise ConfigError(f"{name!r} cannot be the name of a context: it is not plain text")
    values = settings.given()
    if not values.get(_BOOTSTRAP):
        raise ConfigError("a context names brokers: give -b HOST:PORT, or -F FILE that has them")
    for kind in CONFIGS:
        kind.load(values)
    with changing(default_file()) as versions:
        added = Context(name, values)
        versions.append(versions[0].with_user(added, replacing=replacing, use=use_it))
        is_current = versions[-1].current == name
        already = name in versions[0].by_name
    settings.note(
        f"{'Replaced' if already else 'Added'} context {name}"
        + ("; it is the current one." if is_current else f"; --context {name} chooses it.")
    )
    if is_current:
        _note_variables(settings)


@context.command("rm", examples=("kclient context rm staging",))
@click.argument("names", nargs=-1, required=True, metavar="NAME...", type=CONTEXT)
@with_settings
@_reports_errors
def rm(settings: Settings, names: tuple[str, ...]) -> None:
    """Remove contexts; their clusters stay as they are."""
    with changing(default_file()) as versions:
        versions.append(versions[0].without(names))
        no_current = versions[0].current is not None and versions[-1].current is None
    for name in names:
        settings.note(f"Removed context {name}.")
    if no_current:
        settings.note("There is no current context now: `kclient context use NAME` chooses one.")
