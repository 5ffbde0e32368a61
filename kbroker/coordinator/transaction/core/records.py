"""The znode of a transactional id and its content.

    /transactions/ids/X     JSON, `TransactionMetadata`; partitions by topic

Content that cannot be right is refused with the path: a transaction that is decided wrongly is worse than one that
waits for a person.
"""

from __future__ import annotations

import json
from typing import Any, Final

from kbroker.common.topic_partition import TopicPartition
from kbroker.coordinator.transaction.core.states import (
    IDLE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)

_VERSION: Final = 1
_INT16_MAX: Final = 2**15 - 1
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

_STORED: Final = {
    state.value: state
    for state in TransactionState
    if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
}


class PoisonTransactionStateError(ValueError):
    """The content of a transactional id's znode is invalid; the text names the path."""


def encode_metadata(metadata: TransactionMetadata) -> bytes:
    """Return the content of the znode; ValueError for a state that is never stored."""
    if metadata.state.value not in _STORED:
        raise ValueError(f"state {metadata.state.value} is never stored")
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(metadata.partitions):
        topics.setdefault(topic, []).append(partition)
    content = {
        "version": _VERSION,
        "producer_id": metadata.producer_id,
        "producer_epoch": metadata.producer_epoch,
        "previous_producer_id": metadata.previous_producer_id,
        "last_producer_epoch": metadata.last_producer_epoch,
        "timeout_ms": metadata.timeout_ms,
        "state": metadata.state.value,
        "number": metadata.number,
        "start_ms": metadata.start_ms,
        "update_ms": metadata.update_ms,
        "partitions": topics,
        "groups": sorted(metadata.groups),
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def decode_metadata(path: str, data: bytes) -> TransactionMetadata:
    """Return the content of the znode at *path*; PoisonTransactionStateError for anything else."""
    try:
        content = json.loads(data)
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']!r} is not known")
        metadata = TransactionMetadata(
            producer_id=_integer(content, "producer_id", 0, _INT64_MAX),
            producer_epoch=_integer(content, "producer_epoch", 0, _INT16_MAX),
            timeout_ms=_integer(content, "timeout_ms", 0, _INT32_MAX),
            state=_STORED[content["state"]],
            update_ms=_integer(content, "update_ms", 0, _INT64_MAX),
            previous_producer_id=_integer(
                content, "previous_producer_id", NO_PRODUCER_ID, _INT64_MAX
            ),
            last_producer_epoch=_integer(
                content, "last_producer_epoch", NO_PRODUCER_EPOCH, _INT16_MAX
            ),
            number=_integer(content, "number", 0, _INT64_MAX),
            start_ms=_integer(content, "start_ms", -1, _INT64_MAX),
            partitions=frozenset(_partitions(content["partitions"])),
            groups=frozenset(_texts(content["groups"])),
        )
        is_open = metadata.state not in IDLE
        if is_open != bool(metadata.partitions or metadata.groups):
            raise ValueError(f"partitions or groups do not fit state {metadata.state.value}")
        if is_open and not metadata.number:
            raise ValueError("the open transaction has no number")
        return metadata
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PoisonTransactionStateError(
            f"{path} is not the state of a transactional id: {error!r}"
        ) from error


def _integer(content: dict[str, Any], name: str, low: int, high: int) -> int:
    value = content[name]
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {value!r:.80}, not a number in {low}..{high}")
    return value


def _partitions(topics: dict[str, list[int]]) -> list[TopicPartition]:
    found = []
    for topic, partitions in topics.items():
        for partition in partitions:
            if type(partition) is not int or not 0 <= partition <= _INT32_MAX:
                raise ValueError(f"partition {partition!r:.80} of {topic!r:.80}")
            found.append((topic, partition))
    return found


def _texts(values: list[str]) -> list[str]:
    if type(values) is not list or not all(type(each) is str for each in values):
        raise ValueError("groups are not a list of names")
    return values
