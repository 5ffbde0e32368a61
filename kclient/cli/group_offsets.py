"""`kclient group reset-offsets|seek|delete-offsets|export|import`: committed offsets, as in kafka-consumer-groups.

Every group is planned before the first offset changes. A group that has members is refused; the other groups are
reset, as in Kafka, and the exit code is 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from kclient.admin.offset_csv import GroupOffsets, OffsetCsvError, read_offsets, write_offsets
from kclient.admin.offset_resets import (
    LogOffsets,
    OffsetChange,
    Scenario,
    Target,
    plan_reset,
    refusal,
    select_partitions,
)
from kclient.cli.answers import code_for, good_answers
from kclient.cli.commands import with_settings
from kclient.cli.exit_codes import FAILED
from kclient.cli.help import Command
from kclient.cli.named_path import NamedPath
from kclient.cli.names import GROUP, TOPIC
from kclient.cli.offset_spec import Anchor, parse_offsets
from kclient.cli.output import print_error, show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client
from kclient.cli.time_spec import parse_datetime, parse_duration, time_text
from kclient.cli.topic_spec import parse_topic
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError, UnknownMemberId, UnknownTopicOrPartition

F = TypeVar("F", bound=Callable[..., Any])
Topics = Sequence[tuple[str, tuple[int, ...] | None]]

_CONSUMER_PROTOCOLS = ("consumer", "")
"""Protocol types of groups of consumers; "" is a group with offsets that never had members."""

_SCENARIOS = {
    "to_earliest": Scenario.EARLIEST,
    "to_latest": Scenario.LATEST,
    "to_current": Scenario.CURRENT,
    "to_offset": Scenario.OFFSET,
    "shift_by": Scenario.SHIFT,
    "to_datetime": Scenario.TIME,
    "by_duration": Scenario.TIME,
}
_ANCHORS = {
    Anchor.START: Scenario.EARLIEST,
    Anchor.END: Scenario.LATEST,
    Anchor.STORED: Scenario.CURRENT,
    Anchor.OFFSET: Scenario.OFFSET,
    Anchor.TIME: Scenario.TIME,
}
"""The scenario of each bound of `consume -o`."""

_RESET_COLUMNS = ("group", "topic", "partition", "new_offset", "current_offset", "change")
"""The first four are those of Kafka's tool."""

_FILE = NamedPath(dir_okay=False, allow_dash=True)
_all_groups = click.option("--all-groups", is_flag=True, help="All groups of consumers.")


def _topic_option(*, required: bool) -> Callable[[F], F]:
    return click.option(
        "-t", "--topic", "texts", multiple=True, required=required, metavar="TOPIC[:P,P]", type=TOPIC,
        help="A topic, or some of its partitions; may be repeated.",
    )  # fmt: skip


