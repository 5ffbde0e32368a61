"""What a broker concludes from the files of a log directory about its last run (S8)."""

from __future__ import annotations

import json

import pytest

from kbroker.common.log_dir_integrity import (
    MAX_BROKER_EPOCH,
    LogDirCondition,
    LogDirIntegrity,
    broker_epochs,
)
from kbroker.log import log_dir_history
from kbroker.log.log_dir_history import LogDirHistory, assess, combine

BEFORE = LogDirHistory("boot-a", broker_epochs((10, 30)))


@pytest.mark.parametrize(
    ("history", "clean_epoch", "is_new", "integrity"),
    [
        (BEFORE, 30, False, LogDirIntegrity(LogDirCondition.CLEAN, broker_epochs((10, 30)))),
        (BEFORE, None, False, LogDirIntegrity(LogDirCondition.CRASHED, broker_epochs((10, 30)))),
        (
            BEFORE._replace(boot_id="boot-b"),
            30,
            False,
            LogDirIntegrity(LogDirCondition.CLEAN, broker_epochs((10, 30))),
        ),
        (
            BEFORE._replace(boot_id="boot-b"),
            None,
            False,
            LogDirIntegrity(LogDirCondition.POWER_LOSS, None),
        ),
        (
            BEFORE._replace(boot_id=""),
            None,
            False,
            LogDirIntegrity(LogDirCondition.POWER_LOSS, None),
        ),
        # Killed while it registered: whatever epoch it was given is its own.
        (
            BEFORE._replace(intact=broker_epochs((10, MAX_BROKER_EPOCH))),
            None,
            False,
            LogDirIntegrity(LogDirCondition.CRASHED, broker_epochs((10, MAX_BROKER_EPOCH))),
        ),
        (
            LogDirHistory("boot-a", None),
            None,
            False,
            LogDirIntegrity(LogDirCondition.CRASHED, None),
        ),
        (
            LogDirHistory("boot-b", broker_epochs((10, 30)), (), LogDirCondition.POWER_LOSS),
            30,
            False,
            LogDirIntegrity(LogDirCondition.POWER_LOSS, None),
        ),
        (None, None, True, LogDirIntegrity(LogDirCondition.NEW, None)),
        # An earlier version was here, or Apache Kafka.
        (
            None,
            30,
            False,
            LogDirIntegrity(LogDirCondition.CLEAN, broker_epochs((0, MAX_BROKER_EPOCH))),
        ),
        (None, None, False, LogDirIntegrity(LogDirCondition.POWER_LOSS, None)),
        (BEFORE, 40, False, LogDirIntegrity(LogDirCondition.CLEAN, broker_epochs((10, 30), 40))),
    ],
)
def test_what_the_files_of_a_directory_mean(
    history: LogDirHistory | None, clean_epoch: int | None, is_new: bool, integrity: LogDirIntegrity
) -> None:
    assert assess(history, clean_epoch, "boot-a", is_new=is_new) == integrity


def test_a_machine_without_boot_ids_counts_as_one_that_went_down() -> None:
    assert assess(BEFORE._replace(boot_id=""), None, "", is_new=False).intact is None


def test_directories_are_as_good_as_the_worst() -> None:
    clean, older = (
        LogDirIntegrity(LogDirCondition.CLEAN, broker_epochs((10, 30))),
        LogDirIntegrity(LogDirCondition.CRASHED, broker_epochs((20, 25))),
    )
    assert combine([clean, older]) == LogDirIntegrity(
        LogDirCondition.CRASHED, broker_epochs((20, 25))
    )
    assert combine(
        [clean, LogDirIntegrity(LogDirCondition.CLEAN, broker_epochs((40, 50)))]
    ) == LogDirIntegrity(LogDirCondition.CLEAN, None)
    assert combine([clean, LogDirIntegrity(LogDirCondition.POWER_LOSS, None)]) == LogDirIntegrity(
        LogDirCondition.POWER_LOSS, None
    )


def test_a_directory_that_was_added_takes_nothing_away() -> None:
    new = LogDirIntegrity(LogDirCondition.NEW, None)
    assert combine(
        [LogDirIntegrity(LogDirCondition.CLEAN, broker_epochs((10, 30))), new]
    ) == LogDirIntegrity(LogDirCondition.CLEAN, broker_epochs((10, 30)))
    assert combine([new, new]) == new


def test_the_file_is_read_as_it_was_written() -> None:
    history = LogDirHistory("boot-a", None, ("x", "y"), LogDirCondition.PARTIAL)
    assert log_dir_history.decode(history.encode()) == history
    several = LogDirHistory("boot-a", broker_epochs(10, (20, 30), 40), ("x",), None, ("x",), 20)
    assert log_dir_history.decode(several.encode()) == several


def test_an_earlier_version_reads_the_first_and_the_last_epoch() -> None:
    content = json.loads(LogDirHistory("boot-a", broker_epochs(10, 40)).encode())
    assert (content["intactSince"], content["brokerEpoch"]) == (10, 40)
    del content["epochs"]  # as an earlier version writes the file
    read = log_dir_history.decode(json.dumps(content).encode())
    assert read is not None
    assert read.intact == broker_epochs((10, 40))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 20,
        b"[]",
        b'{"bootId":1,"intactSince":1,"brokerEpoch":1}',
        b'{"bootId":"x"}',
        b'{"bootId":"x","intactSince":1,"brokerEpoch":9,"epochs":[[9,1]]}',
    ],
)
def test_a_file_that_cannot_be_decoded_counts_as_none(content: bytes) -> None:
    assert log_dir_history.decode(content) is None
