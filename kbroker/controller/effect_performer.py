"""Passes one event to the state machine, and performs its effects until every write has an outcome.

`handle` gives an event to the machine and performs what it returns, in order. The one write of it comes last; its
outcome is the machine's next event. So an event ends when no write is left, and the caller gets the machine's answer to
a request.

Two kinds of work take long and nothing waits for their outcome: they run beside the queue. They are the deletion of a
topic's znodes, which ends with an event, and the deletion of requests that cannot be fulfilled.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from twisted.logger import Logger

from kbroker.common.turns import WorkerTurns
from kbroker.controller.channel_manager import ControllerChannelManager
from kbroker.controller.controller_events import UncleanElectionCheck
from kbroker.controller.core import data_loss, events, state_change_log
from kbroker.controller.core import effects as fx
from kbroker.controller.core.state_machine import ControllerStateMachine
from kbroker.controller.event_manager import ControllerEventManager
from kbroker.controller.zk_client import ControllerZkClient
from kbroker.zk import znodes

log = Logger()

CHANGES_PER_LINE = 20
"""State changes in one line of the log at DEBUG: a log event for each would block the reactor when thousands change."""

T = TypeVar("T")
Answer: TypeAlias = (
    fx.AnswerControlledShutdown
    | fx.ContinueControlledShutdown
    | fx.AnswerElection
    | fx.AnswerReassignment
)


class EpochEndedError(Exception):
    """This broker resigned while the event was processed: nothing of the event is performed any more."""


class EffectPerformer:
    """Performs the effects of one controller epoch."""

    def __init__(
        self,
        queue: ControllerEventManager,
        machine: ControllerStateMachine,
        zk: ControllerZkClient,
        channels: ControllerChannelManager,
        *,
        controller_epoch: int,
        delete_topic_enable: bool,
        resign: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._machine = machine
        self._zk = zk
        self._channels = channels
        self._controller_epoch = controller_epoch
        self._delete_topic_enable = delete_topic_enable
        self._resign = resign
        self.assignments_written = False
        """Whether replicas were written since this was last reset."""

    async def handle(self, event: events.Event, turns: WorkerTurns) -> Answer | None:
        """Give *event* to the machine and perform all that follows; return its answer to a request.

        EpochEndedError, ControllerMovedError, and errors of ZooKeeper.
        """
        answer: Answer | None = None
        following: events.Event | None = event
        while following is not None:
            effects = await self.unless_ended(turns.through(self._machine.process(following)))
            write: fx.WriteStates | fx.WriteAssignments | None = None
            for effect in effects:
                match effect:
                    case fx.WriteStates() | fx.WriteAssignments():
                        write = effect
                    case (
                        fx.AnswerControlledShutdown()
                        | fx.ContinueControlledShutdown()
                        | fx.AnswerElection()
                        | fx.AnswerReassignment()
                    ):
                        answer = effect
                    case _:
                        self._perform(effect)
                await self.unless_ended(turns.done(_size_of(effect)))
            self._channels.send_pending()
            following = None if write is None else await self._write(write, turns)
        return answer

    async def unless_ended(self, work: Awaitable[T]) -> T:
        """Return the result of *work*; EpochEndedError if this broker resigned meanwhile."""
        result = await work
        if self._queue.is_closed:
            raise EpochEndedError
        return result

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case (
                fx.OpenChannel()
                | fx.CloseChannel()
                | fx.SendLeaderAndIsr()
                | fx.SendUpdateMetadata()
                | fx.SendStopReplica()
            ):
                self._channels.perform(effect)
            case fx.CheckUncleanElection():
                self._queue.put(UncleanElectionCheck(effect.topics))
            case fx.WarnOfDataLoss():
                _log_data_loss(effect)
            case fx.DeleteTopicZnodes():
                self._queue.run(self._delete_topic(effect))
            case fx.DeleteTopicDeletions():
                self._queue.run(self._delete_topic_deletions(effect.topics))
            case fx.Resign():
                self._resign(effect.reason)

    # -- writes ------------------------------------------------------------------------------

    async def _write(
        self, effect: fx.WriteStates | fx.WriteAssignments, turns: WorkerTurns
    ) -> events.StatesWritten | events.AssignmentsWritten:
        if isinstance(effect, fx.WriteAssignments):
            written = await self.unless_ended(self._zk.write_assignments(effect))
            self._log_assignments(effect, written)
            self.assignments_written = True
            return written
        outcome = await self.unless_ended(self._zk.write_states(effect.writes))
        await self._log_state_changes(effect, outcome, turns)
        return outcome

    async def _log_state_changes(
        self, effect: fx.WriteStates, written: events.StatesWritten, turns: WorkerTurns
    ) -> None:
        """Log what was written, before the tables hold it: they show the reasons."""
        done = [write for write in effect.writes if write.partition in written.versions]
        changes = await self.unless_ended(
            turns.through(state_change_log.state_changes(self._machine.context, done))
        )
        self._log(state_change_log.state_change_lines(changes))
        for start in range(0, len(changes), CHANGES_PER_LINE):
            log.debug(
                "controller epoch {epoch}: {changes}", epoch=self._controller_epoch,
                changes=_Joined(changes[start : start + CHANGES_PER_LINE]),
            )  # fmt: skip

    def _log_assignments(
        self, effect: fx.WriteAssignments, written: events.AssignmentsWritten
    ) -> None:
        assigned = {
            p: now for p, now in sorted(effect.assignments.items()) if p[0] not in written.gone
        }
        self._log(state_change_log.reassignment_lines(assigned))

    def _log(self, lines: Sequence[str]) -> None:
        for line in lines:
            log.info("controller epoch {epoch}: {line}", epoch=self._controller_epoch, line=line)

    # -- beside the queue --------------------------------------------------------------------

    async def _delete_topic(self, effect: fx.DeleteTopicZnodes) -> None:
        await self.unless_ended(self._zk.delete_topic(effect.topic, effect.topic_id))
        log.info("deleted topic {name}", name=effect.topic)
        # Its watch stays until /brokers/topics is seen without it: a topic of the same name may be there already.
        self._queue.put(events.TopicZnodesDeleted(effect.topic, effect.topic_id))

    async def _delete_topic_deletions(self, names: tuple[str, ...]) -> None:
        """Delete requests to delete topics that do not exist; a topic that is too new to be known keeps its request."""
        for name in names:
            # A child that any tool may have written: not every name can be one of a topic.
            path = f"{znodes.DELETE_TOPICS}/{name}"
            # Read before the topic: a later request may be for a later topic.
            request = await self._zk.read_admin_znode(path)
            if request is None or (self._delete_topic_enable and await self._zk.topic_exists(name)):
                continue
            await self._zk.delete_admin_znode(path, request.stat)


class _Joined:
    """Things with "; " between them, made text only if the line is logged."""

    def __init__(self, things: Sequence[object]) -> None:
        self._things = things

    def __str__(self) -> str:
        return "; ".join(map(str, self._things))

    __format__ = object.__format__


def _size_of(effect: fx.Effect) -> int:
    """Return how many partitions performing *effect* handles at once."""
    match effect:
        case fx.SendLeaderAndIsr():
            return len(effect.partitions)
        case fx.SendUpdateMetadata():
            return len(effect.partitions) * len(effect.broker_ids)
        case fx.SendStopReplica():
            return len(effect.stops)
        case _:
            return 1


def _log_data_loss(effect: fx.WarnOfDataLoss) -> None:
    line = data_loss.line_for(effect)
    if effect.leader >= 0:
        log.warn("{line}", line=line)
    else:
        log.error("{line}", line=line)
