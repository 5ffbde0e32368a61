"""The manifest of an export: what was compared of a topic, and which files have the batches without an equal one. Pure.

In: JSON values   Out: a `Manifest`   Owner: the command
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mirrormaker.divergence import Divergence, Kind

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file of a partition."""

    name: str
    kind: str
    first: int
    """The base offset of the first batch."""
    until: int
    """The offset after the last batch."""
    batches: int
    records: int
    """Data records: those of aborted and open transactions too, control records not."""
    undecoded_batches: int
    """Batches of which the records cannot be decoded; their records are counted by the header."""
    bytes: int
    sha256: str
    oldest_ms: int | None
    newest_ms: int | None


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """What was compared and exported of one partition."""

    partition: int
    log_start: int
    log_end: int
    other_start: int
    last_equal_end: int | None
    first_unequal: int | None
    equal_batches: int
    head_batches: int
    """Batches below the other log's start, exported or not."""
    files: tuple[ExportedFile, ...]
    first_lacking: int | None = None
    """See `Divergence`; an export of an earlier version has none."""
    proven_until: int = 0
    """See `Divergence`."""

    @property
    def divergence(self) -> Divergence:
        """What the comparison found."""
        return Divergence(
            self.log_start,
            self.log_end,
            self.other_start,
            self.last_equal_end,
            self.first_unequal,
            self.first_lacking,
            self.proven_until,
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The export of one topic."""

    topic: str
    topic_id: str
    cluster_id: str
    """The cluster that the batches are of."""
    other_cluster_id: str
    other_topic_id: str
    replication_factor: int
    other_partitions: int
    """The number of partitions at the other cluster."""
    partitions: tuple[ExportedPartition, ...]
    groups: dict[str, dict[int, tuple[int, str]]] = field(default_factory=dict)
    """By group and partition, the committed offset before the export, and its metadata."""
    schema_version: int = SCHEMA_VERSION

    @property
    def stays(self) -> bool:
        """Whether the topic can stay: each partition is a prefix of one of the other cluster."""
        return len(self.partitions) <= self.other_partitions and all(
            each.divergence.is_prefix for each in self.partitions
        )

    @property
    def has_unexported_head(self) -> bool:
        """Whether batches below the other log's start are in no file."""
        return any(
            each.head_batches != sum(f.batches for f in each.files if f.kind == Kind.HEAD.value)
            for each in self.partitions
        )

    @property
    def is_unknown(self) -> bool:
        """Whether the logs of a partition do not show where they diverge."""
        return any(each.divergence.is_unknown for each in self.partitions)

    def files(self, *kinds: Kind) -> Iterator[ExportedFile]:
        """Yield the files of these kinds."""
        wanted = {kind.value for kind in kinds}
        for partition in self.partitions:
            yield from (each for each in partition.files if each.kind in wanted)


def manifest_of(document: dict[str, Any]) -> Manifest:
    """Return the manifest with these JSON values. Raise KeyError, TypeError or ValueError."""
    partitions = tuple(
        ExportedPartition(**{**each, "files": tuple(ExportedFile(**one) for one in each["files"])})
        for each in document.pop("partitions")
    )
    groups = {
        group: {int(partition): (int(at), str(note)) for partition, (at, note) in offsets.items()}
        for group, offsets in document.pop("groups").items()
    }
    return Manifest(**document, partitions=partitions, groups=groups)
