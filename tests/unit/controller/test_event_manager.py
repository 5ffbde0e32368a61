"""The controller's event queue: order, replacement, and what a resignation does to events that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kbroker.controller.controller_events import (
    ApiPartitionReassignment,
    BrokerChange,
    ControlledShutdown,
    ControllerEvent,
    IsrChangeNotification,
    ReplicaLeaderElection,
    TopicChange,
)
from kbroker.controller.core.events import ElectionType, StopReplicaAcked, TopicZnodesDeleted
from kbroker.controller.event_manager import ControllerEventManager
from kbroker.zk.interface import Node, Stat
from kclient.wire.errors import NotController


def node(data: bytes) -> Node:
    return Node(data, Stat(*[0] * len(Stat._fields)))


class Worker:
    """The worker of a queue: notes which events it began, and ends one when the test does."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        """Of work beside the queue."""
        self.queue = ControllerEventManager(Clock(), 100, self.failures.append)
        self.begun: list[ControllerEvent] = []
        self.ended: list[ControllerEvent] = []
        self.errors: list[Failure] = []
        self._end: Deferred[None] = Deferred()
        self.work = Deferred.fromCoroutine(self.queue.process_events(self._process))
        self.work.addErrback(self.errors.append)

    async def _process(self, event: ControllerEvent, _turns: Any) -> None:
        self.begun.append(event)
        self._end = Deferred()
        await self._end
        self.ended.append(event)

    def end(self, times: int = 1) -> None:
        for _ in range(times):
            self._end.callback(None)

    def fail(self, error: Exception) -> None:
        self._end.errback(error)


@pytest.fixture
def worker() -> Worker:
    """A worker that waits for events."""
    return Worker()


ACKED = [StopReplicaAcked(n, 1, frozenset()) for n in range(4)]


def test_an_event_begins_when_the_one_before_has_ended(worker: Worker) -> None:
    for event in ACKED:
        worker.queue.put(event)
    assert worker.begun == ACKED[:1]
    worker.end()
    assert worker.begun == ACKED[:2]
    worker.end(2)
    assert worker.begun == ACKED
    worker.end()
    worker.queue.put(TopicZnodesDeleted("t", UUID(int=1)))
    assert worker.begun[-1] == TopicZnodesDeleted("t", UUID(int=1)), "an idle worker begins at once"


def test_the_content_of_a_znode_replaces_the_content_that_waits_in_its_place(
    worker: Worker,
) -> None:
    worker.queue.put(BrokerChange(("1",)))
    worker.queue.put(BrokerChange(("1", "2")))
    worker.queue.put(ACKED[0])
    worker.queue.put(IsrChangeNotification(("x",)))
    worker.queue.put(BrokerChange(("2",)))
    worker.end(4)
    assert worker.ended == [
        BrokerChange(("1",)),  # it had begun
        BrokerChange(("2",)),
        ACKED[0],
        IsrChangeNotification(("x",)),
    ]


def test_changes_of_topics_that_wait_become_one(worker: Worker) -> None:
    worker.queue.put(ACKED[0])
    worker.queue.put(TopicChange({"a": node(b"1"), "b": node(b"1")}))
    worker.queue.put(TopicChange(vanished=frozenset({"b", "c"})))
    worker.queue.put(TopicChange({"c": node(b"2"), "a": node(b"2")}))
    worker.end(2)
    assert worker.ended[1] == TopicChange(
        {"a": node(b"2"), "c": node(b"2")}, vanished=frozenset({"b"})
    )


REQUESTS: list[Callable[[], ControllerEvent]] = [
    lambda: ControlledShutdown(1, 5),
    lambda: ReplicaLeaderElection(ElectionType.PREFERRED, None),
    lambda: ApiPartitionReassignment({}),
]


def errors_of(request: Any) -> list[type]:
    found: list[type] = []
    request.answer.addErrback(lambda failure: found.append(failure.type))
    return found


@pytest.mark.parametrize("make", REQUESTS)
def test_a_resignation_answers_requests_with_not_controller(
    worker: Worker, make: Callable[[], Any]
) -> None:
    in_process, waiting, late = make(), make(), make()
    worker.queue.put(in_process)
    worker.queue.put(waiting)
    worker.queue.close("the session expired")
    worker.queue.close("a second time")
    worker.queue.put(late)
    assert [errors_of(r) for r in (in_process, waiting, late)] == [[NotController]] * 3


def test_a_resignation_drops_the_events_that_wait_and_ends_the_worker(worker: Worker) -> None:
    for event in ACKED:
        worker.queue.put(event)
    worker.queue.close("the session expired")
    worker.end()
    assert worker.begun == ACKED[:1]
    assert worker.work.called
    assert not worker.errors


def test_a_resignation_ends_an_idle_worker(worker: Worker) -> None:
    worker.queue.close("this broker is shutting down")
    assert worker.work.called
    assert not worker.errors


def test_a_request_that_was_answered_is_not_answered_again(worker: Worker) -> None:
    request = ControlledShutdown(1, 5)
    worker.queue.put(request)
    request.answer.callback(())
    worker.queue.close("the session expired")
    assert errors_of(request) == []


def test_an_error_of_a_handler_ends_the_worker(worker: Worker) -> None:
    worker.queue.put(ACKED[0])
    worker.queue.put(ACKED[1])
    worker.fail(RuntimeError("a bug"))
    assert [failure.getErrorMessage() for failure in worker.errors] == ["a bug"]
    assert worker.begun == ACKED[:1]


def test_a_request_with_a_handler_that_fails_is_answered_by_the_resignation(worker: Worker) -> None:
    request = ControlledShutdown(1, 5)
    worker.queue.put(request)
    worker.fail(RuntimeError("a bug"))
    worker.queue.close("internal error")
    assert errors_of(request) == [NotController]


async def work_that_fails() -> None:
    raise RuntimeError("a bug")


def test_an_error_of_work_beside_the_queue_ends_the_epoch(worker: Worker) -> None:
    worker.queue.run(work_that_fails())
    assert [failure.getErrorMessage() for failure in worker.failures] == ["a bug"]


def test_after_the_end_of_the_epoch_an_error_of_work_beside_the_queue_has_no_effect(
    worker: Worker,
) -> None:
    worker.queue.close("resigned")
    worker.queue.run(work_that_fails())
    assert worker.failures == []
