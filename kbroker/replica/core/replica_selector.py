"""Which replica a consumer should read from: `replica.selector.class` (KIP-392).

Theory of operation
===================
A consumer that says where it is (client.rack) asks the leader first. The leader looks at the replicas in its ISR that
have the offset asked for and picks one in the consumer's rack: itself if it is there, else the one with most of the
log, else the one that had all of it last, else the highest id. Another than itself it names in the answer
(`preferred_read_replica`) in place of records, and the consumer asks there.

Followers out of the ISR are never named: they may fall ever further behind, and consumers would go to and fro. One
whose log begins above the offset is not either: it would send the consumer back.

Invariants: 1. a consumer without a rack, or with one where no replica is, reads from the leader.
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
    """When it last had all of the log, seconds."""


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
