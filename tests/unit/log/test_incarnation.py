"""What a broker may conclude from its log directories about the life before (S8)."""

from __future__ import annotations

import pytest

from kbroker.log import incarnation
from kbroker.log.incarnation import OPEN_END, Memory, Past, Start, judge, together

BEFORE = Memory("boot-a", 10, 30)


@pytest.mark.parametrize(
    ("memory", "clean_epoch", "is_new", "past"),
    [
        (BEFORE, 30, False, Past(Start.CLEAN, (10, 30))),
        (BEFORE, None, False, Past(Start.CRASHED, (10, 30))),
        (BEFORE._replace(boot_id="boot-b"), 30, False, Past(Start.CLEAN, (10, 30))),
        (BEFORE._replace(boot_id="boot-b"), None, False, Past(Start.POWER_LOSS, None)),
        (BEFORE._replace(boot_id=""), None, False, Past(Start.POWER_LOSS, None)),
        # Killed while it registered: whatever epoch it was given is its own.
        (BEFORE._replace(until=None), None, False, Past(Start.CRASHED, (10, OPEN_END))),
        (Memory("boot-a", None, None), None, False, Past(Start.CRASHED, None)),
        (Memory("boot-b", 10, 30, (), Start.POWER_LOSS), 30, False, Past(Start.POWER_LOSS, None)),
        (None, None, True, Past(Start.NEW, None)),
        # An earlier version was here, or Apache Kafka.
        (None, 30, False, Past(Start.CLEAN, (0, OPEN_END))),
        (None, None, False, Past(Start.POWER_LOSS, None)),
        (BEFORE, 40, False, Past(Start.CLEAN, (10, 40))),
    ],
)
def test_what_the_files_of_a_directory_mean(
    memory: Memory | None, clean_epoch: int | None, is_new: bool, past: Past
) -> None:
    assert judge(memory, clean_epoch, "boot-a", is_new=is_new) == past


def test_a_machine_without_boot_ids_is_never_believed_to_have_lived_on() -> None:
    assert judge(BEFORE._replace(boot_id=""), None, "", is_new=False).intact is None


def test_directories_are_as_good_as_the_worst() -> None:
    clean, older = Past(Start.CLEAN, (10, 30)), Past(Start.CRASHED, (20, 25))
    assert together([clean, older]) == Past(Start.CRASHED, (20, 25))
    assert together([clean, Past(Start.CLEAN, (40, 50))]) == Past(Start.CLEAN, None)
    assert together([clean, Past(Start.POWER_LOSS, None)]) == Past(Start.POWER_LOSS, None)


def test_a_directory_that_was_added_takes_nothing_away() -> None:
    new = Past(Start.NEW, None)
    assert together([Past(Start.CLEAN, (10, 30)), new]) == Past(Start.CLEAN, (10, 30))
    assert together([new, new]) == new


def test_the_file_is_read_as_it_was_written() -> None:
    memory = Memory("boot-a", None, 7, ("x", "y"), Start.PARTIAL)
    assert incarnation.decode(memory.encode()) == memory


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 20, b"[]", b'{"bootId":1,"intactSince":1,"brokerEpoch":1}', b'{"bootId":"x"}']
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_as_good_as_none(content: bytes) -> None:
    assert incarnation.decode(content) is None
