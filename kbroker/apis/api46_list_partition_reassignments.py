"""ListPartitionReassignments (46): the reassignments in progress, and their replicas (KIP-455).

Version served: 0. Only the controller answers; another broker answers NOT_CONTROLLER at the top. `replicas` are all
replicas now, the target replicas first. Requested partitions that are not being reassigned are not in the response.
"""

from __future__ import annotations

from collections import defaultdict

from kbroker.apis.request import RequestContext
from kbroker.controller.controller import KafkaController
from kclient.wire.schema.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


class ListPartitionReassignments:
    """Answers ListPartitionReassignments, on the controller."""

    def __init__(self, controller: KafkaController) -> None:
        self._controller = controller

    def __call__(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """Answer with the reassignments in progress, of the requested partitions or of all."""
        asked = None
        if request.topics is not None:
            asked = {(t.name, p) for t in request.topics for p in t.partition_indexes}
        topics: dict[str, list[OngoingPartitionReassignment]] = defaultdict(list)
        for (topic, index), now in self._controller.reassignments().items():
            if asked is None or (topic, index) in asked:
                topics[topic].append(
                    OngoingPartitionReassignment(
                        index, list(now.replicas), list(now.adding), list(now.removing)
                    )
                )
        return ListPartitionReassignmentsResponse(
            error_message=None,
            topics=[OngoingTopicReassignment(name, each) for name, each in topics.items()],
        )
