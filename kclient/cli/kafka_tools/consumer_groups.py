"""kafka-consumer-groups: lists, describes, deletes groups of consumers; resets and deletes their offsets.

Errors of the cluster are printed and the exit code is 0, as in Kafka: scripts look at the text.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kclient.admin.offset_csv import OffsetCsvError, read_offsets, write_offsets
from kclient.admin.offset_resets import (
    LogOffsets,
    OffsetChange,
    ResetError,
    Scenario,
    Target,
    plan_reset,
)
from kclient.cli.kafka_tools import java_order
from kclient.cli.kafka_tools.java_errors import as_failed_future, described
from kclient.cli.kafka_tools.options import OPTIONAL, Given, Option, OptionError, not_honoured
from kclient.cli.kafka_tools.tool import (
    Failure,
    Tool,
    UsageError,
    admin_settings,
    forbid,
    one_action,
    require,
    run_admin,
)
from kclient.cli.kafka_tools.topics import NO_ZOOKEEPER
from kclient.cli.time_spec import parse_datetime, parse_duration
from kclient.errors import KafkaError
from kclient.types import TopicPartition

_ACTIONS = ("list", "describe", "delete", "reset-offsets", "delete-offsets")
_SCENARIOS = {
    "to-offset": Scenario.OFFSET,
    "to-current": Scenario.CURRENT,
    "to-datetime": Scenario.TIME,
    "from-file": Scenario.OFFSET,
    "by-duration": Scenario.TIME,
    "to-earliest": Scenario.EARLIEST,
    "to-latest": Scenario.LATEST,
    "shift-by": Scenario.SHIFT,
}
_STATES = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
)
_TYPES = ("Consumer", "Classic")
_CONSUMER_PROTOCOLS = ("consumer", "")

OPTIONS = (
    Option("bootstrap-server", "The brokers to connect to; required.", "server to connect to"),
    Option("command-config", "Properties file of the admin client.", "command config property file"),
    Option("group", "A group; with --delete and --reset-offsets it may be repeated.", "consumer group"),
    Option("topic", "A topic, or topic:0,1 for some of its partitions; may be repeated.", "topic"),
    Option("all-topics", "All topics with an offset of the group."),
    Option("list", "List the groups."),
    Option("describe", "Describe groups and their lag."),
    Option("all-groups", "All groups."),
    Option("delete", "Delete groups."),
    Option("timeout", "Timeout of the requests, in ms.", "timeout (ms)", int, 5000),
    Option("reset-offsets", "Reset the offsets of groups without members."),
    Option("delete-offsets", "Delete the offsets of topics in a group."),
    Option("dry-run", "Only show the result of a reset; the default."),
    Option("execute", "Reset the offsets."),
    Option("export", "Print the result of a reset as CSV."),
    Option("to-offset", "Reset to this offset.", "offset", int),
    Option("from-file", "Reset to the offsets of a CSV file.", "path to CSV file"),
    Option("to-datetime", "Reset to a time, YYYY-MM-DDTHH:mm:SS.sss.", "datetime"),
    Option("by-duration", "Reset to a time before now, PnDTnHnMnS.", "duration"),
    Option("to-earliest", "Reset to the start of the log."),
    Option("to-latest", "Reset to the end of the log."),
    Option("to-current", "Reset to the present offset."),
    Option("shift-by", "Reset by a number of offsets, which may be negative.", "number-of-offsets", int),
    Option("members", "Describe the members.", only_with=("describe",)),
    Option("verbose", "Describe the members with their partitions.", only_with=("describe",)),
    Option("offsets", "Describe offsets and lag; the default.", only_with=("describe",)),
    Option("state", "Describe or list the state; with --list only groups in these states.", "states",
           takes=OPTIONAL, only_with=("describe", "list")),
    Option("type", "List the type; only groups of these types.", "types", takes=OPTIONAL, only_with=("list",)),
    not_honoured("zookeeper", NO_ZOOKEEPER, kafka=False),
    not_honoured("new-consumer", "removed in Kafka 2.0: all groups are of this kind", takes="flag", kafka=False),
)  # fmt: skip


def main(given: Given) -> int | None:
    """Check the command line and run the action."""
    require(given, "bootstrap-server")
    _check(given)
    action = one_action(
        given,
        _ACTIONS,
        "Command must include exactly one action: --list, --describe, --delete, --reset-offsets, --delete-offsets",
    )
    try:
        timeout = given.value("timeout")
        settings = admin_settings(given)
    except (Failure, OptionError) as problem:
        return _failed(problem)
    settings["default.api.timeout.ms"] = timeout

    async def body(admin: Any) -> int:
        await _BODIES[action](admin, given)
        return 0

    return run_admin(TOOL.print_usage, settings, body, _failed)


def _failed(problem: BaseException) -> int:
    _error(f"Executing consumer group command failed due to {_reason(problem)}")
    return 0


def _reason(problem: BaseException) -> str:
    return as_failed_future(problem) if isinstance(problem, KafkaError) else str(problem)


def _error(text: str) -> None:
    print(f"\nError: {text}")


def _check(given: Given) -> None:
    has = given.has
    if has("describe"):
        if not has("group") and not has("all-groups"):
            raise UsageError(
                "Option [describe] takes one of these options: [reset-offsets], [describe], [delete], [list]"
            )
        if sum(map(has, ("members", "offsets", "state"))) > 1:
            raise UsageError(
                "Option [describe] takes at most one of these options: [members], [offsets], [state]"
            )
        if has("state") and given.values("state"):
            raise UsageError("Option [describe] does not take a value for [state]")
    groups = "takes one of these options: [all-groups], [group]"
    if has("delete"):
        if not has("group") and not has("all-groups"):
            raise UsageError(f"Option [delete] {groups}")
        if has("topic"):
            raise UsageError(
                "The consumer does not support topic-specific offset deletion from a consumer group."
            )
    if has("delete-offsets") and not (has("group") and has("topic")):
        raise UsageError(
            "Option [delete-offsets] takes the following options: [all-groups], [group]"
        )
    if has("reset-offsets"):
        _check_reset(given, groups)
    forbid(given, "group", "all-groups")
    forbid(given, "group", "list")
    forbid(given, "topic", "describe", "list")


def _check_reset(given: Given, groups: str) -> None:
    has = given.has
    if has("dry-run") and has("execute"):
        raise UsageError("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not has("dry-run") and not has("execute"):
        print(
            "WARN: No action will be performed as the --execute option is missing. The default of a later version may "
            "be a prompt: give --dry-run in scripts.",
            file=sys.stderr,
        )
    if not has("group") and not has("all-groups"):
        raise UsageError(f"Option [reset-offsets] {groups}")
    for name in _SCENARIOS:
        forbid(given, name, *(other for other in _SCENARIOS if other != name))


async def _names(admin: Any, given: Given) -> list[str]:
    """Return the groups of the command line."""
    if not given.has("all-groups"):
        return list(dict.fromkeys(given.values("group")))
    return [g.group_id for g in await _listed(admin)]


async def _listed(admin: Any, states: Iterable[str] = ()) -> list[Any]:
    found = await admin.list_groups(states=states)
    groups = {g.group_id: g for g in found if g.protocol_type in _CONSUMER_PROTOCOLS}
    return [groups[name] for name in java_order.strings(groups)]


# --- list, delete


async def _list(admin: Any, given: Given) -> None:
    with_type, with_state = given.has("type"), given.has("state")
    if not with_type and not with_state:
        for group in await _listed(admin):
            print(group.group_id)
        return
    states = _chosen("states", given.value("state"), _STATES, "state")
    types = _chosen("types", given.value("type"), _TYPES, "types")
    groups = await _listed(admin, states)
    rows = [
        (
            group.group_id,
            *([group.type.capitalize() or "Unknown"] if with_type else []),
            *([group.state or "Unknown"] if with_state else []),
        )
        for group in groups
        if not types or group.type.capitalize() in types
    ]
    width = max((max(15, len(row[0])) for row in rows), default=15) + 10
    heads = ("GROUP", *(["TYPE"] if with_type else []), *(["STATE"] if with_state else []))
    for row in [heads, *rows]:
        print(" ".join([row[0].ljust(width), *(cell.ljust(20) for cell in row[1:])]))


def _chosen(kind: str, text: str | None, valid: Sequence[str], what: str) -> list[str]:
    """Return the values in a list such as ``stable, empty``; raise UsageError for another one."""
    by_name = {name.lower(): name for name in valid}
    wanted = [part.strip().lower() for part in text.split(",")] if text else []
    if not set(wanted) <= by_name.keys():
        shown = text.lower() if kind == "types" and text else text
        raise UsageError(f"Invalid {what} list '{shown}'. Valid {kind} are: {', '.join(valid)}")
    return [by_name[each] for each in wanted]


async def _delete(admin: Any, given: Given) -> None:
    answers = await admin.delete_groups(await _names(admin, given), raise_errors=False)
    good = java_order.strings(g for g, answer in answers.items() if answer is None)
    bad = java_order.strings(g for g, answer in answers.items() if answer is not None)
    if not bad:
        print(f"Deletion of requested consumer groups ('{', '.join(good)}') was successful.")
        return
    _error("Deletion of some consumer groups failed:")
    for group in bad:
        print(f"* Group '{group}' could not be deleted due to: {as_failed_future(answers[group])}")
    if good:
        # The quotation marks are those of Kafka.
        listed = "'".join(good)
        print(f"\nThese consumer groups were deleted successfully: '{listed}', '")


# --- describe


async def _describe(admin: Any, given: Given) -> None:
    names = await _names(admin, given)
    found = await admin.describe_groups(names) if names else {}
    for name in sorted(found, key=lambda each: each.encode("utf-16-be")):
        group = found[name]
        if given.has("members"):
            _print_members(group, verbose=given.has("verbose"))
        elif given.has("state"):
            _print_state(admin, group)
        else:
            await _print_offsets(admin, group)


def _has_rows(group: Any, rows: int) -> bool:
    """Print what is to be known of the group's state; return whether there is a table."""
    if group.state == "Dead":
        _error(f"Consumer group '{group.group_id}' does not exist.")
        return False
    sys.stdout.flush()
    if group.state == "Empty":
        print(f"\nConsumer group '{group.group_id}' has no active members.", file=sys.stderr)
    elif group.state != "Stable":
        print(f"\nWarning: Consumer group '{group.group_id}' is rebalancing.", file=sys.stderr)
    return rows > 0


