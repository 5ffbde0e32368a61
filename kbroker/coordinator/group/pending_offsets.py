"""The pending offsets of one shard: a znode for each producer and group with an open transaction.

The content and the decisions are in `core.pending_offsets`; `transactional_offsets` writes. What is under way or in
doubt counts as pending: a partition is stable only when ZooKeeper has acknowledged that its transaction is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from twisted.internet.defer import DeferredLock

from kbroker.common.topic_partition import TopicPartition
from kbroker.coordinator.group.committed_offsets import READS_AT_ONCE, get_all
from kbroker.coordinator.group.core.pending_offsets import (
    PendingOffsets,
    PoisonPendingOffsetsError,
    decode_pending,
)
from kbroker.zk.errors import NoNode
from kbroker.zk.interface import Node, ZooKeeper
from kbroker.zk.znodes import PENDING_OFFSETS, decode_pending_offsets_name, pending_offsets_path


class PendingZnode:
    """The znode of one producer in one group. Its writes are made one at a time, under *lock*."""

    __slots__ = (
        "attempted", "group_id", "in_doubt", "lock", "path", "problem", "producer_id", "refusals", "stored", "version",
    )  # fmt: skip

    def __init__(self, producer_id: int, group_id: str) -> None:
        self.producer_id = producer_id
        self.group_id = group_id
        self.path = pending_offsets_path(producer_id, group_id)
        self.lock = DeferredLock()
        self.stored: PendingOffsets | None = None
        """What ZooKeeper has acknowledged; None: there is no znode, or it cannot be decoded."""
        self.version = 0
        """Of the znode with *stored*."""
        self.attempted: PendingOffsets | None = None
        """What is being written, or was written with an unknown outcome."""
        self.in_doubt = False
        """Whether the znode has to be read before the next decision."""
        self.problem = ""
        """Why the znode cannot be decoded."""
        self.refusals = 0
        """How often in succession ZooKeeper refused a write because the znode is not as expected."""

    @property
    def is_pending(self) -> bool:
        """Whether there is a znode, or may be one."""
        return bool(self.stored or self.attempted or self.in_doubt or self.problem)

    def partitions(self) -> Iterator[TopicPartition]:
        """Iterate over the partitions that are pending or may be."""
        for content in (self.stored, self.attempted):
            if content is not None:
                yield from content.offsets

    def may_have(self, key: TopicPartition) -> bool:
        """Return whether an offset of the partition *key* is pending, or may be."""
        return bool(self.problem) or any(
            content is not None and key in content.offsets
            for content in (self.stored, self.attempted)
        )

    def found(self, node: Node | None) -> None:
        """Take over what was read."""
        self.in_doubt = False
        self.stored = self.attempted = None
        self.problem = ""
        if node is not None:
            self.version = node.stat.version
            try:
                self.stored = decode_pending(self.path, node.data)
            except PoisonPendingOffsetsError as error:
                self.problem = str(error)

    def written(self, content: PendingOffsets | None, version: int = 0) -> None:
        """Record an acknowledged write; None is the deletion."""
        self.stored, self.version, self.attempted, self.refusals = content, version, None, 0


class VerificationGuard:
    """Guards a write of pending offsets: a marker of the producer invalidates the verification under way (KIP-890)."""

    __slots__ = ("is_valid", "producer_id")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.is_valid = True


class ShardPendingOffsets:
    """All pending offsets of a shard, from its election to its resignation."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[int, PendingZnode]] = {}
        self._by_producer: dict[int, dict[str, PendingZnode]] = {}
        self._guards: dict[int, set[VerificationGuard]] = {}
        """Of the verifications under way, by producer id."""
        self._position = 0
        """The highest position that was given here, or is in a znode that was loaded."""

    # --- verifications at the transaction coordinator

    def start_verification(self, producer_id: int) -> VerificationGuard:
        """Start a verification; `end_verification` ends it."""
        guard = VerificationGuard(producer_id)
        self._guards.setdefault(producer_id, set()).add(guard)
        return guard

    def end_verification(self, guard: VerificationGuard) -> None:
        """End a verification: its result is used, or invalid."""
        under_way = self._guards.get(guard.producer_id, set())
        under_way.discard(guard)
        if not under_way:
            self._guards.pop(guard.producer_id, None)

    def marker_arrived(self, producer_id: int) -> None:
        """Invalidate the verifications under way: their transaction may be over."""
        for guard in self._guards.get(producer_id, ()):
            guard.is_valid = False

    # --- znodes

    def znode(self, producer_id: int, group_id: str) -> PendingZnode:
        """Return the znode of a producer and group, whether it exists or not."""
        known = self._by_group.setdefault(group_id, {})
        found = known.get(producer_id)
        if found is None:
            found = known[producer_id] = PendingZnode(producer_id, group_id)
            self._by_producer.setdefault(producer_id, {})[group_id] = found
        return found

    def release(self, znode: PendingZnode) -> None:
        """Release the lock of *znode*, and remove it from memory if it does not exist and nothing waits for it."""
        znode.lock.release()
        if znode.is_pending or znode.lock.locked:
            return
        producers = self._by_group.get(znode.group_id, {})
        if producers.pop(znode.producer_id, None) is not None and not producers:
            del self._by_group[znode.group_id]
        groups = self._by_producer.get(znode.producer_id, {})
        if groups.pop(znode.group_id, None) is not None and not groups:
            del self._by_producer[znode.producer_id]

    def of_group(self, group_id: str) -> list[PendingZnode]:
        """Return the znodes of a group, and those that are being written."""
        return list(self._by_group.get(group_id, {}).values())

    def of_producer(self, producer_id: int) -> list[PendingZnode]:
        """Return the znodes of a producer, and those that are being written."""
        return list(self._by_producer.get(producer_id, {}).values())

    def has_group(self, group_id: str) -> bool:
        """Return whether *group_id* has pending offsets, or may have some."""
        return any(znode.is_pending for znode in self._by_group.get(group_id, {}).values())

    def has_partition(self, group_id: str, key: TopicPartition) -> bool:
        """Return whether an offset of the partition *key* is pending, or may be."""
        znodes = self._by_group.get(group_id)
        return znodes is not None and any(znode.may_have(key) for znode in znodes.values())

    def unstable(self, group_id: str) -> UnstablePartitions:
        """Return the partitions with pending offsets, as they are now."""
        znodes = self._by_group.get(group_id, {}).values()
        return UnstablePartitions(
            {key for znode in znodes for key in znode.partitions()},
            any(znode.problem for znode in znodes),
        )

    def next_position(self, *earlier: int) -> int:
        """Return a position above each that was given, and above those *earlier*."""
        self._position = max(self._position, *earlier) + 1
        return self._position

    def load(self, producer_id: int, group_id: str, node: Node) -> str:
        """Take over a znode that was read at the election; return the problem of one that cannot be decoded."""
        znode = self.znode(producer_id, group_id)
        znode.found(node)
        if znode.stored is not None:
            positions = (commit.detail.position for commit in znode.stored.offsets.values())
            self._position = max(self._position, *positions)
        return znode.problem


