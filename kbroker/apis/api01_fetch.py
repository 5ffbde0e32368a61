"""Fetch (1): read record batches from partitions that this broker leads, or follows for consumers in its rack.

Versions served: 4 to 17. v4 isolation level; v5 log start offset; v7 sessions; v9 leader epoch; v11 rack; v12 flexible,
diverging epoch; v13 topic ids; v15 replica state in a tagged field; v16 node endpoints; v17 directory id, ignored.

A fetch that finds less than min_bytes waits up to max_wait_ms; appends wake it. A full fetch (session epoch 0 or -1)
names all its partitions, and its response has them all. With epoch 0 it opens a session; later requests and responses
of the session have only changes (KIP-227, `kbroker.replica.core.fetch_session`). A waiting fetch of a follower or a
session is answered at once when another request is behind it.

Under read_committed records end at the last stable offset, and the response lists the aborted transactions that overlap
them (docs/design/transactions.md).

A broker's replica id is accepted only on a connection that proved to come from that broker (CVE-2018-1288). Else the
error is CLUSTER_AUTHORIZATION_FAILED; before v7, which has no error code for the whole, TOPIC_AUTHORIZATION_FAILED for
every partition, as in Kafka.

Consumers with a rack (v11) may read from followers (KIP-392). With replica.selector.class a leader responds with the
preferred read replica in place of records. Followers receive a new high watermark at once, not with the next records. A
follower sends records up to its high watermark. A fetch from between its high watermark and its log end waits. A fetch
beyond its log end gets OFFSET_OUT_OF_RANGE, and the consumer returns to the leader.

Above the quota of bytes or request time the client is throttled (KIP-219). Above that of bytes the response has no
partitions, and a session is not begun.

Differs from Kafka: the quota counts the bytes of records, not those of the whole response. A response withheld for
request time alone is sent, and so is the first one of a quota window, however large. Kafka never sends a batch that is
larger than the quota of a window. A follower answers only consumers with a rack, because a consumer without one takes
OFFSET_OUT_OF_RANGE for the leader's. kafka-replica-verification (replica id -2) reads up to the high watermark. In
Kafka it reads, as any client with that id does, records that are not committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred

from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.apis.request import RequestContext
from kbroker.common.topic_partition import TopicPartition
from kbroker.config import KafkaConfig
from kbroker.network.service import Answer
from kbroker.replica.core.fetch_session import CachedPartition, FetchSession
from kbroker.replica.core.watchers import Watchers
from kbroker.replica.fetch_reader import FetchReader
from kbroker.replica.purgatory import DelayedOperation
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire import fetch
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import (
    FINAL_SESSION_EPOCH,
    FIRST_WITH_TOPIC_IDS,
    INITIAL_SESSION_EPOCH,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
)
from kclient.wire.versions import ApiKey

FIRST_WITH_ERROR_CODE = 7

LOOKED_AT_ONCE = 500
"""Partitions of a session that one fetch reads; the others that are due come first in the next fetch.

