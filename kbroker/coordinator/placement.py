"""The partition of ``__consumer_offsets`` of a group, and of ``__transaction_state`` of a transactional id.

The partition's leader is the coordinator.
"""

from functools import lru_cache


@lru_cache(maxsize=16_384)
def java_hash(text: str) -> int:
    """Return Java's String.hashCode(), a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        result = (31 * result + (high << 8) + low) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result


def partition_for(name: str, partitions: int) -> int:
    """Return the partition of a group or transactional id, of *partitions* in all."""
    number = java_hash(name)
    # Kafka's abs() of the one number without a positive counterpart is 0.
    return (0 if number == -(1 << 31) else abs(number)) % partitions