_Row = Sequence[object]


def _table(
    heads: _Row, rows: Sequence[_Row], widths: Sequence[int], least: Mapping[int, int]
) -> None:
    """Print a table behind an empty line; the columns of *least* are as wide as their cells, but at least that."""
    for n, width in least.items():
        cells = (len(str(row[n])) for row in rows)
        widths = [*widths[:n], max(width, *cells, 0), *widths[n + 1 :]]
    print()
    for row in [heads, *rows]:
        print(" ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)))


async def _print_offsets(admin: Any, group: Any) -> None:
    committed = await admin.list_group_offsets(group.group_id)
    members = sorted((m for m in group.members if m.assignment), key=lambda m: -len(m.assignment))
    assigned = {tp for member in members for tp in member.assignment}
    owners = [(m.assignment, (m.member_id, m.host, m.client_id)) for m in members]
    rest = java_order.partitions(tp for tp in committed if tp not in assigned)
    owners.append((rest, ("-", "-", "-")))
    ends = await _log_ends(admin, [tp for tps, _ in owners for tp in tps])
    rows = []
    for tps, owner in owners:
        for tp in java_order.partitions(sorted(tps, key=lambda each: each.partition)):
            at = committed[tp].offset if tp in committed else None
            lag = "-" if at is None or at == -1 else ends[tp] - at
            rows.append((group.group_id, *tp, "-" if at is None else at, ends[tp], lag, *owner))
    if _has_rows(group, len(rows)):
        heads = (
            "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST",
            "CLIENT-ID",
        )  # fmt: skip
        _table(heads, rows, (0, 0, 10, 15, 15, 15, 0, 0, 0), {0: 15, 1: 15, 6: 15, 7: 15})


async def _log_ends(admin: Any, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    found = await admin.list_offsets(dict.fromkeys(tps, "latest")) if tps else {}
    return {tp: each.offset for tp, each in found.items()}


def _print_members(group: Any, *, verbose: bool) -> None:
    is_shown = _has_rows(group, len(group.members))
    members = group.members if is_shown else ()
    with_instance = any(m.group_instance_id for m in members)
    rows = []
    for m in members:
        row = [group.group_id, m.member_id]
        row += [m.group_instance_id or ""] if with_instance else []
        row += [m.host, m.client_id, str(len(m.assignment))]
        rows.append([*row, _assignment(m.assignment) if verbose else ""])
    heads = ["GROUP", "CONSUMER-ID", *(["GROUP-INSTANCE-ID"] if with_instance else []), "HOST"]
    heads += ["CLIENT-ID", "#PARTITIONS", "ASSIGNMENT" if verbose else ""]
    least = [15, 15, *([17] if with_instance else []), 15, 15]
    _table(heads, rows, [*least, 15, 0], dict(enumerate(least)))


def _assignment(tps: Iterable[TopicPartition]) -> str:
    by_topic: dict[str, list[str]] = {}
    for tp in tps:
        by_topic.setdefault(tp.topic, []).append(str(tp.partition))
    parts = (f"{topic}({','.join(sorted(numbers))})" for topic, numbers in by_topic.items())
    return ", ".join(sorted(parts)) or "-"


def _print_state(admin: Any, group: Any) -> None:
    if not _has_rows(group, 1):
        return
    broker = admin.cluster.metadata.brokers.get(group.coordinator)
    where = f"{broker.host}:{broker.port}" if broker else ":-1"
    coordinator = f"{where}  ({group.coordinator})"
    heads = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
    row = (group.group_id, coordinator, group.protocol, group.state, len(group.members))
    _table(heads, [row], (max(25, len(coordinator)), 25, 20, 15, 0), {})


# --- reset-offsets


async def _reset(admin: Any, given: Given) -> None:
    names = await _names(admin, given)
    found = await admin.describe_groups(names) if names else {}
    planned: dict[str, dict[TopicPartition, int]] = {}
    for name in java_order.strings(found):
        if found[name].state not in ("Empty", "Dead"):
            _error(
                f"Assignments can only be reset if the group '{name}' is inactive, but the current state is "
                f"{found[name].state}."
            )
            planned[name] = {}
            continue
        reset = _Reset(admin, given, name)
        new = {change.tp: change.new for change in await reset.plan()}
        planned[name] = {tp: new[tp] for tp in java_order.partitions(reset.tps)}
        if given.has("execute") and new:
            await admin.alter_group_offsets(name, planned[name])
    if given.has("export"):
        print(_csv(planned, with_group=len(given.values("group")) != 1))
        return
    if planned:
        rows = [
            (g, *tp, offset) for g, of_group in planned.items() for tp, offset in of_group.items()
        ]
        _table(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows, (30, 30, 10, 15), {})


def _csv(planned: Mapping[str, Mapping[TopicPartition, int]], *, with_group: bool) -> str:
    return "".join(
        write_offsets({group: {tp: offset}}, with_group=with_group)
        for group, of_group in planned.items()
        for tp, offset in of_group.items()
    )


class _Reset:
    """The reset of one group: its partitions *tps*, and the plan of their offsets."""

    def __init__(self, admin: Any, given: Given, group: str) -> None:
        self._admin, self._given, self._group = admin, given, group
        self.tps: list[TopicPartition] = []

    async def plan(self) -> list[OffsetChange]:
        """Return the new offsets; raise UsageError, KafkaError or ValueError."""
        given = self._given
        chosen = [name for name in _SCENARIOS if given.has(name)]
        committed = {
            tp: each.offset
            for tp, each in (await self._admin.list_group_offsets(self._group)).items()
        }
        self.tps = await self._partitions(committed)
        if not chosen:
            scenarios = ", ".join(f"[{name}]" for name in _SCENARIOS)
            raise UsageError(
                f"Option '[reset-offsets]' requires one of the following scenarios: [{scenarios}]"
            )
        targets = self._targets(chosen[0])
        self.tps = list(targets)
        logs = await self._logs(targets)
        try:
            changes = plan_reset(self._group, targets, committed, logs)
        except ResetError:
            lacking = next(tp for tp in self.tps if tp not in committed)
            raise UsageError(
                f"Cannot shift offset for partition {lacking} since there is no current committed offset"
            ) from None
        for change in changes:
            if change.reason and targets[change.tp].scenario in (Scenario.OFFSET, Scenario.SHIFT):
                print(f"WARN {change.reason}", file=sys.stderr)
        return changes

    async def _partitions(self, committed: Iterable[TopicPartition]) -> list[TopicPartition]:
        given = self._given
        if given.has("all-topics"):
            return java_order.partitions(committed)
        if not given.has("topic"):
            if given.has("from-file"):
                return []
            raise UsageError("One of the reset scopes should be defined: --all-topics, --topic.")
        texts = given.values("topic")
        found = [tp for text in texts if ":" in text for tp in _partitions_of(text)]
        whole = [text for text in texts if ":" not in text]
        described_topics = await self._admin.describe_topics(whole) if whole else {}
        for topic in described_topics.values():
            found += [TopicPartition(topic.name, n) for n in sorted(topic.partitions)]
        return list(dict.fromkeys(found))

    def _targets(self, name: str) -> dict[TopicPartition, Target]:
        given, scenario = self._given, _SCENARIOS[name]
        if name == "from-file":
            return self._targets_of_file(given.value(name))
        number = 0
        if name == "to-datetime":
            number = _time_of(given.value(name))
        elif name == "by-duration":
            number = int(time.time() * 1000) - parse_duration(given.value(name))
        elif scenario in (Scenario.OFFSET, Scenario.SHIFT):
            number = given.value(name)
        return dict.fromkeys(self.tps, Target(scenario, number))

    def _targets_of_file(self, path: str) -> dict[TopicPartition, Target]:
        groups = self._given.values("group")
        try:
            offsets = read_offsets(
                Path(path).read_text(encoding="utf-8"),
                group=groups[0] if len(groups) == 1 else None,
            )
        except OSError:
            raise ValueError(f"java.io.IOException: Unable to read file {path}") from None
        except OffsetCsvError as problem:
            raise ValueError(f"{path}: {problem}") from None
        if self._group not in offsets:
            _error(f"No reset plan for group {self._group} found")
        of_group = offsets.get(self._group, {})
        return {tp: Target(Scenario.OFFSET, offset) for tp, offset in of_group.items()}

    async def _logs(
        self, targets: Mapping[TopicPartition, Target]
    ) -> dict[TopicPartition, LogOffsets]:
        if not targets:
            return {}
        starts = await self._admin.list_offsets(dict.fromkeys(targets, "earliest"))
        ends = await self._admin.list_offsets(dict.fromkeys(targets, "latest"))
        times = {tp: t.number for tp, t in targets.items() if t.scenario is Scenario.TIME}
        at_times = await self._admin.list_offsets(times) if times else {}
        for tp in java_order.partitions(times):
            if at_times[tp].offset < 0:
                print(
                    f"\nWarn: Partition {tp.partition} from topic {tp.topic} is empty. Falling back to latest known "
                    "offset."
                )
        return {
            tp: LogOffsets(
                starts[tp].offset,
                ends[tp].offset,
                at_times[tp].offset if tp in times and at_times[tp].offset >= 0 else None,
            )
            for tp in targets
        }


def _time_of(text: str) -> int:
    """Return a time as Kafka reads it: with a T, in UTC without a zone."""
    if "T" not in text:
        raise ValueError(
            "java.text.ParseException: Error parsing timestamp. It does not contain a 'T' according to ISO8601 format"
        )
    return parse_datetime(text)


def _partitions_of(text: str) -> list[TopicPartition]:
    """Return the partitions of ``topic:0,1``; raise UsageError."""
    topic, *others = text.split(":")
    if len(others) != 1 or not others[0]:
        raise UsageError(f"Invalid topic arg '{text}', expected topic name and partitions")
    numbers = others[0].split(",")
    for number in numbers:
        if not number.isdecimal():
            # The second quotation mark is Kafka's.
            raise UsageError(f"Invalid partition '{number}' specified in topic arg '{text}''")
    return [TopicPartition(topic, int(number)) for number in numbers]


# --- delete-offsets


async def _delete_offsets(admin: Any, given: Given) -> None:
    group, texts = given.value("group"), given.values("topic")
    outcome: dict[TopicPartition, KafkaError | None] = {}
    wanted = [tp for text in texts if ":" in text for tp in _partitions_of(text)]
    whole = [text for text in texts if ":" not in text]
    for name, topic in (
        await admin.describe_topics(whole, raise_errors=False) if whole else {}
    ).items():
        if isinstance(topic, KafkaError):
            outcome[TopicPartition(name, -1)] = topic
        else:
            wanted += [TopicPartition(name, n) for n in topic.partitions]
    try:
        outcome |= (
            await admin.delete_group_offsets(group, wanted, raise_errors=False) if wanted else {}
        )
    except KafkaError as problem:
        outcome |= dict.fromkeys(wanted, problem)
    failed = next((outcome[tp] for tp in wanted if outcome[tp] is not None), None)
    if failed is None:
        print(f"Request succeed for deleting offsets with topic {', '.join(texts)} group {group}")
    else:
        _error(_deletion_error(failed, group))
    rows = [
        (
            tp.topic,
            tp.partition if tp.partition >= 0 else "Not Provided",
            "Successful" if problem is None else f"Error: :{described(problem)}",
        )
        for tp, problem in sorted(outcome.items(), key=lambda each: f"{each[0][0]}{each[0][1]}")
    ]
    _table(("TOPIC", "PARTITION", "STATUS"), rows, (30, 15, 15), {})


def _deletion_error(problem: KafkaError, group: str) -> str:
    match problem.code.name:
        case "INVALID_GROUP_ID":
            return f"'{group}' is not valid."
        case "GROUP_ID_NOT_FOUND":
            return f"'{group}' does not exist."
        case "NON_EMPTY_GROUP":
            return f"Deleting offsets of a consumer group '{group}' is forbidden if the group is not empty."
        case (
            "GROUP_SUBSCRIBED_TO_TOPIC"
            | "TOPIC_AUTHORIZATION_FAILED"
            | "UNKNOWN_TOPIC_OR_PARTITION"
        ):
            return "Encounter some partition level error, see the follow-up details:"
        case name:
            return f"Encounter some unknown error: {name}"


_BODIES = {
    "list": _list,
    "describe": _describe,
    "delete": _delete,
    "reset-offsets": _reset,
    "delete-offsets": _delete_offsets,
}

TOOL = Tool(
    "kafka-consumer-groups",
    "This tool helps to list all consumer groups, describe a consumer group, delete consumer group info, or reset "
    "consumer group offsets.",
    OPTIONS,
    main,
    differs=(
        "Each row of --reset-offsets, --delete-offsets and --describe is a line, as in Kafka up to 3.7 and after 3.9. "
        "Kafka 3.9 prints the rows of the first two without line ends, and the last row of --describe, too.",
        "--members --verbose shows the topic before its partitions, as in Kafka up to 3.7.",
        "Offsets of a file are checked completely before the first one is committed.",
    ),
)
