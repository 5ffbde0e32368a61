"""ElectLeaders (43): elect the preferred leaders, or any leader at all, and wait until they lead.

Versions served: 0 to 2. v0 preferred only (KIP-183); v1 unclean elections, a top-level error (KIP-460); v2 flexible.

Only the controller answers. Another broker answers NOT_CONTROLLER: at the top, and in v0, which has no such field, for
every partition of the request. Without a list all partitions are meant; those that needed no election are not in the
response. A partition succeeds once this broker's metadata shows the new leader, because clients find it then;
REQUEST_TIMED_OUT until then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from kbroker.apis.api19_create_topics import MAX_WAIT_SECONDS
from kbroker.apis.request import RequestContext
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.controller import KafkaController
from kbroker.controller.core.effects import ElectionOutcome, ElectionResult
from kbroker.controller.core.events import ElectionType
from kbroker.metadata.admin_manager import AdminManager
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import InvalidRequest, NotController
from kclient.wire.schema.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_PROBLEMS: Final[dict[ElectionOutcome, tuple[ErrorCode, str]]] = {
    ElectionOutcome.NOT_NEEDED: (
        ErrorCode.ELECTION_NOT_NEEDED,
        "the requested leader already leads",
    ),
    ElectionOutcome.UNKNOWN: (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "there is no such partition",
    ),
    ElectionOutcome.BEING_DELETED: (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "the topic is being deleted",
    ),
}
_NOT_AVAILABLE: Final[dict[ElectionType, tuple[ErrorCode, str]]] = {
    ElectionType.PREFERRED: (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        "its preferred replica is down or not in the ISR",
    ),
    ElectionType.UNCLEAN: (
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "none of its replicas is alive",
    ),
}


class ElectLeaders:
    """Answers ElectLeaders, on the controller."""

    def __init__(
        self,
        controller: KafkaController,
        admin_manager: AdminManager,
        monotonic: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._admin_manager = admin_manager
        self._monotonic = monotonic

    async def __call__(
        self, context: RequestContext, request: ElectLeadersRequest
    ) -> ElectLeadersResponse:
        """Answer one result per partition."""
        deadline = self._monotonic() + min(request.timeout_ms / 1000, MAX_WAIT_SECONDS)
        asked = None
        if request.topic_partitions is not None:
            asked = frozenset((t.topic, p) for t in request.topic_partitions for p in t.partitions)
        try:
            election = ElectionType(request.election_type)
        except ValueError:
            raise InvalidRequest(f"{request.election_type} is no type of election") from None
        try:
            results = await self._controller.elect_leaders(election, asked)
        except NotController as error:
            code = ErrorCode.NOT_CONTROLLER
            return ElectLeadersResponse(
                error_code=int(code),
                replica_election_results=_by_topic({p: (code, str(error)) for p in asked or ()}),
            )
        elected = {p: r.leader for p, r in results.items() if r.outcome is ElectionOutcome.ELECTED}
        late = await self._admin_manager.until_led_by(elected, deadline - self._monotonic())
        answers = {
            partition: (
                ErrorCode.REQUEST_TIMED_OUT,
                "elected, but not in this broker's metadata yet",
            )
            if partition in late
            else _answer(election, result)
            for partition, result in results.items()
            if asked is not None or result.outcome is not ElectionOutcome.NOT_NEEDED
        }
        return ElectLeadersResponse(replica_election_results=_by_topic(answers))


def _answer(election: ElectionType, result: ElectionResult) -> tuple[ErrorCode, str | None]:
    if result.outcome is ElectionOutcome.ELECTED:
        return ErrorCode.NONE, None
    if result.outcome is ElectionOutcome.NOT_AVAILABLE:
        return _NOT_AVAILABLE[election]
    return _PROBLEMS[result.outcome]


def _by_topic(
    answers: Mapping[TopicPartition, tuple[ErrorCode, str | None]],
) -> list[ReplicaElectionResult]:
    topics: dict[str, list[PartitionResult]] = defaultdict(list)
    for (topic, index), (code, message) in sorted(answers.items()):
        topics[topic].append(PartitionResult(index, int(code), message))
    return [ReplicaElectionResult(topic, partitions) for topic, partitions in topics.items()]
