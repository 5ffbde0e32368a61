"""The shards of the transaction coordinator: a partition of ``__transaction_state`` with its transactional ids.

The log of the partition stays empty: each transactional id is a znode below /transactions/ids. Leadership, loading and
unloading are those of `kbroker.coordinator.shards`. A znode that cannot be decoded is logged with its path. Requests
for its transactional id get UNKNOWN_SERVER_ERROR until it is repaired; all others are served.

Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from twisted.logger import Logger

from kbroker.common.internal_topics import TRANSACTIONS_TOPIC
from kbroker.common.reactor import Clock
from kbroker.common.turns import WorkerTurns
from kbroker.coordinator.shard_fence import LeadershipConfirmer, ShardFence
from kbroker.coordinator.shards import Shard, Shards
from kbroker.coordinator.transaction.core.records import (
    PoisonTransactionStateError,
    decode_metadata,
)
from kbroker.coordinator.transaction.core.transaction import Marker
from kbroker.coordinator.transaction.transaction_writer import (
    DECODED_PER_TURN,
    READS_AT_ONCE,
    OnStored,
    TransactionWriter,
)
from kbroker.coordinator.transaction.transactional_id import TransactionalId
from kbroker.zk.errors import NoNode
from kbroker.zk.interface import ZooKeeper
from kbroker.zk.znodes import TRANSACTIONAL_IDS, transactional_id_path, unescape
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import InvalidRequest, UnknownServerError

log = Logger()

MAX_TRANSACTIONAL_ID = 1024
"""Characters of a transactional id; it is part of the path of a znode."""


@dataclass(slots=True, eq=False)
class TransactionShard(Shard):
    """One partition that this broker coordinates: its fence and its transactional ids."""

    ids: dict[str, TransactionalId] = field(default_factory=dict)
    poison: dict[str, str] = field(default_factory=dict)
    """Transactional ids with a znode that cannot be decoded, and the problem, as it was logged."""


class TransactionShards(Shards[TransactionShard]):
    """The shards of *broker_id*, with the writer of their znodes. *on_stored*: see `TransactionWriter`."""

    TOPIC = TRANSACTIONS_TOPIC
    IDS = "transactional ids"

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        *,
        broker_id: int,
        confirmer: LeadershipConfirmer,
        on_stored: OnStored,
    ) -> None:
        super().__init__(clock, zookeeper, broker_id=broker_id, confirmer=confirmer)
        self._send_markers = on_stored
        self.writer = TransactionWriter(clock, self._stored, self._poisoned)

    # --- loading ------------------------------------------------------------------------------

    def _new_shard(self, fence: ShardFence) -> TransactionShard:
        return TransactionShard(fence)

    async def _list_ids(self, zookeeper: ZooKeeper) -> list[str]:
        try:
            names = (await zookeeper.children(TRANSACTIONAL_IDS)).names
        except NoNode:
            return []
        return [unescape(name) for name in names]

    async def _load_partition(self, shard: TransactionShard, ids: list[str]) -> None:
        turns = WorkerTurns(self._clock, DECODED_PER_TURN)
        found: dict[str, TransactionalId] = {}
        poison: dict[str, str] = {}
        for start in range(0, len(ids), READS_AT_ONCE):
            some = ids[start : start + READS_AT_ONCE]
            paths = [transactional_id_path(name) for name in some]
            nodes = await shard.fence.zookeeper.get_all(paths)
            for name, path, node in zip(some, paths, nodes, strict=True):
                if node is None:
                    continue
                try:
                    stored = decode_metadata(path, node.data)
                    found[name] = TransactionalId(shard.fence, name, stored, node.stat.version)
                except PoisonTransactionStateError as error:
                    poison[name] = str(error)
                await turns.done()
        if shard.fence.resigned:
            return
        shard.ids, shard.poison = found, poison
        shard.loaded = True
        log.info(
            "coordinates partition {p} of {topic} in leader epoch {e}: {n} transactional ids",
            p=shard.fence.partition,
            topic=self.TOPIC,
            e=shard.fence.leader_epoch,
            n=len(found),
        )
        for name, problem in poison.items():
            _report(name, problem)
        for id in found.values():
            markers = id.machine.markers()
            if markers:
                self._send_markers(id, markers)
            await turns.done()

    def _unload_ids(self, shard: TransactionShard, error: ErrorCode) -> None:
        """Do nothing: writes on their way and markers end with the fence."""

    # --- transactional ids ----------------------------------------------------------------------

    def locate(self, name: str) -> TransactionShard:
        """Return the shard of a transactional id.

        InvalidRequest, NotCoordinator, CoordinatorLoadInProgress; UnknownServerError: its znode cannot be decoded.
        """
        if not name or len(name) > MAX_TRANSACTIONAL_ID:
            raise InvalidRequest(f"a transactional id has 1 to {MAX_TRANSACTIONAL_ID} characters")
        shard = self._shard_of(name)
        problem = shard.poison.get(name)
        if problem is not None:
            raise UnknownServerError(problem)
        return shard

    def add(self, shard: TransactionShard, name: str) -> TransactionalId:
        """Return a transactional id of *shard*; a new one has no znode yet."""
        id = shard.ids.get(name)
        if id is None:
            id = shard.ids[name] = TransactionalId(shard.fence, name)
        return id

    def _stored(self, id: TransactionalId, markers: Collection[Marker]) -> None:
        if id.machine.stored is None:
            self._remove(id)  # expired, or never written
        elif self._is_current(id):
            self._send_markers(id, markers)

    def _is_current(self, id: TransactionalId) -> bool:
        shard = self.partitions.get(id.fence.partition)
        return shard is not None and shard.ids.get(id.name) is id

    def _remove(self, id: TransactionalId) -> None:
        if self._is_current(id):
            del self.partitions[id.fence.partition].ids[id.name]

    def _poisoned(self, id: TransactionalId, problem: str) -> None:
        """Keep a transactional id with a znode that cannot be decoded from being used."""
        if self._is_current(id):
            self._remove(id)
            self.partitions[id.fence.partition].poison[id.name] = problem
            _report(id.name, problem)

    async def read_poison_again(self) -> None:
        """Load the transactional ids with znodes that were repaired. ConnectionLoss, SessionExpired."""
        for shard in list(self.partitions.values()):
            names = list(shard.poison)[:READS_AT_ONCE]
            if not names or shard.fence.resigned:
                continue
            nodes = await shard.fence.zookeeper.get_all([transactional_id_path(n) for n in names])
            for name, node in zip(names, nodes, strict=True):
                if name not in shard.poison or shard.fence.resigned:
                    continue
                if node is None:
                    del shard.poison[name]
                    continue
                try:
                    stored = decode_metadata(transactional_id_path(name), node.data)
                except PoisonTransactionStateError:
                    continue
                del shard.poison[name]
                id = TransactionalId(shard.fence, name, stored, node.stat.version)
                shard.ids[name] = id
                self._send_markers(id, id.machine.markers())


def _report(name: str, problem: str) -> None:
    log.error(
        "transactional id {name!r} is unavailable until its znode is repaired: {problem}",
        name=name,
        problem=problem,
    )