def _run_options(command: F) -> F:
    for option in (
        click.option("--execute", is_flag=True, help="Change the offsets."),
        click.option("--dry-run", is_flag=True, help="Only show the result; the default."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class _Request:
    """What `reset-offsets` and `import` do; one of *target* and *offsets* is given.

    *groups* None: all. *topics* None: those with a committed offset of the group.
    """

    groups: tuple[str, ...] | None
    execute: bool
    target: Target | None = None
    topics: Topics | None = None
    offsets: GroupOffsets | None = None
    source: str = ""


# --- reset-offsets, import


_TO_HELP = "As consume -o: start, end, stored, 47, +2, -3, @time or @-1h."


@click.command(
    "reset-offsets",
    cls=Command,
    examples=(
        "kclient group reset-offsets billing -t orders:0,1 --to-datetime 2026-11-23T20:00:00",
        "kclient group reset-offsets billing --all-topics --to-earliest --execute",
    ),
)
@click.argument("names", nargs=-1, metavar="[GROUP...]", type=GROUP)
@_all_groups
@_topic_option(required=False)
@click.option("--all-topics", is_flag=True, help="All topics with a committed offset of the group.")
@click.option("--to-earliest", is_flag=True, help="The start of the log.")
@click.option("--to-latest", is_flag=True, help="The end of the log.")
@click.option(
    "--to-current", is_flag=True, help="The committed offset; without one the end of the log."
)
@click.option("--to-offset", type=int, metavar="N", help="This offset.")
@click.option("--shift-by", type=int, metavar="N", help="N after the committed offset; -N before.")
@click.option(
    "--to-datetime",
    metavar="ISO",
    help="The first record at or after 2026-11-23T20:00:00.000 (UTC, or with a zone: +01:00).",
)
@click.option(
    "--by-duration",
    metavar="PnDTnHnMnS",
    help="The first record of the last PnDTnHnMnS, as in P1D or PT2H30M.",
)
@click.option("--to", metavar="OFFSET", help=_TO_HELP)
@click.option(
    "--from-file", metavar="CSV", type=_FILE, help="The offsets of a file as of export; - is stdin."
)
@_run_options
@with_settings
def reset_offsets(
    settings: Settings,
    names: tuple[str, ...],
    all_groups: bool,
    texts: tuple[str, ...],
    all_topics: bool,
    from_file: str | None,
    dry_run: bool,
    execute: bool,
    **scenarios: Any,
) -> None:
    """Change the committed offsets of groups without members.

    Without --execute it only shows the result. An offset outside of the log is clipped to it. A group that does not
    exist is created. Offsets are committed without leader epoch and metadata.
    """
    groups = _selected_groups(names, all_groups)
    _check_run_options(dry_run, execute)
    topics = _parsed_topics(texts)
    given = {n: v for n, v in scenarios.items() if v is not None and v is not False}
    flags = [_flag(name) for name in given] + (["--from-file"] if from_file else [])
    if len(flags) != 1:
        choices = ", ".join([*map(_flag, _SCENARIOS), "--to", "--from-file"])
        found = " and ".join(flags) or "none"
        raise click.UsageError(f"give one of {choices}; found {found}")
    if from_file:
        if texts or all_topics:
            raise click.UsageError(
                "--from-file names its partitions: leave --topic and --all-topics out"
            )
        _run_import(settings, from_file, groups, execute)
    if bool(texts) == all_topics:
        raise click.UsageError("give either --topic or --all-topics")
    ((name, value),) = given.items()
    target = _target(name, value)
    _run_reset(settings, _Request(groups, execute, target, None if all_topics else topics))


@click.command(
    "seek",
    cls=Command,
    examples=(
        "kclient group seek billing --to @-1h",
        "kclient group seek billing --to start --topic orders --execute",
    ),
)
@click.argument("name", metavar="GROUP", type=GROUP)
@click.option("--to", "place", required=True, metavar="OFFSET", help=_TO_HELP)
@_topic_option(required=False)
@_run_options
@with_settings
def seek(
    settings: Settings, name: str, place: str, texts: tuple[str, ...], dry_run: bool, execute: bool
) -> None:
    """Change the committed offsets of a group: short for reset-offsets --to.

    Without --topic it is for all topics with a committed offset of the group, as with --all-topics.
    """
    _check_run_options(dry_run, execute)
    topics = _parsed_topics(texts) or None
    _run_reset(settings, _Request((name,), execute, _target("to", place), topics))


@click.command(
    "import",
    cls=Command,
    examples=(
        "kclient group import before.csv billing",
        "kclient group import before.csv --execute",
    ),
)
@click.argument("path", metavar="FILE", type=_FILE)
@click.argument("names", nargs=-1, metavar="[GROUP...]", type=GROUP)
@_run_options
@with_settings
def import_(
    settings: Settings, path: str, names: tuple[str, ...], dry_run: bool, execute: bool
) -> None:
    """Commit the offsets of a CSV file.

    The same as reset-offsets --from-file, for all groups of the file or only the named ones. Lines are
    group,topic,partition,offset, or topic,partition,offset with exactly one GROUP. - is stdin.
    """
    _check_run_options(dry_run, execute)
    _run_import(settings, path, tuple(dict.fromkeys(names)), execute, is_import=True)


def _run_import(
    settings: Settings,
    path: str,
    groups: tuple[str, ...] | None,
    execute: bool,
    *,
    is_import: bool = False,
) -> None:
    only = groups[0] if groups and len(groups) == 1 else None
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        offsets = read_offsets(data.decode(), group=only)
    except OSError as problem:
        raise click.UsageError(f"{path}: {problem.strerror}") from None
    except (OffsetCsvError, UnicodeDecodeError) as problem:
        raise click.UsageError(f"{path}: {problem}") from None
    if is_import and not groups:
        groups = tuple(sorted(offsets))
    _run_reset(settings, _Request(groups, execute, offsets=offsets, source=path))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _target(name: str, value: Any) -> Target:
    """Return the target of an option."""
    if name == "to":
        return _target_of(value)
    scenario = _SCENARIOS[name]
    try:
        if name == "to_datetime":
            return Target(scenario, max(0, parse_datetime(value)))
        if name == "by_duration":
            return Target(scenario, max(0, int(time.time() * 1000) - parse_duration(value)))
    except ValueError as problem:
        raise click.UsageError(f"{_flag(name)}: {problem}") from None
    return Target(scenario, value if scenario in (Scenario.OFFSET, Scenario.SHIFT) else 0)


def _target_of(text: str) -> Target:
    """Return the target of --to."""
    try:
        spec = parse_offsets(text, now_ms=int(time.time() * 1000))
    except ValueError as problem:
        raise click.UsageError(f"--to: {problem}") from None
    if spec.last is not None:
        raise click.UsageError(f"--to {text}: a reset has one offset, not a range")
    return Target(_ANCHORS[spec.first.anchor], spec.first.number)


def _selected_groups(names: tuple[str, ...], all_groups: bool) -> tuple[str, ...] | None:
    if bool(names) == all_groups:
        raise click.UsageError("give either GROUP... or --all-groups")
    return None if all_groups else tuple(dict.fromkeys(names))


def _check_run_options(dry_run: bool, execute: bool) -> None:
    if dry_run and execute:
        raise click.UsageError("give one of --dry-run and --execute")


def _parsed_topics(texts: Iterable[str]) -> Topics:
    try:
        return [parse_topic(text) for text in texts]
    except ValueError as problem:
        raise click.UsageError(f"--topic {problem}") from None


def _run_reset(settings: Settings, request: _Request) -> None:
    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            reset = _Reset(admin, request, settings.note)
            changes = await reset.plan()
            errors = await reset.commit(changes) if request.execute else {}
        _show_changes(settings, changes, errors, is_executed=request.execute)
        if request.execute and not reset.refused:
            return code_for(len(changes) - len(errors), len(changes))
        return FAILED if reset.refused or errors else 0

    run(main)


class _Reset:
    """One reset: what it reads from the cluster, and what it commits."""

    def __init__(self, admin: Any, request: _Request, note: Callable[[str], None]) -> None:
        self._admin = admin
        self._note = note
        self._request = request
        self._names: Sequence[str] = ()
        self.refused = False

    def _refuse(self, text: str) -> None:
        print_error(text)
        self.refused = True

    async def plan(self) -> list[OffsetChange]:
        """Return the changes of all groups that can be reset; the others are refused with a message."""
        committed = await self._committed()
        targets = await self._targets(committed)
        logs = await self._logs({tp for of_group in targets.values() for tp in of_group})
        if self._request.target is not None and self._request.target.scenario is Scenario.TIME:
            self._note(f"The time is {time_text(self._request.target.number)}.")
        return [
            change
            for group, of_group in sorted(targets.items())
            for change in plan_reset(group, of_group, committed[group], logs)
        ]

    async def _committed(self) -> dict[str, dict[TopicPartition, int]]:
        """Return the committed offsets of each group that may be reset."""
        self._names = await _names(self._admin, self._request.groups)
        committed = {}
        described = await self._admin.describe_groups(self._names) if self._names else {}
        for name, group in described.items():
            problem = refusal(name, group.state, (m.client_id for m in group.members))
            if problem:
                self._refuse(problem)
            else:
                committed[name] = await _committed_offsets(self._admin, name)
        return committed

    async def _targets(
        self, committed: Mapping[str, Mapping[TopicPartition, int]]
    ) -> dict[str, dict[TopicPartition, Target]]:
        offsets, topics, target = self._request.offsets, self._request.topics, self._request.target
        if offsets is not None:
            return await self._targets_of_file(committed, offsets)
        assert target is not None
        if topics is not None:
            known = await _known_partitions(self._admin, {name for name, _ in topics})
            partitions = select_partitions(topics, known)
            return {group: dict.fromkeys(partitions, target) for group in committed}
        known = await _known_partitions(
            self._admin, {tp.topic for of_group in committed.values() for tp in of_group}
        )
        found = {}
        for group, of_group in committed.items():
            if not of_group and self._request.groups is not None:
                self._refuse(f"group {group!r} has no committed offsets; name topics with --topic")
            exists = {tp for tp in of_group if tp.partition in known.get(tp.topic, ())}
            for tp in sorted(of_group.keys() - exists):
                self._note(f"group {group!r}: {tp} does not exist and is left out")
            found[group] = dict.fromkeys(exists, target)
        return found

    async def _targets_of_file(
        self, committed: Mapping[str, object], offsets: GroupOffsets
    ) -> dict[str, dict[TopicPartition, Target]]:
        others = sorted(offsets.keys() - set(self._names))
        if others:
            self._note(
                f"{self._request.source}: offsets of other groups are left out: {', '.join(others)}"
            )
        found = {}
        for group in committed:
            of_group = offsets.get(group, {})
            if not of_group and self._request.groups is not None:
                self._refuse(f"{self._request.source} has no offsets of group {group!r}")
            found[group] = {tp: Target(Scenario.OFFSET, n) for tp, n in of_group.items()}
        tps = {tp for of_group in found.values() for tp in of_group}
        known = await _known_partitions(self._admin, {tp.topic for tp in tps})
        select_partitions(((tp.topic, (tp.partition,)) for tp in sorted(tps)), known)
        return found

    async def _logs(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, LogOffsets]:
        """Look the logs up: starts first, so that no start is above its end."""
        places = sorted(tps)
        if not places:
            return {}
        starts = await self._admin.list_offsets(dict.fromkeys(places, "earliest"))
        ends = await self._admin.list_offsets(dict.fromkeys(places, "latest"))
        target, times = self._request.target, {}
        if target is not None and target.scenario is Scenario.TIME:
            times = await self._admin.list_offsets(dict.fromkeys(places, target.number))
        at_times = {tp: found.offset for tp, found in times.items() if found.offset >= 0}
        return {
            tp: LogOffsets(starts[tp].offset, ends[tp].offset, at_times.get(tp)) for tp in places
        }

    async def commit(
        self, changes: Iterable[OffsetChange]
    ) -> dict[tuple[str, TopicPartition], KafkaError]:
        """Commit the new offsets of each group; return the errors."""
        by_group: dict[str, dict[TopicPartition, int]] = {}
        for change in changes:
            by_group.setdefault(change.group, {})[change.tp] = change.new
        errors: dict[tuple[str, TopicPartition], KafkaError] = {}
        for group, offsets in by_group.items():
            try:
                answers = await self._admin.alter_group_offsets(group, offsets, raise_errors=False)
            except KafkaError as problem:
                answers = dict.fromkeys(offsets, problem)
            for tp, error in answers.items():
                if error is not None:
                    errors[group, tp] = _commit_error(group, error)
        return errors


def _commit_error(group: str, error: KafkaError) -> KafkaError:
    """Return *error*, with the next step if members joined after the plan: only they commit then."""
    if not isinstance(error, UnknownMemberId):
        return error
    return UnknownMemberId(
        f"group {group!r} has members again", hint="stop its consumers and repeat"
    )


def _show_changes(
    settings: Settings,
    changes: Sequence[OffsetChange],
    errors: Mapping[tuple[str, TopicPartition], KafkaError],
    *,
    is_executed: bool,
) -> None:
    good_answers(errors, lambda where: f"group {where[0]!r}, {where[1]} is not changed")
    rows = []
    for change in changes:
        error = errors.get((change.group, change.tp))
        if change.reason:
            settings.note(f"group {change.group!r}: {change.reason}")
        rows.append(
            {
                "group": change.group,
                "topic": change.tp.topic,
                "partition": change.tp.partition,
                "new_offset": change.new,
                "current_offset": change.current,
                "change": change.change,
                "log_start_offset": change.log.start,
                "log_end_offset": change.log.end,
                "reason": change.reason or None,
                "executed": is_executed and error is None,
                "error": None if error is None else str(error),
            }
        )
    show(rows, _RESET_COLUMNS, settings.format)
    if not is_executed:
        settings.note("Dry run: no offset was changed; repeat with --execute.")


# --- delete-offsets


@click.command(
    "delete-offsets",
    cls=Command,
    examples=("kclient group delete-offsets billing -t orders",),
)
@click.argument("name", metavar="GROUP", type=GROUP)
@_topic_option(required=True)
@with_settings
def delete_offsets(settings: Settings, name: str, texts: tuple[str, ...]) -> None:
    """Delete offsets of topics that no member subscribes to."""
    topics = _parsed_topics(texts)
    settings.confirm(f"Delete the offsets of group {name!r} in {', '.join(texts)}?")

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            committed = await _committed_offsets(admin, name)
            known = await _known_partitions(admin, {topic for topic, _ in topics})
            # A topic that was deleted may have offsets.
            for tp in committed:
                known.setdefault(tp.topic, set()).add(tp.partition)
            wanted = select_partitions(topics, known)
            answers = await admin.delete_group_offsets(name, wanted, raise_errors=False)
        rows = []
        reasons: dict[tuple[str, str], KafkaError] = {}
        for tp in wanted:
            error = answers[tp]
            if error is not None:
                reasons.setdefault((tp.topic, error.code.name), error)
            rows.append(
                {
                    "group": name,
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "offset": committed.get(tp),
                    "status": "deleted" if error is None else error.code.name,
                    "error": None if error is None else str(error),
                }
            )
        show(rows, ("group", "topic", "partition", "offset", "status"), settings.format)
        # One line for each topic and reason, not for each partition.
        good_answers(reasons, lambda where: where[0])
        return code_for(len(rows) - sum(row["error"] is not None for row in rows), len(rows))

    run(main)


# --- export


@click.command(
    "export",
    cls=Command,
    examples=(
        "kclient group export billing --file before.csv",
        "kclient group export --all-groups",
    ),
)
@click.argument("names", nargs=-1, metavar="[GROUP...]", type=GROUP)
@_all_groups
@click.option(
    "--file", "path", metavar="FILE", type=_FILE, help="The file to write; default: stdout."
)
@with_settings
def export(settings: Settings, names: tuple[str, ...], all_groups: bool, path: str | None) -> None:
    """Write committed offsets as CSV.

    import and Kafka's reset-offsets --from-file read it. Lines are topic,partition,offset for one GROUP, else
    group,topic,partition,offset. The groups may have members.
    """
    groups = _selected_groups(names, all_groups)
    if settings.format not in ("text", "csv"):
        raise click.UsageError(
            "export writes CSV; `kclient group describe -J` prints offsets as JSON"
        )

    async def main(reactor: Any) -> int:
        empty = 0
        async with admin_client(settings, reactor) as admin:
            offsets = {}
            for name in await _names(admin, groups):
                offsets[name] = await _committed_offsets(admin, name)
                if not offsets[name] and groups is not None:
                    print_error(f"group {name!r} has no committed offsets")
                    empty += 1
        text = write_offsets(offsets, with_group=groups is None or len(groups) > 1)
        if path is None or path == "-":
            click.echo(text, nl=False)
        else:
            Path(path).write_text(text, encoding="utf-8", newline="")
            settings.note(f"Wrote {sum(map(len, offsets.values()))} offsets to {path}.")
        return code_for(len(offsets) - empty, len(offsets))

    run(main)


# --- common lookups


async def _names(admin: Any, groups: tuple[str, ...] | None) -> Sequence[str]:
    """Return the named groups, or all groups of consumers."""
    if groups is not None:
        return groups
    listed = await admin.list_groups()
    return [g.group_id for g in listed if g.protocol_type in _CONSUMER_PROTOCOLS]


async def _committed_offsets(admin: Any, group: str) -> dict[TopicPartition, int]:
    return {tp: found.offset for tp, found in (await admin.list_group_offsets(group)).items()}


async def _known_partitions(admin: Any, topics: Iterable[str]) -> dict[str, set[int]]:
    """Return the partitions of each of *topics* that exists."""
    names = sorted(topics)
    found = await admin.describe_topics(names, raise_errors=False) if names else {}
    known = {}
    for name, topic in found.items():
        if isinstance(topic, UnknownTopicOrPartition):
            continue
        if isinstance(topic, KafkaError):
            raise topic
        known[name] = set(topic.partitions)
    return known
