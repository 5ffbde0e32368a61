"""The offsets that one producer commits to one group in its open transaction (KIP-98): content and decisions.

    /transactions/pending/P,G   JSON, `PendingOffsets`: P is the producer id, G the escaped group

Theory of operation
===================
TxnOffsetCommit writes the offsets here, and nothing of them is visible. The marker of the transaction ends that: a
commit sets them as the offsets of the group and deletes the znode, an abort deletes it.

**Transactions.** A transaction has a producer epoch and a number, which the transaction coordinator gives with its
answer to the verification. It begins the next transaction of a producer only when every marker of the former one is
acknowledged. A group's coordinator acknowledges a marker only when no znode of that transaction exists. So a znode with
a lower number was written after its marker, and no response that the producer used for its decision named these
offsets. They are discarded: the next transaction replaces them, and a marker with a higher number deletes them. A
marker with a lower number is late, and has no effect.

**Order.** As in Kafka (`CommitRecordMetadataAndOffset.olderThan`), commits of a partition are ordered by their arrival
at the coordinator, not by the markers. A transactional offset is not applied if a plain commit arrived after it and was
written, or the offset of another transaction. Each pending offset has a *position*, which grows with every arrival. The
position is in the detail znode in two cases. A plain commit finds a pending offset of its partition, or an offset is
applied while another transaction has one pending. An offset without a position is older than each pending one.

Invariants:
1. A position is given once in a shard, and is above each position before it that is still stored for its partition.
2. A number or an epoch of a znode never falls.

Pure. Owner: the reactor's thread. Docs: docs/design/transactions.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from kbroker.common.topic_partition import TopicPartition
from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.core.records import CommitDetail
from kclient.wire.error_codes import ErrorCode

UNKNOWN_NUMBER: Final = -1
"""The number of a transaction where the sender gave none."""

MAX_BYTES: Final = 900_000
"""Of the znode; ZooKeeper closes the connection of a write above 1 MiB."""

_VERSION: Final = 1
_INT16_MAX: Final = 2**15 - 1
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class PoisonPendingOffsetsError(ValueError):
    """The name or content of a znode of pending offsets is invalid; the text names the path."""


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """The pending offsets of one transaction in one group; the position of each is in its detail."""

    producer_epoch: int
    number: int
    offsets: Mapping[TopicPartition, OffsetCommit]


def add(
    stored: PendingOffsets | None,
    producer_epoch: int,
    number: int,
    offsets: Mapping[TopicPartition, OffsetCommit],
) -> PendingOffsets | ErrorCode:
    """Return what is pending after a TxnOffsetCommit of the verified transaction *number*, or why it is refused.

    INVALID_PRODUCER_EPOCH: a later epoch of the producer has offsets here. INVALID_TXN_STATE: a later transaction has.
    """
    if stored is None:
        return PendingOffsets(producer_epoch, number, dict(offsets))
    if producer_epoch < stored.producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if producer_epoch > stored.producer_epoch:
        return PendingOffsets(producer_epoch, number, dict(offsets))
    if UNKNOWN_NUMBER not in (number, stored.number):
        if number < stored.number:
            return ErrorCode.INVALID_TXN_STATE
        if number > stored.number:
            return PendingOffsets(producer_epoch, number, dict(offsets))
    # Where one number is unknown, it is the same transaction as far as the epoch shows, as in Kafka.
    return PendingOffsets(producer_epoch, max(number, stored.number), {**stored.offsets, **offsets})


def without(stored: PendingOffsets, partitions: set[TopicPartition]) -> PendingOffsets | None:
    """Return *stored* without these partitions, None if nothing is left."""
    left = {key: commit for key, commit in stored.offsets.items() if key not in partitions}
    return replace(stored, offsets=left) if left else None


class End(Enum):
    """What a marker does to pending offsets."""

    APPLY = "apply"
    """It is the marker of their transaction: a commit sets the offsets, and an abort deletes them."""
    DISCARD = "discard"
    """They are of an earlier transaction: deleted, whatever the marker is."""
    KEEP = "keep"
    """The marker is late: acknowledged without an effect."""
    FENCED = "fenced"
    """The marker has no number, and an older epoch: INVALID_PRODUCER_EPOCH."""


def end(
    stored: PendingOffsets, producer_epoch: int, number: int | None, *, sent_by_client: bool = False
) -> End:
    """Return what a marker does to *stored*; without a number it ends what is pending.

    One *sent_by_client*, an ABORT, does so only in the producer epoch that is stored.
    """
    if sent_by_client:
        return End.APPLY if producer_epoch == stored.producer_epoch else End.FENCED
    if number is None or UNKNOWN_NUMBER in (number, stored.number):
        return End.FENCED if producer_epoch < stored.producer_epoch else End.APPLY
    if number == stored.number:
        return End.APPLY
    return End.DISCARD if number > stored.number else End.KEEP


def encode_pending(pending: PendingOffsets) -> bytes:
    """Return the content of the znode."""
    topics: dict[str, list[list[object]]] = {}
    for (topic, partition), (offset, detail) in pending.offsets.items():
        row: list[object] = [partition, offset, detail.position]
        if detail.leader_epoch != -1 or detail.metadata:
            row += [detail.leader_epoch, detail.metadata]
        topics.setdefault(topic, []).append(row)
    content = {
        "version": _VERSION,
        "producer_epoch": pending.producer_epoch,
        "number": pending.number,
        "offsets": topics,
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode_pending(path: str, data: bytes) -> PendingOffsets:
    """Return the content of the znode at *path*; PoisonPendingOffsetsError for anything else."""
    try:
        content = json.loads(data)
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']!r} is not known")
        offsets = {
            (topic, _within(row[0], 0, _INT32_MAX)): _commit(row)
            for topic, rows in content["offsets"].items()
            for row in rows
        }
        if not offsets:
            raise ValueError("it has no offsets")
        return PendingOffsets(
            _within(content["producer_epoch"], 0, _INT16_MAX),
            _within(content["number"], UNKNOWN_NUMBER, _INT64_MAX),
            offsets,
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise PoisonPendingOffsetsError(f"{path} is not pending offsets: {error!r}") from error


def _commit(row: list[Any]) -> OffsetCommit:
    leader_epoch, metadata = (row[3], row[4]) if len(row) > 3 else (-1, "")
    if not isinstance(metadata, str):
        raise TypeError(f"metadata {metadata!r:.40}")
    detail = CommitDetail(
        _within(leader_epoch, -(2**31), _INT32_MAX), metadata, _within(row[2], 1, _INT64_MAX)
    )
    return OffsetCommit(_within(row[1], 0, _INT64_MAX), detail)


def _within(value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r:.80} is not a number in {low}..{high}")
    return value
