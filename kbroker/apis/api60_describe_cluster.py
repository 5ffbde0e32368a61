"""DescribeCluster (60): cluster id, controller and live brokers (KIP-700).

Versions served: 0 and 1 (v1: endpoint type; there are no KRaft controllers here).
"""

from __future__ import annotations

from kbroker.apis.authorized_operations import ALL_CLUSTER_OPERATIONS, NOT_REQUESTED
from kbroker.apis.request import RequestContext
from kbroker.metadata.metadata_cache import MetadataCache
from kclient.wire.errors import MismatchedEndpointType, UnsupportedEndpointType
from kclient.wire.schema.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2


class DescribeCluster:
    """Answers DescribeCluster."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def __call__(
        self, context: RequestContext, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        """Answer with the brokers reachable on the listener the client came in by."""
        if request.endpoint_type == _CONTROLLERS:
            raise MismatchedEndpointType("this is a broker's endpoint, not a KRaft controller's")
        if request.endpoint_type != _BROKERS:
            raise UnsupportedEndpointType(f"there is no endpoint type {request.endpoint_type}")
        asked = request.include_cluster_authorized_operations
        return DescribeClusterResponse(
            cluster_id=self._cache.cluster_id,
            controller_id=self._cache.live_controller_id,
            brokers=[
                DescribeClusterBroker(
                    broker.broker_id, *broker.endpoints[context.listener], broker.rack
                )
                for broker in self._cache.brokers.values()
                if context.listener in broker.endpoints
            ],
            cluster_authorized_operations=ALL_CLUSTER_OPERATIONS if asked else NOT_REQUESTED,
        )
