"""The gap ledger of one direction: its topic at the target is created, read, and written before a gap is passed.

Theory of operation
===================
A link that finds a gap waits until `Ledger.record` has fired. Gaps of one reactor turn share a write. A write reads the
ledger first: another mirror or an earlier run may have written the same gap (`kclient.mirror_ledger`). What is there
already is not written again. Writes are acknowledged by all in-sync replicas. One write is in flight at a time. If it
fails, all its gaps fail: their links read both log ends and come back.

The topic is read by ListOffsets and Fetch, and written by Produce: any Kafka cluster has these.

In: gaps   Out: records of the ledger's topic   Owner: the reactor's thread
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.mirror_ledger import GAP, GapEntry, GapKey, GapView, encode, encode_key, merged, view
from kclient.net.cluster import Cluster
from kclient.net.offsets import EARLIEST, LATEST, list_offsets
from kclient.types import TopicPartition
from kclient.wire import batches
from kclient.wire.errors import (
    ErrorCode,
    KafkaError,
    OffsetNotAvailable,
    for_code,
)
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.records import Record, decode_batch
from kclient.wire.versions import ApiKey
from mirrormaker.internal_topic import TIMEOUT, InternalTopic, request_leader
from mirrormaker.lineage import text_of
from mirrormaker.link_state import Gap

ENTRIES_PER_BATCH = 500
"""Entries in one record batch: about 300 KB, below every usual max.message.bytes."""

FETCH_BYTES = 4 << 20


class _Waiting(NamedTuple):
    source: TopicPartition
    copy: TopicPartition
    gap: Gap
    topic_id: str
    done: Deferred[None]
    type: str
    records_lost: int | None


class Ledger:
    """The ledger *topic* at *target*. *source_id* returns the cluster id of the source."""

    def __init__(
        self,
        target: Cluster,
        topic: str,
        source_id: Callable[[], str],
        *,
        replication_factor: int,
    ) -> None:
        self._target = target
        self.topic = topic
        self._source_id = source_id
        self._records = InternalTopic(
            target, topic, replication_factor=replication_factor, compact_existing=True
        )
        self._waiting: list[_Waiting] = []
        self._writing = False
        self.written = 0
        """Entries that were written, those that replace an earlier entry included."""

    def record(
        self,
        source: TopicPartition,
        copy: TopicPartition,
        gap: Gap,
        topic_id: str,
        *,
        type: str = GAP,
        records_lost: int | None = None,
    ) -> Deferred[None]:
        """Write the *gap* of *source*, now of *topic_id*, at its target partition *copy*.

        Fire when the entry is durable, or fail with a KafkaError.
        """
        done: Deferred[None] = Deferred()
        self._waiting.append(_Waiting(source, copy, gap, topic_id, done, type, records_lost))
        if not self._writing:
            self._writing = True
            self._target.reactor.callLater(0, self._begin)
        return done

    async def withdraw(self, keys: Iterable[GapKey]) -> None:
        """Delete the entries of *keys*. Raise KafkaError."""
        now = time.time_ns() // 1_000_000
        await self._records.append(
            Record(n, now, encode_key(key), None) for n, key in enumerate(keys)
        )

    def _begin(self) -> None:
        due, self._waiting = self._waiting, []
        written = Deferred.fromCoroutine(self._write(due))

        def ended(result: Any) -> None:
            self._writing = bool(self._waiting)
            if self._writing:
                self._target.reactor.callLater(0, self._begin)
            for each in due:
                if isinstance(result, Failure):
                    each.done.errback(result)
                else:
                    each.done.callback(None)

        written.addBoth(ended)

    async def _write(self, due: Sequence[_Waiting]) -> None:
        await self._records.create()
        known = (await _read(self._target, self.topic)).entries
        now = time.time_ns() // 1_000_000
        entries = {}
        for each in due:
            found = self._entry(each, now)
            entry = merged(known.get(found.key), found)
            if entry != known.get(found.key):
                entries[entry.key] = entry
        left = list(entries.values())
        while left:
            now_due, left = left[:ENTRIES_PER_BATCH], left[ENTRIES_PER_BATCH:]
            await self._records.append(
                Record(n, entry.first_seen_ms, *encode(entry)) for n, entry in enumerate(now_due)
            )
            self.written += len(now_due)

    def _entry(self, each: _Waiting, now: int) -> GapEntry:
        gap = each.gap
        return GapEntry(
            self._source_id(),
            each.copy.topic,
            each.copy.partition,
            gap.first,
            gap.until,
            gap.cause.name.lower(),
            each.source.topic,
            gap.before or each.topic_id,
            gap.after or each.topic_id,
            text_of(self._target.metadata.topic_id(each.copy.topic)),
            records_lost=each.records_lost,
            first_seen_ms=now,
            type=each.type,
        )


async def read_ledger(cluster: Cluster, topic: str) -> GapView:
    """Return the ledger *topic* of *cluster*; an empty view if the topic does not exist. Raise KafkaError."""
    cluster.want([topic])
    metadata = (await cluster.refresh()).topics.get(topic)
    if metadata is None or metadata.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return view([])
    return await _read(cluster, topic)


async def _read(cluster: Cluster, topic: str) -> GapView:
    """Return the ledger *topic*, which exists. Raise KafkaError."""
    await cluster.partitions(topic, timeout=TIMEOUT)
    tp = TopicPartition(topic, 0)
    found = []
    for which in (LATEST, EARLIEST):
        answer = (await list_offsets(cluster, {tp: which}, timeout=TIMEOUT))[tp]
        if isinstance(answer, KafkaError):
            raise answer
        found.append(answer.offset)
    end, offset = found
    records: list[tuple[bytes | None, bytes | None]] = []
    while offset < end:

        async def attempt(offset: int = offset) -> int:
            return await _fetch(cluster, tp, offset, records)

        offset = await cluster.retrying(attempt, timeout=TIMEOUT, what=f"reading {topic}")
    return view(records)


async def _fetch(
    cluster: Cluster,
    tp: TopicPartition,
    offset: int,
    records: list[tuple[bytes | None, bytes | None]],
) -> int:
    """Add the records from *offset* on to *records*; return the next offset. Raise KafkaError."""
    wanted = FetchPartition(tp.partition, offset, FETCH_BYTES, cluster.metadata.leader_epoch(tp))
    request = FetchRequest(500, 1, [FetchTopic(tp.topic, [wanted])], max_bytes=FETCH_BYTES)
    response = await request_leader(cluster, tp.topic, ApiKey.FETCH, request)
    if response.error_code:
        raise for_code(response.error_code)(f"fetch of {tp} at offset {offset}")
    answer = response.topics[0].partitions[0]
    if answer.error_code:
        raise for_code(answer.error_code)(f"fetch of {tp} at offset {offset}")
    data, first = answer.record_set, offset
    for info in batches.iterate(data):
        batches.check_crc(data, info)
        if not info.is_control:
            records += [
                (each.key, each.value) for each in decode_batch(data, info) if each.offset >= offset
            ]
        offset = max(offset, info.next_offset)
    if offset == first:
        raise OffsetNotAvailable(f"{tp} has no batch to fetch at offset {offset} yet")
    return offset
