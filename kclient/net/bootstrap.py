"""The first connection: one reachable address of the bootstrap list is enough."""

from __future__ import annotations

from collections.abc import Sequence

from kclient.errors import Address, AttemptFailed, BootstrapError, Cause, ConnectError
from kclient.net.brokers import Brokers
from kclient.net.connection import Connection

_ZOOKEEPER_PORTS = (2181, 2182)
"""The usual client ports, without and with TLS."""


def bootstrap_id(index: int) -> int:
    """Return the temporary broker id of the *index*-th bootstrap address: -1, -2, ..."""
    return -1 - index


async def connect_to_first(brokers: Brokers, addresses: Sequence[Address]) -> Connection:
    """Connect to *addresses* in order until one succeeds.

    Raise `BootstrapError` with every address and its cause if none does.
    """
    attempts = []
    for index, address in enumerate(addresses):
        try:
            return await brokers.connection(bootstrap_id(index), address)
        except ConnectError as problem:
            attempts.append(AttemptFailed(address, problem.cause, problem.detail))
    raise BootstrapError(attempts, likely_mistake(attempts))


def likely_mistake(attempts: Sequence[AttemptFailed]) -> str:
    """Return the likely reason why these are not addresses of brokers, "" without a guess."""
    for attempt in attempts:
        if attempt.address.port in _ZOOKEEPER_PORTS:
            return (
                f"{attempt.address.port} is a port of ZooKeeper; clients connect to brokers, "
                "by default on port 9092"
            )
    for attempt in attempts:
        if attempt.cause in (Cause.CLOSED, Cause.NOT_KAFKA):
            guess = (
                f"a listener with TLS answers as {attempt.address} does; "
                "kclient needs a PLAINTEXT listener"
            )
            if attempt.cause is Cause.CLOSED:
                guess += (
                    ". A broker at its limit of connections closes too: its log names the limit"
                )
            return guess
    return ""
