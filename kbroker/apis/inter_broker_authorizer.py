"""Authorizes the requests that are reserved to brokers: CLUSTER_ACTION on the cluster, in the words of Kafka's ACLs.

Reserved are the controller's requests and ControlledShutdown (`ApiSpec.broker_field`), and Fetch, ListOffsets and
OffsetForLeaderEpoch with a broker's id as replica id (CVE-2018-1288). Only a connection on the inter-broker listener
that proved to come from that broker (`kbroker.security.core.broker_proof`) may send them. Others get
CLUSTER_AUTHORIZATION_FAILED; where the API alone decides, before the body is decoded.

During a rolling upgrade from a version without proofs (kbroker.inter.broker.proof.required=false) a proof is not
required. A connection from the address of that broker's registration may send them, too. A connection from elsewhere is
closed without a response. An older controller takes every response for the end of its request, and would not resend it.

docs/design/inter-broker-trust.md has the table.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from twisted.logger import Logger

from kbroker.network.service import Peer, RequestRefusedError
from kbroker.security.core.broker_proof import BrokerProofs
from kclient.wire.versions import ApiKey

log = Logger()

LOG_SECONDS: Final = 1.0
"""Time between two log lines about refused requests."""


class InterBrokerAuthorizer:
    """Decides which requests a connection may send as a broker; *seconds* is a monotonic clock."""

    def __init__(
        self,
        proofs: BrokerProofs,
        listeners: Collection[str] | None,
        seconds: Callable[[], float],
        brokers_at: Callable[[str], Collection[int]] | None,
    ) -> None:
        """Accept brokers on *listeners*; None: on all of them.

        *brokers_at* returns the brokers registered at an address; None: only a proof counts.
        """
        self._proofs = proofs
        self._brokers_at = brokers_at
        self._listeners = listeners
        self._seconds = seconds
        self._last_line = float("-inf")
        self._unlogged = 0

    def authenticate(self, peer: Peer, proof: bytes) -> bool:
        """Verify the *proof* that *peer* presents, and set its broker id; return whether it holds."""
        broker_id = self._proofs.verify(proof) if self._is_inter_broker(peer) else None
        if broker_id is None:
            self._refused(peer, "its broker proof")
            return False
        peer.broker_id = broker_id
        return True

    def is_broker(self, peer: Peer) -> bool:
        """Return whether *peer* counts as a broker: by its proof, or by its address while proofs are not required."""
        return peer.broker_id >= 0 or bool(self._registered_at(peer))

    def authorize(self, peer: Peer, api_key: int) -> bool:
        """Return whether *peer* may send requests of *api_key*, which only brokers may send."""
        if self.is_broker(peer):
            return True
        return self._refused(peer, ApiKey(api_key).name)

    def authorize_as(self, peer: Peer, broker_id: int, api_key: int) -> bool:
        """Return whether *peer* may send a request of *api_key* as broker *broker_id*."""
        if broker_id >= 0 and peer.broker_id == broker_id:
            return True
        if peer.broker_id < 0 and broker_id in self._registered_at(peer):
            return True
        return self._refused(peer, f"{ApiKey(api_key).name} as broker {broker_id}")

    def _registered_at(self, peer: Peer) -> Collection[int]:
        """Return the brokers that *peer* may be by its address alone: none where proofs are required."""
        if self._brokers_at is None or not self._is_inter_broker(peer):
            return ()
        return self._brokers_at(peer.host)

    def _is_inter_broker(self, peer: Peer) -> bool:
        return self._listeners is None or peer.listener in self._listeners

    def _refused(self, peer: Peer, what: str) -> bool:
        """Log that *what* was refused, if the last line is old enough; return False.

        RequestRefusedError where proofs are not required: the sender may be a broker that is not known yet.
        """
        if self._brokers_at is not None:
            raise RequestRefusedError(f"{what}: no such broker is registered at this address")
        now = self._seconds()
        if now - self._last_line < LOG_SECONDS:
            self._unlogged += 1
            return False
        log.warn(
            "refused {what} from {peer} on {listener}, which has not proved to be that broker{more}",
            what=what, peer=str(peer), listener=peer.listener,
            more=f"; {self._unlogged} requests before it" if self._unlogged else "",
        )  # fmt: skip
        self._last_line, self._unlogged = now, 0
        return False
