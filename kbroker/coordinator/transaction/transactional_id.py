"""One transactional id on its coordinator: the machine of its transactions, and its znode.

Owner: the reactor's thread.
"""

from __future__ import annotations

from kbroker.coordinator.shard_fence import ShardFence
from kbroker.coordinator.transaction.core.states import TransactionMetadata
from kbroker.coordinator.transaction.core.transaction import Transaction
from kbroker.zk.znodes import transactional_id_path


class TransactionalId:
    """The transactional id *name* of the shard with *fence*; *version* is that of its znode, None without one."""

    __slots__ = ("fence", "machine", "name", "path", "version")

    def __init__(
        self,
        fence: ShardFence,
        name: str,
        stored: TransactionMetadata | None = None,
        version: int | None = None,
    ) -> None:
        self.fence = fence
        self.name = name
        self.path = transactional_id_path(name)
        self.machine = Transaction(stored)
        self.version = version
