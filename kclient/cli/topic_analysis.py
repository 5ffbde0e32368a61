"""What the records of a partition are like: sizes, keys, codecs, timestamps, holes. Pure, in bounded memory.

Records are counted exactly. Distinct keys are estimated by HyperLogLog (Flajolet et al. 2007) with 4,096 registers: the
standard error is 1.6 %. Frequent keys are found by the algorithm of Misra and Gries (1982) with 100 counters. A count
is at most 1 % of the records too low, and every key of more than 1 % of the records is found. A partition takes less
than 200 KB, however many records it has.

In: batches in the order of their offsets   Out: `Analysis.row`
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

_REGISTER_BITS = 12
_REGISTERS = 1 << _REGISTER_BITS
_COUNTERS = 100
_KEY_BYTES = 256
"""Frequent keys are compared, and kept, up to this length."""
_SHOWN_KEYS = 5


class DistinctCount:
    """An estimate of the number of distinct byte strings."""

    def __init__(self) -> None:
        self._registers = bytearray(_REGISTERS)

    def add(self, keys: Iterable[bytes]) -> None:
        """Count *keys*; one that was counted before changes nothing."""
        registers = self._registers
        for key in keys:
            hashed = int.from_bytes(blake2b(key, digest_size=8).digest(), "big")
            place = hashed & (_REGISTERS - 1)
            rank = 65 - _REGISTER_BITS - (hashed >> _REGISTER_BITS).bit_length()
            if rank > registers[place]:
                registers[place] = rank

    def merge(self, other: DistinctCount) -> None:
        """Count what *other* counted, too."""
        self._registers = bytearray(map(max, self._registers, other._registers))

    @property
    def estimate(self) -> int:
        """The number, with a standard error of 1.6 %."""
        empty = self._registers.count(0)
        alpha = 0.7213 / (1 + 1.079 / _REGISTERS)
        raw = alpha * _REGISTERS**2 / sum(2.0**-rank for rank in self._registers)
        if raw <= 2.5 * _REGISTERS and empty:
            return round(_REGISTERS * math.log(_REGISTERS / empty))
        return round(raw)


class FrequentKeys:
    """The most frequent of many keys; a count is at most 1 % of all too low."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def add(self, counts: Counter[bytes]) -> None:
        """Count keys with the number of their records."""
        for key, number in counts.items():
            self._counts[key[:_KEY_BYTES]] += number
        if len(self._counts) > _COUNTERS:
            least = self._counts.most_common(_COUNTERS + 1)[-1][1]
            self._counts = Counter(
                {key: number - least for key, number in self._counts.items() if number > least}
            )

    def merge(self, other: FrequentKeys) -> None:
        """Count what *other* counted, too."""
        self.add(other._counts)

    def top(self, number: int) -> list[tuple[bytes, int]]:
        """Return up to *number* keys with their counts, the most frequent first."""
        return self._counts.most_common(number)