class UnstablePartitions:
    """The partitions of a group with pending offsets; *is_unreadable*: there may be others (S25)."""

    __slots__ = ("_partitions", "is_unreadable")

    def __init__(self, partitions: Iterable[TopicPartition] = (), is_unreadable: bool = False) -> None:  # fmt: skip
        self._partitions = frozenset(partitions)
        self.is_unreadable = is_unreadable

    def __contains__(self, key: TopicPartition) -> bool:
        """Return whether the partition *key* has a pending offset."""
        return key in self._partitions

    def of_topic(self, topic: str) -> list[int]:
        """Return the partitions of *topic* with a pending offset."""
        return [partition for name, partition in self._partitions if name == topic]

    def topics(self) -> set[str]:
        """Return the topics with a pending offset."""
        return {name for name, _ in self._partitions}


async def list_pending(zookeeper: ZooKeeper) -> tuple[list[tuple[int, str]], list[str]]:
    """List (producer id, group) of all pending offsets of the cluster; also return the problems of other names.

    Errors: ConnectionLoss, SessionExpired.
    """
    try:
        names = (await zookeeper.children(PENDING_OFFSETS)).names
    except NoNode:
        return [], []
    found: list[tuple[int, str]] = []
    problems: list[str] = []
    for name in names:
        decoded = decode_pending_offsets_name(name)
        if decoded is None:
            problems.append(
                f"{PENDING_OFFSETS}/{name} is not named after a producer id and a group"
            )
        else:
            found.append(decoded)
    return found, problems


async def read_pending(
    zookeeper: ZooKeeper, wanted: list[tuple[int, str]]
) -> tuple[ShardPendingOffsets, list[str]]:
    """Read the pending offsets of a shard; also return the problems of those that cannot be decoded.

    Errors: ConnectionLoss, SessionExpired.
    """
    pending = ShardPendingOffsets()
    problems: list[str] = []
    for start in range(0, len(wanted), READS_AT_ONCE):
        some = wanted[start : start + READS_AT_ONCE]
        nodes = await get_all(zookeeper, [pending_offsets_path(*each) for each in some])
        for each, node in zip(some, nodes, strict=True):
            if node is not None:
                problem = pending.load(*each, node)
                problems += [problem] if problem else []
    return pending, problems
