"""One term of one controller: its machine, its lines to the brokers, its watches.

Theory of operation
===================
Everything is read, the machine is told (BecameController), watches are set on what may change, and the
machine's effects are performed in order: state writes through `ControllerZkClient`, orders through one
`ControllerChannel` per broker. When the term ends the office is closed: its machine is told Resigned, its
lines and watches are dropped, and whatever still returns from ZooKeeper or a broker is ignored.
Nothing is carried into the next term (KAFKA-5310). A bug in the machine ends the term too: the office
is given up and contested again, with fresh tables.

An event may touch every partition there is. So that the broker, which has clients of its own, is never deaf for long,
what is done for one event is cut into turns of the reactor (`Turns`), of `partitions_per_turn` at most: the
machine's steps, the writing of states, the diary, and the lines, of which each has a turn of its own for a request that
speaks of many. There is one worker for events and one for lines. Events wait in a queue until the one before is done
with, its effects performed; so the order of everything is what it would be if all were done at once.

Invariants: 1. the machine gets one event at a time; 2. its effects are performed in order, those of one event before
those of the next; 3. no turn handles more than so many partitions, whatever happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import count
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.gather import all_of
from kbroker.common.reactor import Clock
from kbroker.common.turns import Turns
from kbroker.controller.admin_requests import AdminRequests
from kbroker.controller.controlled_shutdown import ControlledShutdowns, Remaining
from kbroker.controller.controller_channel import (
    ControllerChannel,
    ControllerSettings,
    SendToBroker,
)
from kbroker.controller.controller_election import ControllerElection, ControllerEpoch
from kbroker.controller.core import effects as fx
from kbroker.controller.core import events, state_change_log
from kbroker.controller.core.context import Broker, ControllerContext, Topic
from kbroker.controller.core.state_machine import ControllerStateMachine
from kbroker.controller.unclean_election import UncleanElection
from kbroker.controller.zk_client import ControllerZkClient
from kbroker.controller.zk_reads import ControllerMovedError
from kbroker.zk import znodes
from kbroker.zk.errors import ConnectionLoss, PoisonZnode, SessionExpired
from kbroker.zk.interface import Children, Node, Watch, ZooKeeper

log = Logger()


ISR_CHANGES_SECONDS = 0.1
"""Between two looks at announced ISR changes (Kafka's leaders announce theirs every 2.5 s): what joins one by one is
taken in together."""

REASSIGNMENTS_SECONDS = 1.0
"""So long a reassignment that came to its end waits at most for others of its topic, whose znode is written whole."""

CHANGES_PER_LINE = 20
"""Of the diary, at DEBUG: an event for each would hold the reactor up when thousands change."""


class _Joined:
    """Things with "; " between them, made text only if somebody looks."""

    def __init__(self, things: Sequence[object]) -> None:
        self._things = things

    def __str__(self) -> str:
        return "; ".join(map(str, self._things))

    __format__ = object.__format__


class ControllerEventManager:
    """One term of one controller."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        settings: ControllerSettings,
        send: SendToBroker,
        store: ControllerZkClient,
        epoch: ControllerEpoch,
        election: ControllerElection,
    ) -> None:
        self._clock = clock
        self._zookeeper = zookeeper
        self._settings = settings
        self._send = send
        self._store = store
        self._epoch = epoch
        self._election = election
        self._machine = ControllerStateMachine(settings.min_insync_replicas)
        self._channels: dict[int, ControllerChannel] = {}
        self._request_numbers = count()
        """Of the requests to all brokers in this term."""
        self._watches: list[Watch] = []
        self._topic_watches: dict[str, Watch] = {}
        self._changed: dict[str, Topic] = {}
        self._vanished: set[str] = set()
        self._deletions: frozenset[str] = frozenset()
        self._announced: list[str] = []
        """Announcements of ISR changes, as last listed."""
        self._completion_planned = False
        self._look_planned = False
        self._looked_at = -ISR_CHANGES_SECONDS
        self._unclean_election = UncleanElection(
            clock,
            store,
            settings.unclean_leader_election,
            context=lambda: None if self._closed else self._machine.context,
            feed=self._feed,
            run=self._run,
        )
        self.admin_requests = AdminRequests(
            zookeeper, store, context=lambda: self.context, feed=self._feed, run=self._run
        )
        """What operators ask of this term."""
        self._events: deque[tuple[events.Event, Callable[[], None]]] = deque()
        self._is_processing = False
        self._to_send: dict[ControllerChannel, None] = {}
        """Lines that wait for their turn to say more."""
        self._is_sending = False
        self._broker_reads = 0
        self._flush_planned = False
        self._shutdowns = ControlledShutdowns(
            clock, settings.leave_seconds, self._feed, self._is_heard
        )
        self.is_ready = False
        self._closed = False

    @property
    def context(self) -> ControllerContext:
        """The machine's tables."""
        return self._machine.context

    # -- begin and end -----------------------------------------------------------------------

    def open(self) -> None:
        """Read everything and begin to govern."""
        self._run(self._begin())

    async def _begin(self) -> None:
        read = await self._store.read_all(delete_topic_enable=self._settings.delete_topic_enable)
        if self._closed:
            return
        self.is_ready = True
        self._deletions = read.deletions
        log.info(
            "controller epoch {epoch}: begins with live brokers {brokers}, {topics} topics, {partitions} partitions",
            epoch=self._epoch.number, brokers=",".join(map(str, sorted(read.brokers))) or "none",
            topics=len(read.topics), partitions=len(read.leader_and_isr),
        )  # fmt: skip
        self._feed(read)
        watch = self._zookeeper.watch_children
        self._watches = [
            watch(znodes.BROKER_IDS, self._have_brokers),
            watch(znodes.TOPICS, self._have_topics),
            watch(znodes.DELETE_TOPICS, self._have_deletions),
            watch(znodes.ISR_CHANGES, self._have_isr_changes),
            watch(znodes.LOG_DIR_EVENTS, self._have_log_dir_events),
        ]
        self.admin_requests.open()
        self._plan_rebalance()

    def _plan_rebalance(self) -> None:
        seconds = self._settings.rebalance_seconds
        if seconds is not None and not self._closed:
            self._clock.callLater(seconds, self._rebalance)

    def _rebalance(self) -> None:
        if not self._closed:
            self._feed(events.PreferredLeaderElectionDue(self._settings.imbalance_percentage))
        self._plan_rebalance()

    def close(self, reason: str) -> None:
        """Fall silent. Idempotent."""
        if self._closed:
            return
        self._closed, self.is_ready = True, False
        self._machine.handle(events.Resigned())
        for watch in [*self._watches, *self._topic_watches.values()]:
            watch.cancel()
        for channel in self._channels.values():
            channel.close()
        self.admin_requests.close(reason)
        self._shutdowns.close(reason)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work*; whatever ends it badly ends the term."""
        Deferred.fromCoroutine(work).addErrback(self._work_failed)

    def _work_failed(self, failure: Failure) -> None:
        if self._closed:
            return
        error = failure.value
        if isinstance(error, ControllerMovedError):
            self._election.resign_and_reelect(str(error))
        elif isinstance(error, SessionExpired | ConnectionLoss):
            self._election.resign_and_reelect(f"ZooKeeper: {error}")
        else:
            self._crashed(failure)

    def _crashed(self, failure: Failure) -> None:
        """Give the office up after a bug: a fresh term, here or elsewhere, starts from ZooKeeper."""
        log.failure("the controller failed; resigning so that a fresh one takes over", failure)
        stepping_back = Deferred.fromCoroutine(self._election.resign_after_crash("internal error"))
        stepping_back.addErrback(lambda f: log.failure("could not resign properly", f))

    # -- the machine -------------------------------------------------------------------------

    def _feed(self, event: events.Event, then: Callable[[], None] = lambda: None) -> None:
        """Have the machine take *event*; call *then* when its effects were performed."""
        self._events.append((event, then))
        if (
            not self._is_processing
        ):  # else whoever feeds comes to it, after the effects of what came before
            self._is_processing = True
            self._run(self._feed_all())

    async def _feed_all(self) -> None:
        turns = Turns(self._clock, self._settings.partitions_per_turn)
        try:
            while self._events and not self._closed:
                event, then = self._events.popleft()
                for effect in await turns.through(self._machine.process(event)):
                    self._perform(effect)
                    await turns.done(_size_of(effect))
                    if not self.is_ready:
                        return
                then()
        finally:
            self._is_processing = False
        if not self._flush_planned:
            self._flush_topics()
        if self._machine.held_back and not self._completion_planned:
            self._completion_planned = True
            self._clock.callLater(REASSIGNMENTS_SECONDS, self._complete_reassignments)
        for channel in self._channels.values():
            self._to_send[channel] = None
        self._send_in_turns()
        self._shutdowns.let_leave()

    def _complete_reassignments(self) -> None:
        self._completion_planned = False
        if not self._closed and self._machine.held_back:
            self._feed(events.ReassignmentsDue())

    def schedule_send(self, channel: ControllerChannel) -> None:
        """Let *line* say what it has to say, when it is its turn."""
        self._to_send[channel] = None
        self._send_in_turns()

    def _send_in_turns(self) -> None:
        if not self._is_sending:
            self._is_sending = True
            self._run(self._send_all())

    async def _send_all(self) -> None:
        turns = Turns(self._clock, 0)  # a turn for each that says anything of a partition
        try:
            while self._to_send and not self._closed:
                channel = next(iter(self._to_send))
                del self._to_send[channel]
                # Also after the last: who wants to speak in the same turn has to wait for the next.
                await turns.done(channel.send_next())
        finally:
            self._is_sending = False

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.OpenChannel():
                self._open_channel(effect.broker)
            case fx.CloseChannel():
                self._channels.pop(effect.broker_id).close()
            case fx.SendLeaderAndIsr():
                self._channels[effect.broker_id].queue.leader_and_isr(
                    effect.partitions, effect.live_leaders
                )
            case fx.SendUpdateMetadata():
                for broker_id in effect.broker_ids:
                    self._channels[broker_id].queue.update_metadata(
                        effect.partitions,
                        effect.live_brokers,
                        full=effect.full,
                        alone=effect.before_leaders,
                    )
            case fx.SendStopReplica():
                self._channels[effect.broker_id].queue.stop_replica(effect.stops)
            case fx.AnswerControlledShutdown():
                self._shutdowns.answer(effect)
            case fx.AnswerElection():
                self.admin_requests.answer_election(effect)
            case fx.AnswerReassignment():
                self.admin_requests.answer_reassignment(effect)
            case fx.Resign():
                self._election.resign_and_reelect(effect.reason)
            case fx.WarnOfDataLoss() | fx.CheckUncleanElection():
                self._unclean_election.consider(effect)
            case _:
                self._run(self._work_of(effect))

    def _work_of(
        self,
        effect: fx.WriteStates
        | fx.WriteAssignments
        | fx.DeleteTopicZnodes
        | fx.DeleteTopicDeletions,
    ) -> Coroutine[Any, Any, None]:
        """Return what is to be done in ZooKeeper."""
        match effect:
            case fx.WriteStates():
                return self._write(effect)
            case fx.WriteAssignments():
                return self._assign(effect)
            case fx.DeleteTopicZnodes():
                return self._delete_topic(effect.topic)
            case fx.DeleteTopicDeletions():
                return self._drop_deletions(effect.topics)

    async def _write(self, effect: fx.WriteStates) -> None:
        written = await self._store.write_states(effect.writes)
        if not self._closed:
            await self._log_state_changes(effect, written)
        self._feed(written)

    async def _log_state_changes(
        self, effect: fx.WriteStates, written: events.StatesWritten
    ) -> None:
        """Log what was written, while the tables still are those of the decision: the machine waits for the outcome."""
        turns = Turns(self._clock, self._settings.partitions_per_turn)
        done = [write for write in effect.writes if write.partition in written.versions]
        changes = await turns.through(state_change_log.state_changes(self.context, done))
        for line in state_change_log.state_change_lines(changes):
            log.info("controller epoch {epoch}: {line}", epoch=self._epoch.number, line=line)
        for start in range(0, len(changes), CHANGES_PER_LINE):
            log.debug(
                "controller epoch {epoch}: {entries}", epoch=self._epoch.number,
                changes=_Joined(changes[start : start + CHANGES_PER_LINE]),
            )  # fmt: skip

    async def _assign(self, effect: fx.WriteAssignments) -> None:
        written = await self._store.write_assignments(effect)
        moved = {
            p: now for p, now in sorted(effect.assignments.items()) if p[0] not in written.gone
        }
        for line in state_change_log.reassignment_lines(moved):
            log.info("controller epoch {epoch}: {line}", epoch=self._epoch.number, line=line)
        self._feed(written, self.admin_requests.maybe_remove_from_zk_reassignment)

    async def _delete_topic(self, name: str) -> None:
        await self._store.delete_topic(name)
        if not self._closed:
            log.info("deleted topic {name}", name=name)
            # Its watch stays until /brokers/topics is seen without it: a namesake may be there already.
            self._feed(
                events.TopicZnodesDeleted(name),
                self.admin_requests.maybe_remove_from_zk_reassignment,
            )

    async def _drop_deletions(self, names: tuple[str, ...]) -> None:
        """Remove requests to delete what is not there; a topic too new to be known yet waits."""
        there = await all_of(self._store.topic_exists(name) for name in names)
        gone = [
            name
            for name, exists in zip(names, there, strict=True)
            if not exists or not self._settings.delete_topic_enable
        ]
        await self._store.delete_paths([znodes.delete_topic_path(name) for name in gone])

    # -- channels ----------------------------------------------------------------------------

    def _open_channel(self, broker: Broker) -> None:
        old = self._channels.pop(broker.broker_id, None)
        if old is not None:
            old.close()
        self._channels[broker.broker_id] = ControllerChannel(
            self._clock,
            self._settings,
            self._send,
            self._epoch.number,
            broker,
            self,
            self._request_numbers,
        )

    def answered(self, event: events.Event | None) -> None:
        """Take what a broker's answer says."""
        if event is not None:
            self._feed(event)
        self._shutdowns.let_leave()

    def stale_controller(self, broker_id: int) -> None:
        """Resign: a broker knows a newer controller epoch than ours."""
        self._election.resign_and_reelect(f"broker {broker_id} obeys a newer controller")

    def answer_failed(self, failure: Failure) -> None:
        """End the term: handling an answer failed."""
        self._work_failed(failure)

    # -- watches -----------------------------------------------------------------------------

    def _have_brokers(self, children: Children | None) -> None:
        if children is not None:
            self._run(self._read_brokers(children.names))

    async def _read_brokers(self, names: list[str]) -> None:
        self._broker_reads += 1
        this = self._broker_reads
        brokers = await self._store.read_brokers(names)
        if this == self._broker_reads:  # else a later read is under way and knows better
            changes = state_change_log.broker_change_line(self.context.brokers, brokers)
            if changes is not None:
                log.info("controller epoch {epoch}: {changes}",
                         epoch=self._epoch.number, changes=changes)  # fmt: skip
            self._feed(events.BrokersChanged(brokers))

    def _have_topics(self, children: Children | None) -> None:
        if self._closed or children is None:
            return
        names = set(children.names)
        for name in sorted(names - self._topic_watches.keys()):
            try:
                path = znodes.topic_path(name)
            except ValueError as error:
                log.error("skipped a child of /brokers/topics: {error}", error=error)
                continue
            self._topic_watches[name] = self._zookeeper.watch_data(path, self._topic_watch(name))
        for name in sorted(self._topic_watches.keys() - names):
            self._forget_topic_watch(name)
            self._vanished.add(name)
            self._changed.pop(name, None)
        self._plan_flush()

    def _topic_watch(self, name: str) -> Callable[[Node | None], None]:
        def have(node: Node | None) -> None:
            if node is not None and not self._closed:
                self._have_topic(name, node)

        return have

    def _have_topic(self, name: str, node: Node) -> None:
        try:
            topic = self._store.decode_topic(name, znodes.decode_topic(name, node.data))
        except PoisonZnode:
            topic = None
        if topic is None:
            self._run(self._read_topic(name))  # reports poison; gives an id to a topic without one
            return
        self._vanished.discard(name)
        self._changed[name] = topic
        self._plan_flush()

    async def _read_topic(self, name: str) -> None:
        topic = await self._store.read_topic(name)
        if topic is not None:
            self._changed[name] = topic
            self._plan_flush()

    def _forget_topic_watch(self, name: str) -> None:
        watch = self._topic_watches.pop(name, None)
        if watch is not None:
            watch.cancel()

    def _plan_flush(self) -> None:
        """Take the topics that change together as one event: one round of writes for them all."""
        if not self._flush_planned:
            self._flush_planned = True
            self._clock.callLater(0, self._flush_topics_now)

    def _flush_topics_now(self) -> None:
        self._flush_planned = False
        self._flush_topics()

    def _flush_topics(self) -> None:
        """Tell the machine of changed topics, unless it is at work: it asks again when it is done."""
        if self._closed or self._is_processing or self._machine.is_writing:
            return
        if not (self._changed or self._vanished):
            return
        changed, self._changed = self._changed, {}
        vanished, self._vanished = self._vanished, set()
        known: Mapping[str, Topic] = self.context.topics
        fresh = tuple(
            t
            for t in changed.values()
            if t.name not in known
            or t.topic_id != known[t.name].topic_id
            or t.assignment != known[t.name].assignment
        )
        if fresh or vanished:
            self._feed(events.TopicsChanged(fresh, frozenset(vanished)))
        # A request may be older here than the topic it is about.
        if self._deletions:
            self._feed(events.TopicDeletionRequested(self._deletions))

    def _have_deletions(self, children: Children | None) -> None:
        self._deletions = frozenset(children.names) if children is not None else frozenset()
        if self._deletions:
            self._feed(events.TopicDeletionRequested(self._deletions))

    def _have_isr_changes(self, children: Children | None) -> None:
        if children is not None and children.names:
            self._announced = children.names
            if not self._look_planned:
                self._look_planned = True
                wait = self._looked_at + ISR_CHANGES_SECONDS - self._clock.seconds()
                self._clock.callLater(max(wait, 0), self._look_at_isr_changes)

    def _look_at_isr_changes(self) -> None:
        self._look_planned, self._looked_at = False, self._clock.seconds()
        if not self._closed:
            self._run(self._read_isr_changes(self._announced))

    async def _read_isr_changes(self, names: list[str]) -> None:
        states, paths = await self._store.read_isr_changes(names)
        self._feed(events.IsrChanged(states))
        await self._store.delete_paths(paths)

    def _have_log_dir_events(self, children: Children | None) -> None:
        if children is not None and children.names:
            self._run(self._read_log_dir_events(children.names))

    async def _read_log_dir_events(self, names: list[str]) -> None:
        brokers, paths = await self._store.read_log_dir_events(names)
        if brokers:
            log.info(
                "controller epoch {epoch}: a log directory failed at broker {brokers}",
                epoch=self._epoch.number, brokers=",".join(map(str, sorted(brokers))),
            )  # fmt: skip
            self._feed(events.LogDirsFailed(brokers))
        await self._store.delete_paths(paths)

    # -- controlled shutdown -----------------------------------------------------------------

    def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Deferred[Remaining]:
        """Ask whether a broker may go; answers what it still leads (RF > 1)."""
        return self._shutdowns.ask(broker_id, broker_epoch)

    def _is_heard(self) -> bool:
        """Say whether all has been said to everybody who listens, but those that leave.

        What is to be said to them themselves does not count: where the controller itself leaves it
        comes behind this very request.
        """
        if self._is_processing:  # there may be more to be said
            return False
        leaving = self._machine.context.shutting_down
        return all(
            channel.is_drained for id, channel in self._channels.items() if id not in leaving
        )


def _size_of(effect: fx.Effect) -> int:
    """Say of how many partitions *effect* makes work at once."""
    match effect:
        case fx.SendLeaderAndIsr():
            return len(effect.partitions)
        case fx.SendUpdateMetadata():
            return len(effect.partitions) * len(effect.broker_ids)
        case fx.SendStopReplica():
            return len(effect.stops)
        case _:
            return 1
