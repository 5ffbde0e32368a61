"""Which broker a partition is read from: its leader, or the follower that the leader named (KIP-392).

A consumer that says where it is (client.rack) may be told by the leader to read from a follower nearby. It does so
for metadata.max.age.ms, then asks the leader again; at once when anything goes wrong at the follower, the follower is
not among the live brokers any more, or the partition has another leader epoch. The follower hands out nothing that is
not committed, but may not have heard yet of all that is.

A leader may go on naming a follower that is dead to us: until its session is over, or for as long as only we cannot
reach it. So after a failure the leader is asked, for a while, without saying where we are: then it serves us itself.

In: what the leader named, what failed   Out: whom to ask   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Container

NO_PREFERRED_REPLICA = -1

AVOID_SECONDS = 30.0
"""How long no follower is read from after one failed."""


class PreferredReadReplica:
    """The choice for one partition."""

    __slots__ = ("_avoid_followers_until", "_leader_epoch", "_until", "node_id")

    def __init__(self) -> None:
        self.node_id = NO_PREFERRED_REPLICA
        """The follower to read from; -1: the leader."""
        self._leader_epoch = -1
        self._until = 0.0
        self._avoid_followers_until = 0.0

    def named(self, node_id: int, leader_epoch: int, until: float) -> None:
        """Handle the leader of *leader_epoch* naming a follower, good *until* a moment of the clock."""
        self.node_id, self._leader_epoch, self._until = node_id, leader_epoch, until

    def failed(self, now: float) -> bool:
        """Go back to the leader for a while if a follower was read from; return whether one was."""
        if self.node_id == NO_PREFERRED_REPLICA:
            return False
        self.node_id = NO_PREFERRED_REPLICA
        self._avoid_followers_until = now + AVOID_SECONDS
        return True

    def avoids_followers(self, now: float) -> bool:
        """Say whether the leader should serve us itself *now*."""
        return now < self._avoid_followers_until

    def select(self, leader: int, leader_epoch: int, live: Container[int], now: float) -> int:
        """Return the broker to ask *now*."""
        if self.node_id == NO_PREFERRED_REPLICA:
            return leader
        if now >= self._until or leader_epoch != self._leader_epoch or self.node_id not in live:
            self.node_id = NO_PREFERRED_REPLICA
            return leader
        return self.node_id
