"""``kmirror status`` and ``kmirror plan``: read both clusters, change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from kclient.errors import KafkaError
from kclient.net.waiting import sleep
from kclient.types import TopicPartition
from mirrormaker.catalog import Applied
from mirrormaker.config import FlowConfig, MirrorConfig
from mirrormaker.health import Finding, Health, exit_code, judge, problem_of
from mirrormaker.link_state import GapPolicy, LogEnds, Problem
from mirrormaker.mirror import Mirror
from mirrormaker.progress import count
from mirrormaker.topics import Plan
from mirrormaker.workers import assign, group_of, partitions_of

if TYPE_CHECKING:
    from mirrormaker.worker_registry import WorkerStatus

REFUSED = 1
UNREACHABLE = 3
BLOCKED = 5

WORKERS_TIMEOUT = 10.0
"""Seconds that ZooKeeper may take to answer."""

MOST_NAMED = 8
"""Partitions of a worker that its line names; it counts the others."""

Echo = Callable[[str], None]
Ends = Mapping[TopicPartition, LogEnds | KafkaError]


async def show_status(
    reactor: Any, config: MirrorConfig, echo: Echo, *, max_lag: int | None, settle: float
) -> int:
    """Print the state of every partition; return the exit code of the worst (`mirrormaker.health`).

    1: a direction is refused, whatever is found of the others.
    """
    found: Counter[Health] = Counter()
    refused = 0
    for flow in config.flows:
        try:
            async with planned_mirror(reactor, flow) as (mirror, plan):
                limit = flow.settings.alarm_lag or None if max_lag is None else max_lag
                found += await _show_one(mirror, plan, echo, limit, settle)
        except KafkaError as problem:  # the other flows are shown nevertheless
            echo(f"{flow.name}: {problem}")
            if problem.retriable:
                found[Health.UNREADABLE] += 1
            else:
                refused += 1
    code = REFUSED if refused else exit_code(found)
    states = ", ".join(f"{found[health]} {health.value}" for health in Health if found[health])
    if refused:
        states = f"{refused} directions cannot be used" + (f", {states}" if states else "")
    echo(f"status: {states or 'nothing to mirror'}; exit code {code}")
    return code


@asynccontextmanager
async def planned_mirror(reactor: Any, flow: FlowConfig) -> AsyncIterator[tuple[Mirror, Plan]]:
    """Connect to both clusters of *flow*; yield its mirror, which copies nothing, and the plan of a run."""
    mirror = Mirror(reactor, flow, once=False, report=lambda _about, _what: None)
    try:
        await mirror.open()
        yield mirror, await mirror.topics.plan()
    finally:
        await mirror.stop()


async def _show_one(
    mirror: Mirror, plan: Plan, echo: Echo, max_lag: int | None, settle: float
) -> Counter[Health]:
    metadata = mirror.target.metadata
    pairs, missing = {}, []
    for name, copy in plan.mirrored.items():
        present = metadata.topics[copy].partitions if copy in metadata.topics else {}
        for number in range(mirror.topics.compared[name].partitions):
            tp = TopicPartition(name, number)
            if number in present:
                pairs[tp] = TopicPartition(copy, number)
            else:
                missing.append(tp)
    first = await mirror.offsets.read_ends(pairs)
    again = {tp: pairs[tp] for tp, ends in first.items() if not _is_quiet(mirror, plan, tp, ends)}
    last = dict(first)
    if again:
        await sleep(mirror.source.reactor, settle)
        last |= await mirror.offsets.read_ends(again)
    echo(f"{mirror.config.name}  ({mirror.config.settings.guarantee})")
    echo(f"  {'partition':<40} {'source end':>14} {'target end':>14} {'lag':>12}  state")
    found: Counter[Health] = Counter()
    for tp in pairs:
        ends = last[tp]
        finding = _finding(mirror, plan, tp, first[tp], ends, max_lag)
        found[finding.health] += 1
        echo(f"  {tp!s:<40} {_numbers(ends)}  {finding.health.value}{_because(finding)}")
    for tp in missing:
        found[Health.MISSING] += 1
        echo(f"  {tp!s:<40} {_numbers(None)}  {Health.MISSING.value}")
    await _show_workers(mirror, plan, echo)
    for name, finding in topics_left_alone(plan):
        found[finding.health] += 1
        echo(f"  {name:<40} {_numbers(None)}  {finding.health.value}{_because(finding)}")
    for name, difference in plan.drift.items():
        echo(f"  drift {name}: {difference}")
    for name, topic_id in plan.orphans.items():
        echo(f"  drift {name}: its source topic ({topic_id}) was deleted; kmirror run deletes it")
    for name, changes in plan.set_configs.items():
        echo(f"  drift {name}: {', '.join(changes)} not as at the source yet")
    return found


def topics_left_alone(plan: Plan) -> Iterator[tuple[str, Finding]]:
    """Yield the topics of *plan* that are not copied: conflicts, and those that need no copy."""
    for name, conflict in plan.conflicts.items():
        yield name, Finding(Health.STOPPED, conflict)
    for name, reason in plan.skipped.items():
        why = f"{reason}; a loop or a second copy is prevented, exit code 0"
        yield name, Finding(Health.SKIPPED, why)


async def _show_workers(mirror: Mirror, plan: Plan, echo: Echo) -> None:
    """Print the registered workers, and the partitions that the assignment gives each of them."""
    config = mirror.config
    if config.workers is None:
        return
    from mirrormaker.worker_registry import WorkersUnreadable, read_workers

    try:
        found = await read_workers(
            mirror.source.reactor, config.workers, mirror.source_id, timeout=WORKERS_TIMEOUT
        )
    except WorkersUnreadable as problem:
        echo(f"  workers: {problem}")
        return
    settings = group_of(config.source, config.target, config.settings)
    group = {
        each.member.worker_id: each for each in reversed(found) if each.member.settings == settings
    }
    assigned = assign(group, partitions_of(plan, mirror.topics.compared))
    for worker_id, each in reversed(group.items()):
        mine = sorted(tp for tp, owner in assigned.items() if owner == worker_id)
        elected = ", elected" if worker_id == next(reversed(group)) else ""
        echo(f"  worker {worker_id} {_where(each)}{elected}: {len(mine)} partitions{_named(mine)}")
    if not group:
        echo("  workers: none is registered")
    others = [each for each in found if each.member.settings != settings]
    for each in others:
        echo(
            f"  drift worker {each.member.worker_id} {_where(each)}: has other settings than this file"
        )


def _where(worker: WorkerStatus) -> str:
    """Return the host and the process of a worker, and what it has counted last."""
    host, pid, stopped, alarms = (
        _printable(worker.content.get(name, "?")) for name in ("host", "pid", "stopped", "alarms")
    )
    counts = [f"{number} {what}" for number, what in ((stopped, "stopped"), (alarms, "alarms"))]
    return " ".join([f"{host}:{pid}", *(text for text in counts if text[0] not in "0?")])


def _printable(value: object) -> str:
    """Return *value*, which any client of ZooKeeper may have written, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in str(value)[:100])


