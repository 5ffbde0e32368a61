"""Producer ids, taken from the cluster's counter in ZooKeeper in blocks of 1000 (KIP-98).

The counter is /latest_producer_id_block: the newest block of any broker. A broker takes the next block by a set
conditional on the version that it read; after a lost race it reads again. If the outcome of the set is unknown, the
broker does not use the block and takes the next one. An id is never given twice; gaps do not matter.

A mirror copies batches with the producer ids of another cluster. If every cluster counted from 0, those ids would also
be ids of this cluster's producers. If these producers then wrote to the copied topic, their first records could count
as duplicates (redpanda#31659). So a cluster counts from a number of its own, computed from its cluster id and far from
any other cluster's. A counter below that number, left by Kafka, moves there.
"""

from zlib import crc32

from twisted.internet.defer import Deferred

from kbroker.zk.errors import BadVersion, NodeExists, NoNode, SessionExpired, ZooKeeperError
from kbroker.zk.interface import ZooKeeper
from kbroker.zk.znodes import (
    PRODUCER_ID_BLOCK,
    ProducerIdBlock,
    decode_producer_id_block,
    encode_producer_id_block,
)
from kclient.wire.errors import CoordinatorNotAvailable, UnknownServerError

BLOCK_SIZE = 1000
LAST_ID = 2**63 - 1

_RANGE_BITS = 28
_RANGES = 1 << 23  # the greatest id is below 2^53: a JSON number holds it exactly


def first_producer_id(cluster_id: str) -> int:
    """Return where a cluster begins to count: one of 8 million places, 268 million ids apart."""
    return crc32(cluster_id.encode()) % _RANGES << _RANGE_BITS


class ProducerIdManager:
    """Generates producer ids for *broker_id*, from *first* on (Kafka's ProducerIdManager)."""

    def __init__(self, zookeeper: ZooKeeper, broker_id: int, *, first: int = 0) -> None:
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._first = first
        self._next = 0
        self._end = 0
        self._waiting: list[Deferred[None]] | None = None

    async def next(self) -> int:
        """Return an unused id.

        Errors: CoordinatorNotAvailable while ZooKeeper does not answer; UnknownServerError if
        no id is left.
        """
        while self._next >= self._end:
            await self._take_block()
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> None:
        """Take the next block; concurrent calls share it."""
        if self._waiting is not None:
            waiting: Deferred[None] = Deferred()
            self._waiting.append(waiting)
            await waiting
            return
        self._waiting = []
        try:
            block = await self._claim()
        except (ZooKeeperError, UnknownServerError) as error:
            problem = (
                CoordinatorNotAvailable(f"no producer ids: {error}")
                if isinstance(error, ZooKeeperError)
                else error
            )
            for waiting in self._others():
                waiting.errback(problem)
            raise problem from error
        self._next, self._end = block.first, block.last + 1
        for waiting in self._others():
            waiting.callback(None)

    def _others(self) -> list[Deferred[None]]:
        waiting, self._waiting = self._waiting or [], None
        return waiting

    async def _claim(self) -> ProducerIdBlock:
        session = self._zookeeper.session
        if session is None:
            raise SessionExpired(PRODUCER_ID_BLOCK)
        zookeeper = self._zookeeper.in_session(session)
        while True:
            first, version = self._first, None
            try:
                node = await zookeeper.get(PRODUCER_ID_BLOCK)
                version = node.stat.version
                if node.data:
                    first = max(first, decode_producer_id_block(node.data).last + 1)
            except NoNode:
                pass
            if first > LAST_ID - BLOCK_SIZE:
                raise UnknownServerError("all producer ids of this cluster are used")
            block = ProducerIdBlock(self._broker_id, first, first + BLOCK_SIZE - 1)
            data = encode_producer_id_block(block)
            try:
                if version is None:
                    await zookeeper.create(PRODUCER_ID_BLOCK, data)
                else:
                    await zookeeper.set(PRODUCER_ID_BLOCK, data, version)
            except (BadVersion, NodeExists, NoNode):
                continue  # another broker was faster
            return block
