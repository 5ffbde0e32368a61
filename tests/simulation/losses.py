"""Which records may be lost: the exact promise for disks that lose data.

The state znode holds a broker epoch for each member of the ISR, and for each eligible leader replica beside it (ELR,
KIP-966). A member has *lost data* if its disk lost something after that broker registered: power was lost, or the
disk was wiped or replaced. Every other member has all committed records.

Committed records may be lost in three cases only: all members have lost data, the topic's settings allow an unclean
election, or the operator accepts the loss. In these cases the election of a leader that may lack records is an
*accepted loss*. It is *pending* until that replica leads: its records are what is left.

Topics that sync every append before the acknowledgement (`flushed`) promise more. A power loss takes nothing committed
from their members; only another disk does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from kbroker.common.topic_partition import TopicPartition

UNKNOWN = -1
"""The broker epoch of a member without one in the state: its disk counts as complete."""


@dataclass(slots=True)
class State:
    """A partition's state as ZooKeeper holds it."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    member_epochs: dict[int, int] = field(default_factory=dict)
    """Broker epochs of the members of the ISR and of the ELR, -1 unknown."""
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
        self._lost_data: dict[int, int] = {}
        """By broker: the last zxid before its disk lost something."""
        self._wiped: dict[int, int] = {}
        """By broker: the last zxid before its disk was replaced."""
        self._lost_replicas: dict[tuple[int, TopicPartition], int] = {}
        """The same for single replicas: one of several disks lost something."""
        self._damaged: set[tuple[int, TopicPartition]] = set()
        """Replicas with an exchanged log, until they were seen with all committed records."""
        self._lost_disk: dict[int, int] = {}
        """By broker: the last zxid before one of its disks was replaced."""
        self.unclean: set[str] = set()
        """Topics with settings that allow an unclean election."""
        self.flushed: set[str] = set()
        """Topics that sync every append before the acknowledgement (flush.messages=1)."""
        self.accepted_by_operator: set[TopicPartition] = set()
        """Partitions with a loss that the operator accepted."""
        self.accepted_losses: set[TopicPartition] = set()
        """Partitions with an accepted loss: a replica that may lack records was elected."""
        self.pending: set[TopicPartition] = set()
        """Partitions with an accepted loss, until the elected replica leads."""

    def disk_replaced(self, node: int, zxid: int) -> None:
        """Record that *node* has another disk."""
        self._lost_data[node] = self._wiped[node] = zxid

    def power_lost(self, node: int, zxid: int) -> None:
        """Record that *node* lost power, and with it what was not synced."""
        self._lost_data[node] = zxid

    def replica_lost(self, node: int, key: TopicPartition, zxid: int) -> None:
        """Record that *node* lost the disk that held one replica."""
        self._lost_replicas[node, key] = zxid

    def damaged(self, node: int, key: TopicPartition) -> None:
        """Record that the log of one replica on *node* is another one now."""
        self._damaged.add((node, key))

    def damaged_on(self, node: int, keys: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those of *keys* with exchanged logs on *node*."""
        return [key for key in keys if (node, key) in self._damaged]

    def complete(self, node: int, key: TopicPartition) -> None:
        """Record that a replica has all committed records."""
        self._damaged.discard((node, key))

    def disk_lost(self, node: int, zxid: int) -> None:
        """Record that *node* lost one of its disks: the broker cannot know later which replicas were on that disk."""
        self._lost_disk[node] = zxid

    def has_lost_data(self, node: int, key: TopicPartition, epoch: int) -> bool:
        """Return whether *node*, a member by broker epoch *epoch*, has lost data since."""
        if (node, key) in self._damaged:
            return True
        lost = max(self._lost_data.get(node, -1), self._lost_replicas.get((node, key), -1))
        return epoch <= lost and epoch != UNKNOWN

    def may_lack_records(self, node: int, key: TopicPartition, epoch: int) -> bool:
        """Return whether *node* may lack committed records, though it is a member by broker epoch *epoch*."""
        if key[0] not in self.flushed or (node, key) in self._damaged:
            return self.has_lost_data(node, key, epoch)
        lost = max(self._wiped.get(node, -1), self._lost_replicas.get((node, key), -1))
        return epoch <= lost and epoch != UNKNOWN

    def all_have_lost_data(self, key: TopicPartition, state: State) -> bool:
        """Return whether no member is left that must have every record of a partition."""
        members = state.member_epochs.items()
        return all(self.has_lost_data(node, key, epoch) for node, epoch in members)

    def may_be_leaderless(self, key: TopicPartition, state: State) -> bool:
        """Return whether a partition may have no leader: no member is left that can know that it has all records."""
        members = state.member_epochs.items()
        return not any(self.must_be_complete(node, key, epoch) for node, epoch in members)

    def must_be_complete(self, node: int, key: TopicPartition, epoch: int) -> bool:
        """Return whether *node*, a member by broker epoch *epoch*, can know that it has all records."""
        lost_disk = UNKNOWN < epoch <= self._lost_disk.get(node, -1)
        return not (self.has_lost_data(node, key, epoch) or lost_disk)

    def elected(self, key: TopicPartition, before: State, state: State) -> str | None:
        """Judge an election; return what is wrong with it."""
        epoch = before.member_epochs.get(state.leader)
        is_clean = epoch is not None and not self.may_lack_records(state.leader, key, epoch)
        if is_clean or not (state.recovers or epoch is None):
            return None  # it must have every record
        if not state.recovers:
            return "is led from outside of the ISR, and the state does not record it"
        is_accepted = key in self.accepted_by_operator and self.may_be_leaderless(key, before)
        if not (key[0] in self.unclean or is_accepted or self.all_have_lost_data(key, before)):
            return "is led with a loss that could have been avoided"
        self.pending.add(key)
        self.accepted_losses.add(key)
        return None
