"""The broker proof: shows that a connection comes from a broker of this cluster, and from which.

Theory of operation
===================
All brokers of a cluster share a secret, which only ZooKeeper holds (`/cluster/inter_broker_secret`). A proof is the
sender's broker id and an HMAC-SHA256, keyed by the secret, over the cluster id, the sender's id and the receiver's id.
A broker presents it once per connection, in a tagged field of ApiVersions (`kbroker.network.broker_dial`). A client
that reaches only the Kafka port cannot make one. docs/design/inter-broker-trust.md lists what this does not protect.

After the secret was replaced, proofs by the secret before it are accepted, too. A broker learns of the change by a
watch, not at the same time as the others.

In: secrets, proofs   Out: proofs, verified broker ids   Owner: the reactor's thread
"""

from __future__ import annotations

import hmac
import struct
from typing import Final

from kbroker.zk.znodes.brokers import SECRET_BYTES

_SENDER = struct.Struct(">i")
_BOTH = struct.Struct(">ii")
_CONTEXT: Final = b"kbroker broker proof 1\0"


class BrokerProofs:
    """Makes the proofs of broker *broker_id*, and verifies those that other brokers present to it."""

    def __init__(self, cluster_id: str, broker_id: int) -> None:
        self._context = _CONTEXT + cluster_id.encode() + b"\0"
        self._broker_id = broker_id
        self._secrets: tuple[bytes, ...] = ()
        """The newest first, and the one before it."""

    def learn(self, secret: bytes) -> None:
        """Make proofs by *secret* from now on."""
        if len(secret) < SECRET_BYTES:
            raise ValueError(f"a secret of {len(secret)} bytes is shorter than {SECRET_BYTES}")
        if self._secrets[:1] != (secret,):
            self._secrets = (secret, *self._secrets[:1])

    def make(self, receiver: int) -> bytes:
        """Return the proof for a connection to broker *receiver*."""
        if not self._secrets:
            raise ValueError("the inter-broker secret is not known yet")
        return _SENDER.pack(self._broker_id) + self._mac(
            self._secrets[0], self._broker_id, receiver
        )

    def verify(self, proof: bytes) -> int | None:
        """Return the id of the broker that made *proof* for a connection to us; None if none did."""
        if len(proof) != _SENDER.size + 32:
            return None
        (sender,) = _SENDER.unpack_from(proof)
        mac = proof[_SENDER.size :]
        for secret in self._secrets:
            if sender >= 0 and hmac.compare_digest(mac, self._mac(secret, sender, self._broker_id)):
                found: int = sender
                return found
        return None

    def _mac(self, secret: bytes, sender: int, receiver: int) -> bytes:
        return hmac.digest(secret, self._context + _BOTH.pack(sender, receiver), "sha256")
