"""Connections to other brokers of the cluster: each begins with our broker proof.

The proof is a tagged field of ApiVersions (KIP-482), sent as the first request. The next request follows without a
wait: a broker answers the requests of a connection in order, so it verifies the proof first. A broker that does not
know the field ignores it.

Brokers of one cluster know each other's versions, so the versions in the response are not used. A response that rejects
the proof closes the connection. The requests behind it fail as with a lost connection, and their senders retry over
another one.

Owner: the reactor's thread
"""

from __future__ import annotations

from typing import Any

from kbroker.security.core.broker_proof import BrokerProofs
from kclient.errors import Address
from kclient.net.connection import Connection, Dial
from kclient.net.handshake import SOFTWARE_VERSION
from kclient.wire.errors import for_code
from kclient.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kclient.wire.versions import ApiKey

CONNECT_SECONDS = 5.0
API_VERSIONS_VERSION = 3
SOFTWARE_NAME = "kbroker"


class BrokerDial:
    """Connects to brokers by *dial* and presents the proof of *proofs*."""

    def __init__(self, reactor: Any, dial: Dial, proofs: BrokerProofs) -> None:
        self._reactor = reactor
        self._dial = dial
        self._proofs = proofs

    async def __call__(
        self, broker_id: int, address: Address, *, client_id: str, request_timeout: float
    ) -> Connection:
        """Connect to broker *broker_id*; raise ConnectError. The proof is on its way."""
        connection = await self._dial(
            self._reactor,
            address,
            client_id=client_id,
            connect_timeout=CONNECT_SECONDS,
            request_timeout=request_timeout,
            negotiate_versions=False,
        )
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME,
            client_software_version=SOFTWARE_VERSION,
            broker_proof=self._proofs.make(broker_id),
        )

        def answered(response: ApiVersionsResponse) -> None:
            if response.error_code:
                refused = for_code(response.error_code)(
                    f"broker {broker_id} at {address} does not accept this broker's proof"
                )
                connection.close(refused)

        asked = connection.request(ApiKey.API_VERSIONS, API_VERSIONS_VERSION, request)
        # A lost connection fails the requests behind the proof, too.
        asked.addCallbacks(answered, lambda _failure: None)
        return connection
