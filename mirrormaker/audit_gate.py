"""Runs kaudit as the gate of a command: the command continues only if kaudit proves every partition."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from twisted.internet.utils import getProcessOutputAndValue

from kclient.types import TopicPartition
from mirrormaker.config import FlowConfig
from mirrormaker.promotion import Refused, not_proven


async def proven_by_audit(
    reactor: Any,
    config: FlowConfig,
    out: Path,
    cuts: Mapping[TopicPartition, int],
    *,
    source_id: str,
    target_id: str,
    options: Sequence[str],
) -> str:
    """Audit the topics of *cuts* with a report in *out*; return its run id.

    Raise `Refused` unless the verdict is CONSISTENT and every partition is proven up to its cut.
    """
    topics = sorted({tp.topic for tp in cuts})
    arguments = [
        *("-m", "spark_jobs", "reconcile", "--quiet", "--out", str(out), *options),
        *("--source", config.source_client.bootstrap_servers),
        *("--target", config.target_client.bootstrap_servers),
        *("--topics", "|".join(map(_escaped, topics))),
        *("--names", f"{config.source},{config.target}"),
    ]
    began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    written, errors, code = await getProcessOutputAndValue(
        sys.executable, arguments, env=None, reactor=reactor
    )
    if code:
        last = (errors or written).decode(errors="replace").strip().splitlines()[-1:]
        raise Refused(f"kaudit ended with exit code {code}: {' '.join(last)}")
    report = json.loads((out / "report.json").read_text())
    if report["meta"]["started_at"] < began:
        # A command that was killed leaves its kaudit running.
        raise Refused(
            f"{out} has the report of an earlier kaudit, which runs still or has just ended"
        )
    left_open = not_proven(report, cuts, source_id=source_id, target_id=target_id)
    if left_open:
        raise Refused(f"kaudit's report: {left_open}")
    return str(report["meta"]["run_id"])


def _escaped(name: str) -> str:
    return name.replace(".", r"\.")  # a topic name has no other special character
