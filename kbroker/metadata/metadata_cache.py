"""The metadata cache: live brokers, topics and leaders, as the controller sends them by UpdateMetadata.

Theory of operation
===================
The controller sends changes to every broker, and the whole metadata to a broker that just registered (`type` FULL).
That one replaces the cache; thousands of partitions come in parts, see `_Parts`. Requests of an older controller epoch
are refused (KAFKA-1188). A topic with another topic id is another topic: the partitions of the old one are dropped
first. A partition with leader -2 is being deleted and disappears. A new controller sends the live brokers before the
partitions. So a missing topic means nothing until one controller has sent the whole metadata (`is_whole`).

Answers to clients are built from parts that are kept until the next update: a large answer is not built for every
client (`parts`). A part of a single partition is kept until the partition changes (`TopicMetadata.answers`): an update
of a few partitions rebuilds only their parts.

Invariants: 1. the controller epoch never falls; 2. `generation` rises with every change; 3. a topic has
one id, and each id one topic.
In: UpdateMetadata requests   Out: look-ups, change callbacks   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from kbroker.common.internal_topics import INTERNAL_TOPICS
from kbroker.common.reactor import Clock
from kbroker.metadata.epoch_fences import ControllerFence
from kclient.wire.errors import (
    InvalidRequest,
)
from kclient.wire.interbroker import (
    LEADER_DURING_DELETE,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

log = Logger()

FULL: Final = 2


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition as the controller last described it."""

    partition: int
    leader: int
    """-1: none."""
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    zk_version: int
    controller_epoch: int


@dataclass(slots=True)
class TopicMetadata:
    """One topic."""

    name: str
    topic_id: UUID | None
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)
    """A partition that an update does not change remains the same object."""
    answers: dict[Any, dict[int, tuple[PartitionMetadata, Any]]] = field(default_factory=dict)
    """Parts of answers by key and partition, each with the partition's metadata that it was built from."""

    @property
    def is_internal(self) -> bool:
        """Whether it is one of Kafka's own topics."""
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """The number of replicas of its first partition."""
        first = self.partitions.get(min(self.partitions, default=0))
        return len(first.replicas) if first is not None else -1


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """One live broker."""

    broker_id: int
    endpoints: Mapping[str, tuple[str, int]]
    """(host, port) by listener name."""
    rack: str | None = None
    epoch: int = -1
    """Its broker epoch; -1 if the controller does not send it."""
    is_shutting_down: bool = False


class _Topics:
    """Topics by name, and their names by id."""

    def __init__(self) -> None:
        self.by_name: dict[str, TopicMetadata] = {}
        self.names: dict[UUID, str] = {}

    def update(self, states: Iterable[UpdateMetadataTopicState], known: _Topics) -> None:
        """Apply *states*; a partition that equals its *known* one remains the same object."""
        # Deletions first: a name may be in the request twice, with its old and its new id.
        for topic in sorted(states, key=_is_alive):
            self._update_topic(topic, known.by_name.get(topic.topic_name))

    def lacks(self, topics: Mapping[str, TopicMetadata]) -> dict[str, UUID | None]:
        """Return those of *topics*, with their ids, that are not here or have another id here."""
        return {t.name: t.topic_id for t in topics.values() if self.has_no(t.name, t.topic_id)}

    def has_no(self, name: str, topic_id: UUID | None) -> bool:
        """Return whether the topic *name* with this id is not here."""
        topic = self.by_name.get(name)
        return topic is None or topic.topic_id != topic_id

    def _update_topic(self, update: UpdateMetadataTopicState, former: TopicMetadata | None) -> None:
        if former is not None and former.topic_id != update.topic_id:
            former = None
        topic = self.by_name.get(update.topic_name)
        if topic is not None and topic.topic_id != update.topic_id:
            if not _is_alive(update):
                return  # the deletion of a topic of that name that is gone already
            self._forget(topic)
            topic = None
        for state in update.partition_states:
            if state.leader == LEADER_DURING_DELETE:
                if topic is not None:
                    topic.partitions.pop(state.partition_index, None)
                continue
            if topic is None:
                topic = TopicMetadata(update.topic_name, update.topic_id)
                if former is not None:
                    topic.answers = former.answers
                self.by_name[topic.name] = topic
                if topic.topic_id is not None:
                    self.names[topic.topic_id] = topic.name
            fresh = _partition(state)
            known = former.partitions.get(fresh.partition) if former is not None else None
            topic.partitions[fresh.partition] = known if known == fresh else fresh
        if topic is not None and not topic.partitions:
            self._forget(topic)

    def _forget(self, topic: TopicMetadata) -> None:
        self.by_name.pop(topic.name, None)
        if topic.topic_id is not None:
            self.names.pop(topic.topic_id, None)


