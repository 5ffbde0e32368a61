"""`kclient reassign`: moves partitions to other brokers, with the files and messages of Kafka's tool."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kclient.admin import reassignment_plan as plans
from kclient.admin.assignment import Racks
from kclient.cli.commands import with_settings
from kclient.cli.exit_codes import FAILED, UNHEALTHY
from kclient.cli.help import Group
from kclient.cli.named_path import NamedPath
from kclient.cli.names import TOPIC
from kclient.cli.output import show
from kclient.cli.reassign_log_dirs import progress_of_moves, start_moves, throttle_copies
from kclient.cli.reassign_progress import copied_bytes, progress_line
from kclient.cli.reassign_throttles import throttle_moves, unthrottle
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client
from kclient.types import TopicPartition

T = TypeVar("T")

EXISTING = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and create a "
    "new partition assignment in addition to the existing one. The --additional flag can also be used to change the "
    "throttle by resubmitting the current reassignment."
)
VERIFY_LATER = (
    "Warning: You must run verify periodically, until the reassignment completes, "
    "to ensure the throttle is removed."
)

_FILE = NamedPath(dir_okay=False, allow_dash=True)
_plan_file = click.option(
    "-f",
    "--reassignment-json-file",
    "path",
    required=True,
    metavar="FILE",
    type=_FILE,
    help="Partitions and their replicas, as `generate` proposes them; - is standard input.",
)
_preserve = click.option(
    "--preserve-throttles", "preserve", is_flag=True, help="Do not change throttles."
)


@click.group(cls=Group)
def reassign() -> None:
    """Move partitions to other brokers: generate a plan, execute it, verify it until it is complete."""


def _read(path: str, parse: Callable[[str], T]) -> T:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return parse(text)
    except (OSError, UnicodeDecodeError) as problem:
        raise click.UsageError(f"{path}: {problem}") from None
    except plans.PlanError as problem:
        raise click.UsageError(f"{path}: {problem}") from None


def _plan_and_log_dirs(
    text: str,
) -> tuple[dict[TopicPartition, tuple[int, ...]], dict[int, dict[TopicPartition, str]]]:
    return plans.read_plan(text), plans.read_log_dirs(text)


async def _assignments(admin: Any, topics: set[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the replicas of every partition of *topics*; empty for one that does not exist."""
    from kclient.wire.errors import KafkaError, UnknownTopicOrPartition

    found = await admin.describe_topics(sorted(topics), raise_errors=False)
    current = {}
    for topic in found.values():
        if isinstance(topic, UnknownTopicOrPartition):
            continue
        if isinstance(topic, KafkaError):
            raise topic
        current.update(
            {TopicPartition(topic.name, n): p.replicas for n, p in topic.partitions.items()}
        )
    return current


# --- generate


