"""``kmirror gaps``: prints the gap ledger of each flow. Only the targets are needed; nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from kclient.errors import KafkaError
from kclient.mirror_ledger import (
    GAP,
    LINEAGE,
    RECREATED,
    REMOVAL,
    GapEntry,
    GapView,
    ledger_topic,
    lineage_topic,
)
from kclient.net.cluster import Cluster
from mirrormaker.config import FlowConfig, MirrorConfig
from mirrormaker.ledger import read_ledger

READ = 0
UNREACHABLE = 3


async def show_gaps(
    reactor: Any,
    config: MirrorConfig,
    echo: Callable[[str], None],
    warn: Callable[[str], None],
    *,
    as_json: bool,
) -> int:
    """Print every entry; return 0 if all ledgers were read, 3 if one was not. Raise a KafkaError that does not pass."""
    code = READ
    for flow in config.flows:
        target = Cluster(reactor, flow.target_client)
        try:
            await target.start()
            found = await read_ledger(target, ledger_topic(flow.source))
        except KafkaError as problem:  # the other flows are shown nevertheless
            if not problem.retriable:
                raise
            warn(f"{flow.name}: {problem}")
            code = UNREACHABLE
            continue
        finally:
            await target.close()
        if as_json:
            for entry in found.sorted():
                echo(json.dumps(entry.as_json(), sort_keys=True))
        else:
            for line in _table(flow, found):
                echo(line)
        if found.unreadable:
            topic = ledger_topic(flow.source)
            warn(f"{flow.name}: {found.unreadable} records of {topic} are no entries")
    return code


def _table(flow: FlowConfig, found: GapView) -> Iterator[str]:
    topic = ledger_topic(flow.source)
    entries = found.sorted()
    if not entries:
        yield f"{flow.name}: the ledger {topic} at {flow.target} is empty: no gap was recorded"
        return
    counts = [
        f"{count} {name}{'' if count == 1 else 's'}"
        for name in (GAP, REMOVAL, LINEAGE)
        if (count := sum(each.type == name for each in entries))
    ]
    yield f"{flow.name}: {', '.join(counts)} in {topic} at {flow.target}"
    yield f"  {'topic':<32} {'p':>4} {'from':>14} {'to':>14} {'lost':>12}  {'cause':<10} first seen"
    for each in entries:
        yield (
            f"  {each.topic:<32} {each.partition:>4} {each.first:>14} {each.until:>14} {_lost(each):>12}  "
            f"{each.cause:<10} {_time(each.first_seen_ms)}{_ids(each)}"
        )
    yield "  to is exclusive; <= n: a log does not show how many of its deleted offsets had records"


def _lost(entry: GapEntry) -> str:
    """Return the number of lost records; an upper limit or ? if it is unknown."""
    if entry.type == LINEAGE:
        return "-"
    if entry.records_lost is not None:
        return str(entry.records_lost)
    return "?" if entry.cause == RECREATED else f"<= {entry.offsets}"


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def _ids(entry: GapEntry) -> str:
    before, after = entry.source_topic_id_before, entry.source_topic_id_after
    changed = f"  topic id {before} became {after}" if before != after else ""
    if entry.type == LINEAGE:
        return f"{changed}, copied to {lineage_topic(entry.topic, after)}"
    return f"{changed}  exported and removed" if entry.type == REMOVAL else changed
