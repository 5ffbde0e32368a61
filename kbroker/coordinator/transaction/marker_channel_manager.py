"""The transaction markers on their way to the leaders of partitions (Kafka's TransactionMarkerChannelManager).

Theory of operation
===================
A marker ends a transaction in one partition, or for one group in its partition of ``__consumer_offsets``. Markers are
sent until they are acknowledged. The markers of all transactions for one broker go together: one WriteTxnMarkers is in
flight for each broker. The leader of a partition is that of the metadata cache. Outcomes for each marker:

- acknowledged: the coordinator receives it;
- TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH: another coordinator has taken over, or completed this
  transaction. The markers of the transactional id are not sent any more. If ZooKeeper still names this broker as the
  coordinator, they are sent again after `FENCED_RETRY`;
- any other error, or no answer: sent again after a pause, to the leader at that time;
- no answer yet, and the partition has another leader: sent to that one, because the former may be paused;
- a partition that ZooKeeper does not have (any more) counts as acknowledged. The metadata cache alone is no proof: it
  may be behind. Groups are stored in ZooKeeper, so their markers wait until ``__consumer_offsets`` exists again.

The markers of a shard that was unloaded are dropped: the next coordinator sends them. Another coordinator epoch, or the
number of the transaction in the marker, makes a marker that is late have no effect (docs/design/transactions.md).

In: markers, responses   Out: acknowledged markers   Owner: the reactor's thread
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.reactor import Clock
from kbroker.common.topic_partition import TopicPartition
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.transaction.core.states import PREPARED
from kbroker.coordinator.transaction.core.transaction import Marker
from kbroker.coordinator.transaction.transactional_id import TransactionalId
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.zk.errors import ConnectionLoss, NoNode, SessionExpired, ZooKeeperError
from kbroker.zk.interface import ZooKeeper
from kbroker.zk.znodes import TOPICS, decode_topic, topic_path
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kclient.wire.versions import ApiKey

log = Logger()

MARKERS_PER_REQUEST: Final = 500
"""Markers in one request, at most."""

ROUTED_PER_TURN: Final = 1000
"""Markers that are given to a broker in one turn of the reactor."""

RETRY_SECONDS: Final = 0.1
"""Pause before a marker is sent again; doubled by each further attempt."""

MAX_RETRY_SECONDS: Final = 3.0
"""The longest pause."""

LEADER_CHECK: Final = 0.5
"""Seconds between two looks whether the partitions of a request in flight have other leaders."""

FENCED_RETRY: Final = 30.0
"""Seconds before markers that were fenced are sent again, if this broker is still the coordinator."""

SEND_VERSION: Final = 1

_FENCED: Final = frozenset(
    {int(ErrorCode.TRANSACTION_COORDINATOR_FENCED), int(ErrorCode.INVALID_PRODUCER_EPOCH)}
)

Send = Callable[[int, str, int, ApiKey, int, Any], Deferred[Any]]
"""Send a request to a broker: id, host, port, API, version, request (`BrokerConnections`)."""


class _Pending:
    """A marker that is not acknowledged."""

    __slots__ = ("attempts", "id", "marker", "partition", "request")

    def __init__(self, id: TransactionalId, marker: Marker) -> None:
        self.id = id
        self.marker = marker
        self.attempts = 0
        self.partition: TopicPartition = ("", -1)
        """Where it goes, while it is queued or in flight."""
        self.request: object = None
        """The last request with this marker."""


class _Channel:
    """The markers for one broker."""

    __slots__ = ("busy", "queue")

    def __init__(self) -> None:
        self.queue: deque[_Pending] = deque()
        self.busy = False


class TransactionMarkerChannelManager:
    """Sends markers. *on_acknowledged* receives each one that is done."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        metadata: MetadataCache,
        listener: str,
        send: Send,
        on_acknowledged: Callable[[TransactionalId, Marker], None],
    ) -> None:
        self._clock = clock
        self._zookeeper = zookeeper
        self._metadata = metadata
        self._listener = listener
        self._send = send
        self._on_acknowledged = on_acknowledged
        self._pending: dict[tuple[TransactionalId, TopicPartition | str], _Pending] = {}
        self._to_route: deque[_Pending] = deque()
        self._routing = False
        self._channels: dict[int, _Channel] = {}
        self._stopped = False

    def __len__(self) -> int:
        """Return the number of markers that are not acknowledged."""
        return len(self._pending)

    def add(self, id: TransactionalId, markers: Collection[Marker]) -> None:
        """Send *markers* of a decided transaction until each is acknowledged; those on their way are not doubled."""
        for marker in markers:
            key = (id, marker.destination)
            known = self._pending.get(key)
            if known is not None and known.marker == marker:
                continue
            pending = self._pending[key] = _Pending(id, marker)
            self._to_route.append(pending)
        self._route_soon()

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True
        self._pending.clear()
        self._to_route.clear()

    # --- routing --------------------------------------------------------------------------------

    def _is_current(self, pending: _Pending) -> bool:
        """Return whether a marker is still to be sent; forget it if not."""
        key = (pending.id, pending.marker.destination)
        if self._pending.get(key) is not pending:
            return False
        stored = pending.id.machine.stored
        if (
            not pending.id.fence.resigned
            and stored is not None
            and stored.state in PREPARED
            and stored.number == pending.marker.number
        ):
            return True
        del self._pending[key]
        return False

    def _route_soon(self) -> None:
        if self._to_route and not self._routing and not self._stopped:
            self._routing = True
            self._clock.callLater(0, self._route)

    def _route(self) -> None:
        """Give the next markers to the leaders of their partitions."""
        self._routing = False
        brokers: set[int] = set()
        missing: dict[str, list[_Pending]] = {}
        later: list[_Pending] = []
        for _ in range(min(len(self._to_route), ROUTED_PER_TURN)):
            pending = self._to_route.popleft()
            if not self._is_current(pending):
                continue
            partition = self._partition_of(pending.marker)
            known = self._metadata.partition(*partition) if partition is not None else None
            if partition is None or (known is None and partition[0] == OFFSETS_TOPIC):
                later.append(pending)
            elif known is None:
                pending.partition = partition
                missing.setdefault(partition[0], []).append(pending)
            elif self._metadata.address(known.leader, self._listener) is None:
                later.append(pending)
            else:
                pending.partition = partition
                self._channels.setdefault(known.leader, _Channel()).queue.append(pending)
                brokers.add(known.leader)
        self._again_later(later)
        for topic, markers in missing.items():
            looking = Deferred.fromCoroutine(self._look_for(topic, markers))
            looking.addErrback(self._cannot_look, topic, markers)
        for broker_id in sorted(brokers):
            self._send_next(broker_id)
        self._route_soon()

    def _partition_of(self, marker: Marker) -> TopicPartition | None:
        """Return the partition that receives *marker*; None while ``__consumer_offsets`` is not known."""
        if not isinstance(marker.destination, str):
            return marker.destination
        topic = self._metadata.topic(OFFSETS_TOPIC)
        if topic is None or not topic.partitions:
            return None
        return OFFSETS_TOPIC, partition_for(marker.destination, len(topic.partitions))

    def _again_later(self, markers: list[_Pending]) -> None:
        if not markers or self._stopped:
            return
        attempts = max(pending.attempts for pending in markers)
        for pending in markers:
            pending.attempts += 1
            pending.request = None
        delay = min(RETRY_SECONDS * 2 ** min(attempts, 10), MAX_RETRY_SECONDS)
        self._clock.callLater(delay, self._again, markers)

    def _again(self, markers: list[_Pending]) -> None:
        self._to_route.extend(markers)
        self._route_soon()

    async def _look_for(self, topic: str, markers: list[_Pending]) -> None:
        """Acknowledge *markers* for partitions of *topic* that do not exist; send the others later."""
        try:
            await self._zookeeper.sync(TOPICS)
            node = await self._zookeeper.get(topic_path(topic))
            partitions: Collection[int] = decode_topic(topic, node.data).partitions
        except NoNode:
            partitions = ()
        gone = [pending for pending in markers if pending.partition[1] not in partitions]
        if gone:
            log.info(
                "{n} markers for partitions of {topic!r}, which do not exist any more, count as written",
                n=len(gone),
                topic=topic,
            )
        self._again_later([each for each in markers if each.partition[1] in partitions])
        self._acknowledge(gone)

    def _cannot_look(self, failure: Failure, topic: str, markers: list[_Pending]) -> None:
        error = failure.value
        if not isinstance(error, ZooKeeperError):
            log.failure("looking for topic {topic!r} failed", failure=failure, topic=topic)
        elif not isinstance(error, ConnectionLoss | SessionExpired):
            log.warn("cannot look for topic {topic!r}: {error}", topic=topic, error=error)
        self._again_later(markers)

    # --- sending --------------------------------------------------------------------------------

    def _send_next(self, broker_id: int) -> None:
        """Send the queued markers of a broker, unless a request is in flight."""
        channel = self._channels.get(broker_id)
        if channel is None or channel.busy or self._stopped:
            return
        markers: list[_Pending] = []
        while channel.queue and len(markers) < MARKERS_PER_REQUEST:
            pending = channel.queue.popleft()
            if self._is_current(pending):
                markers.append(pending)
        address = self._metadata.address(broker_id, self._listener)
        if not markers or address is None:
            del self._channels[broker_id]
            self._again_later([*markers, *channel.queue])
            return
        channel.busy = True
        request = _request(markers)
        for pending in markers:
            pending.request = request
        sending = self._send(broker_id, *address, ApiKey.WRITE_TXN_MARKERS, SEND_VERSION, request)
        self._clock.callLater(LEADER_CHECK, self._check_leaders, broker_id, markers, request)
        sending.addCallbacks(
            self._answered, self._not_answered,
            callbackArgs=(markers, request), errbackArgs=(markers, request, broker_id),
        )  # fmt: skip
        sending.addErrback(self._failed, markers, request)
        sending.addBoth(self._is_free, broker_id, channel)

    def _is_free(self, _result: object, broker_id: int, channel: _Channel) -> None:
        channel.busy = False
        if self._channels.get(broker_id) is channel:
            self._send_next(broker_id)

    def _check_leaders(
        self, broker_id: int, markers: list[_Pending], request: WriteTxnMarkersRequest
    ) -> None:
        """Send those of *markers* to other brokers that have another leader now, while *request* is not answered."""
        waiting = [each for each in markers if each.request is request and self._is_current(each)]
        if not waiting or self._stopped:
            return
        moved = []
        for pending in waiting:
            known = self._metadata.partition(*pending.partition)
            if known is not None and known.leader >= 0 and known.leader != broker_id:
                pending.request = None
                moved.append(pending)
        self._again(moved)
        self._clock.callLater(LEADER_CHECK, self._check_leaders, broker_id, waiting, request)

    def _answered(
        self,
        response: WriteTxnMarkersResponse,
        markers: list[_Pending],
        request: WriteTxnMarkersRequest,
    ) -> None:
        errors = {
            (result.producer_id, topic.name, each.partition_index): each.error_code
            for result in response.markers
            for topic in result.topics
            for each in topic.partitions
        }
        written: list[_Pending] = []
        again: list[_Pending] = []
        fenced: dict[TransactionalId, int] = {}
        for pending in markers:
            error = errors.get((pending.marker.producer.producer_id, *pending.partition))
            if error == ErrorCode.NONE:
                written.append(pending)
            elif pending.request is not request:
                continue  # it was sent to another broker meanwhile
            elif error in _FENCED:
                fenced[pending.id] = error
            else:
                again.append(pending)
        for id, error in fenced.items():
            self._fenced(id, error)
        self._again_later(again)
        self._acknowledge(written)

    def _not_answered(
        self,
        failure: Failure,
        markers: list[_Pending],
        request: WriteTxnMarkersRequest,
        broker_id: int,
    ) -> None:
        log.debug("markers to broker {b}: {e}", b=broker_id, e=failure.value)
        self._again_later([each for each in markers if each.request is request])

    def _failed(
        self, failure: Failure, markers: list[_Pending], request: WriteTxnMarkersRequest
    ) -> None:
        log.failure("a response to WriteTxnMarkers could not be handled", failure=failure)
        self._again_later([each for each in markers if each.request is request])

    def _acknowledge(self, markers: Iterable[_Pending]) -> None:
        for pending in markers:
            if self._is_current(pending):
                del self._pending[pending.id, pending.marker.destination]
                self._on_acknowledged(pending.id, pending.marker)

    # --- fenced -----------------------------------------------------------------------------------

    def _fenced(self, id: TransactionalId, error: int) -> None:
        """Stop sending the markers of *id*; look whether another broker coordinates it."""
        for marker in id.machine.markers():
            self._pending.pop((id, marker.destination), None)
        log.error(
            "markers of transactional id {id!r} are refused with {error}: a later coordinator wrote some",
            id=id.name,
            error=ErrorCode(error).name,
        )
        looking: Deferred[Any] = Deferred.fromCoroutine(_still_leads(id.fence.still_leads))
        looking.addBoth(self._is_fenced, id)

    def _is_fenced(self, _result: object, id: TransactionalId) -> None:
        if not id.fence.resigned and not self._stopped:
            self._clock.callLater(FENCED_RETRY, self._after_fence, id)

    def _after_fence(self, id: TransactionalId) -> None:
        if not id.fence.resigned and not self._stopped:
            self.add(id, id.machine.markers())


async def _still_leads(still_leads: Callable[[], Awaitable[bool]]) -> bool:
    return await still_leads()


def _request(markers: list[_Pending]) -> WriteTxnMarkersRequest:
    """Return the request with *markers*: those of a transaction together, each partition once."""
    partitions: dict[TransactionalId, dict[str, dict[int, None]]] = {}
    first: dict[TransactionalId, Marker] = {}
    for pending in markers:
        topic, index = pending.partition
        first.setdefault(pending.id, pending.marker)
        partitions.setdefault(pending.id, {}).setdefault(topic, {})[index] = None
    return WriteTxnMarkersRequest(
        [
            WritableTxnMarker(
                producer_id=marker.producer.producer_id,
                producer_epoch=marker.producer.epoch,
                transaction_result=marker.is_commit,
                topics=[
                    WritableTxnMarkerTopic(topic, list(indexes))
                    for topic, indexes in partitions[id].items()
                ],
                coordinator_epoch=id.fence.leader_epoch,
                transaction_number=marker.number,
            )
            for id, marker in first.items()
        ]
    )
