"""Broker proofs in tests: what a broker accepts, and how a test presents itself as a broker.

`authorizer_of` is for a pipeline without a cluster. `prove` makes a socket to a real broker a broker's connection,
by the secret in ZooKeeper.
"""

from __future__ import annotations

from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.security.core.broker_proof import BrokerProofs
from kbroker.zk import znodes
from kclient.testing.raw_connection import RawConnection
from kclient.wire.schema.api_versions import ApiVersionsRequest
from kclient.wire.versions import ApiKey
from tests.kit.brokers import Cluster
from tests.kit.zookeeper import zookeeper_at

SECRET = bytes(range(32))


def proofs_of(broker_id: int, secret: bytes = SECRET, cluster_id: str = "cluster") -> BrokerProofs:
    """Return what broker *broker_id* makes and verifies proofs by."""
    proofs = BrokerProofs(cluster_id, broker_id)
    proofs.learn(secret)
    return proofs


def authorizer_of(broker_id: int, listener: str | None = "PLAINTEXT") -> InterBrokerAuthorizer:
    """Return the authorizer of broker *broker_id*; its clock stands still."""
    listeners = None if listener is None else (listener,)
    return InterBrokerAuthorizer(proofs_of(broker_id), listeners, lambda: 0.0, None)


def introduction(proof: bytes) -> ApiVersionsRequest:
    """Return the request that presents *proof*."""
    return ApiVersionsRequest(
        client_software_name="test", client_software_version="1", broker_proof=proof
    )


def proof_in(cluster: Cluster, sender: int, receiver: int) -> bytes:
    """Return the proof of broker *sender* for *receiver*, made by the secret in ZooKeeper."""
    with zookeeper_at(cluster.zookeeper_connect) as client:
        secret = znodes.decode_inter_broker_secret(client.get(znodes.INTER_BROKER_SECRET)[0])
        cluster_id = znodes.decode_cluster_id(client.get(znodes.CLUSTER_ID)[0])
    return proofs_of(sender, secret, cluster_id).make(receiver)


def prove(connection: RawConnection, proof: bytes) -> int:
    """Present *proof*; return the answer's error code."""
    error: int = connection.ask(ApiKey.API_VERSIONS, 3, introduction(proof)).error_code
    return error
