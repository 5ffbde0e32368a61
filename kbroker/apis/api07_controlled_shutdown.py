"""ControlledShutdown (7): a broker that stops asks the controller to move its leadership away.

Version served: 3. Partitions with one replica cannot move and do not delay the shutdown, as in Kafka. The response
lists the partitions with more replicas that no other broker in the ISR could take over.

Differs from Kafka: leaders move 250 at a time, and the response follows when all have moved
(docs/design/controlled-shutdown.md).
"""

from __future__ import annotations

from kbroker.apis.request import RequestContext
from kbroker.controller.controller import KafkaController
from kclient.wire.interbroker import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)


class ControlledShutdown:
    """Answers ControlledShutdown, on the controller."""

    def __init__(self, controller: KafkaController) -> None:
        self._controller = controller

    async def __call__(
        self, context: RequestContext, request: ControlledShutdownRequest
    ) -> ControlledShutdownResponse:
        """Answer once leadership has moved; refusals are KafkaErrors."""
        remaining = await self._controller.controlled_shutdown(
            request.broker_id, request.broker_epoch
        )
        return ControlledShutdownResponse(
            remaining_partitions=[RemainingPartition(topic, index) for topic, index in remaining]
        )