class _Parts:
    """Full updates in parts: they take effect when the last part has arrived.

    The parts of one controller epoch for one broker epoch are numbered from 0, across all of its full updates. Each
    part is taken once and in order, however often and by whichever connection it arrives. Parts of two full updates
    are never mixed: one update begins where the last one ended, and another epoch begins at 0.
    """

    def __init__(self) -> None:
        self._epochs = (-1, -1)
        """Controller epoch and broker epoch of the current parts."""
        self._next = 0
        self._topics = _Topics()

    def expects(self, request: UpdateMetadataRequest) -> bool:
        """Return whether a part is the next one. InvalidRequest if an earlier one is missing."""
        epochs = (request.controller_epoch, request.broker_epoch)
        if epochs > self._epochs:
            self._epochs, self._next, self._topics = epochs, 0, _Topics()
        if epochs < self._epochs or request.part < self._next:
            return False  # of an earlier epoch, or sent again after a lost answer
        if request.part > self._next:
            raise InvalidRequest(f"part {request.part} of a full update came before {self._next}")
        return True

    def take(self, request: UpdateMetadataRequest, known: _Topics) -> _Topics | None:
        """Take the next part; return all topics if it is the last."""
        self._next += 1
        self._topics.update(request.topic_states, known)
        if request.has_more:
            return None
        whole, self._topics = self._topics, _Topics()
        return whole


