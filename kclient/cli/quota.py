"""`kclient quota`: list, set and delete client quotas (the part of kafka-configs.sh about users and clients)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from kclient.cli.answers import print_answers
from kclient.cli.commands import with_settings
from kclient.cli.finite_range import FiniteRange
from kclient.cli.help import Group
from kclient.cli.output import show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client

if TYPE_CHECKING:
    from kclient.admin.quotas import QuotaEntity

_NAMES = (
    *("producer_byte_rate", "consumer_byte_rate"),
    *("request_percentage", "controller_mutation_rate"),
)
_METAVARS = {"producer_byte_rate": "BYTES", "consumer_byte_rate": "BYTES"}
_PARTS = (
    click.option("--user", help='The user: the name of the principal, without "User:".'),
    click.option("--user-default", is_flag=True, help="Users without a quota of their own."),
    click.option("--client-id", help="The client id."),
    click.option("--client-id-default", is_flag=True, help="Client ids without a quota."),
)
_HELP = {
    "producer_byte_rate": "Bytes a second of Produce requests, per broker.",
    "consumer_byte_rate": "Bytes a second of records fetched, per broker.",
    "request_percentage": "Time of work on requests, in percent of one core, per broker.",
    "controller_mutation_rate": "Partitions created or deleted a second.",
}


def _with_entity(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_PARTS):
        command = option(command)
    return command


def _entity(
    user: str | None, user_default: bool, client_id: str | None, client_id_default: bool
) -> QuotaEntity:
    from kclient.admin.quotas import DEFAULT_NAME, QuotaEntity

    for name, is_default, option in (
        (user, user_default, "--user"),
        (client_id, client_id_default, "--client-id"),
    ):
        if name is not None and is_default:
            raise click.UsageError(f"{option} and {option}-default exclude each other")
    return QuotaEntity(
        DEFAULT_NAME if user_default else user,
        DEFAULT_NAME if client_id_default else client_id,
    )


def _given(entity: QuotaEntity) -> QuotaEntity:
    if entity.user is None and entity.client_id is None:
        raise click.UsageError("name the clients: --user, --client-id, or their -default options")
    return entity


@click.group(cls=Group)
def quota() -> None:
    """Limit produce and fetch rates, request time and controller mutations of clients."""


@quota.command("list", examples=("kclient quota list", "kclient quota list --user alice"))
@_with_entity
@with_settings
def list_(settings: Settings, **parts: Any) -> None:
    """List the quotas, all or those of a user or client id."""
    matching = _entity(**parts)

    async def main(reactor: Any) -> None:
        async with admin_client(settings, reactor) as admin:
            found = await admin.describe_client_quotas(matching)
        rows = [
            {
                "user": _shown(entity.user),
                "client_id": _shown(entity.client_id),
                **{name: values.get(name) for name in _NAMES},
            }
            for entity, values in found.items()
        ]
        rows.sort(key=lambda row: (row["user"] or "", row["client_id"] or ""))
        show(rows, ("user", "client_id", *_NAMES), settings.format)

    run(main)


def _shown(name: Any) -> str | None:
    return name if name is None or isinstance(name, str) else str(name.value)


def _with_limits(command: Callable[..., Any]) -> Callable[..., Any]:
    for name in reversed(_NAMES):
        option = click.option(
            f"--{name.replace('_', '-')}",
            type=FiniteRange(0),
            metavar=_METAVARS.get(name, "NUMBER"),
            help=_HELP[name],
        )
        command = option(command)
    return command


@quota.command(
    "set",
    examples=(
        "kclient quota set --client-id backup --consumer-byte-rate 1000000",
        "kclient quota set --user-default --request-percentage 50",
    ),
)
@_with_entity
@_with_limits
@with_settings
def set_(
    settings: Settings,
    user: str | None,
    user_default: bool,
    client_id: str | None,
    client_id_default: bool,
    **limits: float | None,
) -> None:
    """Set quotas of a user, a client id, or both; other quotas stay."""
    entity = _given(_entity(user, user_default, client_id, client_id_default))
    values = {name: value for name, value in limits.items() if value is not None}
    if not values:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in _NAMES)
        raise click.UsageError(f"give at least one limit: {options}")

    shown = ", ".join(f"{name}={value:g}" for name, value in values.items())
    _alter(settings, entity, dict(values), f"Set {shown}")


@quota.command(
    "delete",
    examples=(
        "kclient quota delete --client-id backup",
        "kclient quota delete --user-default request_percentage",
    ),
)
@_with_entity
@click.argument("names", nargs=-1, type=click.Choice(_NAMES))
@with_settings
def delete(
    settings: Settings,
    user: str | None,
    user_default: bool,
    client_id: str | None,
    client_id_default: bool,
    names: tuple[str, ...],
) -> None:
    """Delete quotas of a user, a client id, or both: the named ones, or all."""
    entity = _given(_entity(user, user_default, client_id, client_id_default))
    removed = names or _NAMES

    _alter(settings, entity, dict.fromkeys(removed), f"Deleted {', '.join(removed)}")


def _alter(
    settings: Settings, entity: QuotaEntity, values: dict[str, float | None], done: str
) -> None:
    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            answers = await admin.alter_client_quotas({entity: values}, raise_errors=False)
        by_name = {str(each): answer for each, answer in answers.items()}
        return print_answers(settings, by_name, lambda name, _: f"{done} of {name}.")

    run(main)
