"""Reads the batch headers of both logs where findings are, and attributes the findings: `spark_jobs.attribution`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from kclient.types import TopicPartition
from spark_jobs.attribution import Attributed, Attribution, Batch, EvidenceRead
from spark_jobs.comparison import compacted_topics
from spark_jobs.cut import OffsetRange
from spark_jobs.engine import Failure, FailureKind, WindowRows
from spark_jobs.reconcile import Reconciliation
from spark_jobs.snapshot import ClusterSnapshot

ONE_OFFSET = 1
"""The window of the header sums: each batch is in a window of its own."""


class HeaderReader(Protocol):
    """Reads batch headers."""

    def header_rows(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], window: int
    ) -> WindowRows:
        """Return the sums of *ranges* per window, as rows of `spark_jobs.header_batches.HEADER_COLUMNS`."""
        ...


def attributed(run: Reconciliation, evidence: EvidenceRead, read: HeaderReader) -> Reconciliation:
    """Return *run* with the log that changed in each finding. Class, counts and verdict stay as they are.

    A renumbered target has other headers than its source: nothing is attributed there.
    """
    if not run.findings or run.options.renumbered:
        return replace(run, attributed=Attributed(evidence))
    clusters = run.source, run.target
    compacted = compacted_topics(run.source) | compacted_topics(run.target)
    attribution = Attribution(run.findings, evidence, clusters, compacted)
    batches = []
    failures: list[Failure] = []
    for cluster, ranges in zip(clusters, attribution.to_read(), strict=True):
        answer = read.header_rows(cluster, ranges, ONE_OFFSET) if ranges else WindowRows([])
        found, doubled = batches_of(cluster.name, answer.rows)
        batches.append(found)
        failures += [*answer.failures, *doubled]
    answers = attribution.answers(batches[0], batches[1], failures)
    findings = [
        replace(finding, where=answer.where.value)
        for finding, answer in zip(run.findings, answers, strict=True)
    ]
    return replace(
        run,
        account=replace(run.account, findings=findings),
        attributed=Attributed.of(evidence, findings, answers),
    )


def batches_of(
    cluster: str, rows: Iterable[Mapping[str, int]]
) -> tuple[dict[TopicPartition, list[Batch]], list[Failure]]:
    """Return the batches of *rows* with windows of one offset, ascending; and those that came twice.

    A batch that reaches from one range of the request into another one comes twice, and its sum is of no use.
    """
    found: dict[TopicPartition, list[Batch]] = defaultdict(list)
    doubled = []
    for row in rows:
        tp = TopicPartition(str(row["topic"]), row["partition"])
        base, reach = row["window"], row["reach"]
        if row["batches"] == 1:
            hashed = row["hashes_low"] + (row["hashes_high"] << 32)
            found[tp].append(Batch(base, reach, hashed))
        else:
            kind = FailureKind.UNREADABLE
            doubled.append(Failure(cluster, *tp, base, reach, kind, "the batch came twice"))
    for of_partition in found.values():
        of_partition.sort()
    return found, doubled
