"""The first contact: one address of the bootstrap list that answers is enough."""

from __future__ import annotations

from collections.abc import Sequence

from kclient.errors import Address, AttemptFailed, BootstrapError, ConnectError
from kclient.net.brokers import Brokers
from kclient.net.connection import Connection


def bootstrap_id(index: int) -> int:
    """Return the stand-in broker id of the *index*-th bootstrap address: -1, -2, ..."""
    return -1 - index


async def first_that_answers(brokers: Brokers, addresses: Sequence[Address]) -> Connection:
    """Connect to *addresses* in turn until one answers.

    `BootstrapError` with every address and its cause if none does.
    """
    attempts = []
    for index, address in enumerate(addresses):
        try:
            return await brokers.connection(bootstrap_id(index), address)
        except ConnectError as problem:
            attempts.append(AttemptFailed(address, problem.cause, problem.detail))
    raise BootstrapError(attempts)
