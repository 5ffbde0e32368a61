"""``kmirror repair``: applies kaudit's repair.json to a mirror. `mirrormaker.recopy` performs the steps."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirrormaker.command_exit import DONE, REFUSED, Refused
from mirrormaker.config import FlowConfig
from mirrormaker.export_manifest import Manifest
from mirrormaker.failback_stage import FailbackReport, Stage, end_of_copied
from mirrormaker.patterns import compiled
from mirrormaker.recopy import ANOTHER_DIRECTORY, NOT_PROVEN, Echo, Options, Recopy
from mirrormaker.repair_plan import RepairPlan, read_plan, stage_of
from mirrormaker.tail_export import only_manifest
from mirrormaker.topics import Topic, TopicPair


class Repair:
    """The purpose of `kmirror repair`. *topics* are regular expressions, as the setting ``topics``."""

    records_removals = False
    remedy = ANOTHER_DIRECTORY

    def __init__(self, plan: RepairPlan, topics: str) -> None:
        wanted = compiled(topics)
        self._plan = plan
        self.named = frozenset(name for name in plan.topics if wanted.fullmatch(name))
        """The topics of the plan that the operator named."""

    def selects(self, name: str) -> bool:
        """Return whether the plan has the topic."""
        return name in self.named

    def manifest(self, out: Path, copy: str, source: Topic) -> Manifest | None:
        """Return the manifest of an earlier run of the same plan. Raise `BadExport`.

        The directory *out* is of one plan, and a plan has a topic once. So there is one at most.
        """
        return only_manifest(out, copy)

    def stage(self, pair: TopicPair, manifest: Manifest | None) -> Stage | None:
        """Return how far the topic is. Raise `Refused`."""
        return stage_of(self._plan, pair, manifest)

    def proven_until(self, pair: TopicPair, partition: int, source_end: int) -> int:
        """Return the source's end, if the target's topic is a copy of this topic."""
        return end_of_copied(pair, source_end)

    def conclusion(self, record: FailbackReport, out: Path) -> str:
        """Return what was exported."""
        again = sorted(name for name, each in record.manifests.items() if not each.stays)
        return (
            f"copied again: {', '.join(again) or 'no topic, each was a prefix of the source'}; "
            f"{record.lost.records} records that the source does not have, or has otherwise, were exported to {out}"
        )


async def show_repair(
    reactor: Any, config: FlowConfig, options: Options, file: Path, topics: str, echo: Echo
) -> tuple[int, dict[str, Any] | None]:
    """Print the plan in *file* and, with ``execute``, apply it; return the exit code and the record."""
    try:
        text = file.read_bytes()
        plan = read_plan(json.loads(text))
    except (OSError, ValueError, RecursionError, Refused) as problem:
        echo(f"refused: {file}: {problem}")
        return REFUSED, None
    for line in plan.lines():
        echo(f"  {line}")
    purpose = Repair(plan, topics)
    if plan.topics and not purpose.named:
        echo(f"refused: --topics selects none of the plan's topics: {', '.join(plan.topics)}")
        return REFUSED, None
    if not purpose.named:
        echo("nothing that a repair can do")
        return (NOT_PROVEN if plan.beyond and options.execute else DONE), None
    if options.export is not None:
        # A directory of its own for each plan: the manifests in it show how far this repair is.
        digest = hashlib.sha256(text).hexdigest()[:16]
        options = replace(options, export=options.export / f"repair-{digest}")
    copying = Recopy(reactor, config, options, purpose, echo)
    code = await copying.run()
    left = len(plan.beyond), len(copying.absent)
    if code == DONE and options.execute and any(left):
        echo(f"{left[0]} ranges and {left[1]} topics of the plan cannot be repaired, see above")
        code = NOT_PROVEN
    return code, copying.record_without_rpo()
