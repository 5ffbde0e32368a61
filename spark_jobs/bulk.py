"""Aligns the records of a partition that is damaged nearly everywhere: with arrays instead of objects.

`spark_jobs.align` needs about 1 KB per record. With a million damaged records it would take long. Both logs may have
the same offsets, no record elsewhere in the other, and no record of the target twice. Then each pair that differs is
CORRUPT, and numpy finds them. This applies to whole parts of `spark_jobs.in_step`. In the exact alignment a damaged
record may pair with a neighbour that is more alike; here it never does.

In: columns of hashes.  Out: an Alignment.  Owner: a Spark task; pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_jobs.align import PARTS, Alignment
from spark_jobs.digest import WindowShape
from spark_jobs.findings import ABORTED, Finding, FindingClass
from spark_jobs.folding import as_run
from spark_jobs.visibility import runs

Columns = Mapping[str, npt.NDArray[Any]]


def align_in_place(
    topic: str,
    partition: int,
    source: Columns,
    target: Columns,
    *,
    keep: int,
    shape: WindowShape,
) -> Alignment | None:
    """Return the alignment of two logs with the same offsets, None if a record may have moved or been repeated.

    The columns are those of `RecordDigest`, ascending by offset. The first *keep* findings are single, the others are
    runs: see `spark_jobs.folding`.
    """
    if not np.array_equal(source["offset"], target["offset"]):
        return None
    wrong = np.flatnonzero(source["content"] != target["content"])
    lost, found = source["content"][wrong], target["content"][wrong]
    others = np.delete(target["content"], wrong)
    if (
        np.intersect1d(lost, found).size
        or np.unique(found).size < found.size
        or np.isin(found, others).any()
    ):
        return None
    findings = [
        Finding(
            FindingClass.CORRUPT,
            topic,
            partition,
            offset,
            offset,
            field=_field(code),
            source_hash=before,
            target_hash=after,
            timestamp_ms=timestamp,
            key_hash=key,
            flags=flags,
        )
        for offset, code, before, after, timestamp, key, flags in zip(
            source["offset"][wrong[:keep]].tolist(),
            _codes(source, target, wrong[:keep]).tolist(),
            lost[:keep].tolist(),
            found[:keep].tolist(),
            source["timestamp"][wrong[:keep]].tolist(),
            source["key"][wrong[:keep]].tolist(),
            source["flags"][wrong[:keep]].tolist(),
            strict=True,
        )
    ]
    findings += _runs(topic, partition, source, target, wrong[keep:], shape)
    hidden = list(_hidden(topic, partition, source, target, wrong))
    findings += hidden
    findings.sort(key=lambda finding: finding.position)
    owned = wrong.size + sum(each.owns for each in hidden)
    return Alignment(findings, source["offset"].size - owned)


def _hidden(
    topic: str,
    partition: int,
    source: Columns,
    target: Columns,
    wrong: npt.NDArray[np.int64],
) -> Iterator[Finding]:
    """Yield the runs of equal records that a consumer with read_committed gets from one log only."""
    differing = (source["flags"] ^ target["flags"]) & ABORTED
    differing[wrong] = 0
    numbers = np.flatnonzero(differing)
    at_source = (source["flags"][numbers] & ABORTED) != 0
    for run in runs(zip(numbers.tolist(), at_source.tolist(), strict=True)):
        offset, content = int(source["offset"][run.first]), int(source["content"][run.first])
        yield Finding(
            FindingClass.VISIBILITY,
            topic,
            partition,
            offset,
            offset,
            field=run.reason,
            source_hash=content,
            target_hash=content,
            timestamp_ms=int(source["timestamp"][run.first]),
            records=run.records,
            last_offset=int(source["offset"][run.last]),
            owns=run.records,
            key_hash=int(source["key"][run.first]),
            flags=int(source["flags"][run.first]),
        )


def _runs(
    topic: str,
    partition: int,
    source: Columns,
    target: Columns,
    wrong: npt.NDArray[np.int64],
    shape: WindowShape,
) -> list[Finding]:
    """Return one finding for each set of differing parts and time bucket of the *wrong* records."""
    if not wrong.size:
        return []
    times = source["timestamp"][wrong]
    buckets = np.clip((times - shape.first_ms) // shape.bucket_ms, 0, shape.buckets - 1)
    codes = _codes(source, target, wrong)
    groups, which, counts = np.unique(
        codes * shape.buckets + buckets, return_inverse=True, return_counts=True
    )
    offsets = source["offset"][wrong]
    runs = []
    for number, group in enumerate(groups.tolist()):
        inside = np.flatnonzero(which == number)
        count = int(counts[number])
        runs.append(
            as_run(
                Finding(
                    FindingClass.CORRUPT,
                    topic,
                    partition,
                    int(offsets[inside[0]]),
                    int(offsets[inside[0]]),
                    field=_field(group // shape.buckets),
                    timestamp_ms=int(times[inside[0]]),
                    records=count,
                    owns=count,
                    last_offset=int(offsets[inside[-1]]),
                )
            )
        )
    return runs


def _codes(source: Columns, target: Columns, wrong: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return which parts differ, a bit each."""
    codes = np.zeros(wrong.size, np.int64)
    for bit, part in enumerate(PARTS):
        codes |= (source[part][wrong] != target[part][wrong]).astype(np.int64) << bit
    return codes


def _field(code: int) -> str:
    return (
        ",".join(label for bit, label in enumerate(PARTS.values()) if code >> bit & 1) or "content"
    )