def _named(tps: Sequence[TopicPartition]) -> str:
    named = ", ".join(map(str, tps[:MOST_NAMED]))
    left = len(tps) - MOST_NAMED
    return (f" {named}" if tps else "") + (f" and {left} more" if left > 0 else "")


def _problem(mirror: Mirror, plan: Plan, tp: TopicPartition, ends: LogEnds) -> Problem | None:
    return problem_of(
        ends,
        mirror.offsets.lineage_of(plan, tp),
        GapPolicy(mirror.config.settings.gap_policy),
        compacted=mirror.topics.compared[tp.topic].compacted,
    )


def _is_quiet(mirror: Mirror, plan: Plan, tp: TopicPartition, ends: LogEnds | KafkaError) -> bool:
    """Return whether one reading is enough: the partition is in sync."""
    if isinstance(ends, KafkaError):
        return False
    return ends.lag == 0 and _problem(mirror, plan, tp, ends) is None


def _finding(
    mirror: Mirror,
    plan: Plan,
    tp: TopicPartition,
    before: LogEnds | KafkaError,
    now: LogEnds | KafkaError,
    max_lag: int | None,
) -> Finding:
    if isinstance(now, KafkaError):
        return Finding(Health.UNREADABLE, str(now))
    earlier = now if isinstance(before, KafkaError) else before
    compacted = mirror.topics.compared[tp.topic].compacted
    problem = _problem(mirror, plan, tp, now)
    return judge(earlier, now, problem, max_lag=max_lag, compacted=compacted)


