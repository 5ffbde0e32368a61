"""`kclient group watch`: the lag of groups again and again, with the rates of consumption and production."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.exit_codes import FAILED
from kclient.cli.finite_range import FiniteRange
from kclient.cli.group_lag import lag_row, offset_rows
from kclient.cli.help import Command
from kclient.cli.names import GROUP
from kclient.cli.output import csv_lines, print_error, show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client
from kclient.cli.time_spec import time_text
from kclient.wire.errors import KafkaError

_COLUMNS = (
    *("group", "state", "members", "partitions", "lag", "max_lag"),
    *("consumed_per_s", "produced_per_s"),
)


@dataclass(frozen=True, slots=True)
class Look:
    """One group at one moment, *seconds* of a monotonic clock; offsets by topic and partition."""

    seconds: float
    committed: dict[tuple[str, int], int]
    ends: dict[tuple[str, int], int]


def look_at(rows: Sequence[dict[str, Any]], seconds: float) -> Look:
    """Return the offsets of a group's rows, as `group describe` has them."""
    committed, ends = {}, {}
    for row in rows:
        place = row["topic"], row["partition"]
        if row["current_offset"] is not None:
            committed[place] = row["current_offset"]
        if row["log_end_offset"] is not None:
            ends[place] = row["log_end_offset"]
    return Look(seconds, committed, ends)


def rates(before: Look | None, after: Look) -> tuple[float | None, float | None]:
    """Return the records consumed and produced per second between two looks; None if that is unknown.

    Only partitions of both looks count. A reset of offsets to earlier ones is a negative rate.
    """
    if before is None or after.seconds <= before.seconds:
        return None, None
    elapsed = after.seconds - before.seconds

    def rate(old: dict[tuple[str, int], int], new: dict[tuple[str, int], int]) -> float | None:
        both = old.keys() & new.keys()
        return round(sum(new[p] - old[p] for p in both) / elapsed, 1) if both else None

    return rate(before.committed, after.committed), rate(before.ends, after.ends)


@click.command(
    "watch",
    cls=Command,
    examples=(
        "kclient group watch billing",
        "kclient group watch billing --until-lag 0 --interval 1",
    ),
)
@click.argument("names", nargs=-1, metavar="[GROUP...]", type=GROUP)
@click.option(
    "-i",
    "--interval",
    type=FiniteRange(0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after N looks.")
@click.option(
    "--until-lag",
    type=click.IntRange(0),
    metavar="N",
    help="Stop when every group's lag is at most N; exit code 1 if -n comes first.",
)
@with_settings
def watch(
    settings: Settings,
    names: tuple[str, ...],
    interval: float,
    count: int | None,
    until_lag: int | None,
) -> None:
    """Show the lag of groups (default: all) every few seconds, until Ctrl-C.

    CONSUMED-PER-S is of committed offsets, so it is 0 between two commits.
    """

    async def main(reactor: Any) -> int:
        from kclient.net.waiting import sleep

        looks: dict[str, Look] = {}
        missing: set[str] = set()
        done = 0
        async with admin_client(settings, reactor) as admin:
            while True:
                rows = []
                try:
                    wanted = names or tuple(g.group_id for g in await admin.list_groups())
                    found = await admin.describe_groups(wanted) if wanted else {}
                    for name in sorted(found):
                        if found[name].state != "Dead":
                            missing.discard(name)
                        elif name not in missing:
                            missing.add(name)
                            settings.note(f"group {name!r} does not exist; Ctrl-C ends the wait")
                        offsets = await offset_rows(admin, found[name])
                        look = look_at(offsets, reactor.seconds())
                        consumed, produced = rates(looks.get(name), look)
                        looks[name] = look
                        row = lag_row(found[name], offsets)
                        rows.append({**row, "consumed_per_s": consumed, "produced_per_s": produced})
                except KafkaError as problem:
                    if not done:
                        raise
                    # A broker that fails is why some watch; the next look can succeed.
                    print_error(problem)
                else:
                    _show(settings, rows, is_first=not done)
                    done += 1
                    if until_lag is not None and is_below(rows, until_lag):
                        return 0
                if count is not None and done >= count:
                    return 0 if until_lag is None else FAILED
                await sleep(reactor, interval)

    run(main)


def is_below(rows: Sequence[dict[str, Any]], lag: int) -> bool:
    """Return whether there are groups, and each has a known lag of at most *lag*."""
    return bool(rows) and all(row["lag"] is not None and row["lag"] <= lag for row in rows)


def _show(settings: Settings, rows: Sequence[dict[str, Any]], *, is_first: bool) -> None:
    now_ms = int(time.time() * 1000)
    if settings.is_text:
        if not is_first:
            click.echo()
        click.echo(time_text(now_ms))
        show(rows, _COLUMNS, settings.format)
        return
    stamped = [{"time": now_ms, **row} for row in rows]
    if settings.format == "csv":
        columns = ("time", *_COLUMNS)
        cells = [[row.get(name) for name in columns] for row in stamped]
        click.echo(csv_lines([columns, *cells] if is_first else cells), nl=False)
    elif settings.format == "yaml":
        click.echo("---")
        show(stamped, (), "yaml")
    else:
        # A stream has no end, so both formats of JSON are lines.
        show(stamped, (), "jsonl")