The response is sent even if these had nothing new, as long as at least half of them are settled. Otherwise the client
would fetch again at once, for ever.
"""


LARGE = 1000
"""A full fetch of more topics and partitions is read in slices: this many take about 10 ms."""


class Fetch:
    """Reads, and waits for more where there is less than min_bytes."""

    raw = True

    def __init__(
        self,
        replica_manager: ReplicaManager,
        config: KafkaConfig,
        *,
        name_of: Callable[[UUID], str | None],
        authorizer: InterBrokerAuthorizer,
    ) -> None:
        self.now: Callable[[], float] = replica_manager.reactor.seconds
        self.replica_manager = replica_manager
        self._max_bytes = config.fetch_max_bytes
        self._name_of = name_of
        self._authorizer = authorizer
        self.sessions = replica_manager.fetch_sessions
        self.purgatory = replica_manager.purgatory

    def __call__(self, context: RequestContext, body: memoryview) -> Answer | Deferred[Answer]:
        """Answer with what there is, now if that is enough."""
        request = fetch.decode_request(
            body, context.header.api_version, context.budget.max_elements
        )
        limit = min(max(request.max_bytes, 0), self._max_bytes)
        follower = request.replica_id if request.replica_id >= 0 else None
        if follower is not None and not self._may_follow(context, follower):
            return _unauthorized(context, request)
        if context.quota is not None:
            limit = context.quota.max_fetch_bytes(limit)
        params = _FetchParams(self, context, request, follower, limit)
        is_full = request.session_epoch in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH)
        if follower is not None:
            self.replica_manager.followers.fetch_received(follower, self.now(), is_full=is_full)
        if is_full:
            former = self._session_of(params)
            if former is not None:
                self._close(former)
            named = sum(len(topic.partitions) + 1 for topic in request.topics)
            if named > LARGE:
                return Deferred.fromCoroutine(_in_slices(params))
            return _FullFetch(params).answer()
        session = self._session_of(params)
        error = _session_error(session, request, context.header.api_version)
        if error is not ErrorCode.NONE or session is None:
            return encode(context, FetchResponse([], error_code=int(error)))
        epoch = session.accepted(self.now())
        self.purgatory.expire(session)
        added, removed = session.update(request.topics, request.forgotten)
        self.sessions.unwatch(removed)
        if follower is not None:
            self.replica_manager.follower_left(follower, [partition.key for partition in removed])
            if session.owner is not None and session.owner[0] == follower:
                self.replica_manager.followers.response_received(follower, session.answered_at)
        if not session.partitions:
            self._close(session)
            return encode(context, FetchResponse([]))
        for partition in added:
            self.watch(partition)
        self.sessions.used(session)
        return _IncrementalFetch(params, session, epoch).answer()

    def _session_of(self, params: _FetchParams) -> FetchSession | None:
        """Return the session that the request names; that of a follower only to this follower."""
        session = self.sessions.get(params.request.session_id)
        if session is None:
            return None
        is_owner = (
            params.follower is None if session.owner is None else session.owner == params.owner
        )
        return session if is_owner else None

    def _close(self, session: FetchSession) -> None:
        self.sessions.remove(session)
        self.purgatory.expire(session)

    def _may_follow(self, context: RequestContext, replica: int) -> bool:
        """Return whether the sender may fetch as broker *replica*: it proved to be that broker, and is not this one."""
        proved = self._authorizer.authorize_as(context.peer, replica, ApiKey.FETCH)
        return proved and replica != self.replica_manager.broker_id

    def resolve(self, name: str, topic_id: UUID | None) -> str | None:
        """Return the name of a topic that a request calls *name* or *topic_id*; None for an unknown id."""
        if topic_id is None:
            return name
        return self.replica_manager.registry.topic_name(topic_id) or self._name_of(topic_id)

    def watch(self, partition: CachedPartition) -> str | None:
        """Mark *partition* due when it changes here, once its topic's name is known; return the name."""
        if partition.key is None:
            name = self.resolve(partition.name, partition.topic_id)
            if name is None:
                return None
            self.sessions.watch(partition, (name, partition.request.partition))
            return name
        return partition.key[0]


def _unauthorized(context: RequestContext, request: FetchRequest) -> Answer:
    """Answer a fetch with the replica id of a broker that did not send it."""
    if context.header.api_version >= FIRST_WITH_ERROR_CODE:
        error = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return encode(context, FetchResponse([], error_code=error))
    code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topics = [
        FetchTopicResponse(
            topic.name, [FetchPartitionResponse(each.partition, code) for each in topic.partitions]
        )
        for topic in request.topics
    ]
    return encode(context, FetchResponse(topics))


def _session_error(session: FetchSession | None, request: FetchRequest, version: int) -> ErrorCode:
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != request.session_epoch:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    if session.uses_topic_ids != (version >= FIRST_WITH_TOPIC_IDS):
        return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    return ErrorCode.NONE


class _FetchParams:
    """A request, its sender, and the bytes that its response may have."""

    __slots__ = ("context", "fetch", "follower", "limit", "request")

    def __init__(
        self,
        fetch: Fetch,
        context: RequestContext,
        request: FetchRequest,
        follower: int | None,
        limit: int,
    ) -> None:
        self.fetch = fetch
        self.context = context
        self.request = request
        self.follower = follower
        self.limit = limit

    def reading(self, *, again: bool) -> FetchReader:
        """Begin a pass over partitions."""
        return FetchReader(
            self.fetch.replica_manager,
            self.request,
            self.follower,
            self.limit,
            again=again,
            replica_selector=self.fetch.replica_manager.replica_selector,
        )

    @property
    def owner(self) -> tuple[int, str] | None:
        """The follower and client id that own the session; None for a consumer's."""
        if self.follower is None:
            return None
        return self.follower, self.context.header.client_id or ""

    @property
    def completes_on_high_watermark(self) -> bool:
        """Whether a new high watermark alone completes the fetch: consumers wait for it at the follower."""
        return self.fetch.replica_manager.replica_selector is not None and self.owner is not None

    @property
    def seconds(self) -> float:
        """How long the request may wait."""
        return self.request.max_wait_ms / 1000


