"""Reading and deleting whole groups in ZooKeeper."""

from kbroker.common.gather import outcomes_of
from kbroker.coordinator.group.committed_offsets import READS_AT_ONCE, get_all
from kbroker.coordinator.group.core.records import (
    GroupSnapshot,
    PoisonGroupStateError,
    decode_snapshot,
)
from kbroker.coordinator.shard_fence import ShardFence, batches
from kbroker.zk.errors import NoNode
from kbroker.zk.interface import Children, Delete, ZooKeeper
from kbroker.zk.znodes import CONSUMERS, group_path, group_state_path, unescape

DELETES_AT_ONCE = 300
"""Znodes deleted in one multi."""


async def group_ids(zookeeper: ZooKeeper) -> list[str]:
    """List the groups of the cluster. ConnectionLoss, SessionExpired."""
    try:
        names = (await zookeeper.children(CONSUMERS)).names
    except NoNode:
        return []
    return [unescape(name) for name in names]


async def read_states(
    zookeeper: ZooKeeper, groups: list[str]
) -> tuple[dict[str, tuple[GroupSnapshot, int]], list[str]]:
    """Read the snapshots of *groups*, each with its time (ms); also return the problems of unreadable ones."""
    states: dict[str, tuple[GroupSnapshot, int]] = {}
    problems: list[str] = []
    for start in range(0, len(groups), READS_AT_ONCE):
        some = groups[start : start + READS_AT_ONCE]
        paths = [group_state_path(group_id) for group_id in some]
        nodes = await get_all(zookeeper, paths)
        for group_id, path, node in zip(some, paths, nodes, strict=True):
            if node is None:
                continue
            try:
                states[group_id] = decode_snapshot(path, node.data)
            except PoisonGroupStateError as error:
                problems.append(str(error))
    return states, problems


async def delete_tree(fence: ShardFence, group_id: str) -> None:
    """Delete all znodes of a group. NotCoordinator; ConnectionLoss: some may remain."""
    paths = await _paths_below(fence.zookeeper, group_path(group_id))
    for operations in batches([Delete(path) for path in paths], DELETES_AT_ONCE):
        await fence.write(operations)


async def _paths_below(zookeeper: ZooKeeper, path: str) -> list[str]:
    """Return *path* and everything below it, children before their parents; [] if there is no such znode."""
    levels: list[list[str]] = [[path]]
    while levels[-1]:
        below: list[str] = []
        parents = levels[-1]
        for start in range(0, len(parents), READS_AT_ONCE):
            some = parents[start : start + READS_AT_ONCE]
            listings = await outcomes_of([zookeeper.children(parent) for parent in some])
            for parent, listing in zip(some, listings, strict=True):
                if isinstance(listing, Children):
                    below += [f"{parent}/{name}" for name in listing.names]
                elif not isinstance(listing, NoNode):
                    raise listing
                elif parent == path:
                    return []
        levels.append(below)
    return [path for level in reversed(levels) for path in level]
