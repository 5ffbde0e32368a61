"""The order in which Java's HashMap returns its keys: some of Kafka's tools print in that order. Pure.

A map begins with 16 buckets and doubles them when it is three quarters full. Keys of one bucket keep the order in which
they were added. A bucket of eight keys and more would become a tree, which is not imitated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kclient.types import TopicPartition

K = TypeVar("K")

_FIRST_CAPACITY = 16


def string_hash(text: str) -> int:
    """Return Java's String.hashCode(), as 32 bits without sign."""
    data = text.encode("utf-16-be", "surrogatepass")
    found = 0
    for at in range(0, len(data), 2):
        found = (31 * found + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return found


def partition_hash(tp: TopicPartition) -> int:
    """Return the hashCode() of Kafka's TopicPartition."""
    return (31 * (31 + tp.partition) + string_hash(tp.topic)) & 0xFFFFFFFF


def hash_map_order(
    keys: Iterable[K], hash_of: Callable[[K], int], capacity: int = _FIRST_CAPACITY
) -> list[K]:
    """Return *keys* in the order of a HashMap that began with *capacity*, and to which they were added in turn."""
    added = list(dict.fromkeys(keys))
    while len(added) > capacity * 3 // 4:
        capacity *= 2

    def bucket(key: K) -> int:
        found = hash_of(key)
        return (found ^ found >> 16) & (capacity - 1)

    return sorted(added, key=bucket)


def strings(keys: Iterable[str]) -> list[str]:
    """Return *keys* in the order of a HashMap."""
    return hash_map_order(keys, string_hash)


def described_topics(names: Iterable[str]) -> list[str]:
    """Return *names* in the order of the result of Java's describeTopics().

    They go through three maps: one with room for their number, a copy of it, and again one with room for their number.
    """
    found = list(names)
    sized, copied = _capacity(len(found)), _capacity(int(len(found) / 0.75 + 1))
    for capacity in (sized, copied, sized):
        found = hash_map_order(found, string_hash, capacity)
    return found


def _capacity(least: int) -> int:
    """Return the number of buckets of a map that is made with room for *least*."""
    return 1 << max(0, least - 1).bit_length()


def partitions(keys: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return *keys* in the order of a HashMap."""
    return hash_map_order(keys, partition_hash)
