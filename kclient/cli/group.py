"""`kclient group`: list, describe, lag, watch, delete; offsets are reset, deleted, exported and imported."""

from __future__ import annotations

from typing import Any

import click

from kclient.cli.answers import code_for, print_answers
from kclient.cli.commands import with_settings
from kclient.cli.group_lag import lag_row, offset_rows, topic_rows
from kclient.cli.group_offsets import delete_offsets, export, import_, reset_offsets, seek
from kclient.cli.group_watch import watch
from kclient.cli.help import Group
from kclient.cli.names import GROUP
from kclient.cli.output import print_error, show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client


@click.group(cls=Group)
def group() -> None:
    """Inspect consumer groups, their members and lag; change their offsets."""


@group.command(
    "list",
    examples=(
        "kclient group list",
        "kclient group list --state Empty --state Dead",
    ),
)
@click.option(
    "-s",
    "--state",
    "states",
    multiple=True,
    help="Only groups in this state: Stable, Empty, Dead, PreparingRebalance, CompletingRebalance.",
)
@with_settings
def list_(settings: Settings, states: tuple[str, ...]) -> None:
    """List groups.

    TYPE is that of kafka-consumer-groups (KIP-848): Classic, Consumer or Unknown. PROTOCOL is what the members are:
    consumer, or connect, or empty without members.
    """

    async def main(reactor: Any) -> None:
        async with admin_client(settings, reactor) as admin:
            found = await admin.list_groups(states=states)
        rows = [
            {
                "group": g.group_id,
                "type": _type(g.type),
                "protocol": g.protocol_type,
                "state": g.state or _UNKNOWN,
                "coordinator": g.coordinator,
            }
            for g in found
        ]
        show(rows, ("group", "type", "protocol", "state", "coordinator"), settings.format)

    run(main)


_UNKNOWN = "Unknown"
"""What Kafka's tool prints for a type or a state that the broker is too old to return."""


def _type(name: str) -> str:
    """Return the type of a group as Kafka's tools spell it: brokers do so in lower case."""
    return name.capitalize() or _UNKNOWN


@group.command(
    "describe",
    examples=(
        "kclient group describe billing",
        "kclient group describe billing --members",
        "kclient group describe billing --topics",
    ),
)
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", type=GROUP)
@click.option("--members", is_flag=True, help="Show members instead of offsets.")
@click.option("--state", "state", is_flag=True, help="Show the state instead of offsets.")
@click.option("-t", "--topics", is_flag=True, help="Show the lag of each topic.")
@with_settings
def describe(
    settings: Settings, names: tuple[str, ...], members: bool, state: bool, topics: bool
) -> None:
    """Show the offsets and the lag of each partition, or --topics, or --members, or --state."""
    if members + state + topics > 1:
        raise click.UsageError("give one of --members, --state and --topics")

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            found = await admin.describe_groups(names)
            tables = []
            for name in dict.fromkeys(names):
                described = found[name]
                if described.state == "Dead":
                    print_error(
                        f"consumer group {name!r} does not exist (check the name: kclient group list)"
                    )
                    continue
                if not described.members:
                    settings.note(f"Consumer group {name!r} has no active members.")
                if state:
                    tables.append(_state(described))
                elif members:
                    tables.append(_members(described))
                else:
                    rows = await offset_rows(admin, described)
                    tables.append(topic_rows(rows) if topics else rows)
        columns: tuple[str, ...] = _OFFSET_COLUMNS
        if state or members or topics:
            columns = _STATE_COLUMNS if state else _MEMBER_COLUMNS if members else _TOPIC_COLUMNS
        if settings.is_text:
            for rows in tables:
                show(rows, columns, settings.format)
        else:
            show([row for rows in tables for row in rows], columns, settings.format)
        return code_for(len(tables), len(found))

    run(main)


_STATE_COLUMNS = ("group", "coordinator", "assignment_strategy", "state", "members")
_MEMBER_COLUMNS = ("group", "consumer_id", "host", "client_id", "partitions", "assignment")
_TOPIC_COLUMNS = ("group", "topic", "partitions", "members", "lag", "max_lag", "unknown")
_OFFSET_COLUMNS = (
    *("group", "topic", "partition", "current_offset", "log_end_offset", "lag"),
    *("consumer_id", "host", "client_id"),
)


def _state(described: Any) -> list[dict[str, Any]]:
    row = {
        "group": described.group_id,
        "coordinator": described.coordinator,
        "assignment_strategy": described.protocol,
        "state": described.state,
        "members": len(described.members),
    }
    return [row]


def _members(described: Any) -> list[dict[str, Any]]:
    return [
        {
            "group": described.group_id,
            "consumer_id": m.member_id,
            "host": m.host,
            "client_id": m.client_id,
            "partitions": len(m.assignment),
            "assignment": [str(tp) for tp in m.assignment],
        }
        for m in described.members
    ]


@group.command(
    "lag",
    examples=(
        "kclient group lag",
        "kclient group lag billing shipping",
    ),
)
@click.argument("names", nargs=-1, metavar="[GROUP...]", type=GROUP)
@with_settings
def lag(settings: Settings, names: tuple[str, ...]) -> None:
    """Show the total lag of groups (default: all groups)."""

    async def main(reactor: Any) -> None:
        async with admin_client(settings, reactor) as admin:
            wanted = names or tuple(g.group_id for g in await admin.list_groups())
            found = await admin.describe_groups(wanted) if wanted else {}
            rows = []
            for name in sorted(found):
                rows.append(lag_row(found[name], await offset_rows(admin, found[name])))
        show(rows, ("group", "state", "members", "partitions", "lag", "max_lag"), settings.format)

    run(main)


@group.command(
    "delete",
    examples=("kclient group delete billing",),
)
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", type=GROUP)
@with_settings
def delete(settings: Settings, names: tuple[str, ...]) -> None:
    """Delete groups without members, and their offsets."""
    settings.confirm(f"Delete {', '.join(names)} and the offsets?")

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            answers = await admin.delete_groups(names, raise_errors=False)
        return print_answers(settings, answers, lambda name, _: f"Deleted group {name}.")

    run(main)


for _command in (watch, reset_offsets, seek, delete_offsets, export, import_):
    group.add_command(_command)
