"""The committed offsets of one group: the acknowledged values, and the znodes that exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.core.records import (
    NO_DETAIL,
    CommitDetail,
    PoisonGroupStateError,
    decode_detail,
    encode_detail,
)
from kbroker.zk.errors import NoNode, PoisonZnode, ZooKeeperError
from kbroker.zk.interface import Create, Node, SetData, ZooKeeper
from kbroker.zk.znodes import (
    checked_topic,
    decode_offset,
    encode_offset,
    group_offset_path,
    group_offsets_path,
    group_path,
    group_topic_offsets_path,
)

READS_AT_ONCE = 500
"""Znodes read at a time."""


class CommittedOffset(NamedTuple):
    """An offset in ZooKeeper; *timestamp_ms* is the time of its commit."""

    offset: int
    detail: CommitDetail
    timestamp_ms: int


@dataclass(slots=True)
class GroupOffsets:
    """The offsets of *group_id*.

    *committed* holds acknowledged values only. *details* has an entry per offset znode that exists (or will, once the
    multis in flight are applied). It is the content of its detail znode, None without one.
    """

    group_id: str
    committed: dict[str, dict[int, CommittedOffset]] = field(default_factory=dict)
    details: dict[str, dict[int, CommitDetail | None]] = field(default_factory=dict)
    unreadable: dict[str, set[int]] = field(default_factory=dict)
    """Partitions with an offset znode that cannot be decoded, until another commit replaces it."""
    has_root: bool = False
    has_offsets: bool = False

    def __iter__(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        """Iterate over (topic, partition, committed offset)."""
        for topic, partitions in self.committed.items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    def operations(
        self, topic: str, partition: int, commit: OffsetCommit
    ) -> list[Create | SetData]:
        """Return the operations that write *commit*, with its missing parents, and assume them done."""
        operations: list[Create | SetData] = []
        partitions = self.details.get(topic)
        if partitions is None:
            operations += self._missing_parents()
            operations.append(Create(group_topic_offsets_path(self.group_id, topic)))
            partitions = self.details[topic] = {}
        path = group_offset_path(self.group_id, topic, partition)
        data = encode_offset(commit.offset)
        if partition in partitions:
            operations.append(SetData(path, data))
        else:
            operations.append(Create(path, data))
        before = partitions.get(partition)
        is_unreadable = before is not None and partition in self.unreadable.get(topic, ())
        if is_unreadable or commit.detail != (before or NO_DETAIL):
            content = encode_detail(commit.detail)
            detail = detail_path(path)
            operations.append(
                Create(detail, content) if before is None else SetData(detail, content)
            )
            before = commit.detail
        partitions[partition] = before
        return operations

    def _missing_parents(self) -> Iterator[Create]:
        if not self.has_root:
            self.has_root = True
            yield Create(group_path(self.group_id))
        if not self.has_offsets:
            self.has_offsets = True
            yield Create(group_offsets_path(self.group_id))

    def position(self, topic: str, partition: int) -> int:
        """Return the position of the offset, with the multis in flight; 0 without one (`core.pending_offsets`)."""
        committed = self.committed.get(topic, {}).get(partition)
        detail = self.details.get(topic, {}).get(partition)
        return max(
            committed.detail.position if committed is not None else 0,
            detail.position if detail is not None else 0,
        )

    def acknowledged(
        self, topic: str, partition: int, commit: OffsetCommit, timestamp_ms: int
    ) -> None:
        """Record that *commit* is in ZooKeeper."""
        offset = CommittedOffset(commit.offset, commit.detail, timestamp_ms)
        self.unreadable.get(topic, set()).discard(partition)
        self.committed.setdefault(topic, {})[partition] = offset

    def forget(self, topic: str, partition: int) -> None:
        """Record that the offset was deleted."""
        self.unreadable.get(topic, set()).discard(partition)
        for table in (self.committed, self.details):
            table.get(topic, {}).pop(partition, None)

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions with an offset, whether it can be decoded or not."""
        return [*self.committed.get(topic, ()), *sorted(self.unreadable.get(topic, ()))]

    def snapshot(self) -> GroupOffsets:
        """Return a copy of what is committed and unreadable, which later commits do not change."""
        return GroupOffsets(
            self.group_id,
            {topic: dict(partitions) for topic, partitions in self.committed.items()},
            unreadable={topic: set(partitions) for topic, partitions in self.unreadable.items()},
        )

    def partitions_with_detail(self, topic: str) -> set[int]:
        """Return the partitions with a detail znode."""
        return {p for p, detail in self.details.get(topic, {}).items() if detail is not None}