def _numbers(ends: LogEnds | KafkaError | None) -> str:
    """Return the columns of numbers: the source's high watermark, the target's log end, the lag."""
    if not isinstance(ends, LogEnds):
        return f"{'?':>14} {'?':>14} {'?':>12}"
    high_watermark = max(ends.source_end, ends.source_high_watermark)
    return f"{count(high_watermark):>14} {count(ends.target_end):>14} {count(ends.lag):>12}"


def _because(finding: Finding) -> str:
    return f": {finding.detail}" if finding.detail else ""


async def show_plan(reactor: Any, config: MirrorConfig, echo: Echo) -> int:
    """Print the changes that a run would make at the targets; return the exit code.

    1: a target is refused; 3: a cluster is unreachable; 5: not every topic could be copied; 0 if none of these.
    """
    codes: set[int] = set()
    for flow in config.flows:
        try:
            async with planned_mirror(reactor, flow) as (mirror, plan):
                applied = await mirror.topics.validate(plan)
        except KafkaError as problem:  # the other flows are planned nevertheless
            echo(f"{flow.name}: {problem}")
            codes.add(UNREACHABLE if problem.retriable else REFUSED)
            continue
        if plan.conflicts or applied.failed:
            codes.add(BLOCKED)
        echo(f"{flow.name}  ({flow.settings.guarantee})")
        for text in _planned(plan, applied):
            echo(f"  {text}")
        mirrored = [name for name, copy in plan.mirrored.items() if copy not in applied.failed]
        echo(f"  mirror {len(mirrored)} topics: {', '.join(mirrored) or 'none'}")
    return next((code for code in (REFUSED, UNREACHABLE, BLOCKED) if code in codes), 0)


def _planned(plan: Plan, applied: Applied) -> Iterator[str]:
    """Yield a line per change, per topic that is left alone, and per difference that stays."""
    for creation in plan.create:
        configs = ", ".join(f"{k}={v}" for k, v in creation.configs.items())
        yield f"create {creation.name} with {creation.partitions} partitions ({configs})"
    for name, total in plan.add_partitions.items():
        yield f"raise {name} to {total} partitions"
    for name, changes in plan.set_configs.items():
        for key, value in changes.items():
            yield f"{name}: " + (f"set {key}={value}" if value is not None else f"unset {key}")
    for name in sorted(plan.unmarked):
        yield f"mark {name} as a mirror, if it is a prefix of the source"
    for (name, key), problem in applied.refused.items():
        yield f"drift {name}: {key} is refused by the target: {problem}"
    for name, difference in plan.drift.items():
        yield f"drift {name}: {difference}"
    for name, reason in plan.skipped.items():
        yield f"{name} is not copied: {reason}"
    for name, topic_id in plan.orphans.items():
        yield f"delete {name} later: its source topic ({topic_id}) was deleted"
    for name, failure in applied.failed.items():
        yield f"leave {name}: cannot be created or changed at the target: {failure}"
    for name, conflict in plan.conflicts.items():
        yield f"leave {name}: {conflict}"
