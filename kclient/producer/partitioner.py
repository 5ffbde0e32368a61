"""The partition of a record, chosen as by Kafka's clients.

A record with a key goes to murmur2(key) modulo the partition count, so all clients choose the same partition for a key.
Records without a key go to one partition until about one batch of bytes is in it, then to another random one (KIP-480,
KIP-794): batches are fuller and the distribution is even. Pure: randomness is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

_M = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF
_LONGEST_CACHED_KEY = 128
"""Bytes; the cache keeps its keys alive, and 65,536 keys of a megabyte would be 64 GiB."""


class Partitioner(Protocol):
    """A custom partitioner: (topic, key, partitions) -> partition."""

    def __call__(self, topic: str, key: bytes | None, partitions: Sequence[int]) -> int | None:
        """Return a partition, or None to treat the record as one without a key."""


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 hash of *data*, unsigned."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if length & 3:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of *key*. Cached for short keys, because keys repeat and the hash is slow in Python."""
    if len(key) <= _LONGEST_CACHED_KEY:
        return _cached_partition(key, partition_count)
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


@lru_cache(maxsize=1 << 16)
def _cached_partition(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """Chooses the partition of records without a key: per topic one partition at a time.

    *draw* picks an element of a sequence, like random.choice.
    """

    def __init__(self, batch_size: int, draw: Callable[[Sequence[int]], int]) -> None:
        self._batch_size = max(1, batch_size)
        self._draw = draw
        self._current: dict[str, tuple[int, int]] = {}  # topic -> (partition, bytes left)

    def partition(self, topic: str, available: Sequence[int], size: int) -> int:
        """Return the partition for the next *size* bytes, one of *available* (never empty)."""
        current = self._current.get(topic)
        if current is None or current[1] <= 0 or current[0] not in available:
            others = [p for p in available if current is None or p != current[0]] or available
            current = (self._draw(others), self._batch_size)
        self._current[topic] = (current[0], current[1] - size)
        return current[0]

    def batch_full(self, topic: str) -> None:
        """Choose another partition for the next record of *topic*, because its batch is closed."""
        current = self._current.get(topic)
        if current is not None:
            self._current[topic] = (current[0], 0)
