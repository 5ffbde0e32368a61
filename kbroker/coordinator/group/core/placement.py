"""Which partition of ``__consumer_offsets`` a group belongs to, and so which broker coordinates it."""

from functools import lru_cache

OFFSETS_TOPIC = "__consumer_offsets"
"""Its leaders are the coordinators. Its log stays empty: what groups keep is in ZooKeeper."""


@lru_cache(maxsize=16_384)
def java_hash(text: str) -> int:
    """Return what Java's String.hashCode() returns, a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        result = (31 * result + (high << 8) + low) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result


def partition_for(group_id: str, partitions: int) -> int:
    """Return the partition, of so many, that *group_id* belongs to."""
    number = java_hash(group_id)
    # Kafka's abs() of the one number whose negative does not fit is 0.
    return (0 if number == -(1 << 31) else abs(number)) % partitions
