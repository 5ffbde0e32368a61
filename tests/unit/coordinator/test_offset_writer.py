"""Commits that ZooKeeper does not answer: their requests are, in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kbroker.coordinator.group.commits_under_way import CommitsUnderWay
from kbroker.coordinator.group.committed_offsets import GroupOffsets
from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.group_metadata import GroupMetadata
from kbroker.coordinator.group.offset_writer import OffsetWriter
from kclient.wire.error_codes import ErrorCode


class Right:
    """The right to a partition, which nothing ends."""

    resigned = False
    check = None

    def __init__(self, multi: Any) -> None:
        self.zookeeper = SimpleNamespace(multi=multi)


class Table:
    """A writer with one group, and a ZooKeeper that answers on demand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.multis: list[Deferred[Any]] = []
        self.group = SimpleNamespace(
            fence=Right(self._multi),
            znodes=SimpleNamespace(offsets=GroupOffsets("g"), offsets_known=True),
            group_id="g",
        )
        self.under_way = CommitsUnderWay()
        self.writer = OffsetWriter(
            self.clock,
            lambda _group_id: cast(GroupMetadata, self.group),
            lambda: 0,
            self.under_way,
            timeout=5.0,
        )

    def _multi(self, _operations: Any) -> Deferred[Any]:
        self.multis.append(Deferred())
        return self.multis[-1]

    def commit(self, *offsets: int) -> list[list[ErrorCode]]:
        """Commit an offset for each of the first partitions; return where the answer will be."""
        answers: list[list[ErrorCode]] = []
        wanted = [("t", index, OffsetCommit(offset)) for index, offset in enumerate(offsets)]
        self.writer.commit("g", wanted, self.under_way.begin()).addCallback(answers.append)
        return answers


def test_a_request_is_answered_in_time_and_its_commit_goes_on() -> None:
    table = Table()
    first = table.commit(1, 2)
    table.clock.advance(0)
    table.clock.advance(3.0)
    second = table.commit(3)
    table.clock.advance(1.9)
    assert first == []
    table.clock.advance(0.1)
    assert first == [[ErrorCode.REQUEST_TIMED_OUT] * 2]
    assert second == []
    table.clock.advance(3.0)
    assert second == [[ErrorCode.REQUEST_TIMED_OUT]]
    for multi in table.multis:
        multi.callback([])
    assert {p: c.offset for _, p, c in table.group.znodes.offsets} == {0: 3, 1: 2}


def test_a_commit_is_under_way_until_it_is_written_also_if_its_request_was_answered() -> None:
    table = Table()
    first = table.commit(1, 2)
    table.clock.advance(0)
    is_written = table.under_way.all_of_now()
    second = table.commit(3)
    table.clock.advance(5.0)
    assert first == [[ErrorCode.REQUEST_TIMED_OUT] * 2]
    assert second == [[ErrorCode.REQUEST_TIMED_OUT]]
    assert not is_written.called
    table.multis.pop(0).callback([])
    assert is_written.called
    assert not table.under_way.all_of_now().called
    table.multis.pop(0).callback([])
    assert table.under_way.all_of_now().called


def test_requests_that_were_answered_leave_nothing_behind() -> None:
    table = Table()
    for offset in range(100):
        answered = table.commit(offset)
        table.clock.advance(0)
        table.multis.pop().callback([])
        assert answered == [[ErrorCode.NONE]]
    assert len(table.writer._requests) == 1
    table.clock.advance(5.0)
    assert not table.writer._requests
    assert table.clock.getDelayedCalls() == []
