"""``kmirror failback``: a cluster that was lost, and returned, becomes the mirror of the promoted one.

The source is the cluster that was promoted, the target the cluster that returned. `mirrormaker.recopy` performs the
steps, `mirrormaker.failback_stage` has the decisions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mirrormaker.config import FlowConfig
from mirrormaker.export_manifest import Manifest
from mirrormaker.failback_stage import FailbackReport, Stage, proven_until, stage_of
from mirrormaker.patterns import compiled
from mirrormaker.recopy import Echo, Options, Recopy
from mirrormaker.tail_export import directory_of, read_manifest
from mirrormaker.topics import Topic, TopicPair


class Failback:
    """The purpose of `kmirror failback`. *topics* are regular expressions, as the setting ``topics``."""

    records_removals = False
    remedy = "kmirror truncate, with a directory of its own, does"
    named: frozenset[str] = frozenset()

    def __init__(self, config: FlowConfig, topics: str) -> None:
        self._config = config
        self._topics = compiled(topics)

    def selects(self, name: str) -> bool:
        """Return whether the operator named the topic."""
        return self._topics.fullmatch(name) is not None

    def manifest(self, out: Path, copy: str, source: Topic) -> Manifest | None:
        """Return the manifest of the topic id that the source states. Raise `BadExport`."""
        copied = source.copied_topic_id
        return read_manifest(directory_of(out, copy, copied)) if copied else None

    def stage(self, pair: TopicPair, manifest: Manifest | None) -> Stage | None:
        """Return how far the topic is. Raise `Refused`."""
        return stage_of(pair, is_exported=manifest is not None)

    def proven_until(self, pair: TopicPair, partition: int, source_end: int) -> int:
        """Return where the promotion found the target's log end."""
        return proven_until(pair, partition)

    def conclusion(self, record: FailbackReport, out: Path) -> str:
        """Return the RPO."""
        if not record.manifests:
            return f"RPO: unknown, {out} has no export of these topics"
        lost = record.lost
        span = "" if lost.seconds is None else f" over {lost.seconds:.3f} s of timestamps"
        exported = f"{lost.records} records{span} were exported to {out}"
        if record.unknown:
            names = ", ".join(record.unknown)
            return f"RPO: unknown, {out} has no export of {names}; of the others, {exported}"
        if record.is_unknown:
            return f"RPO: unknown, the logs do not show where a partition diverged; {exported}"
        return f"RPO: {exported}; {self._config.source} never received them"


async def show_failback(
    reactor: Any, config: FlowConfig, options: Options, topics: str, echo: Echo
) -> tuple[int, dict[str, Any] | None]:
    """Fail back; return the exit code and the record."""
    copying = Recopy(reactor, config, options, Failback(config, topics), echo)
    code = await copying.run()
    return code, copying.record
