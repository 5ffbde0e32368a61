"""The broker to fetch a partition from: its leader, or a follower that the leader names (KIP-392).

A leader may name a preferred read replica for a consumer with a client.rack. The consumer fetches from it for
metadata.max.age.ms, then from the leader again. It returns to the leader at once after an error at the follower, when
the follower is not alive, or under a new leader epoch. A follower returns committed records only, but its high
watermark may lag behind the leader's.

A leader may name a follower that is dead, until its ZooKeeper session expires. It may name one that this consumer
cannot reach while the network is down. So after an error the consumer fetches from the leader without its rack for
`AVOID_SECONDS`: then the leader returns the records itself.

In: the follower in a response, errors   Out: the broker to fetch from   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Container

NO_PREFERRED_REPLICA = -1

AVOID_SECONDS = 30.0
"""Seconds without fetches from followers after one failed."""


class PreferredReadReplica:
    """The choice for one partition."""

    __slots__ = ("_avoid_followers_until", "_leader_epoch", "_until", "node_id")

    def __init__(self) -> None:
        self.node_id = NO_PREFERRED_REPLICA
        """The follower to fetch from; -1: the leader."""
        self._leader_epoch = -1
        self._until = 0.0
        self._avoid_followers_until = 0.0

    def named(self, node_id: int, leader_epoch: int, until: float) -> None:
        """Set the follower that the leader of *leader_epoch* named; it is valid until the time *until*."""
        self.node_id, self._leader_epoch, self._until = node_id, leader_epoch, until

    def failed(self, now: float) -> bool:
        """Fetch from the leader after an error at a follower; return whether it was at a follower."""
        if self.node_id == NO_PREFERRED_REPLICA:
            return False
        self.node_id = NO_PREFERRED_REPLICA
        self._avoid_followers_until = now + AVOID_SECONDS
        return True

    def avoids_followers(self, now: float) -> bool:
        """Return whether to fetch without a rack *now*, so that the leader names no follower."""
        return now < self._avoid_followers_until

    def select(self, leader: int, leader_epoch: int, live: Container[int], now: float) -> int:
        """Return the broker to fetch from *now*."""
        if self.node_id == NO_PREFERRED_REPLICA:
            return leader
        if now >= self._until or leader_epoch != self._leader_epoch or self.node_id not in live:
            self.node_id = NO_PREFERRED_REPLICA
            return leader
        return self.node_id
