"""The offset map: the last offset of each key, in memory that does not grow."""

from __future__ import annotations

import mmap
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.log.core.offset_map import ENTRY_BYTES, NOT_FOUND, OffsetMap


def test_the_map_has_the_last_offset_of_each_key_and_of_no_other() -> None:
    rng = random.Random(7)
    found = OffsetMap(1_000 * ENTRY_BYTES)
    expected: dict[bytes, int] = {}
    for offset in range(3_000):
        key = rng.choice([b"", b"\0", b"key-%d" % rng.randrange(850)])
        found.put(key, offset)
        expected[key] = offset
    assert {key: found.get(key) for key in expected} == expected
    assert len(found) == len(expected) == found.size
    assert [found.get(b"other-%d" % number) for number in range(500)] == [NOT_FOUND] * 500


def test_a_full_map_takes_no_new_key_and_still_answers() -> None:
    found = OffsetMap(8 * ENTRY_BYTES)  # 7 slots, one of which stays empty
    for number in range(6):
        found.put(b"%d" % number, number)
    with pytest.raises(IndexError, match="6 keys"):
        found.put(b"one more", 9)
    found.put(b"3", 33)
    assert [found.get(b"%d" % number) for number in range(7)] == [0, 1, 2, 33, 4, 5, NOT_FOUND]


def test_the_memory_of_the_map_is_what_it_was_given_or_less() -> None:
    found = OffsetMap(100_000)
    assert 100_000 - 40 * ENTRY_BYTES < found.memory_bytes <= 100_000
    for number in range(4_000):
        found.put(b"%d" % number, number)
    assert found.memory_bytes <= 100_000


def test_a_map_without_room_for_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="3 entries"):
        OffsetMap(2 * ENTRY_BYTES)


def test_memory_that_no_key_uses_is_not_touched() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    found = OffsetMap(256 << 20)
    found.put(b"key", 1)
    assert found.get(b"key") == 1
    assert resident() - before < 64 << 20


def test_a_map_without_memory_is_no_error_of_a_disk() -> None:
    script = (
        "import resource; from kbroker.log.core.offset_map import OffsetMap\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "try: OffsetMap(2 << 30)\n"
        "except MemoryError as error: print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout.startswith("no memory for an offset map of 21474"), ended.stderr
