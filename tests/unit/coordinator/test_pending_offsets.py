"""Pending offsets of a transaction: what a commit adds to, what a marker ends, and the content of the znode."""

from __future__ import annotations

import pytest

from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.core.pending_offsets import (
    UNKNOWN_NUMBER,
    End,
    PendingOffsets,
    PoisonPendingOffsetsError,
    add,
    decode_pending,
    encode_pending,
    end,
    without,
)
from kbroker.coordinator.group.core.records import CommitDetail, decode_detail, encode_detail
from kclient.wire.error_codes import ErrorCode


def at(offset: int, position: int = 1) -> OffsetCommit:
    return OffsetCommit(offset, CommitDetail(position=position))


A, B = ("t", 0), ("u", 3)
STORED = PendingOffsets(4, 9, {A: at(1)})


@pytest.mark.parametrize(
    ("epoch", "number", "expected"),
    [
        (4, 9, PendingOffsets(4, 9, {A: at(1), B: at(2)})),
        (4, UNKNOWN_NUMBER, PendingOffsets(4, 9, {A: at(1), B: at(2)})),
        (4, 10, PendingOffsets(4, 10, {B: at(2)})),
        (5, 10, PendingOffsets(5, 10, {B: at(2)})),
        (5, UNKNOWN_NUMBER, PendingOffsets(5, UNKNOWN_NUMBER, {B: at(2)})),
        (4, 8, ErrorCode.INVALID_TXN_STATE),
        (3, 9, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, 10, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_commit_adds_to_its_transaction_or_replaces_an_earlier_one(
    epoch: int, number: int, expected: PendingOffsets | ErrorCode
) -> None:
    assert add(STORED, epoch, number, {B: at(2)}) == expected


@pytest.mark.parametrize(
    ("epoch", "number", "expected"),
    [
        (4, 9, End.APPLY),
        (5, 9, End.APPLY),  # an abort by the coordinator raises the epoch
        (4, 8, End.KEEP),
        (5, 10, End.DISCARD),
        (4, None, End.APPLY),
        (5, None, End.APPLY),
        (3, None, End.FENCED),
        (3, UNKNOWN_NUMBER, End.FENCED),
    ],
)
def test_a_marker_ends_the_transaction_with_its_number(
    epoch: int, number: int | None, expected: End
) -> None:
    assert end(STORED, epoch, number) is expected


def test_the_content_survives_a_round_trip() -> None:
    full = OffsetCommit(2**63 - 1, CommitDetail(7, 'é"', 2**40))
    pending = PendingOffsets(2**15 - 1, UNKNOWN_NUMBER, {A: at(0), ("t", 1): full, B: at(5, 3)})
    assert decode_pending("/p", encode_pending(pending)) == pending
    assert without(pending, {A, B}) == PendingOffsets(2**15 - 1, -1, {("t", 1): full})
    assert without(STORED, {A}) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":2,"producer_epoch":0,"number":1,"offsets":{"t":[[0,1,1]]}}',
        b'{"version":1,"producer_epoch":0,"number":1,"offsets":{}}',
        b'{"version":1,"producer_epoch":0,"number":1,"offsets":{"t":[[0,-1,1]]}}',
        b'{"version":1,"producer_epoch":0,"number":1,"offsets":{"t":[[0,1,0]]}}',
        b'{"version":1,"producer_epoch":0,"number":1,"offsets":{"t":[[0,1,1,0,5]]}}',
        b'{"version":1,"producer_epoch":0,"number":1,"offsets":{"t":[[0,1]]}}',
        b'{"version":1,"producer_epoch":-1,"number":1,"offsets":{"t":[[0,1,1]]}}',
        b'{"version":1,"producer_epoch":0,"number":true,"offsets":{"t":[[0,1,1]]}}',
    ],
)
def test_poison_names_the_path(data: bytes) -> None:
    with pytest.raises(PoisonPendingOffsetsError, match="/transactions/pending/5,g"):
        decode_pending("/transactions/pending/5,g", data)


def test_the_position_is_part_of_a_detail_where_there_is_one() -> None:
    assert b"position" not in encode_detail(CommitDetail(3, "m"))
    detail = CommitDetail(3, "m", 8)
    assert decode_detail("/d", encode_detail(detail)) == detail
