"""The first connection: one reachable address of the bootstrap list is enough."""

from __future__ import annotations

from collections.abc import Sequence

from kclient.errors import Address, AttemptFailed, BootstrapError, ConnectError
from kclient.net.brokers import Brokers
from kclient.net.connection import Connection


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
    raise BootstrapError(attempts)
