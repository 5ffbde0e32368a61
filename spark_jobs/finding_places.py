"""Where the records of a finding are: two places of the clusters' logs, and the command that prints the record of one.

In: a finding as findings.jsonl has it, and report.json.  Out: `Side`s, words of a command.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kclient.types import TopicPartition
from spark_jobs.target_names import name_at_target


class Place(NamedTuple):
    """An offset of a partition in a cluster."""

    cluster: str
    """How the report calls the cluster."""
    bootstrap: str
    cluster_id: str
    """As the audit found it; "" if unknown."""
    topic: str
    """With the prefix that the mirror's policy puts before it."""
    partition: int
    offset: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class Side(NamedTuple):
    """One of the two places that an explanation compares."""

    title: str
    place: Place
    named: bool
    """Whether the finding names this record. If not, the same offset of the other cluster is shown beside it."""
    audited_hash: str | None = None
    """The content hash that the audit read, in hex."""


def places(finding: Mapping[str, Any], report: Mapping[str, Any]) -> tuple[Side, Side]:
    """Return the two places to compare: the source's and the target's, or two of the target for a duplicate."""
    at_source, at_target = finding["src_offset"], finding["dst_offset"]

    copies = {
        copy["topic"]: copy["target_topic"]
        for each in report.get("recreated", ())  # of an earlier version: none
        for copy in (each, *each["earlier"])
    }
    hashes = {"source": finding["src_hash"], "target": finding["dst_hash"]}

    def side(which: str, offset: int, partition: int, *, named: bool, note: str = "") -> Side:
        cluster = report[which]
        place = Place(
            cluster["name"],
            cluster["bootstrap"],
            cluster["cluster_id"],
            copies.get(finding["topic"], name_at_target(cluster["prefix"], finding["topic"]))
            if which == "target"
            else finding["topic"],
            partition,
            offset,
        )
        if not named:
            note = ", the same offset: the finding names no record here"
        title = f"{which} {place.cluster}: {place.topic_partition} at {offset}{note}"
        # The other copy of a duplicate has the same content.
        return Side(title, place, named, hashes[which] if named else None)

    own = finding["partition"]
    if finding["class"] == "duplicate" and finding["first_dst_offset"] is not None:
        return (
            side("target", finding["first_dst_offset"], own, named=True, note=", another copy"),
            side("target", at_target, own, named=True),
        )
    there = own if finding["dst_partition"] is None else finding["dst_partition"]
    if at_source is None and at_target is None:
        raise ValueError("the finding has no offset")
    return (
        side(
            "source",
            at_target if at_source is None else at_source,
            own,
            named=at_source is not None,
        ),
        side(
            "target",
            at_source if at_target is None else at_target,
            there,
            named=at_target is not None,
        ),
    )


def more_records(finding: Mapping[str, Any]) -> str | None:
    """Return what to print beside the records of a finding of many; None if it has no others."""
    if finding["records"] == 1:
        return None
    return (
        f"the finding has {finding['records']} records or offsets, up to offset "
        f"{finding['last_offset']}; this is the first"
    )


def kclient_words(place: Place, avro: Path | None, *, crc_wrong: bool) -> list[str]:
    """Return the command that prints the record at *place*."""
    words = ["kclient", "consume", "-b", place.bootstrap, place.topic, "-p", str(place.partition)]
    words += ["-o", f"{place.offset}:{place.offset + 1}"]
    if crc_wrong:
        words += ["-X", "check.crcs=false"]
    return words + (["--avro", str(avro)] if avro else [])
