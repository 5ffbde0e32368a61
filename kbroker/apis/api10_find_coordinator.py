"""FindCoordinator (10), versions 0-6: which broker coordinates a group or a transactional id.

v1 key type and error message; v2 throttle time only; v3 flexible; v4 many keys in one request (KIP-699); v5 new
error codes for transactions (KIP-890); v6 share groups (KIP-932).

The coordinator of a group is the leader of its partition of ``__consumer_offsets``. That of a transactional id (key
type 1) is the leader of its partition of ``__transaction_state``. The topic is made when it is first needed, and the
client has to try again.

A share group (key type 2, v6) is INVALID_REQUEST, as in Kafka
with group.share.enable=false.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.apis.request import RequestContext
from kbroker.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordinator.placement import partition_for
from kbroker.metadata.admin_manager import AdminManager
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.zk.errors import ZooKeeperError
from kclient.wire.errors import ErrorCode, KafkaError
from kclient.wire.schema.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

log = Logger()

GROUP: Final = 0
TRANSACTION: Final = 1
TOPICS: Final = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}


class FindCoordinator:
    """Answers FindCoordinator."""

    def __init__(self, metadata: MetadataCache, admin_manager: AdminManager) -> None:
        self._metadata = metadata
        self._create: dict[str, Callable[[], Awaitable[None]]] = {
            OFFSETS_TOPIC: admin_manager.create_offsets_topic,
            TRANSACTIONS_TOPIC: admin_manager.create_transactions_topic,
        }
        self._making: set[str] = set()

    async def __call__(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        """Answer from the metadata cache."""
        if context.api_version >= 4:
            found = []
            share = context.turns.slice()
            for key in request.coordinator_keys:
                if share.is_over():
                    await share.next()
                found.append(self._find(key, request.key_type, context.listener))
            return FindCoordinatorResponse(coordinators=found)
        one = self._find(request.key, request.key_type, context.listener)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _find(self, key: str, key_type: int, listener: str) -> Coordinator:
        name = TOPICS.get(key_type)
        if name is None:
            text = f"coordinator type {key_type} is not served: only {sorted(TOPICS)} are"
            return _none(key, ErrorCode.INVALID_REQUEST, text)
        if not key and key_type == GROUP:
            return _none(key, ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        if not key:
            return _none(key, ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        topic = self._metadata.topic(name)
        if topic is None or not topic.partitions:
            self._make_topic(name)
            text = f"{name} is being created, try again"
            return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        index = partition_for(key, len(topic.partitions))
        partition = topic.partitions.get(index)
        leader = partition.leader if partition is not None else -1
        address = self._metadata.address(leader, listener)
        if address is None:
            text = f"{name}-{index} has no leader now, try again"
            return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        return Coordinator(key, leader, *address, error_code=ErrorCode.NONE, error_message="")

    def _make_topic(self, name: str) -> None:
        """Create the topic, unless that is under way already."""
        if name not in self._making:
            self._making.add(name)
            Deferred.fromCoroutine(self._create_topic(name))

    async def _create_topic(self, name: str) -> None:
        try:
            await self._create[name]()
        except (KafkaError, ZooKeeperError) as error:
            log.warn("{topic} cannot be created now: {error}", topic=name, error=error)
        except Exception:
            log.failure("{topic} cannot be created", topic=name)
        finally:
            self._making.discard(name)


def _none(key: str, error: ErrorCode, text: str) -> Coordinator:
    return Coordinator(key, -1, "", -1, error_code=error, error_message=text)
