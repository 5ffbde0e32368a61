"""Which transactions ZooKeeper has: read whole, by brokers that do not coordinate them.

Owner: the reactor's thread.
"""

from __future__ import annotations

from kbroker.common.reactor import Clock
from kbroker.common.topic_partition import TopicPartition
from kbroker.common.turns import WorkerTurns
from kbroker.coordinator.transaction.core.records import decode_metadata
from kbroker.coordinator.transaction.core.states import IDLE
from kbroker.coordinator.transaction.transaction_writer import DECODED_PER_TURN, READS_AT_ONCE
from kbroker.zk.errors import ConnectionLoss, NoNode
from kbroker.zk.interface import ZooKeeper
from kbroker.zk.znodes import TRANSACTIONAL_IDS


async def stored_transactions(
    clock: Clock, zookeeper: ZooKeeper
) -> frozenset[tuple[int, TopicPartition]]:
    """Return (producer id, partition) of each transaction that is open, or with markers that are not acknowledged.

    As of the time of the call or later: all reads are in one session, after a sync. A transaction that begins or ends
    meanwhile may be missing. ZooKeeperError; PoisonTransactionStateError: a znode cannot be decoded.
    """
    session = zookeeper.session
    if session is None:
        raise ConnectionLoss("no session")
    bound = zookeeper.in_session(session)
    found: set[tuple[int, TopicPartition]] = set()
    turns = WorkerTurns(clock, DECODED_PER_TURN)
    try:
        await bound.sync(TRANSACTIONAL_IDS)
        names = (await bound.children(TRANSACTIONAL_IDS)).names
    except NoNode:
        return frozenset()
    paths = [f"{TRANSACTIONAL_IDS}/{name}" for name in names]
    for start in range(0, len(paths), READS_AT_ONCE):
        some = paths[start : start + READS_AT_ONCE]
        for path, node in zip(some, await bound.get_all(some), strict=True):
            if node is not None:
                stored = decode_metadata(path, node.data)
                if stored.state not in IDLE:
                    found.update((stored.producer_id, each) for each in stored.partitions)
            await turns.done()
    return frozenset(found)
