"""InitProducerId: the cluster's id for a producer, by which brokers detect its duplicate batches (KIP-98).

v3 raises the epoch of an id (KIP-360); a producer without transactions raises its own.
"""

from __future__ import annotations

from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.wire.schema.init_producer_id import InitProducerIdRequest
from kclient.wire.versions import ApiKey

_NO_TRANSACTIONS_MS = 2**31 - 1


async def init_producer_id(cluster: Cluster) -> tuple[int, int]:
    """Return a new (producer id, epoch) from any broker."""
    connection = await cluster.any_connection()
    response = await connection.request(
        ApiKey.INIT_PRODUCER_ID,
        None,
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTIONS_MS),
    )
    if response.error_code:
        raise error_of(response.error_code, "producer id")
    return response.producer_id, response.producer_epoch