class _FullFetch:
    """A fetch that names all its partitions; its response has them all."""

    __slots__ = ("_params", "_topics")

    def __init__(self, params: _FetchParams) -> None:
        self._params = params
        resolve = params.fetch.resolve
        self._topics: list[tuple[str | None, FetchTopic]] = [
            (resolve(topic.name, topic.topic_id), topic) for topic in params.request.topics
        ]

    def answer(self) -> Answer | Deferred[Answer]:
        """Answer now, or wait."""
        params = self._params
        found = self._look(again=False, in_any_case=not self._topics)
        if found is not None:
            return found
        return params.fetch.purgatory.delay(
            self._watchers(),
            self._keys(),
            params.seconds,
            lambda: self._look(again=True),
            lambda: self._look(again=True, in_any_case=True),
            held=params.follower is not None,
        )

    def _watchers(self) -> Watchers[TopicPartition, DelayedOperation[Any]]:
        purgatory = self._params.fetch.purgatory
        return purgatory.high_watermarks if self._params.follower is None else purgatory.log_ends

    def _keys(self) -> Iterable[TopicPartition]:
        return [
            (name, partition.partition)
            for name, topic in self._topics
            if name is not None
            for partition in topic.partitions
        ]

    def _look(self, *, again: bool, in_any_case: bool = False) -> Answer:
        params = self._params
        reading = params.reading(again=again)
        answers = []
        caught_up = []
        for name, topic in self._topics:
            partitions = []
            for asked in topic.partitions:
                answer, is_caught_up = reading.read(name, topic.topic_id, asked)
                partitions.append(answer)
                caught_up.append(is_caught_up)
            answers.append(FetchTopicResponse(topic.name, partitions, topic.topic_id))
        if not in_any_case and not reading.suffices:
            reading.release()
            return None
        response = FetchResponse(answers)
        if _is_withheld(params.context, reading, response):
            return encode(params.context, response)
        if params.request.session_epoch == INITIAL_SESSION_EPOCH and caught_up:
            response.session_id = self._begin_session(answers, caught_up)
        return encode(params.context, response)

    def _begin_session(self, answers: list[FetchTopicResponse], caught_up: list[bool]) -> int:
        """Open a session that has sent these responses; return its id, 0 when there is no room."""
        params, fetch = self._params, self._params.fetch
        session = fetch.sessions.maybe_create(
            params.owner,
            len(caught_up),
            uses_topic_ids=params.context.header.api_version >= FIRST_WITH_TOPIC_IDS,
            now=fetch.now(),
        )
        if session is None:
            return 0
        added, _ = session.update(params.request.topics, ())
        for partition in added:
            fetch.watch(partition)
        sent = (
            (topic.name if topic.topic_id is None else topic.topic_id, answer)
            for topic in answers
            for answer in topic.partitions
        )
        for (called, answer), is_caught_up in zip(sent, caught_up, strict=True):
            partition = session.partitions[called, answer.partition]
            session.sent(partition, answer, is_caught_up=is_caught_up)
        return session.id


async def _in_slices(params: _FetchParams) -> Answer:
    """Answer a large full fetch; begin in another turn than that in which it was decoded."""
    await params.context.turns.next()
    return await _LargeFetch(params).answer()


