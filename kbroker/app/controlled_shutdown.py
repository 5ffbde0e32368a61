"""Controlled shutdown: the controller moves leadership away from this broker before it stops.

The request names the broker epoch of the moment. Without it a request that a controller reads late would be taken for
one of the next process. That process would then stay out of every ISR. A broker that is not registered sends none: the
controller has moved its leadership already, or is about to.

The time is bounded (KAFKA-1305, KAFKA-1663). Without a controller, or without its response, the broker stops all the
same, and its partitions fail over when its session ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import TimeoutError
from twisted.internet.task import deferLater
from twisted.logger import Logger

from kbroker.config import KafkaConfig
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.network.broker_connections import BrokerConnections
from kclient.errors import KafkaTimeoutError
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError
from kclient.wire.interbroker import ControlledShutdownRequest
from kclient.wire.versions import ApiKey

log = Logger(namespace="kbroker.shutdown")

VERSION = 3
TOTAL_SECONDS = 8.0
"""For all attempts together: a controller that cannot reach ZooKeeper does not respond."""

ATTEMPT_SECONDS = 5.0
MAX_BACKOFF = 1.0


class ControlledShutdown:
    """Asks the controller, at most controlled.shutdown.max.retries times."""

    def __init__(
        self,
        reactor: Any,
        config: KafkaConfig,
        metadata: MetadataCache,
        brokers: BrokerConnections,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int | None],
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._metadata = metadata
        self._brokers = brokers
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch

    async def run(self) -> bool:
        """Hand all leadership over; return False if some could not be, and the broker stops all the same."""
        log.info("shutting down")
        backoff = min(self._config.controlled_shutdown_retry_backoff_ms / 1000, MAX_BACKOFF)
        deadline = self._reactor.seconds() + TOTAL_SECONDS
        for attempt in range(max(1, self._config.controlled_shutdown_max_retries)):
            if attempt:
                await deferLater(self._reactor, backoff)
            if self._reactor.seconds() >= deadline:
                break
            try:
                if await self._request():
                    return True
            except KafkaError as error:
                log.info("controlled shutdown: {why}", why=error)
        log.warn("shutting down without having handed everything over")
        return False

    async def _request(self) -> bool:
        broker_epoch = self._broker_epoch()
        if broker_epoch is None:
            log.info(
                "controlled shutdown: this broker is not registered in ZooKeeper at the moment"
            )
            return False
        controller = self._metadata.live_controller_id
        address = self._metadata.address(controller, self._config.inter_broker_listener)
        if address is None:
            log.info("controlled shutdown: no controller is known")
            return False
        request = ControlledShutdownRequest(broker_id=self._broker_id, broker_epoch=broker_epoch)
        asked = self._brokers(controller, *address, ApiKey.CONTROLLED_SHUTDOWN, VERSION, request)
        try:
            response = await asked.addTimeout(ATTEMPT_SECONDS, self._reactor)
        except TimeoutError as error:
            raise KafkaTimeoutError(
                f"the controller, broker {controller}, does not respond"
            ) from error
        if response.error_code:
            log.info(
                "controlled shutdown: the controller answered {error}",
                error=ErrorCode(response.error_code).name,
            )
            return False
        remaining = response.remaining_partitions
        if remaining:
            log.info("controlled shutdown: {count} partitions still to move", count=len(remaining))
        return not remaining
