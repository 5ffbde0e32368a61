"""`kclient cluster config`: settings of running brokers (the part of kafka-configs.sh --entity-type brokers)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from kclient.cli.answers import code_for, good_answers, print_answers
from kclient.cli.commands import with_settings
from kclient.cli.help import Group
from kclient.cli.output import show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client

if TYPE_CHECKING:
    from kclient.admin.configs import ConfigEntry, ConfigResource

_EVERY_BROKER = "all brokers"


@click.group(cls=Group)
def config() -> None:
    """Show and change settings of running brokers.

    A dynamic setting is one of a broker, or a default of all brokers; that of the broker wins. Both are in ZooKeeper,
    and win over server.properties. Brokers refuse settings that only a restart can change.
    """


_BROKERS = click.option(
    "--broker", "nodes", type=int, multiple=True, metavar="ID", help="Only these brokers."
)


@config.command(
    "describe",
    examples=(
        "kclient cluster config describe",
        "kclient cluster config describe --broker 1 --all",
        "kclient cluster config describe -n min.insync.replicas -n log.retention.ms",
    ),
)
@_BROKERS
@click.option("-a", "--all", "every", is_flag=True, help="Include values that are not dynamic.")
@click.option(
    "-n",
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only these settings, dynamic or not.",
)
@with_settings
def describe(
    settings: Settings, nodes: tuple[int, ...], every: bool, names: tuple[str, ...]
) -> None:
    """Show the dynamic settings of brokers, or with --all or --name the values that each broker uses.

    SOURCE is the origin of the value: BROKER and DYNAMIC_DEFAULT_BROKER are dynamic, STATIC_BROKER is
    server.properties, DEFAULT is built in.
    """
    with_static = every or bool(names)

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            wanted = _resources(admin, nodes, with_default=not with_static)
            found = await admin.describe_configs(wanted, names=names or None, raise_errors=False)
        good = good_answers(found, _name)
        rows = [
            row
            for resource, entries in good.items()
            for row in rows_of(resource, entries.values(), with_static=with_static)
        ]
        known = {row["name"] for row in rows}
        if good and not set(names) <= known:
            raise ValueError(f"brokers have no setting {', '.join(sorted(set(names) - known))}")
        show(rows, ("broker", "name", "value", "source"), settings.format)
        if not rows:
            settings.note("There are no dynamic settings; --all shows the other values.")
        return code_for(len(good), len(found))

    run(main)


def rows_of(
    resource: ConfigResource, entries: Iterable[ConfigEntry], *, with_static: bool
) -> list[dict[str, Any]]:
    """Return a row for each entry by name; without *with_static* only those that *resource* itself sets."""
    from kclient.admin.configs import ConfigSource

    own = ConfigSource.BROKER if resource.name else ConfigSource.DYNAMIC_DEFAULT_BROKER
    return [
        {
            "broker": int(resource.name) if resource.name else None,
            "name": each.name,
            "value": "[hidden]" if each.sensitive else each.value,
            "source": each.source.name,
            "read_only": each.read_only,
            "sensitive": each.sensitive,
        }
        for each in sorted(entries, key=lambda entry: entry.name)
        if with_static or each.source is own
    ]


@config.command(
    "alter",
    examples=(
        "kclient cluster config alter --set log.retention.ms=86400000",
        "kclient cluster config alter --broker 1 --delete log.cleaner.threads",
    ),
)
@_BROKERS
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="A new value of a setting."
)
@click.option(
    "--delete", "removed", multiple=True, metavar="NAME", help="A dynamic setting to remove."
)
@click.option("-d", "--dry-run", is_flag=True, help="Only validate at the broker; change nothing.")
@with_settings
def alter(
    settings: Settings,
    nodes: tuple[int, ...],
    changes: tuple[str, ...],
    removed: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Change dynamic settings: the defaults of all brokers, or those of --broker."""
    wanted = changes_of(changes, removed)

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            resources = _resources(admin, nodes, with_default=True, with_live=False)
            answers = await admin.alter_configs(
                dict.fromkeys(resources, wanted), validate_only=dry_run, raise_errors=False
            )
        by_name = {_name(resource): answer for resource, answer in answers.items()}
        done = "Would change" if dry_run else "Changed"
        # Without the values: one can be a password.
        shown = ", ".join(wanted)
        return print_answers(settings, by_name, lambda name, _: f"{done} {name}: {shown}.")

    run(main)


def changes_of(changes: Sequence[str], removed: Sequence[str]) -> dict[str, str | None]:
    """Return the new value of each setting, None for one to remove; raise UsageError."""
    wanted: dict[str, str | None] = {}
    for text in changes:
        name, given, value = text.partition("=")
        if not given or not name.strip():
            raise click.UsageError(f"--set {text!r}: expected name=value")
        wanted[name.strip()] = value
    both = sorted(wanted.keys() & set(removed))
    if both:
        raise click.UsageError(f"{both[0]} is both in --set and in --delete")
    wanted.update(dict.fromkeys(removed))
    if not wanted:
        raise click.UsageError("nothing to change: give --set name=value or --delete name")
    return wanted


def _resources(
    admin: Any, nodes: Sequence[int], *, with_default: bool, with_live: bool = True
) -> list[ConfigResource]:
    """Return the brokers *nodes*; without any the default of all brokers and the live brokers, by the flags."""
    from kclient.admin.configs import ConfigResource, ResourceType

    live = sorted(admin.cluster.metadata.brokers)
    unknown = sorted(set(nodes) - set(live))
    if unknown:
        raise ValueError(f"no live broker {unknown[0]}; the live brokers are {live}")
    chosen = nodes or (live if with_live else ())
    names = [""] * (with_default and not nodes) + [str(node) for node in chosen]
    return [ConfigResource(ResourceType.BROKER, name) for name in names]


def _name(resource: ConfigResource) -> str:
    return f"broker {resource.name}" if resource.name else _EVERY_BROKER
