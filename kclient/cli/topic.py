"""`kclient topic`: create, list, describe, delete, change settings, add partitions, offsets, trim, analyze."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from kclient.cli.answers import print_answers
from kclient.cli.commands import with_settings
from kclient.cli.help import Group
from kclient.cli.names import TOPIC
from kclient.cli.output import show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client
from kclient.cli.topic_analyze import analyze
from kclient.cli.topic_copy import copy
from kclient.cli.topic_describe import describe
from kclient.cli.topic_offsets import offsets, trim_prefix


@click.group(cls=Group)
def topic() -> None:
    """Create, inspect, change and delete topics."""


def _pairs(texts: tuple[str, ...]) -> dict[str, str | None]:
    configs: dict[str, str | None] = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not given:
            raise click.UsageError(f"{text!r}: expected name=value")
        configs[name.strip()] = value
    return configs


def _assignment(text: str | None) -> dict[int, Sequence[int]] | None:
    """Parse Kafka's --replica-assignment: 1:2,2:3 (replicas by ':', partitions by ',')."""
    if text is None:
        return None
    try:
        return {
            number: [int(broker) for broker in replicas.split(":")]
            for number, replicas in enumerate(text.split(","))
        }
    except ValueError:
        raise click.UsageError(f"{text!r}: expected broker ids, as in 1:2,2:3") from None


@topic.command(
    "list",
    examples=(
        "kclient topic list",
        "kclient topic list --internal -J",
    ),
)
@click.option("-i", "--internal", is_flag=True, help="Include internal topics.")
@with_settings
def list_(settings: Settings, internal: bool) -> None:
    """List topics."""

    async def main(reactor: Any) -> None:
        async with admin_client(settings, reactor) as admin:
            found = await admin.describe_topics(internal=internal)
            rows = [
                {
                    "topic": name,
                    "partitions": len(each.partitions),
                    "replicas": max((len(p.replicas) for p in each.partitions.values()), default=0),
                    "internal": each.is_internal,
                }
                for name, each in sorted(found.items())
            ]
            show(rows, ("topic", "partitions", "replicas"), settings.format)

    run(main)


@topic.command(
    "create",
    examples=(
        "kclient topic create orders -p 6 -r 3",
        "kclient topic create audit -c cleanup.policy=compact -c min.insync.replicas=2",
    ),
)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-p",
    "--partitions",
    type=int,
    default=-1,
    metavar="N",
    help="Default: the broker's num.partitions.",
)
@click.option(
    "-r",
    "--replication-factor",
    "--replicas",
    "replicas",
    type=int,
    default=-1,
    metavar="N",
    help="Default: the broker's default.replication.factor.",
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the topics.",
)
@click.option(
    "--replica-assignment", "assignment", metavar="1:2,2:3", help="Replicas of each partition."
)
@click.option("--if-not-exists", is_flag=True, help="A topic that exists is no failure.")
@click.option("-d", "--dry-run", is_flag=True, help="Only validate at the broker; create nothing.")
@with_settings
def create(
    settings: Settings,
    names: tuple[str, ...],
    partitions: int,
    replicas: int,
    configs: tuple[str, ...],
    assignment: str | None,
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Create topics."""
    from kclient.types import NewTopic
    from kclient.wire.errors import TopicAlreadyExists

    wanted = [
        NewTopic(name, partitions, replicas, _pairs(configs), _assignment(assignment))
        for name in names
    ]

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            answers = await admin.create_topics(wanted, validate_only=dry_run, raise_errors=False)
        done = "Would create" if dry_run else "Created"
        return print_answers(
            settings,
            answers,
            lambda name, _: f"{done} topic {name}.",
            {TopicAlreadyExists: "Topic {name} exists already."} if if_not_exists else None,
        )

    run(main)


@topic.command(
    "delete",
    examples=(
        "kclient topic delete orders payments",
        "kclient topic delete orders --if-exists --yes",
    ),
)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", type=TOPIC)
@click.option("--if-exists", is_flag=True, help="A topic that does not exist is no failure.")
@with_settings
def delete(settings: Settings, names: tuple[str, ...], if_exists: bool) -> None:
    """Delete topics and all their records."""
    settings.confirm(f"Delete {', '.join(names)} and all records?")

    async def main(reactor: Any) -> int:
        from kclient.wire.errors import UnknownTopicOrPartition

        async with admin_client(settings, reactor) as admin:
            answers = await admin.delete_topics(names, raise_errors=False)
        return print_answers(
            settings,
            answers,
            lambda name, _: f"Deleted topic {name}.",
            {UnknownTopicOrPartition: "Topic {name} does not exist."} if if_exists else None,
        )

    run(main)


@topic.command(
    "alter-config",
    examples=(
        "kclient topic alter-config orders --set retention.ms=86400000",
        "kclient topic alter-config orders --delete retention.ms",
    ),
)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", type=TOPIC)
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="A new value of a setting."
)
@click.option(
    "--delete", "removed", multiple=True, metavar="NAME", help="A setting to return to its default."
)
@with_settings
def alter_config(
    settings: Settings, names: tuple[str, ...], changes: tuple[str, ...], removed: tuple[str, ...]
) -> None:
    """Change settings of topics."""
    if not changes and not removed:
        raise click.UsageError("nothing to change: give --set name=value or --delete name")
    wanted: dict[str, str | None] = {**_pairs(changes), **dict.fromkeys(removed)}

    async def main(reactor: Any) -> int:
        from kclient.admin.configs import ConfigResource, ResourceType

        async with admin_client(settings, reactor) as admin:
            answers = await admin.alter_configs(
                {ConfigResource(ResourceType.TOPIC, name): wanted for name in names},
                raise_errors=False,
            )
        by_name = {resource.name: answer for resource, answer in answers.items()}
        return print_answers(settings, by_name, lambda name, _: f"Changed topic {name}.")

    run(main)


@topic.command(
    "add-partitions",
    examples=("kclient topic add-partitions orders -n 12",),
)
@click.argument("name", metavar="TOPIC", type=TOPIC)
@click.option("-n", "--total", type=int, required=True, help="The new total number of partitions.")
@with_settings
def add_partitions(settings: Settings, name: str, total: int) -> None:
    """Increase the number of partitions. Keys will be distributed differently."""

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            answers = await admin.create_partitions({name: total}, raise_errors=False)
        return print_answers(
            settings, answers, lambda name, _: f"Topic {name} has {total} partitions."
        )

    run(main)


for _command in (analyze, copy, describe, offsets, trim_prefix):
    topic.add_command(_command)