def detail_path(offset_path: str) -> str:
    """Return the path of the detail znode of an offset."""
    return f"{offset_path}/detail"


def is_detail(path: str) -> bool:
    """Return whether *path*, of an offset or its detail znode, is that of the detail."""
    return path.endswith("/detail")


async def read_offsets(zookeeper: ZooKeeper, group_id: str) -> tuple[GroupOffsets, list[str]]:
    """Read all offsets of a group; also return the problems of those that cannot be decoded.

    Errors: ConnectionLoss, SessionExpired.
    """
    offsets = GroupOffsets(group_id)
    problems: list[str] = []
    offsets.has_root = await zookeeper.exists(group_path(group_id)) is not None
    try:
        topics = (await zookeeper.children(group_offsets_path(group_id))).names
    except NoNode:
        return offsets, problems
    offsets.has_offsets = True
    for topic in topics:
        try:
            path = group_topic_offsets_path(group_id, checked_topic(topic))
            names = (await zookeeper.children(path)).names
        except (NoNode, ValueError):
            continue  # deleted meanwhile, or not a topic
        offsets.details[topic] = {}
        partitions = [int(name) for name in names if name.isascii() and name.isdigit()]
        for start in range(0, len(partitions), READS_AT_ONCE):
            await _read_partitions(
                zookeeper, offsets, topic, partitions[start : start + READS_AT_ONCE], problems
            )
    return offsets, problems


async def _read_partitions(
    zookeeper: ZooKeeper,
    offsets: GroupOffsets,
    topic: str,
    partitions: list[int],
    problems: list[str],
) -> None:
    paths = [group_offset_path(offsets.group_id, topic, partition) for partition in partitions]
    nodes = await get_all(zookeeper, paths)
    with_detail = [
        detail_path(path)
        for path, node in zip(paths, nodes, strict=True)
        if node is not None and node.stat.num_children
    ]
    details = dict(zip(with_detail, await get_all(zookeeper, with_detail), strict=True))
    for partition, path, node in zip(partitions, paths, nodes, strict=True):
        if node is None:
            continue
        detail_node = details.get(detail_path(path))
        detail = None
        try:
            if detail_node is not None:
                detail = NO_DETAIL  # it exists, whatever it holds
                detail = decode_detail(detail_path(path), detail_node.data)
            offset = decode_offset(path, node.data)
            if offset >= 0:
                committed = CommittedOffset(offset, detail or NO_DETAIL, node.stat.mtime)
                offsets.committed.setdefault(topic, {})[partition] = committed
        except (PoisonZnode, PoisonGroupStateError) as error:
            problems.append(str(error))
            offsets.unreadable.setdefault(topic, set()).add(partition)
        offsets.details[topic][partition] = detail


async def get_all(zookeeper: ZooKeeper, paths: list[str]) -> list[Node | None]:
    """Read znodes, all at once; None for those that do not exist."""
    reads = [zookeeper.get(path) for path in paths]
    nodes: list[Node | None] = []
    try:
        for read in reads:
            try:
                nodes.append(await read)
            except NoNode:
                nodes.append(None)
    except ZooKeeperError:
        for read in reads:
            read.addErrback(lambda _: None)  # they fail alike, and one is enough
        raise
    return nodes
