"""The entries of a mirror's gap ledger, as kmirror writes them and kaudit reads them. Pure.

The ledger is a compacted topic at the target, ``<source alias>.gaps.internal``. A record of the type `GAP` is a gap:
offsets of a source partition that the mirror skipped. `REMOVAL` and `LINEAGE` explain no gap. They name offsets that
``kmirror truncate`` removed at the target, and a copy that ended because its topic was created again. The key
identifies the entry, the value describes it, both as JSON. The latest record of a key counts, and a null value deletes
the entry. docs/design/mirror-ledger.md has the format and the order of writes.

In: keys and values of records   Out: a `GapView`, and records to write   Owner: the caller
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from kclient.mirror_json import NOT_READABLE, decoded, encoded, number, text

SCHEMA_VERSION = 1
SUFFIX = ".gaps.internal"
RETENTION = "retention"
RECREATED = "recreated"
TRUNCATED = "truncated"
CAUSES = frozenset({RETENTION, RECREATED, TRUNCATED})
"""The causes that kmirror writes. Entries with another cause are read, too."""

_LINEAGE = re.compile(r"^lineage\.[A-Za-z0-9_-]{22}\.")

GAP = "gap"
REMOVAL = "removal"
"""Offsets that the target had and the source does not have: their batches were exported, and the topic was deleted."""
LINEAGE = "lineage"
"""The copy ends at offset *first*; records of the later source topic are copied to the topic `lineage_topic`."""
TYPES = frozenset({GAP, REMOVAL, LINEAGE})


def ledger_topic(source_alias: str) -> str:
    """Return the name of the ledger at the target of a mirror of *source_alias*."""
    return f"{source_alias}{SUFFIX}"


def is_ledger(topic: str) -> bool:
    """Return whether *topic* is a ledger by its name: it is neither mirrored nor audited."""
    return topic.endswith(SUFFIX)


def lineage_topic(copy: str, topic_id: str) -> str:
    """Return where records of the source topic id *topic_id* go, if *copy* has those of an earlier topic.

    It is a prefix, so that ``kaudit --target-prefix`` finds it.
    """
    return f"lineage.{topic_id}.{copy}"


def without_lineage(copy: str) -> str:
    """Return the name that the topic *copy* has without the prefix of `lineage_topic`."""
    return _LINEAGE.sub("", copy)


class GapKey(NamedTuple):
    """What identifies an entry: the source's cluster id, the partition at the target, the first offset, the type.

    A topic at the target is removed once, and its successor may be, too: a `REMOVAL` has the topic id. A copy ends
    once, and any number of later source topics may follow: a `LINEAGE` has the topic id of the later one.
    """

    source_cluster_id: str
    topic: str
    partition: int
    first: int
    type: str = GAP
    target_topic_id: str = ""
    """"" except for a `REMOVAL`."""
    source_topic_id_after: str = ""
    """"" except for a `LINEAGE`."""


@dataclass(frozen=True, slots=True)
class GapEntry:
    """One entry; a gap: offsets [first, until) of the source are not at the target."""

    source_cluster_id: str
    topic: str
    """The topic at the target."""
    partition: int
    first: int
    until: int
    cause: str
    source_topic: str = ""
    source_topic_id_before: str = ""
    """The topic id at the source of the records below *first*; "" if it is unknown."""
    source_topic_id_after: str = ""
    """The topic id at the source of the records from *until* on; "" if it is unknown."""
    target_topic_id: str = ""
    """The topic id at the target; "" if it is unknown. An entry of a deleted topic is none of its successor."""
    records_lost: int | None = None
    """None if it is unknown: a log does not show how many of its deleted offsets had records."""
    first_seen_ms: int = 0
    type: str = GAP

    @property
    def key(self) -> GapKey:
        """What identifies the entry."""
        return GapKey(
            self.source_cluster_id,
            self.topic,
            self.partition,
            self.first,
            self.type,
            self.target_topic_id if self.type == REMOVAL else "",
            self.source_topic_id_after if self.type == LINEAGE else "",
        )

    @property
    def offsets(self) -> int:
        """The number of skipped offsets."""
        return self.until - self.first

    def as_json(self) -> dict[str, Any]:
        """Return the entry as JSON-ready values; the names are those of ``kaudit --accepted-gaps``."""
        fields = asdict(self)
        fields["from"] = fields.pop("first")
        return {"schema_version": SCHEMA_VERSION, **fields}


class GapView(NamedTuple):
    """The ledger after compaction: the latest entry of each key, and the number of records that are none."""

    entries: Mapping[GapKey, GapEntry]
    unreadable: int = 0

    def sorted(self) -> list[GapEntry]:
        """Return the entries by source cluster, topic, partition and offset."""
        return [self.entries[key] for key in sorted(self.entries)]


def encode(entry: GapEntry) -> tuple[bytes, bytes]:
    """Return key and value of the record of *entry*: the same bytes for the same entry."""
    return encode_key(entry.key), encoded(entry.as_json())


def encode_key(key: GapKey) -> bytes:
    """Return the key of a record. One without a topic id has the bytes that it had before there was one."""
    fields = key._asdict()
    fields["from"] = fields.pop("first")
    for topic_id in ("target_topic_id", "source_topic_id_after"):
        if not fields[topic_id]:
            del fields[topic_id]
    return encoded(fields)


def view(records: Iterable[tuple[bytes | None, bytes | None]]) -> GapView:
    """Return the ledger of *records*, keys and values in the order of the log.

    Keys of earlier releases have no topic ids, so an entry may have two keys. Its latest record counts, too.
    """
    latest: dict[bytes | None, bytes | None] = {}
    for key, value in records:
        latest.pop(key, None)  # a key that is there would keep its place
        latest[key] = value
    entries = {}
    unreadable = 0
    for key, value in latest.items():
        if value is None:
            continue
        try:
            entry = _decoded(key, value)
        except NOT_READABLE:
            unreadable += 1
        else:
            entries[entry.key] = entry
    return GapView(entries, unreadable)


def _decoded(key: bytes | None, value: bytes) -> GapEntry:
    """Return the entry of one record. Raise ValueError, KeyError or TypeError if it is none."""
    names, fields = decoded(key, value, TYPES, SCHEMA_VERSION)
    lost = fields.get("records_lost")
    entry = GapEntry(
        text(names["source_cluster_id"]),
        text(names["topic"]),
        number(names["partition"]),
        number(names["from"]),
        number(fields["until"]),
        text(fields["cause"]),
        text(fields.get("source_topic", "")),
        text(fields.get("source_topic_id_before", "")),
        text(fields.get("source_topic_id_after", "")),
        text(fields.get("target_topic_id", "")),
        None if lost is None else number(lost),
        number(fields.get("first_seen_ms", 0)),
        names["type"],
    )
    if entry.until < entry.first:
        raise ValueError("a gap that ends before it begins")
    return entry


def merged(known: GapEntry | None, found: GapEntry) -> GapEntry:
    """Return the entry to write for the gap *found*, if the ledger has *known* under its key.

    A mirror that was killed between the entry and the first append finds the gap again. The source may have deleted
    more meanwhile, and the target may state the new topic id already: then the gap looks like one of retention.
    """
    if known is None or known.target_topic_id != found.target_topic_id:
        return found
    again = replace(found, first_seen_ms=known.first_seen_ms)
    if known.cause != RECREATED:
        return again
    before = known.source_topic_id_before
    if found.cause == RECREATED:
        return replace(again, source_topic_id_before=before)
    if found.source_topic_id_after != known.source_topic_id_after:
        return again
    return replace(again, cause=RECREATED, source_topic_id_before=before)
