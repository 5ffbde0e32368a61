"""Evidence of a mirror over the logs of `tests.kit.audit_logs`: what kmirror writes when it copies them."""

from __future__ import annotations

from collections.abc import Sequence

from kclient.mirror_evidence import Copied, CopiedTopic, encode, hashed_batches
from kclient.types import TopicPartition
from mirrormaker.copied_extents import CopiedExtents, Place
from spark_jobs.attribute import attributed
from spark_jobs.attribution import EvidenceRead
from spark_jobs.comparison import Options
from spark_jobs.digest import WindowShape
from spark_jobs.reconcile import Reconciliation
from tests.kit.audit_batches import BatchEngine, Layout, encoded
from tests.kit.audit_logs import Log, Logs, audit

TOPIC = CopiedTopic("source", "", "")


def evidence_of(
    tp: TopicPartition, copied: Log, *, window: int = 20, layout: Layout | None = None
) -> EvidenceRead:
    """Return the evidence of a mirror that copied *copied* to the target partition *tp*, a batch per append."""
    extents = CopiedExtents(1000, window)
    records = []
    end = copied.start
    for each in encoded(copied, layout or Layout()):
        hashed = [(one.base_offset, one.hash, one.hash) for one in hashed_batches(each.data)]
        extents.appended(Place(tp, TOPIC), end, hashed, each.end)
        end = each.end
        records += [encode(*place, extent) for place, extent in extents.due()]
    found = Copied()
    found.add(records)
    return EvidenceRead(("source.evidence.internal",), found)


def audited(
    source: Logs,
    target: Logs,
    evidence: EvidenceRead,
    *,
    options: Options | None = None,
    compacted: frozenset[str] = frozenset(),
) -> Reconciliation:
    """Reconcile both logs and attribute the findings."""
    run = audit(source, target, options, source_compacted=compacted)
    return attributed(run, evidence, BatchEngine(source, target, WindowShape(10)))


def where(run: Reconciliation) -> Sequence[tuple[str, int, str]]:
    """Return class, position and the changed log of each finding."""
    return [(each.finding_class.value, each.position, each.where) for each in run.findings]
