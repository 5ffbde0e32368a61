"""`kclient topic offsets|trim-prefix`: the offsets of logs, by time too; the deletion of their oldest records."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from kclient.cli.answers import code_for, good_answers
from kclient.cli.commands import with_settings
from kclient.cli.help import Command
from kclient.cli.names import TOPIC
from kclient.cli.offset_spec import Anchor, Bound, parse_offsets
from kclient.cli.output import show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client
from kclient.cli.time_spec import time_text
from kclient.cli.topic_spec import parse_topic
from kclient.types import TopicPartition

_NAMED = {
    "earliest": "earliest",
    "latest": "latest",
    "max-timestamp": "max_timestamp",
    "-1": "latest",
    "-2": "earliest",
    "-3": "max_timestamp",
}
"""Names of ListOffsets, and the numbers that kafka-get-offsets.sh has for them."""


@click.command(
    "offsets",
    cls=Command,
    examples=(
        "kclient topic offsets orders",
        "kclient topic offsets orders:0,1 --time -1h",
        "kclient topic offsets orders --time max-timestamp -J",
    ),
)
@click.argument("texts", nargs=-1, required=True, metavar="TOPIC[:P,P]...", type=TOPIC)
@click.option(
    "--time",
    "moment",
    metavar="TIME",
    help="The first offset at or after a time: ISO, 13-digit ms, 10-digit s, -1h; or earliest, latest, max-timestamp.",
)
@click.option(
    "--read-committed", is_flag=True, help="The latest offset is the last stable one (KIP-98)."
)
@with_settings
def offsets(
    settings: Settings, texts: tuple[str, ...], moment: str | None, read_committed: bool
) -> None:
    """Show the first and the next offset of each partition, or with --time the offset of a time.

    OFFSETS is the number between the two: records at most, because compaction and transactions leave gaps.
    """
    wanted = None if moment is None else parse_moment(moment, now_ms=int(time.time() * 1000))

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            places = await places_of(admin, texts)
            if wanted is None:
                return await _show_ends(settings, admin, places, read_committed=read_committed)
            found = await admin.list_offsets(
                dict.fromkeys(places, wanted), read_committed=read_committed, raise_errors=False
            )
        good = good_answers(found)
        rows = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "offset": at.offset if at.offset >= 0 else None,
                "timestamp": at.timestamp if at.timestamp >= 0 else None,
                "leader_epoch": at.leader_epoch,
            }
            for tp, at in sorted(good.items())
        ]
        if settings.is_text:
            rows = [
                {
                    **row,
                    "timestamp": "-" if row["timestamp"] is None else time_text(row["timestamp"]),
                }
                for row in rows
            ]
        show(rows, ("topic", "partition", "offset", "timestamp"), settings.format)
        return code_for(len(good), len(found))

    run(main)


async def _show_ends(
    settings: Settings, admin: Any, places: Sequence[TopicPartition], *, read_committed: bool
) -> int:
    # In this order no start is above its end.
    first = await admin.list_offsets(dict.fromkeys(places, "earliest"), raise_errors=False)
    good = good_answers(first)
    last = await admin.list_offsets(
        dict.fromkeys(good, "latest"), read_committed=read_committed, raise_errors=False
    )
    ends = good_answers(last)
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "earliest": good[tp].offset,
            "latest": end.offset,
            "offsets": end.offset - good[tp].offset,
        }
        for tp, end in sorted(ends.items())
    ]
    show(rows, ("topic", "partition", "earliest", "latest", "offsets"), settings.format)
    return code_for(len(ends), len(places))


def parse_moment(text: str, *, now_ms: int) -> int | str:
    """Return a time in ms since the epoch, or a name that `AdminClient.list_offsets` knows; raise UsageError."""
    if text in _NAMED:
        return _NAMED[text]
    try:
        spec = parse_offsets(f"@{text.removeprefix('@')}", now_ms=now_ms)
    except ValueError as problem:
        names = ", ".join(name for name in _NAMED if not name.startswith("-"))
        raise click.UsageError(f"--time: {problem}, or {names}") from None
    if spec.last is not None or spec.first.anchor is not Anchor.TIME:
        raise click.UsageError(f"--time {text}: expected one time")
    return spec.first.number


async def places_of(admin: Any, texts: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions that TOPIC[:P,P]... names; raise an error if one does not exist."""
    from kclient.admin.offset_resets import select_partitions

    try:
        wanted = [parse_topic(text) for text in texts]
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    found = await admin.describe_topics(sorted({name for name, _ in wanted}))
    known = {name: set(each.partitions) for name, each in found.items()}
    return sorted(select_partitions(wanted, known))


