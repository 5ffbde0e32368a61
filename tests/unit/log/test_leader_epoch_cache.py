"""Leader epochs: the offsets of each leader, and where they end (KIP-101, KIP-279)."""

from __future__ import annotations

import pytest

from kbroker.log.core.leader_epoch_cache import EpochEntry, LeaderEpochCache, decode
from kclient.wire.errors import CorruptMessage


def epochs(*entries: tuple[int, int]) -> LeaderEpochCache:
    found = LeaderEpochCache()
    for epoch, start in entries:
        found.assign(epoch, start)
    return found


def test_an_epoch_starts_where_it_first_wrote() -> None:
    found = epochs((1, 0), (1, 5), (3, 7))
    assert found.entries == ((1, 0), (3, 7))
    assert found.latest == 3


def test_an_epoch_that_wrote_nothing_gives_way_to_the_next() -> None:
    assert epochs((1, 0), (2, 5), (3, 5)).entries == ((1, 0), (3, 5))


def test_a_record_of_an_older_epoch_takes_back_the_epochs_after_it() -> None:
    assert epochs((1, 0), (5, 10), (4, 10)).entries == ((1, 0), (4, 10))


def test_an_unknown_epoch_is_not_noted() -> None:
    assert epochs((-1, 0)).entries == ()


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (5, (5, 100)),
        (4, (3, 40)),
        (3, (3, 40)),
        (2, (1, 20)),
        (1, (1, 20)),
        (0, (0, 10)),
        (6, (-1, -1)),
        (-1, (-1, -1)),
    ],
)
def test_the_end_of_an_epoch_is_the_start_of_the_next(asked: int, answer: tuple[int, int]) -> None:
    assert epochs((1, 10), (3, 20), (5, 40)).end_offset_of(asked, 100) == answer


def test_a_log_without_epochs_has_no_answer() -> None:
    assert LeaderEpochCache().end_offset_of(0, 100) == (-1, -1)


def test_the_epoch_of_an_offset_is_the_last_that_started_before() -> None:
    found = epochs((1, 10), (3, 20))
    assert [found.epoch_at(offset) for offset in (5, 10, 19, 20, 99)] == [-1, 1, 1, 3, 3]


def test_truncation_at_the_end_forgets_what_started_behind() -> None:
    found = epochs((1, 0), (3, 20), (5, 40))
    found.truncate_from_end(20)
    assert found.entries == ((1, 0),)
    assert found.latest == 1
    found.truncate_from_end(0)
    assert found.entries == ()
    assert found.latest == -1


def test_truncation_at_the_start_keeps_the_epoch_in_force() -> None:
    found = epochs((1, 0), (3, 20), (5, 40))
    found.truncate_from_start(30)
    assert found.entries == ((3, 30), (5, 40))
    found.truncate_from_start(30)
    found.truncate_from_start(10)
    assert found.entries == ((3, 30), (5, 40))
    found.truncate_from_start(40)
    assert found.entries == ((5, 40),)


def test_only_what_changes_something_makes_the_file_stale() -> None:
    found = LeaderEpochCache((EpochEntry(1, 5),))
    found.assign(1, 9)
    found.truncate_from_end(6)
    found.truncate_from_start(5)
    assert not found.dirty
    found.truncate_from_start(6)
    assert found.dirty


def test_the_file_is_kafkas() -> None:
    assert epochs((1, 0), (3, 20)).encode() == b"0\n2\n1 0\n3 20\n"
    assert decode(b"0\n2\n1 0\n3 20\n").entries == ((1, 0), (3, 20))
    assert decode(b"0\n0\n").entries == ()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"1\n0\n",
        b"0\n3\n1 0\n",
        b"0\n1\n1 0 7\n",
        b"0\n2\n3 0\n1 5\n",
        b"0\n2\n1 5\n2 5\n",
        b"0\n1\n-1 5\n",
        b"0\n1\n1 -5\n",
        b"\xff",
        bytes(30),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptMessage):
        decode(content)