class _LargeFetch(_FullFetch):
    """A full fetch of more partitions than are read in one turn of the reactor.

    It is read in slices. If that gives too little, it is read once more after the first event or when its time is over.
    Then the request is answered in any case. Its session begins with every partition due: an event between two slices
    is not missed.
    """

    __slots__ = ()

    async def answer(self) -> Answer:  # type: ignore[override]
        """Answer, in several turns of the reactor."""
        params = self._params
        turns = params.context.turns
        found = await self._read(again=False, in_any_case=not self._topics)
        if found is None:
            await params.fetch.purgatory.delay(
                self._watchers(), self._keys(), params.seconds, lambda: True, lambda: True
            )
            found = await self._read(again=True, in_any_case=True)
        assert found is not None
        await turns.next()
        answers, reading = found
        response = FetchResponse(answers)
        if _is_withheld(params.context, reading, response):
            return encode(params.context, response)
        if params.request.session_epoch == INITIAL_SESSION_EPOCH:
            caught_up = [False] * sum(len(topic.partitions) for topic in answers)
            response.session_id = self._begin_session(answers, caught_up) if caught_up else 0
            await turns.next()
        return encode(params.context, response)

    async def _read(
        self, *, again: bool, in_any_case: bool
    ) -> tuple[list[FetchTopicResponse], FetchReader] | None:
        """Read every partition, in slices; None if that is too little."""
        share = self._params.context.turns.slice()
        reading = self._params.reading(again=again)
        answers = []
        try:
            for name, topic in self._topics:
                partitions: list[FetchPartitionResponse] = []
                if share.is_over():
                    await share.next()
                for asked in topic.partitions:
                    if share.is_over():
                        await share.next()
                    partitions.append(reading.read(name, topic.topic_id, asked)[0])
                answers.append(FetchTopicResponse(topic.name, partitions, topic.topic_id))
        except BaseException:
            reading.release()
            raise
        if in_any_case or reading.suffices:
            return answers, reading
        reading.release()
        return None


class _IncrementalFetch:
    """A fetch within a session; *epoch* is that of the session's next request."""

    __slots__ = ("_epoch", "_params", "_session")

    def __init__(self, params: _FetchParams, session: FetchSession, epoch: int) -> None:
        self._params = params
        self._session = session
        self._epoch = epoch

    def answer(self) -> Answer | Deferred[Answer]:
        """Answer now, or wait."""
        found = self._look(again=False)
        if found is not None:
            return found
        purgatory = self._params.fetch.purgatory
        return purgatory.delay(
            purgatory.sessions,
            (self._session,),
            self._params.seconds,
            lambda: self._look(again=True),
            lambda: self._look(again=True, in_any_case=True),
            held=True,
        )

    def _look(self, *, again: bool, in_any_case: bool = False) -> Answer:
        """Read what is due; changes during this read are due for the next request."""
        params, session = self._params, self._session
        if session.epoch != self._epoch:
            # Another request of the session came meanwhile: the client does not wait for this one.
            error = int(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            return encode(
                params.context, FetchResponse([], error_code=error, session_id=session.id)
            )
        reading = params.reading(again=again)
        watch = params.fetch.watch
        responses: list[tuple[CachedPartition, FetchPartitionResponse, bool]] = []
        settled = 0
        for count, partition in enumerate(list(session.due)):
            if count >= LOOKED_AT_ONCE and (reading.suffices or 2 * settled >= LOOKED_AT_ONCE):
                session.defer(count - settled)
                in_any_case = True
                break
            answer, is_caught_up = reading.read(
                watch(partition), partition.topic_id, partition.request
            )
            if session.was_read(partition, answer, is_caught_up=is_caught_up):
                responses.append((partition, answer, is_caught_up))
            elif is_caught_up:
                settled += 1
        if not (
            in_any_case or reading.suffices or (responses and params.completes_on_high_watermark)
        ):
            reading.release()
            return None
        response = FetchResponse([], session_id=session.id)
        session.answered_at = params.fetch.now()
        if _is_withheld(params.context, reading, response):
            return encode(params.context, response)
        topics: dict[UUID | str, FetchTopicResponse] = {}
        for partition, answer, is_caught_up in responses:
            session.sent(partition, answer, is_caught_up=is_caught_up)
            called = partition.id[0]
            topic = topics.get(called)
            if topic is None:
                topic = topics[called] = FetchTopicResponse(partition.name, [], partition.topic_id)
            topic.partitions.append(answer)
        response.topics = list(topics.values())
        return encode(params.context, response)


def _is_withheld(context: RequestContext, reading: FetchReader, response: FetchResponse) -> bool:
    """Count what was read for the client's quota; return whether *response* becomes one without partitions instead.

    The client fetches the same again after the throttle time of *response*.
    """
    if context.quota is None:
        return False
    response.throttle_time_ms, is_sent = context.quota.fetched(reading.size)
    if is_sent:
        return False
    reading.release()
    response.topics = []
    return True


def encode(context: RequestContext, response: FetchResponse) -> Answer:
    """Return the parts of the answer: bytes with file slices between them."""
    header = context.header
    return fetch.encode_response(response, header.api_version, header.correlation_id)  # type: ignore[return-value]
