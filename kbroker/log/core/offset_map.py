"""The last offset of each key, in a table of fixed size: how the log cleaner finds records that are superseded.

An entry has 24 bytes, as in Kafka's SkimpyOffsetMap: a hash of the key, 16 bytes, and the offset + 1; 0 is an empty
slot. The table is one anonymous mapping, so memory that no key uses is not touched. Two keys with the same hash would
lose a record: BLAKE2b has no collisions that a producer could construct, MD5 (Kafka's) has. Probing is double hashing
over a prime number of slots: a probe reaches every slot, and a miss at load 0.9 costs 10 probes.

Invariants:
1. `get` returns the offset of the last `put` of the key.
2. The table never grows: `put` of a new key raises IndexError when no slot is free.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

from kclient.wire.record_cursor import RecordCursor

ENTRY_BYTES: Final = 24
NOT_FOUND: Final = -1

_ENTRY: Final = struct.Struct("=16sq")
_PARTS: Final = struct.Struct("=QQ")


class OffsetMap:
    """Offsets by key in at most *memory_bytes*; MemoryError if there is no memory for that."""

    def __init__(self, memory_bytes: int) -> None:
        self.slots = _prime_up_to(memory_bytes // ENTRY_BYTES)
        size = self.slots * ENTRY_BYTES
        try:
            self._table = mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        except OSError as error:  # where a log is cleaned, that is an error of its disk
            raise MemoryError(f"no memory for an offset map of {size} bytes: {error}") from error
        self.size = 0
        """How many keys it holds."""

    def __len__(self) -> int:
        return self.size

    @property
    def memory_bytes(self) -> int:
        """Bytes of the table."""
        return len(self._table)

    def put(self, key: bytes, offset: int) -> None:
        """Set the offset of *key*. Raise IndexError when no slot is free."""
        digest = blake2b(key, digest_size=16).digest()
        position, found = self._find(digest)
        if not found:
            # One slot stays empty: it ends the search for a key that is not there.
            if self.size >= self.slots - 1:
                raise IndexError(f"the offset map is full with {self.size} keys")
            self.size += 1
        _ENTRY.pack_into(self._table, position, digest, offset + 1)

    def put_records(
        self, raw: bytes, count: int, base_offset: int, *, from_offset: int, max_keys: int
    ) -> int | None:
        """Put the *count* records *raw* of a batch, those with a key from *from_offset* on.

        Return the offset of the first record that is not in the map because that has *max_keys*; None if all are.
        Raise InvalidRecord.
        """
        cursor = RecordCursor(raw)
        for _ in range(count):
            cursor.next()
            offset = base_offset + cursor.offset_delta
            if cursor.key_size < 0 or offset < from_offset:
                continue
            if self.size >= max_keys:
                return offset
            self.put(raw[cursor.key_start : cursor.key_start + cursor.key_size], offset)
        return None

    def get(self, key: bytes) -> int:
        """Return the offset of *key*, NOT_FOUND for a key that was not put."""
        return self._find(blake2b(key, digest_size=16).digest())[1] - 1

    def _find(self, digest: bytes) -> tuple[int, int]:
        """Return the position of the entry, or of the empty slot where it belongs, and the number there."""
        table = self._table
        first, second = _PARTS.unpack(digest)
        slot: int = first % self.slots
        step: int = 1 + second % (self.slots - 1)
        while True:
            position = slot * ENTRY_BYTES
            there, number = _ENTRY.unpack_from(table, position)
            if not number or there == digest:
                return position, number
            slot = (slot + step) % self.slots


def _prime_up_to(number: int) -> int:
    """Return the largest prime that is not above *number*."""
    if number < 3:
        raise ValueError(f"an offset map needs memory for 3 entries of {ENTRY_BYTES} bytes")
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number
