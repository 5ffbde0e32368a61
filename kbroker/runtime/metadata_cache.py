"""What every broker knows of the cluster: live brokers, topics, leaders. Fed by UpdateMetadata only.

Theory of operation
===================
The controller sends what changed, and everything to a broker that just joined (`type` FULL, which
replaces the cache). Requests of an older controller epoch are refused (KAFKA-1188). A topic that comes
with another topic id is another topic: the old one's partitions are dropped first. A partition whose
leader is -2 is being deleted and disappears. A new controller says who lives before it says of what, so
what a broker does not find here says nothing until it has been told everything once (`is_whole`).

Answers to clients are built from parts that are kept until the next update: the answer of a big
cluster is not built for every client that asks (`parts`). What is made of a partition is kept for longer, until it is
described in another way (`TopicMetadata.answers`): after an update of some nobody makes anew what is said of thousands.

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

from kbroker.replication.role import ControllerFence
from kclient.wire.errors import StaleBrokerEpoch, StaleControllerEpoch
from kclient.wire.interbroker import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

log = Logger()

NO_LEADER: Final = -1
LEADER_DURING_DELETE: Final = -2
FULL: Final = 2
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})


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
    """As long as a partition is described in the same way it is the same object."""
    answers: dict[Any, dict[int, tuple[PartitionMetadata, Any]]] = field(default_factory=dict)
    """What was made of partitions for those who ask, by the maker's key; and of which description."""

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
    """Its broker epoch; -1 if the controller does not say."""
    is_shutting_down: bool = False


class MetadataCache:
    """The cluster as this broker knows it. *fence* refuses deposed controllers, whatever the newer one said first."""

    def __init__(self, cluster_id: str, fence: ControllerFence | None = None) -> None:
        self.cluster_id = cluster_id
        self._fence = fence or ControllerFence()
        self.controller_id = -1
        self.controller_epoch = 0
        self.generation = 0
        self.is_whole = False
        """Whether a controller has told everything: a topic that is not here is none."""
        self.brokers: dict[int, BrokerMetadata] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self._names: dict[UUID, str] = {}
        self._parts: dict[Any, Any] = {}
        self._callbacks: list[Callable[[], None]] = []
        self._waiting: list[tuple[Callable[[], bool], Deferred[None]]] = []

    # -- look-ups ----------------------------------------------------------------------------

    def topic(self, name: str) -> TopicMetadata | None:
        """Return the topic *name*, None if unknown."""
        return self.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicMetadata | None:
        """Return the topic with this id, None if unknown."""
        name = self._names.get(topic_id)
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
        """Say whether a broker in its life of *broker_epoch* may be taken into an ISR.

        Not in a life that is over (KIP-903; a later one than is known here is news) nor when it is about to go
        (KAFKA-14140), which it says itself by giving no epoch.
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
        """Say whether each of *partitions* has a live leader."""
        for index in partitions:
            known = self.partition(topic, index)
            if known is None or known.leader not in self.brokers:
                return False
        return True

    def parts(self, key: Any, build: Callable[[], Any]) -> Any:
        """Return what *build* made for *key* since the last update; made on demand."""
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = build()
        return found

    # -- updates -----------------------------------------------------------------------------

    def update(self, request: UpdateMetadataRequest, broker_epoch: int | None = None) -> None:
        """Take in what the controller says. StaleControllerEpoch, StaleBrokerEpoch.

        *broker_epoch* is this broker's own; a request for an earlier life of it is refused (KIP-380),
        one for a later is not: the controller may know of our registration before we do (S9).
        """
        if broker_epoch is not None and -1 < request.broker_epoch < broker_epoch:
            raise StaleBrokerEpoch(
                f"meant for broker epoch {request.broker_epoch}, not {broker_epoch}"
            )
        if not self._fence.admits(request.controller_epoch):
            raise StaleControllerEpoch(
                f"controller epoch {request.controller_epoch} of broker {request.controller_id} is "
                f"over, {self._fence.epoch} is known"
            )
        self.controller_id = request.controller_id
        self.controller_epoch = request.controller_epoch
        self.brokers = {b.id: _broker(b) for b in request.live_brokers}
        former = self.topics
        if request.type == FULL:
            self.topics, self._names = {}, {}
            self.is_whole = True
        # Ends before beginnings: a name may be in the request twice, with its old and its new id.
        for topic in sorted(request.topic_states, key=_is_alive):
            self._update_topic(topic, former.get(topic.topic_name))
        self.generation += 1
        self._parts.clear()
        self._tell()

    def _update_topic(self, update: UpdateMetadataTopicState, former: TopicMetadata | None) -> None:
        if former is not None and former.topic_id != update.topic_id:
            former = None
        topic = self.topics.get(update.topic_name)
        if topic is not None and topic.topic_id != update.topic_id:
            if not _is_alive(update):
                return  # the end of a namesake that is gone already
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
                self.topics[topic.name] = topic
                if topic.topic_id is not None:
                    self._names[topic.topic_id] = topic.name
            told = _partition(state)
            known = former.partitions.get(told.partition) if former is not None else None
            topic.partitions[told.partition] = known if known == told else told
        if topic is not None and not topic.partitions:
            self._forget(topic)

    def _forget(self, topic: TopicMetadata) -> None:
        self.topics.pop(topic.name, None)
        if topic.topic_id is not None:
            self._names.pop(topic.topic_id, None)

    # -- waiting -----------------------------------------------------------------------------

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call *callback* after every update."""
        self._callbacks.append(callback)

    def until(self, condition: Callable[[], bool]) -> Deferred[None]:
        """Fire once *condition* holds; cancel it to stop waiting."""
        waiting: Deferred[None] = Deferred(self._cancelled)
        if condition():
            waiting.callback(None)
        else:
            self._waiting.append((condition, waiting))
        return waiting

    async def holds_within(self, seconds: float, clock: Any, condition: Callable[[], bool]) -> bool:
        """Wait until *condition* holds, at most *seconds* of the reactor *clock*; say whether it does."""
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

    def _cancelled(self, deferred: Deferred[None]) -> None:
        self._waiting = [entry for entry in self._waiting if entry[1] is not deferred]

    def _tell(self) -> None:
        for callback in list(self._callbacks):
            try:
                callback()
            except Exception:
                log.failure("a callback on new metadata failed")
        ready = [entry for entry in self._waiting if entry[0]()]
        self._waiting = [entry for entry in self._waiting if entry not in ready]
        for _, deferred in ready:
            if not deferred.called:
                deferred.callback(None)


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
