"""``kmirror truncate``: removes from mirror topics what the source does not have, after it was exported.

The source lost records that the target has (an unclean election, a restored disk), or its topic was created again. The
mirror stops there (`mirrormaker.prefix`). This command makes the topic a prefix of the source again, on request. The
steps, the export and the proofs are those of a failback (`mirrormaker.recopy`). Before a topic is deleted, the ledger
has an entry of the type `REMOVAL` for each partition that loses records, acknowledged by all in-sync replicas.

A kmirror that runs does not do this by itself (``gap.policy``): docs/design/mirror.md has the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mirrormaker.command_exit import DONE, Refused
from mirrormaker.config import FlowConfig
from mirrormaker.export_manifest import Manifest
from mirrormaker.failback_stage import FailbackReport, Stage, end_of_copied
from mirrormaker.lineage import text_of
from mirrormaker.patterns import compiled
from mirrormaker.recopy import ANOTHER_DIRECTORY, NOT_PROVEN, Echo, Options, Recopy
from mirrormaker.tail_export import only_manifest
from mirrormaker.topics import MARK, Topic, TopicPair


def stage_of(pair: TopicPair, manifest: Manifest | None) -> Stage | None:
    """Return how far the truncation of *pair* is; None for a topic that the target lacks. Raise `Refused`.

    *manifest* is that of an earlier run with the same export directory.
    """
    name, source, target = pair.name, pair.source, pair.target
    if target is None:
        return None if manifest is None else Stage.DELETED
    copied, now = target.copied_topic_id, text_of(source.topic_id)
    if target.overrides.get(MARK, "") != pair.source_id or not copied:
        raise Refused(
            f"{name}: the target's topic is no mirror of the source's: only a mirror is truncated"
        )
    if source.compacted or target.compacted:
        raise Refused(f"{name}: is compacted: equal records may be in other batches")
    if manifest is None:
        return Stage.FENCED
    if manifest.topic_id == text_of(target.topic_id):
        return Stage.MIRROR if manifest.stays and copied == now else Stage.FENCED
    if copied != now:
        raise Refused(
            f"{name}: was created again at the source since the export: name another directory"
        )
    return Stage.MIRROR


class Truncation:
    """The purpose of `kmirror truncate`. *topics* are regular expressions, as the setting ``topics``."""

    records_removals = True
    remedy = ANOTHER_DIRECTORY
    named: frozenset[str] = frozenset()

    def __init__(self, topics: str) -> None:
        self._topics = compiled(topics)

    def selects(self, name: str) -> bool:
        """Return whether the operator named the topic."""
        return self._topics.fullmatch(name) is not None

    def manifest(self, out: Path, copy: str, source: Topic) -> Manifest | None:
        """Return the manifest of an earlier run. Raise `BadExport`."""
        return only_manifest(out, copy)

    def stage(self, pair: TopicPair, manifest: Manifest | None) -> Stage | None:
        """Return how far the topic is. Raise `Refused`."""
        return stage_of(pair, manifest)

    def proven_until(self, pair: TopicPair, partition: int, source_end: int) -> int:
        """Return the source's end, if the target's topic is a copy of this topic."""
        return end_of_copied(pair, source_end)

    def conclusion(self, record: FailbackReport, out: Path) -> str:
        """Return what was exported."""
        again = sorted(name for name, each in record.manifests.items() if not each.stays)
        return (
            f"truncated: {', '.join(again) or 'no topic, each was a prefix of the source'}; "
            f"{record.lost.records} records that the source does not have were exported to {out}"
        )


async def show_truncation(
    reactor: Any, config: FlowConfig, options: Options, topics: str, echo: Echo
) -> tuple[int, dict[str, Any] | None]:
    """Truncate, with ``execute``; return the exit code and the record."""
    copying = Recopy(reactor, config, options, Truncation(topics), echo)
    code = await copying.run()
    for name in copying.lacking:
        echo(
            f"NOT TRUNCATED: {name}: {config.target} has no mirror of it. If an earlier run deleted it, run the "
            "command with the directory of that run; else kmirror run copies it"
        )
    if code == DONE and options.execute and copying.lacking:
        code = NOT_PROVEN
    return code, copying.record_without_rpo()
