"""Compares all replicas of all partitions: equal where they have to be, with every acknowledged record."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.log.core.directory_names import parse_directory
from tests.audits.problem import Problem
from tests.audits.replica import Replica, read_replica


@dataclass
class LogAudit:
    """What was looked at, and what was found."""

    partitions: int = 0
    replicas: int = 0
    batches: int = 0
    problems: list[Problem] = field(default_factory=list)
    producers: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """Per key and offset the producer id and epoch, of idempotent producers."""


def audit_logs(
    data: Mapping[int, Path],
    *,
    clean: Collection[int] = (),
    high_watermarks: Mapping[str, int] | None = None,
    acknowledged: Mapping[str, Mapping[int, int]] | None = None,
    topics: Collection[str] | None = None,
) -> LogAudit:
    """Audit the log directories of stopped brokers (broker id -> directory).

    *clean*: those that stopped cleanly. *high_watermarks*: per key (topic-partition) what readers saw as its end;
    below that all replicas are equal and have everything. *acknowledged*: per key offset -> number, as text the
    record's value, of what acks=all promised.
    """
    found: dict[str, dict[int, Replica]] = {}
    audit = LogAudit()
    for broker, directory in data.items():
        for path in sorted(directory.iterdir()):
            partition = parse_directory(path.name) if path.is_dir() else None
            if partition is None or (topics is not None and partition[0] not in topics):
                continue
            replica = read_replica(path, clean=broker in clean)
            found.setdefault(path.name, {})[broker] = replica
            audit.replicas += 1
            audit.batches += len(replica.batches)
            audit.problems += replica.problems
            audit.producers[path.name] = replica.producers
    audit.partitions = len(found)
    for key, replicas in found.items():
        mark = (high_watermarks or {}).get(key)
        audit.problems += _compare(key, replicas, mark)
        audit.problems += _promised(key, replicas, (acknowledged or {}).get(key, {}), mark)
    return audit


def _compare(key: str, replicas: Mapping[int, Replica], mark: int | None) -> Iterable[Problem]:
    """Yield where replicas differ below the high watermark, or below what all of them have."""
    if mark is None:
        mark = min(replica.end for replica in replicas.values())
    start = max(replica.start for replica in replicas.values())
    first: tuple[int, Replica] | None = None
    for broker, replica in replicas.items():
        if replica.end < mark:
            yield Problem(
                "replica-short", f"broker {broker}/{key}", f"ends at {replica.end}, below {mark}"
            )
        if first is None:
            first = (broker, replica)
            continue
        here = [one for one in replica.batches if start <= one.base_offset < mark]
        there = [one for one in first[1].batches if start <= one.base_offset < mark]
        if here != there:
            differ = next(
                (pair for pair in zip(there, here, strict=False) if pair[0] != pair[1]),
                (len(there), len(here)),
            )
            yield Problem(
                "replicas-differ", key, f"brokers {first[0]} and {broker}: {differ[0]}, {differ[1]}"
            )


def _promised(
    key: str, replicas: Mapping[int, Replica], offsets: Mapping[int, int], mark: int | None
) -> Iterable[Problem]:
    for broker, replica in replicas.items():
        wrong = [
            (offset, value, replica.values.get(offset))
            for offset, value in offsets.items()
            if replica.start <= offset < (replica.end if mark is None else mark)
            and replica.values.get(offset) != b"%d" % value
        ]
        if wrong:
            offset, value, there = wrong[0]
            yield Problem(
                "acknowledged-not-there",
                f"broker {broker}/{key}",
                f"{len(wrong)} records, the first is {value} at {offset}: there is {there!r}",
            )
