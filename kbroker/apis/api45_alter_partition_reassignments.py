"""AlterPartitionReassignments (45): other replicas for partitions, or the end of a reassignment in progress (KIP-455).

Version served: 0. Only the controller answers; another broker answers NOT_CONTROLLER at the top. The response means
that the reassignment is in ZooKeeper, where any controller finds it; ListPartitionReassignments shows its progress. A
controller that dies may have written some reassignments of a request: a retry is harmless. `replicas` null cancels:
NO_REASSIGNMENT_IN_PROGRESS where there is none. A change that would leave no replica with all committed records
is an INVALID_REPLICA_ASSIGNMENT.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from kbroker.apis.request import RequestContext
from kbroker.controller.controller import KafkaController
from kbroker.controller.core.effects import ReassignmentOutcome
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

_CODES: Final[dict[ReassignmentOutcome, ErrorCode]] = {
    ReassignmentOutcome.ACCEPTED: ErrorCode.NONE,
    ReassignmentOutcome.INVALID: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ReassignmentOutcome.NOTHING_TO_CANCEL: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    ReassignmentOutcome.UNKNOWN: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


class AlterPartitionReassignments:
    """Answers AlterPartitionReassignments, on the controller."""

    def __init__(self, controller: KafkaController) -> None:
        self._controller = controller

    async def __call__(
        self, context: RequestContext, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        """Answer one error code per partition."""
        targets = {
            (topic.name, partition.partition_index): (
                None if partition.replicas is None else tuple(partition.replicas)
            )
            for topic in request.topics
            for partition in topic.partitions
        }
        results = await self._controller.reassign(targets)
        topics: dict[str, list[ReassignablePartitionResponse]] = defaultdict(list)
        for (topic, index), result in sorted(results.items()):
            topics[topic].append(
                ReassignablePartitionResponse(
                    index, int(_CODES[result.outcome]), result.why or None
                )
            )
        return AlterPartitionReassignmentsResponse(
            error_message=None,
            responses=[ReassignableTopicResponse(name, each) for name, each in topics.items()],
        )
