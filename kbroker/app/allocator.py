"""The C library's allocator, kept from holding what was freed.

glibc has an arena for each thread, and keeps freed memory at the top of each. That is up to 64 MiB, once a block of 32
MiB was freed. Its threshold of mapped blocks follows the largest freed one, and its threshold of trimming is twice
that. A broker with ten threads in its pool kept 110 MiB after a few decompressed batches of 64 MiB. Fixed thresholds
end that: a block of `MAPPED_BYTES` has pages of its own. They are returned when it is freed, and it can grow without a
copy (mremap(2)).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

MAPPED_BYTES: Final = 8 << 20
"""Blocks from here on have pages of their own. Smaller ones are too frequent: new pages cost 0.1 ms per MiB."""

KEPT_BYTES: Final = 16 << 20
"""What each arena may keep at its top."""

_OPTIONS: Final = (
    (-3, "MALLOC_MMAP_THRESHOLD_", MAPPED_BYTES),  # M_MMAP_THRESHOLD, mallopt(3)
    (-1, "MALLOC_TRIM_THRESHOLD_", KEPT_BYTES),  # M_TRIM_THRESHOLD
)


def limit_kept_memory(environment: Mapping[str, str] = os.environ) -> None:
    """Set both thresholds. A variable of mallopt(3) in *environment* wins; other C libraries are left alone."""
    if sys.platform != "linux" or "GLIBC_TUNABLES" in environment:
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return
    for option, variable, size in _OPTIONS:
        if variable not in environment:
            mallopt(option, size)
