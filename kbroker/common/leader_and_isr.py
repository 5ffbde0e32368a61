"""The leader and the in-sync replicas of a partition: the content of its state znode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The content of a partition's state znode, with the version it was read or written at.

    Two extensions of the znode, which Kafka's tools ignore: *isr_epochs* and *elr*.
    """

    leader: int
    """-1 while there is none, -2 while the topic is being deleted."""
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    """Epoch of the controller that last wrote it, or of the last controller request at the leader that wrote it."""
    zk_version: int = -1
    isr_epochs: tuple[int, ...] = ()
    """The broker epochs under which the members of *isr* are in it, -1 unknown; () for none known (KIP-903)."""
    elr: tuple[tuple[int, int], ...] = ()
    """(broker, its epoch) of the replicas that left while the ISR was under min.insync.replicas: they have every
    committed record (KIP-966)."""
    leader_recovery_state: int = 0
    """1 after an unclean election, until the leader has recovered (KIP-704)."""

    @property
    def isr_epoch_by_member(self) -> dict[int, int]:
        """The broker epoch by member of the ISR."""
        return dict(zip(self.isr, self.isr_epochs or (-1,) * len(self.isr), strict=True))