# --- trim-prefix


@click.command(
    "trim-prefix",
    cls=Command,
    examples=(
        "kclient topic trim-prefix orders:0 -o 4711",
        "kclient topic trim-prefix orders -o @-7d --dry-run",
    ),
)
@click.argument("texts", nargs=-1, required=True, metavar="TOPIC[:P,P]...", type=TOPIC)
@click.option(
    "-o",
    "--offset",
    "offset",
    required=True,
    help="Delete records below this offset: 47, -3 (before the end), end, @time or @-7d.",
)
@click.option("-d", "--dry-run", is_flag=True, help="Only show what would be deleted.")
@with_settings
def trim_prefix(settings: Settings, texts: tuple[str, ...], offset: str, dry_run: bool) -> None:
    """Delete the records below an offset or before a time (KIP-107). Consumers never see them again.

    OFFSETS is the number that is deleted. With end, records that are produced after the command began stay.
    """
    bound = parse_trim(offset, now_ms=int(time.time() * 1000))
    if not dry_run:
        settings.confirm(f"Delete the records of {', '.join(texts)} below {offset}?")

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            places = await places_of(admin, texts)
            starts = await admin.list_offsets(dict.fromkeys(places, "earliest"))
            ends = await admin.list_offsets(dict.fromkeys(places, "latest"))
            times: Mapping[TopicPartition, Any] = {}
            if bound.anchor is Anchor.TIME:
                times = await admin.list_offsets(dict.fromkeys(places, bound.number))
            before = {
                tp: trim_offset(
                    bound, starts[tp].offset, ends[tp].offset, times[tp].offset if times else -1
                )
                for tp in places
            }
            wanted = {tp: at for tp, at in before.items() if at > starts[tp].offset}
            answers = (
                await admin.delete_records(wanted, raise_errors=False)
                if wanted and not dry_run
                else {}
            )
        good = good_answers(answers)
        rows = []
        for tp in places:
            start = starts[tp].offset
            new = before[tp] if dry_run else good.get(tp, start)
            error = str(answers[tp]) if tp in answers and tp not in good else None
            rows.append(
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "log_start_offset": start,
                    "new_start_offset": new,
                    "log_end_offset": ends[tp].offset,
                    "offsets": max(0, new - start),
                    "deleted": not dry_run and new > start,
                    "error": error,
                }
            )
        columns = ("topic", "partition", "log_start_offset", "new_start_offset", "offsets")
        show(rows, columns, settings.format)
        if dry_run:
            settings.note("Dry run: no record was deleted.")
        return code_for(len(good), len(answers))

    run(main)


def parse_trim(text: str, *, now_ms: int) -> Bound:
    """Return the bound below which records are deleted; raise UsageError."""
    if re.fullmatch(r"\+\d+", text):
        raise click.UsageError(
            f"-o {text}: expected an offset as 47, a number before the end as -3, end, or @time"
        )
    try:
        spec = parse_offsets(text, now_ms=now_ms)
    except ValueError as problem:
        raise click.UsageError(f"-o: {problem}") from None
    if spec.last is not None:
        raise click.UsageError(f"-o {text}: expected one bound; the oldest records are deleted")
    if spec.first.anchor in (Anchor.START, Anchor.STORED):
        raise click.UsageError(f"-o {text}: no record is below it, or it is of a group")
    return spec.first


def trim_offset(bound: Bound, start: int, end: int, at_time: int) -> int:
    """Return the new log start offset of a log from *start* to before *end*.

    *at_time* is the first offset at or after the bound's time, -1 if all records are older. An offset above the end
    stays: the broker refuses it.
    """
    if bound.anchor is Anchor.OFFSET:
        return max(start, bound.number)
    if bound.anchor is Anchor.TIME:
        return max(start, end if at_time < 0 else min(at_time, end))
    return max(start, end + bound.number)
