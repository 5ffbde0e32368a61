"""Fetches one record of a cluster by its offset, as the cluster has it now."""

from __future__ import annotations

import time
from typing import Any

from kclient import AdminClient, Consumer
from kclient.errors import NoCommittedOffset
from kclient.wire.errors import CorruptMessage, KafkaError
from spark_jobs.cluster import ClusterUnreadable
from spark_jobs.finding_places import Place
from spark_jobs.stored_record import Absent, Found, record_at


def look_up(place: Place, timeout: float) -> Found:
    """Return the record at *place*; raise ClusterUnreadable if the cluster does not answer within *timeout* seconds.

    Every batch counts, also those of open and aborted transactions, as in the audit.
    """
    settings: dict[str, Any] = {
        "bootstrap.servers": place.bootstrap,
        "client.id": "kaudit-explain",
        "default.api.timeout.ms": int(timeout * 1000),
    }
    try:
        return _absent(place, settings) or _fetch(place, settings, timeout)
    except KafkaError as problem:
        raise ClusterUnreadable(f"{place.cluster} ({place.bootstrap}): {problem}") from problem


def _absent(place: Place, settings: dict[str, Any]) -> Absent | None:
    """Return why the log cannot have the offset; None if it is between log start and end."""
    tp = place.topic_partition
    with AdminClient(settings) as admin:
        cluster_id = admin.describe_cluster().cluster_id or ""
        if place.cluster_id and cluster_id != place.cluster_id:
            raise ClusterUnreadable(
                f"{place.cluster} ({place.bootstrap}) has cluster id {cluster_id}; "
                f"the audit read {place.cluster_id}"
            )
        if tp.topic not in admin.list_topics():
            return Absent(f"the cluster has no topic {tp.topic}")
        described = admin.describe_topics([tp.topic])[tp.topic]
        if isinstance(described, KafkaError):
            raise described
        if tp.partition not in described.partitions:
            return Absent(f"the topic has no partition {tp.partition}")
        bounds = []
        for which in ("earliest", "latest"):
            answer = admin.list_offsets({tp: which})[tp]
            if isinstance(answer, KafkaError):
                raise answer
            bounds.append(answer.offset)
    start, end = bounds
    if place.offset < start:
        return Absent(f"deleted: the log starts at offset {start} (retention or DeleteRecords)")
    if place.offset >= end:
        return Absent(f"not in the log: it ends before offset {end}")
    return None


def _fetch(place: Place, settings: dict[str, Any], timeout: float) -> Found:
    tp = place.topic_partition
    consumer = Consumer(
        config={
            **settings,
            "auto.offset.reset": "none",
            "isolation.level": "read_uncommitted",
            "check.crcs": False,  # a wrong one is shown
            "fetch.max.wait.ms": 100,
        }
    )
    deadline = time.monotonic() + timeout
    try:
        consumer.assign([tp], {tp: place.offset})
        while time.monotonic() < deadline:
            batches = consumer.poll_batches(timeout_ms=200).get(tp, [])
            found = record_at(place.offset, batches)
            if found is not None:
                return found
    except NoCommittedOffset:
        return Absent("deleted while it was fetched (retention or DeleteRecords)")
    except CorruptMessage as problem:
        return Absent(f"the log cannot be read here: {problem}")
    finally:
        consumer.close(timeout=2)
    return Absent(
        f"no record: no batch at or behind offset {place.offset} arrived within {timeout:g} s"
    )
