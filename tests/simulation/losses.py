"""Which records may be lost: the exact promise for disks that lose data.

A place in the ISR, or among the eligible beside it, is granted to one life of a broker: the state znode holds that
life's broker epoch. It is *void* once the disk that held the replica lost something (power, a wiped or another
disk) after that life began. A replica with a place that is not void has all committed records; they may be
lost only where no replica has such a place any more, where the topic's settings allow an unclean election, or
where the operator accepts it. Topics that sync every append before the acknowledgement (`flushed`) promise more:
power takes nothing committed from a place; only another disk does. A loss that was granted is *pending* until a replica
leads: its records are what is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from kbroker.common.topic_partition import TopicPartition

UNKNOWN = -1
"""Of a place without a broker epoch in the state: it counts."""


@dataclass(slots=True)
class State:
    """A partition's state as ZooKeeper holds it."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    places: dict[int, int] = field(default_factory=dict)
    """Broker epochs of the members of the ISR and of the eligible, -1 unknown."""
    recovers: bool = False
    """Whether it was elected by an unclean election, by its own state."""

    @classmethod
    def decode(cls, data: bytes) -> State:
        read = json.loads(data)
        isr = tuple(read["isr"])
        epochs = read.get("isr_epochs") or [-1] * len(isr)
        eligible = {int(broker): epoch for broker, epoch in read.get("elr", {}).items()}
        return cls(
            read["leader"],
            read["leader_epoch"],
            isr,
            read["controller_epoch"],
            {**eligible, **dict(zip(isr, epochs, strict=True))},
            bool(read.get("leader_recovery_state")),
        )

    def __str__(self) -> str:
        return f"leader {self.leader} in epoch {self.leader_epoch}, ISR {self.isr}"


class Losses:
    """Which disks lost what, and which partitions may therefore lose records."""

    def __init__(self) -> None:
        self._disks: dict[int, int] = {}
        """By broker: the last zxid before its disk lost something."""
        self._wiped: dict[int, int] = {}
        """By broker: the last zxid before its disk was another one."""
        self._lost_replicas: dict[tuple[int, TopicPartition], int] = {}
        """The same for single replicas: one of several disks lost something."""
        self._damaged: set[tuple[int, TopicPartition]] = set()
        """Replicas with an exchanged log, until they were seen with all committed records."""
        self._incomplete: dict[int, int] = {}
        """By broker: the last zxid before one of its disks was another one."""
        self.unclean: set[str] = set()
        """Topics with settings that allow an unclean election."""
        self.flushed: set[str] = set()
        """Topics that sync every append before the acknowledgement (flush.messages=1)."""
        self.accepted: set[TopicPartition] = set()
        """Partitions with a loss that the operator accepted."""
        self.granted: set[TopicPartition] = set()
        """Partitions that were ever led by a replica that may lack records."""
        self.pending: set[TopicPartition] = set()
        """Partitions with a next leader that may lack records."""

    def disk(self, node: int, zxid: int) -> None:
        """Take note that *node* lost its disk."""
        self._disks[node] = self._wiped[node] = zxid

    def power(self, node: int, zxid: int) -> None:
        """Take note that *node* lost power, and with it what was not synced."""
        self._disks[node] = zxid

    def replica(self, node: int, key: TopicPartition, zxid: int) -> None:
        """Take note that *node* lost the disk that held one replica."""
        self._lost_replicas[node, key] = zxid

    def damaged(self, node: int, key: TopicPartition) -> None:
        """Take note that the log of one replica on *node* is another one now."""
        self._damaged.add((node, key))

    def damaged_on(self, node: int, keys: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those of *keys* with exchanged logs on *node*."""
        return [key for key in keys if (node, key) in self._damaged]

    def whole(self, node: int, key: TopicPartition) -> None:
        """Take note that a replica has all that is committed."""
        self._damaged.discard((node, key))

    def doubt(self, node: int, zxid: int) -> None:
        """Take note that *node* lost one of its disks: it need not know for ever what was not on it."""
        self._incomplete[node] = zxid

    def is_void(self, node: int, key: TopicPartition, granted: int) -> bool:
        """Return whether the place that *node* has since its life of broker epoch *granted* is worth nothing."""
        if (node, key) in self._damaged:
            return True
        lost = max(self._disks.get(node, -1), self._lost_replicas.get((node, key), -1))
        return granted <= lost and granted != UNKNOWN

    def may_lack(self, node: int, key: TopicPartition, granted: int) -> bool:
        """Return whether *node* may lack committed records, though it has a place since *granted*."""
        if key[0] not in self.flushed or (node, key) in self._damaged:
            return self.is_void(node, key, granted)
        lost = max(self._wiped.get(node, -1), self._lost_replicas.get((node, key), -1))
        return granted <= lost and granted != UNKNOWN

    def are_void(self, key: TopicPartition, state: State) -> bool:
        """Return whether no replica is left that must have every record of a partition."""
        return all(self.is_void(node, key, granted) for node, granted in state.places.items())

    def may_wait(self, key: TopicPartition, state: State) -> bool:
        """Return whether a partition may have no leader: no replica is left that must know that it has all records."""
        places = state.places.items()
        return not any(self.must_have_all(node, key, granted) for node, granted in places)

    def must_have_all(self, node: int, key: TopicPartition, granted: int) -> bool:
        """Return whether *node* must know that the place it has since *granted* is worth something."""
        in_doubt = UNKNOWN < granted <= self._incomplete.get(node, -1)
        return not (self.is_void(node, key, granted) or in_doubt)

    def elected(self, key: TopicPartition, before: State, state: State) -> str | None:
        """Judge an election; return what is wrong with it."""
        granted = before.places.get(state.leader)
        is_clean = granted is not None and not self.may_lack(state.leader, key, granted)
        if is_clean or not (state.recovers or granted is None):
            return None  # it must have every record
        if not state.recovers:
            return "is led from outside of the ISR, and the state does not record it"
        is_accepted = key in self.accepted and self.may_wait(key, before)
        if not (key[0] in self.unclean or is_accepted or self.are_void(key, before)):
            return "is led with a loss that could have been avoided"
        self.pending.add(key)
        self.granted.add(key)
        return None