class Analysis:
    """The records of one partition, or of several that were merged."""

    def __init__(self) -> None:
        self.records = self.batches = self.control_batches = self.bytes = 0
        self.null_keys = self.null_values = self.headers = 0
        self.key_bytes = self.value_bytes = self.largest_value = 0
        self.holes = self.missing_offsets = self.late_timestamps = 0
        self.first_timestamp: int | None = None
        """The smallest and the largest, in ms."""
        self.last_timestamp: int | None = None
        self.value_sizes: Counter[int] = Counter()
        """Records by the bit length of their value's size."""
        self.codecs: Counter[str] = Counter()
        """Batches by codec."""
        self._keys = DistinctCount()
        self._frequent = FrequentKeys()
        self._next_offset: int | None = None
        self._previous_timestamp = -1

    def add_batch(self, codec: str, size: int, *, is_control: bool) -> None:
        """Count a batch of *size* bytes."""
        self.bytes += size
        if is_control:
            self.control_batches += 1
        else:
            self.batches += 1
            self.codecs[codec] += 1

    def add_records(
        self,
        offsets: Sequence[int],
        timestamps: Sequence[int],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Sequence[Sequence[object]],
    ) -> None:
        """Count the records of a batch, in columns."""
        if not offsets:
            return
        self.records += len(offsets)
        self._follow(offsets)
        for timestamp in timestamps:
            if timestamp < self._previous_timestamp:
                self.late_timestamps += 1
            self._previous_timestamp = timestamp
        self._span(min(timestamps), max(timestamps))
        counts = Counter(keys)
        self.null_keys += counts.pop(None, 0)
        named: Counter[bytes] = Counter({key: n for key, n in counts.items() if key is not None})
        self.key_bytes += sum(len(key) * number for key, number in named.items())
        self._keys.add(named)
        self._frequent.add(named)
        sizes = [len(value) for value in values if value is not None]
        self.null_values += len(values) - len(sizes)
        self.value_bytes += sum(sizes)
        self.largest_value = max(self.largest_value, *sizes, 0)
        self.value_sizes.update(map(int.bit_length, sizes))
        self.headers += sum(map(len, headers))

    def _follow(self, offsets: Sequence[int]) -> None:
        expected = self._next_offset
        for offset in offsets:
            if expected is not None and offset > expected:
                self.holes += 1
                self.missing_offsets += offset - expected
            expected = offset + 1
        self._next_offset = expected

    def _span(self, first: int, last: int) -> None:
        earlier, later = self.first_timestamp, self.last_timestamp
        self.first_timestamp = first if earlier is None else min(earlier, first)
        self.last_timestamp = last if later is None else max(later, last)

    def merge(self, other: Analysis) -> None:
        """Count the records of *other*, of another partition, too."""
        for name in (
            *("records", "batches", "control_batches", "bytes", "null_keys", "null_values"),
            *("headers", "key_bytes", "value_bytes", "holes", "missing_offsets", "late_timestamps"),
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest_value = max(self.largest_value, other.largest_value)
        if other.first_timestamp is not None and other.last_timestamp is not None:
            self._span(other.first_timestamp, other.last_timestamp)
        self.value_sizes += other.value_sizes
        self.codecs += other.codecs
        self._keys.merge(other._keys)
        self._frequent.merge(other._frequent)

    def value_size_below(self, share: float) -> int | None:
        """Return a power of two that at least *share* of the values are smaller than; None without values."""
        seen, total = 0, self.value_sizes.total()
        for bits in sorted(self.value_sizes):
            seen += self.value_sizes[bits]
            if seen >= share * total:
                return 1 << bits
        return None

    def row(self) -> dict[str, Any]:
        """Return all numbers, ready for JSON; sizes in bytes, times in ms since the epoch."""
        values = self.records - self.null_values
        return {
            "records": self.records,
            "batches": self.batches,
            "control_batches": self.control_batches,
            "bytes": self.bytes,
            "records_per_batch": round(self.records / self.batches, 1) if self.batches else None,
            "codecs": dict(self.codecs.most_common()),
            "null_keys": self.null_keys,
            "distinct_keys": self._keys.estimate,
            "frequent_keys": [
                {"key": key.decode(errors="backslashreplace"), "records": number}
                for key, number in self._frequent.top(_SHOWN_KEYS)
            ],
            "key_bytes": self.key_bytes,
            "null_values": self.null_values,
            "value_bytes": self.value_bytes,
            "value_size_mean": round(self.value_bytes / values, 1) if values else None,
            "value_size_p50_below": self.value_size_below(0.5),
            "value_size_p99_below": self.value_size_below(0.99),
            "value_size_max": self.largest_value,
            "headers": self.headers,
            "first_timestamp": self.first_timestamp,
            "last_timestamp": self.last_timestamp,
            "late_timestamps": self.late_timestamps,
            "holes": self.holes,
            "missing_offsets": self.missing_offsets,
        }