def _ids(text: str) -> list[int]:
    try:
        brokers = [int(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"{text!r}: expected broker ids, as in 1,2,3") from None
    if len(set(brokers)) < len(brokers):
        raise click.UsageError(f"{text!r} has a duplicate broker id")
    return brokers


@reassign.command(
    "generate",
    examples=("kclient reassign generate -t orders --broker-list 4,5,6",),
)
@click.option(
    "--topics-to-move-json-file",
    "path",
    metavar="FILE",
    type=_FILE,
    help='{"version":1,"topics":[{"topic":"t"}]}',
)
@click.option(
    "-t", "--topic", "topics", multiple=True, type=TOPIC, help="A topic to move, instead of a file."
)
@click.option("--broker-list", "broker_list", metavar="1,2,3", help="Target brokers; default: all.")
@click.option("--disable-rack-aware", is_flag=True, help="Ignore the brokers' racks.")
@click.option(
    "-r", "--replication-factor", "factor", type=click.IntRange(1), help="Default: unchanged."
)
@with_settings
def generate(
    settings: Settings,
    path: str | None,
    topics: tuple[str, ...],
    broker_list: str | None,
    disable_rack_aware: bool,
    factor: int | None,
) -> None:
    """Propose an even assignment of topics to brokers; nothing is moved.

    Prints the current assignment, for a rollback, and the proposed one, for `execute`.
    """
    if bool(path) == bool(topics):
        raise click.UsageError("give either --topics-to-move-json-file or --topic")
    names = _read(path, plans.read_topics) if path else list(dict.fromkeys(topics))
    chosen = _ids(broker_list) if broker_list else None

    async def main(reactor: Any) -> None:
        from kclient.wire.errors import UnknownTopicOrPartition

        async with admin_client(settings, reactor) as admin:
            current = await _assignments(admin, set(names))
            live = admin.cluster.metadata.brokers
        missing = sorted(set(names) - {tp.topic for tp in current})
        if missing:
            raise UnknownTopicOrPartition(f"topic {', '.join(missing)} not found")
        brokers = chosen or sorted(live)
        plans.check_plan({TopicPartition("", 0): brokers}, {TopicPartition("", 0): ()}, live)
        racks = {n: live[n].rack for n in brokers if live[n].rack}
        if racks and len(racks) < len(brokers) and not disable_rack_aware:
            raise ValueError(
                "not all brokers have rack information; --disable-rack-aware ignores racks"
            )
        _show_proposal(
            settings, current, _proposal(current, brokers, racks, disable_rack_aware, factor)
        )

    run(main)


def _proposal(
    current: plans.Plan, brokers: list[int], racks: Racks, disable_racks: bool, factor: int | None
) -> plans.Plan:
    return plans.propose(
        current,
        brokers,
        {} if disable_racks else racks,
        start_index=random.randrange(len(brokers)),
        replication_factor=factor,
    )


def _show_proposal(settings: Settings, current: plans.Plan, proposed: plans.Plan) -> None:
    if settings.format == "csv":
        rows = [
            {**_of(tp), "replicas": list(current[tp]), "target_replicas": list(replicas)}
            for tp, replicas in sorted(proposed.items())
        ]
        show(rows, ("topic", "partition", "replicas", "target_replicas"), settings.format)
        return
    now, then = plans.plan_as_json(current), plans.plan_as_json(proposed)
    if not settings.is_text:
        show(
            [{"current": json.loads(now), "proposed": json.loads(then)}],
            ("current", "proposed"),
            settings.format,
        )
        return
    click.echo(f"Current partition replica assignment\n{now}\n")
    click.echo(f"Proposed partition reassignment configuration\n{then}")


# --- execute


@reassign.command(
    "execute",
    examples=(
        "kclient reassign execute -f plan.json --dry-run",
        "kclient reassign execute -f plan.json --throttle 50000000",
    ),
)
@_plan_file
@click.option(
    "--throttle", type=click.IntRange(1), metavar="BYTES", help="Bytes per second between brokers."
)
@click.option(
    "--replica-alter-log-dirs-throttle",
    "copy_throttle",
    type=click.IntRange(1),
    metavar="BYTES",
    help="Bytes per second that a broker copies between its log directories.",
)
@click.option(
    "--additional", is_flag=True, help="Add to active reassignments, or change the throttle."
)
@click.option("-d", "--dry-run", is_flag=True, help="Check the plan, change nothing.")
@with_settings
def execute(
    settings: Settings,
    path: str,
    throttle: int | None,
    copy_throttle: int | None,
    additional: bool,
    dry_run: bool,
) -> None:
    """Start to move partitions, and replicas to the log directories of the plan.

    The whole plan is checked before anything is changed.
    """
    (plan, log_dirs), report = _read(path, _plan_and_log_dirs), _message_printer(settings)
    if copy_throttle is not None and not log_dirs:
        raise click.UsageError(
            f"--replica-alter-log-dirs-throttle limits moves between log directories: {path} has no log_dirs but 'any'"
        )

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            under_way = await admin.list_partition_reassignments()
            if under_way and not additional:
                raise ValueError(EXISTING)
            current = await _assignments(admin, {tp.topic for tp in plan})
            live = admin.cluster.metadata.brokers
            plans.check_plan(plan, current, live)
            rollback = plans.plan_as_json({tp: current[tp] for tp in plan})
            report(
                f"Current partition replica assignment\n\n{rollback}\n\n"
                "Save this to use as the --reassignment-json-file option during rollback"
            )
            answers = {}
            if dry_run:
                settings.note(f"Nothing was changed: {len(plan)} partitions would be reassigned.")
            else:
                if throttle is not None or copy_throttle is not None:
                    report(VERIFY_LATER)
                if throttle is not None:
                    throttles = plans.throttles_of(plan, current, under_way)
                    await throttle_moves(admin, throttles, throttle, report)
                answers = await admin.alter_partition_reassignments(plan, raise_errors=False)
                if log_dirs and not any(answers.values()):
                    if copy_throttle is not None:
                        await throttle_copies(admin, log_dirs, copy_throttle, report)
                    await start_moves(reactor, admin, log_dirs, report)
        if not settings.is_text:
            rows = _rows(answers)
            row = {"current": json.loads(rollback), "partitions": rows}
            csv = settings.format == "csv"
            show(rows if csv else [row], ("topic", "partition", "error"), settings.format)
        return _report_results(
            answers,
            "Error reassigning partition(s):",
            lambda names, s: report(f"Successfully started partition reassignment{s} for {names}"),
        )

    run(main)


def _message_printer(settings: Settings) -> Callable[[str], None]:
    """Return the function that prints a line of Kafka's tool: to stderr if stdout holds rows."""
    return click.echo if settings.is_text else settings.note


def _of(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}


def _rows(answers: dict[TopicPartition, Any]) -> list[dict[str, Any]]:
    return [
        {**_of(tp), "error": None if problem is None else str(problem)}
        for tp, problem in sorted(answers.items())
    ]


def _report_results(
    answers: dict[TopicPartition, Any], failed: str, succeeded: Callable[[str, str], None]
) -> int:
    """Print the result of each partition; return the exit code."""
    problems = {tp: answer for tp, answer in sorted(answers.items()) if answer is not None}
    good = [str(tp) for tp in sorted(answers) if answers[tp] is None]
    if good:
        succeeded(",".join(good), "" if len(good) == 1 else "s")
    if problems:
        click.echo(
            "\n".join([failed, *(f"{tp}: {problem}" for tp, problem in problems.items())]), err=True
        )
    return FAILED if problems else 0


# --- verify, cancel, list


@reassign.command(
    "verify",
    examples=("kclient reassign verify -f plan.json",),
)
@_plan_file
@_preserve
@with_settings
def verify(settings: Settings, path: str, preserve: bool) -> None:
    """Show the progress of a plan; remove its throttles when no reassignment is active any more.

    Exit code 4 until the replicas are as planned, and in the log directories of the plan.
    """
    (plan, log_dirs), report = _read(path, _plan_and_log_dirs), _message_printer(settings)

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            under_way = await admin.list_partition_reassignments()
            current = await _assignments(admin, {tp.topic for tp in plan})
            progress = plans.progress_of(plan, current, under_way)
            moving = {each.tp: under_way[each.tp] for each in progress if each.under_way}
            copied = await copied_bytes(admin, moving) if moving else {}
            moves = await progress_of_moves(admin, log_dirs)
            if settings.is_text:
                click.echo("Status of partition reassignment:")
                for each in progress:
                    click.echo(str(each))
                for move in moves:
                    click.echo(str(move))
                click.echo("")
            else:
                rows = [
                    {
                        **_of(each.tp),
                        "state": _state(each),
                        "replicas": list(each.replicas),
                        "target_replicas": list(each.wanted),
                        "bytes_copied": copied[each.tp].done if each.tp in copied else None,
                        "bytes_to_copy": copied[each.tp].total if each.tp in copied else None,
                        "log_dirs": {
                            str(move.broker): {
                                "current": move.current,
                                "future": move.future,
                                "target": move.wanted,
                            }
                            for move in moves
                            if move.tp == each.tp
                        },
                    }
                    for each in progress
                ]
                show(
                    rows,
                    ("topic", "partition", "state", "replicas", "target_replicas"),
                    settings.format,
                )
            if moving:
                settings.note(progress_line(copied))
            if not under_way and not preserve and not any(move.is_active for move in moves):
                await unthrottle(admin, {tp.topic for tp in current}, report)
        is_done = all(each.is_done for each in progress) and all(move.is_done for move in moves)
        return 0 if is_done else UNHEALTHY

    run(main)


def _state(each: plans.Progress) -> str:
    if each.under_way:
        return "in_progress"
    return "completed" if each.is_done else "not_active"


@reassign.command(
    "cancel",
    examples=("kclient reassign cancel -f plan.json",),
)
@_plan_file
@_preserve
@with_settings
def cancel(settings: Settings, path: str, preserve: bool) -> None:
    """Cancel the active reassignments of a plan; the replicas are as before."""
    plan, report = _read(path, plans.read_plan), _message_printer(settings)

    async def main(reactor: Any) -> int:
        failed, answers = 0, {}
        async with admin_client(settings, reactor) as admin:
            active = await admin.list_partition_reassignments(list(plan))
            if active:
                answers = await admin.alter_partition_reassignments(
                    dict.fromkeys(active), raise_errors=False
                )
                failed = _report_results(
                    answers,
                    "Error cancelling partition reassignment(s):",
                    lambda names, s: report(
                        f"Successfully cancelled partition reassignment{s} for: {names}"
                    ),
                )
            else:
                report("None of the specified partition reassignments are active.")
            if not preserve:
                current = await _assignments(admin, {tp.topic for tp in plan})
                await unthrottle(admin, {tp.topic for tp in current}, report)
        if not settings.is_text:
            show(_rows(answers), ("topic", "partition", "error"), settings.format)
        return failed

    run(main)


@reassign.command(
    "list",
    examples=("kclient reassign list",),
)
@with_settings
def list_(settings: Settings) -> None:
    """List the active reassignments."""

    async def main(reactor: Any) -> None:
        async with admin_client(settings, reactor) as admin:
            found = await admin.list_partition_reassignments()
        rows = [
            {
                **_of(tp),
                "replicas": list(each.replicas),
                "adding_replicas": list(each.adding),
                "removing_replicas": list(each.removing),
            }
            for tp, each in sorted(found.items())
        ]
        if not settings.is_text:
            columns = ("topic", "partition", "replicas", "adding_replicas", "removing_replicas")
            show(rows, columns, settings.format)
            return
        if not found:
            click.echo("No partition reassignments found.")
            return
        click.echo("Current partition reassignments:")
        for tp, each in sorted(found.items()):
            parts = [f"{tp}: replicas: {_listed(each.replicas)}."]
            parts += [f"adding: {_listed(each.adding)}."] if each.adding else []
            parts += [f"removing: {_listed(each.removing)}."] if each.removing else []
            click.echo(" ".join(parts))

    run(main)


def _listed(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))