class MetadataCache:
    """The cluster's metadata at this broker; *fence* is shared with LeaderAndIsr and StopReplica."""

    def __init__(self, cluster_id: str, fence: ControllerFence | None = None) -> None:
        self.cluster_id = cluster_id
        self._fence = fence or ControllerFence()
        self.controller_id = -1
        self.controller_epoch = 0
        self.generation = 0
        self.is_whole = False
        """Whether a controller has sent the whole metadata: a topic that is not here does not exist."""
        self.brokers: dict[int, BrokerMetadata] = {}
        self._known = _Topics()
        self._coming = _Parts()
        self._parts: dict[Any, Any] = {}
        self._deletion_callbacks: list[Callable[[Mapping[str, UUID | None]], None]] = []
        self._deleted: dict[str, UUID | None] = {}
        """Topics that were deleted since the last notification, and their ids."""
        self._waiting: dict[Deferred[None], Callable[[], bool]] = {}

    # -- look-ups ----------------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, TopicMetadata]:
        """All topics, by name."""
        return self._known.by_name

    def topic(self, name: str) -> TopicMetadata | None:
        """Return the topic *name*, None if unknown."""
        return self.topics.get(name)

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of the topic with this id; None if there is none."""
        return self._known.names.get(topic_id)

    def topic_by_id(self, topic_id: UUID) -> TopicMetadata | None:
        """Return the topic with this id, None if unknown."""
        name = self._known.names.get(topic_id)
        return self.topics.get(name) if name is not None else None

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """Return one partition, None if unknown."""
        known = self.topics.get(topic)
        return known.partitions.get(partition) if known is not None else None

    def address(self, broker_id: int, listener: str) -> tuple[str, int] | None:
        """Return (host, port) of a live broker on *listener*; None if it has none there."""
        broker = self.brokers.get(broker_id)
        return broker.endpoints.get(listener) if broker is not None else None

    def may_join_isr(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether a broker registered in *broker_epoch* may join an ISR.

        Not with an earlier epoch than is known here (KIP-903). A later one is accepted. Nor during a controlled
        shutdown (KAFKA-14140), when the broker sends no epoch.
        """
        broker = self.brokers.get(broker_id)
        if broker is None or broker.is_shutting_down:
            return False
        return broker_epoch >= max(broker.epoch, 0)

    @property
    def live_controller_id(self) -> int:
        """The controller's id if it is alive, else -1."""
        return self.controller_id if self.controller_id in self.brokers else -1

    def is_led(self, topic: str, partitions: Iterable[int]) -> bool:
        """Return whether each of *partitions* has a live leader."""
        for index in partitions:
            known = self.partition(topic, index)
            if known is None or known.leader not in self.brokers:
                return False
        return True

    def parts(self, key: Any, build: Callable[[], Any]) -> Any:
        """Return the part for *key*, built by *build* once per update."""
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = build()
        return found

    # -- updates -----------------------------------------------------------------------------

    def update(self, request: UpdateMetadataRequest, broker_epoch: int = -1) -> bool:
        """Apply *request*; return whether it completes the whole metadata.

        StaleControllerEpoch, StaleBrokerEpoch; InvalidUpdateVersion (a later request arrived before this one);
        InvalidRequest (a part came without those before).

        *broker_epoch* is this broker's own; -1: not registered yet.
        """
        self._fence.check(request, broker_epoch)
        brokers = {b.id: _broker(b) for b in request.live_brokers}
        whole = None
        if request.type != FULL:
            named = self._known.by_name.keys() & {t.topic_name for t in request.topic_states}
            before = {name: self._known.by_name[name] for name in named}
            self._known.update(request.topic_states, self._known)
            self._deleted |= self._known.lacks(before)
        elif request.part < 0:
            whole = _Topics()
            whole.update(request.topic_states, self._known)
        elif self._coming.expects(request):
            whole = self._coming.take(request, self._known)
        else:
            return False
        sent = (request.controller_id, request.controller_epoch, brokers)
        if request.has_more and sent == (self.controller_id, self.controller_epoch, self.brokers):
            return False  # no visible change
        self.controller_id = request.controller_id
        self.controller_epoch = request.controller_epoch
        self.brokers = brokers
        if whole is not None:
            self._deleted |= whole.lacks(self._known.by_name)
            self._known, self.is_whole = whole, True
        self.generation += 1
        self._parts.clear()
        self._notify()
        return whole is not None

    # -- waiting -----------------------------------------------------------------------------

    def on_deletion(self, callback: Callable[[Mapping[str, UUID | None]], None]) -> None:
        """Call *callback* with the names and ids of topics after an update that deletes or replaces them."""
        self._deletion_callbacks.append(callback)

    def until(self, condition: Callable[[], bool]) -> Deferred[None]:
        """Fire once *condition* holds; cancel it to stop waiting."""
        waiting: Deferred[None] = Deferred(self._cancelled)
        if condition():
            waiting.callback(None)
        else:
            self._waiting[waiting] = condition
        return waiting

    async def holds_within(self, seconds: float, clock: Any, condition: Callable[[], bool]) -> bool:
        """Wait until *condition* holds, at most *seconds* of the reactor *clock*; return whether it does."""
        if condition():
            return True
        if seconds <= 0:
            return False
        waiting = self.until(condition)
        timer = clock.callLater(seconds, waiting.cancel)
        try:
            await waiting
        except CancelledError:
            return False
        finally:
            if timer.active():
                timer.cancel()
        return True

    async def received_within(self, seconds: float, clock: Clock, broker_id: int) -> bool:
        """Wait at most *seconds* until the controller has sent everything, *broker_id* as a live broker included."""
        return await self.holds_within(
            seconds, clock, lambda: self.is_whole and broker_id in self.brokers
        )

    def _cancelled(self, waiting: Deferred[None]) -> None:
        self._waiting.pop(waiting, None)

    def _notify(self) -> None:
        deleted = {
            name: topic_id
            for name, topic_id in self._deleted.items()
            if self._known.has_no(name, topic_id)
        }
        self._deleted.clear()
        for callback in self._deletion_callbacks if deleted else ():
            try:
                callback(deleted)
            except Exception:
                log.failure("a callback on deleted topics failed")
        ready = [waiting for waiting, condition in self._waiting.items() if condition()]
        for waiting in ready:
            if self._waiting.pop(waiting, None) is not None:
                waiting.callback(None)


def _is_alive(update: UpdateMetadataTopicState) -> bool:
    return any(s.leader != LEADER_DURING_DELETE for s in update.partition_states)


def _broker(broker: UpdateMetadataBroker) -> BrokerMetadata:
    endpoints = {e.listener: (e.host, e.port) for e in broker.endpoints}
    return BrokerMetadata(broker.id, endpoints, broker.rack, broker.epoch, broker.is_shutting_down)


def _partition(state: UpdateMetadataPartitionState) -> PartitionMetadata:
    return PartitionMetadata(
        state.partition_index,
        state.leader,
        state.leader_epoch,
        tuple(state.isr),
        tuple(state.replicas),
        tuple(state.offline_replicas),
        state.zk_version,
        state.controller_epoch,
    )
