"""Mergeable summaries of many numbers: sizes by percentile, and a count of distinct hashes.

A Spark task fills a sketch, and the driver merges those of all tasks: no record leaves the task.

*Sizes* are counted in bins. Below 256 a bin is one size; above it, each power of two has 128 bins, as in
HdrHistogram. So a percentile is at most 1/128 (0.8 %) above the true one. Largest size, sum and count are exact.

*Distinct hashes* are estimated by HyperLogLog with 4,096 registers and Ertl's estimator (arXiv:1702.01284, "improved
raw estimator"): the standard error is 1.6 %, whatever the number.

Invariants (tests cite the numbers):
 1. merging the sketches of parts gives the sketch of the whole;
 2. true percentile <= percentile <= true percentile * (1 + 1/128).

Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]

_EXACT_BITS = 8
_PER_OCTAVE = 128

_INDEX_BITS = 12
_REGISTERS = 1 << _INDEX_BITS
_RANK_BITS = 64 - _INDEX_BITS


@dataclass(slots=True)
class SizeHistogram:
    """How often each size from 0 on occurs."""

    bins: dict[int, int] = field(default_factory=dict)
    count: int = 0
    total: int = 0
    largest: int = 0

    def add(self, sizes: Integers) -> None:
        """Add *sizes*, none of them negative."""
        if not sizes.size:
            return
        found, counts = np.unique(_bins(sizes), return_counts=True)
        for number, count in zip(found.tolist(), counts.tolist(), strict=True):
            self.bins[number] = self.bins.get(number, 0) + count
        self.count += sizes.size
        self.total += int(sizes.sum())
        self.largest = max(self.largest, int(sizes.max()))

    def merge(self, other: SizeHistogram) -> None:
        """Add all sizes of *other*."""
        for number, count in other.bins.items():
            self.bins[number] = self.bins.get(number, 0) + count
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def percentile(self, percent: float) -> int | None:
        """Return the size that *percent* of all sizes do not exceed (nearest rank); None without sizes."""
        rank = max(1, math.ceil(self.count * percent / 100))
        seen = 0
        for number in sorted(self.bins):
            seen += self.bins[number]
            if seen >= rank:
                return min(_upper_end(number), self.largest)
        return None


def _bins(sizes: Integers) -> Integers:
    octave = np.frexp(np.maximum(sizes, 1).astype(np.float64))[1].astype(np.int64) - 1
    octave = np.maximum(octave, _EXACT_BITS)
    within = (sizes >> (octave - 7)) - _PER_OCTAVE
    coarse = (1 << _EXACT_BITS) + (octave - _EXACT_BITS) * _PER_OCTAVE + within
    return np.where(sizes < 1 << _EXACT_BITS, sizes, coarse)


def _upper_end(number: int) -> int:
    """Return the largest size in bin *number*."""
    if number < 1 << _EXACT_BITS:
        return number
    octave, within = divmod(number - (1 << _EXACT_BITS), _PER_OCTAVE)
    return ((_PER_OCTAVE + within + 1) << (octave + _EXACT_BITS - 7)) - 1


@dataclass(slots=True, eq=False)
class DistinctCount:
    """Estimates how many different 64-bit hashes were added."""

    registers: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(_REGISTERS, np.uint8))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DistinctCount) and np.array_equal(self.registers, other.registers)

    __hash__ = None  # type: ignore[assignment]

    def add(self, hashes: Hashes) -> None:
        """Add *hashes*."""
        index = (hashes >> np.uint64(_RANK_BITS)).astype(np.int64)
        rest = hashes & np.uint64((1 << _RANK_BITS) - 1)
        # 52 bits are exact as a float; its exponent is the number of bits.
        bits = np.frexp(rest.astype(np.float64))[1]
        np.maximum.at(self.registers, index, (_RANK_BITS + 1 - bits).astype(np.uint8))

    def merge(self, other: DistinctCount) -> None:
        """Add all hashes of *other*."""
        np.maximum(self.registers, other.registers, out=self.registers)

    def estimate(self) -> int:
        """Return the estimated number."""
        counts = np.bincount(self.registers, minlength=_RANK_BITS + 2).tolist()
        if counts[0] == _REGISTERS:
            return 0
        z = _REGISTERS * _tau(1 - counts[_RANK_BITS + 1] / _REGISTERS)
        for count in reversed(counts[1 : _RANK_BITS + 1]):
            z = (z + count) / 2
        z += _REGISTERS * _sigma(counts[0] / _REGISTERS)
        return round(_REGISTERS * _REGISTERS / (2 * math.log(2) * z))


def _sigma(x: float) -> float:
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x, before = math.sqrt(x), z
        y /= 2
        z -= (1 - x) ** 2 * y
    return z / 3
