"""The replica that a consumer reads from: `replica.selector.class` (KIP-392).

Theory of operation
===================
A consumer with a rack (client.rack) fetches from the leader first. The leader selects from the ISR members that have
the offset and are in the consumer's rack. It selects itself if it is there, else the replica with the highest log end
offset. Of several it selects the most recently caught-up one, then the highest id. Another replica than itself is
returned in the answer (`preferred_read_replica`) in place of records, and the consumer fetches there.

Replicas outside the ISR are never selected: they may fall ever further behind, and consumers would alternate between
replicas. Neither is a replica with a log start above the offset: it would send the consumer back to the leader.

Invariants: 1. a consumer without a rack, or in a rack without a replica, reads from the leader.
In: replicas as the leader sees them   Out: a broker id   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ReplicaView(NamedTuple):
    """A replica as its leader sees it."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    log_start_offset: int
    caught_up_at: float
    """When it was caught up last, in seconds."""


def select_replica(
    rack: str, leader: ReplicaView, in_sync_followers: Iterable[ReplicaView], offset: int
) -> int:
    """Return the id of the replica that a consumer in *rack* should read *offset* from."""
    if not rack or leader.rack == rack:
        return leader.broker_id
    there = [
        replica
        for replica in in_sync_followers
        if replica.rack == rack and replica.log_start_offset <= offset <= replica.log_end_offset
    ]
    if not there:
        return leader.broker_id
    best = max(there, key=lambda r: (r.log_end_offset, r.caught_up_at, r.broker_id))
    return best.broker_id
