"""The decisions of a move to another log directory: the next step, where two logs agree, what a start completes."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.log.core.leader_epoch_cache import EpochEntry
from kbroker.log.core.log_move import (
    LAST_BYTES,
    CopyRate,
    CurrentLog,
    FoundTwice,
    FutureLog,
    Step,
    common_end,
    half_replaced,
    is_copy_of,
    newest,
    next_step,
)
from kbroker.log.core.partition_metadata_file import PartitionMetadata
from tests.kit.log_managers import ID

NEVER = 2**63 - 1
KEY = ("t", 0)
H = "0123456789abcdef" * 2
CURRENT = CurrentLog(10, 100, 50, True)
COPY = FutureLog(10, 100, 100, NEVER, 0, 10)


@pytest.mark.parametrize(
    ("current", "copy", "is_near", "step"),
    [
        (CURRENT, None, True, Step.OPEN),
        (CURRENT, COPY, True, Step.REPLACE),
        (CURRENT, COPY._replace(log_end_offset=99), True, Step.REPLACE),
        (CURRENT, COPY._replace(log_end_offset=99), False, Step.COPY),
        (CURRENT, COPY._replace(valid_below=90), True, Step.TRUNCATE),
        (CURRENT, COPY._replace(log_end_offset=101), True, Step.TRUNCATE),
        (CURRENT, COPY._replace(log_start_offset=0, log_end_offset=9), True, Step.START_AGAIN),
        (CURRENT, COPY._replace(log_start_offset=11), True, Step.START_AGAIN),
        (CURRENT, COPY._replace(log_start_offset=0), True, Step.REPLACE),
        (CURRENT, COPY._replace(prepared_start=None), True, Step.PREPARE),
        (CURRENT, COPY._replace(log_end_offset=10, prepared_start=None), True, Step.COPY),
        (CURRENT, COPY._replace(prepared_start=9), True, Step.PREPARE),
        (CURRENT, COPY._replace(recovery_point=49), True, Step.REPLACE),
        (
            CURRENT,
            COPY._replace(recovery_point=49, unsynced_bytes=LAST_BYTES + 1),
            True,
            Step.PREPARE,
        ),
        (CURRENT._replace(may_be_replaced=False), COPY, True, Step.WAIT),
        (
            CURRENT._replace(may_be_replaced=False),
            COPY._replace(log_end_offset=99),
            True,
            Step.COPY,
        ),
    ],
)
def test_the_next_step(
    current: CurrentLog, copy: FutureLog | None, is_near: bool, step: Step
) -> None:
    assert next_step(current, copy, lambda: is_near) is step


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "common"),
    [
        ([], 10, [], 7, 7),
        ([(1, 0)], 10, [(1, 0)], 20, 10),
        ([(1, 0), (3, 8)], 10, [(1, 0)], 20, 8),
        ([(1, 0), (3, 8)], 10, [(1, 0), (2, 5)], 7, 5),
        ([(1, 0), (3, 8)], 10, [(1, 0), (3, 9)], 10, 8),
        ([(2, 0)], 10, [(1, 0)], 10, 0),
        ([(1, 4)], 10, [(1, 0)], 10, 0),
        ([(1, 0), (2, 10)], 10, [(1, 0)], 10, 10),
    ],
)
def test_logs_agree_up_to_where_their_leader_epochs_differ(
    ours: list[tuple[int, int]],
    our_end: int,
    theirs: list[tuple[int, int]],
    their_end: int,
    common: int,
) -> None:
    one, other = ([EpochEntry(*each) for each in entries] for entries in (ours, theirs))
    assert common_end(one, our_end, other, their_end) == common
    assert common_end(other, their_end, one, our_end) == common


@pytest.mark.parametrize(
    ("names", "completed"),
    [
        ({"a": [f"t-0.{H}-delete"], "b": [f"t-0.{H}-future"]}, [("b", f"t-0.{H}-future")]),
        ({"a": ["t-0"], "b": [f"t-0.{H}-future"]}, []),
        ({"a": ["t-0", f"t-0.{H}-delete"], "b": [f"t-0.{H}-future"]}, []),
        ({"a": [], "b": [f"t-0.{H}-future"]}, []),
        ({"a": [f"t-0.{H[::-1]}-delete"], "b": [f"t-0.{H}-future"]}, []),
        ({"a": [f"t-1.{H}-delete"], "b": [f"t-0.{H}-future"]}, []),
        ({"b": [f"t-0.{H}-delete", f"t-0.{H}-future"]}, []),
        ({"a": [f"t-0.{H}-delete"], "b": ["t-0"]}, []),
    ],
)
def test_a_start_completes_a_replacement_with_the_name_of_the_former_log(
    names: dict[str, list[str]], completed: list[tuple[str, str]]
) -> None:
    assert [(each.path, each.name) for each in half_replaced(names)] == completed
    assert all(each.partition == KEY for each in half_replaced(names))


def found(moves: int, *, lies_in: str, **fields: object) -> FoundTwice:
    metadata = PartitionMetadata(ID, 0, lies_in, moves)
    return FoundTwice(metadata._replace(**fields), lies_in)


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        (found(0, lies_in="A"), found(1, lies_in="B"), "b"),
        (found(2, lies_in="A"), found(1, lies_in="B"), "a"),
        (found(1, lies_in="A"), found(1, lies_in="B"), None),
        (found(0, lies_in="A"), found(1, lies_in="B", topic_id=UUID(int=7)), None),
        (found(0, lies_in="A", topic_id=None), found(1, lies_in="B"), None),
        (found(0, lies_in="A", partition=1), found(1, lies_in="B"), None),
        (found(0, lies_in="A"), found(1, lies_in="B", partition=1), None),
        (found(0, lies_in="A"), found(1, lies_in="B", directory_id="A"), None),
    ],
)
def test_of_two_logs_the_one_with_more_moves_is_kept_if_all_else_agrees(
    one: FoundTwice, other: FoundTwice, kept: str | None
) -> None:
    assert newest(KEY, {"a": one, "b": other}) == kept


def test_a_copy_belongs_to_a_log_of_its_topic_id_and_partition() -> None:
    current = PartitionMetadata(ID, 0, "A")
    assert is_copy_of(KEY, PartitionMetadata(ID, 0, "B", 1), current)
    assert is_copy_of(KEY, PartitionMetadata(ID), current), "that of Apache Kafka"
    assert not is_copy_of(KEY, PartitionMetadata(ID, 1, "B", 1), current)
    assert not is_copy_of(KEY, PartitionMetadata(UUID(int=7), 0, "B", 1), current)
    assert not is_copy_of(KEY, PartitionMetadata(None), PartitionMetadata(None))


def test_copies_keep_to_their_rate() -> None:
    rate = CopyRate(1000)
    copied = 0
    for now_ms in range(0, 10_000, 10):
        if not rate.is_exceeded(now_ms):
            rate.copied(300)
            copied += 300
    assert 10_000 <= copied <= 11_600
    rate.copied(5000)
    assert rate.is_exceeded(9_990)
    assert rate.is_exceeded(0), "the clock was set back"
    rate.limit(10**6)
    assert not rate.is_exceeded(1000)
