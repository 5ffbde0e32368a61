"""`kclient cluster elect-leaders`: elects preferred leaders, or any live replica for leaderless partitions."""

from __future__ import annotations

from typing import Any

import click

from kclient.cli.answers import code_for
from kclient.cli.commands import with_settings
from kclient.cli.help import Command
from kclient.cli.names import TOPIC
from kclient.cli.output import show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client
from kclient.cli.topic_spec import parse_topic
from kclient.types import TopicPartition


@click.command(
    "elect-leaders",
    cls=Command,
    examples=(
        "kclient cluster elect-leaders",
        "kclient cluster elect-leaders --election-type unclean -t orders:0",
    ),
)
@click.option(
    "--election-type",
    type=click.Choice(["preferred", "unclean"]),
    default="preferred",
    show_default=True,
    help="preferred: the first replica of each partition; unclean: any live replica, for partitions without a leader.",
)
@click.option(
    "-t",
    "--topic",
    "texts",
    multiple=True,
    metavar="TOPIC[:P,P]",
    type=TOPIC,
    help="Only these partitions; default: all that need an election.",
)
@with_settings
def elect_leaders(settings: Settings, election_type: str, texts: tuple[str, ...]) -> None:
    """Elect leaders. An unclean leader may lack acknowledged records: they are lost."""
    try:
        chosen = [parse_topic(text) for text in texts]
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    if election_type == "unclean":
        where = ", ".join(texts) or "every partition without a leader"
        settings.confirm(f"Elect replicas that may lack acknowledged records, for {where}?")

    async def main(reactor: Any) -> int:
        from kclient.admin.elections import ElectionType
        from kclient.wire.errors import ElectionNotNeeded

        async with admin_client(settings, reactor) as admin:
            tps = None
            if chosen:
                known = await admin.describe_topics({name for name, _ in chosen})
                tps = [
                    TopicPartition(name, number)
                    for name, numbers in chosen
                    for number in (sorted(known[name].partitions) if numbers is None else numbers)
                ]
            answers = await admin.elect_leaders(
                ElectionType[election_type.upper()], tps, raise_errors=False
            )
        rows = []
        for tp, problem in sorted(answers.items()):
            needless = isinstance(problem, ElectionNotNeeded)
            result = "elected" if problem is None else "not_needed" if needless else "failed"
            rows.append(
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "result": result,
                    "error": None if problem is None or needless else str(problem),
                }
            )
        if settings.is_text:
            _print_result(settings, election_type, rows)
        else:
            show(rows, ("topic", "partition", "result", "error"), settings.format)
        return code_for(sum(row["result"] != "failed" for row in rows), len(rows))

    run(main)


def _print_result(settings: Settings, election_type: str, rows: list[dict[str, Any]]) -> None:
    """Print the lines of Kafka's own tool."""
    names: dict[str, list[str]] = {"elected": [], "not_needed": [], "failed": []}
    for row in rows:
        names[row["result"]].append(f"{row['topic']}-{row['partition']}")
    kind = election_type.upper()
    if names["elected"]:
        listed = ", ".join(names["elected"])
        click.echo(f"Successfully completed leader election ({kind}) for partitions {listed}")
    if names["not_needed"]:
        click.echo(f"Valid replica already elected for partitions {', '.join(names['not_needed'])}")
    if not rows:
        settings.note("No partition needed an election.")
    alike: dict[str, list[str]] = {}
    for row in rows:
        if row["result"] == "failed":
            name = f"{row['topic']}-{row['partition']}"
            alike.setdefault(str(row["error"]).replace(f"{name}: ", ""), []).append(name)
    for error, failed in alike.items():
        s = "" if len(failed) == 1 else "s"
        listed = ", ".join(failed)
        click.echo(
            f"Error completing leader election ({kind}) for partition{s}: {listed}: {error}",
            err=True,
        )
