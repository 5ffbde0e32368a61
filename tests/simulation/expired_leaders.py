"""A leader without a ZooKeeper session serves no client once its successor leads (S11).

Such a leader cannot learn that its session is over. It goes on while all of its ISR follow it, because a successor
comes out of the ISR and follows it no more. So it must stop when it has received nothing from its first successor for
as long as the brokers themselves allow (`FollowerLiveness.timeout`), plus the time to notice. A later leader was
elected from the ISR of that successor, and need not be in the ISR that the broker knows.

A session can expire early here, while its broker is cut off from ZooKeeper. The broker may assume that it is alive
until its timeout is over, counted from the last response.

Not judged:
- a successor outside of the ISR that the broker knows: an unclean election made it the leader, and the ISR may follow
  the broker all the same;
- a broker that was paused meanwhile, because the requests that it answers when it resumes may be from before;
- a broker to which the successor still sends something, because that may have been sent before the election.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kbroker.zk import znodes
from tests.simulation.clock import Scheduler
from tests.simulation.copies import Broken
from tests.simulation.node import Node

GRACE = 1.0
"""Seconds from an event to its last consequence at a client."""


class ExpiredLeaders:
    """Tracks which brokers have lost their registration, and which brokers lead instead."""

    def __init__(self, nodes: Mapping[int, Node], scheduler: Scheduler) -> None:
        self._nodes = nodes
        self._scheduler = scheduler
        self.arrived: Mapping[tuple[int, int], float] = {}
        """By (source, target): when a message last reached its target."""
        self._unregistered_at: dict[int, float] = {}
        """When the registration of a broker was deleted."""
        self._leaders: dict[tuple[UUID, int], list[tuple[int, int, float]]] = {}
        """By topic id and partition, in order: each leader epoch, its leader, and when it began."""

    def committed(self, kind: str, path: str) -> None:
        """Take a write of ZooKeeper."""
        prefix, _, name = path.rpartition("/")
        if prefix == znodes.BROKER_IDS:
            if kind == "delete":
                self._unregistered_at[int(name)] = self._scheduler.now
            elif kind == "create":
                self._unregistered_at.pop(int(name), None)

    def leads(self, where: tuple[UUID, int], epoch: int, node: int) -> None:
        """Record that *node* begins to lead in *epoch*."""
        known = self._leaders.setdefault(where, [])
        if not known or known[-1][0] < epoch:
            known.append((epoch, node, self._scheduler.now))

    def served(self, where: tuple[UUID, int], topic: str, number: int) -> None:
        """Check that broker *number* may serve a client that it has just served."""
        now = self._scheduler.now
        leaders = self._leaders.get(where)
        if leaders is None or now - self._unregistered_at.get(number, now) < GRACE:
            return
        if leaders[-1][1] == number or now - leaders[-1][2] < GRACE:
            return
        node = self._nodes[number]
        process, broker, session = node.process, node.broker, node.zookeeper()
        if process is None or not process.alive or broker is None or node.parts is None:
            return
        if session is not None and now - session.knows_at < GRACE:
            return
        partition = node.partitions.get((topic, where[1]))
        if partition is None or partition.leader_state is None:
            return
        own = partition.role.leader_epoch
        first = next((one for one in leaders if one[0] > own and one[1] != number), None)
        if first is None or first[1] not in partition.leader_state.maximal_isr:
            return
        epoch, leader, since = first
        silence = node.parts.replica_manager.followers.timeout + GRACE
        quiet_since = max(self.arrived.get((leader, number), 0.0), process.resumed_at)
        if now - quiet_since > silence:
            raise Broken(
                f"ExpiredLeader: broker {number} serves {partition} in epoch"
                f" {own}, {now - self._unregistered_at[number]:.1f} s after its"
                f" registration was deleted and {now - since:.1f} s after {leader} began to lead in {epoch}"
            )
