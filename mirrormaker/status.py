"""``kmirror status`` and ``kmirror plan``: read both clusters, change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kclient.errors import KafkaError
from kclient.types import TopicPartition
from mirrormaker.config import MirrorConfig
from mirrormaker.log_ends import read_log_ends
from mirrormaker.mirror import Mirror
from mirrormaker.progress import count
from mirrormaker.topics import Plan

Echo = Callable[[str], None]
UNHEALTHY = 4


async def show_status(reactor: Any, config: MirrorConfig, echo: Echo) -> int:
    """Print the lag of every partition; return 4 if a lag is unknown, a target is ahead or a topic has a conflict."""
    bad = False
    for flow in config.flows:
        mirror = Mirror(reactor, flow, once=False, report=lambda _about, _what: None)
        try:
            await mirror.source.start()
            await mirror.target.start()
            bad = await _show_one(mirror, await mirror.plan(), echo) or bad
        finally:
            await mirror.stop()
    return UNHEALTHY if bad else 0


async def _show_one(mirror: Mirror, plan: Plan, echo: Echo) -> bool:
    missing = {creation.name for creation in plan.create}
    pairs = {
        TopicPartition(name, number): TopicPartition(copy, number)
        for name, copy in plan.mirrored.items()
        if copy not in missing
        for number in sorted(mirror.target.metadata.topics[copy].partitions)
    }
    echo(f"{mirror.config.name}")
    echo(f"  {'partition':<40} {'source end':>14} {'target end':>14} {'lag':>12}")
    bad = False
    for tp, ends in (await read_log_ends(mirror.source, mirror.target, pairs)).items():
        if isinstance(ends, KafkaError):
            echo(f"  {tp!s:<40} {ends}")
            bad = True
            continue
        lag = ends.source_end - ends.target_end
        what = count(lag) if lag >= 0 else "AHEAD"
        bad = bad or lag < 0
        echo(f"  {tp!s:<40} {count(ends.source_end):>14} {count(ends.target_end):>14} {what:>12}")
    for name in sorted(missing):
        echo(f"  {name:<40} not yet at the target")
    for name, conflict in plan.conflicts.items():
        echo(f"  {name:<40} {conflict}")
    return bad or bool(plan.conflicts)


async def show_plan(reactor: Any, config: MirrorConfig, echo: Echo) -> int:
    """Print the changes that a run would make at the target; return 0."""
    for flow in config.flows:
        mirror = Mirror(reactor, flow, once=False, report=lambda _about, _what: None)
        try:
            await mirror.source.start()
            await mirror.target.start()
            plan = await mirror.plan()
        finally:
            await mirror.stop()
        echo(flow.name)
        for creation in plan.create:
            configs = ", ".join(f"{k}={v}" for k, v in creation.configs.items())
            echo(f"  create {creation.name} with {creation.partitions} partitions ({configs})")
        for name, total in plan.add_partitions.items():
            echo(f"  raise {name} to {total} partitions")
        for name, changes in plan.set_configs.items():
            for key, value in changes.items():
                echo(
                    f"  {name}: " + (f"set {key}={value}" if value is not None else f"unset {key}")
                )
        for name in sorted(plan.unmarked):
            echo(f"  mark {name} as a mirror, if it is a prefix of the source")
        for name, conflict in plan.conflicts.items():
            echo(f"  leave {name}: {conflict}")
        echo(f"  mirror {len(plan.mirrored)} topics: {', '.join(plan.mirrored) or 'none'}")
    return 0
