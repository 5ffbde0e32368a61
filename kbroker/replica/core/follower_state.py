"""A follower's decisions about its log: where it agrees with its leader, and up to where records are committed.

Theory of operation
===================
A follower fetches from its log end and names the leader epoch of its last record. That epoch may have ended earlier at
the leader, or never existed there. Then the leader answers with its largest epoch that is not above, and its end
(`diverging_epoch`, KIP-595). The follower truncates its log there, or where its own share of that epoch ends. It
fetches again until both agree, one epoch further back each time (KIP-101, KIP-279). The high watermark does not show
where logs diverge: a follower never truncates to it (KIP-101, scenario 1).

Records from the leader are appended unchanged. The high watermark follows the leader's as far as the log reaches, and
so does the log start offset. A follower with a log end outside the leader's range starts again where the leader's log
begins. So does one that ends exactly there with an epoch older than any that the leader knows. DeleteRecords removed
the records that could show whether both ever agreed. What is left must not be served when this replica leads.

Invariants:
1. high_watermark <= log end; it falls only by a truncation.
2. After the last truncation the log is a prefix of the leader's.
3. Nothing is truncated that both logs have.

In: the leader's answers, our log's ends   Out: truncation offsets   Owner: replica.follower_log
"""

from __future__ import annotations

from typing import NamedTuple


class EpochEnd(NamedTuple):
    """A leader epoch and the offset after its last record; -1 and -1: unknown."""

    epoch: int
    end_offset: int


class FollowerState:
    """A follower's view of one partition, under one leader epoch."""

    __slots__ = ("high_watermark", "leader", "leader_epoch")

    def __init__(self, leader: int, leader_epoch: int, high_watermark: int) -> None:
        self.leader = leader
        """The broker that this one follows; -1 while the partition has no leader."""
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        """The end of the committed records, as far as known and as far as the log reaches."""

    def agreed_end(self, theirs: EpochEnd, ours: EpochEnd, log_end_offset: int) -> int:
        """Return the offset to truncate to when the leader answered with *theirs*.

        *ours* is our own end of the largest epoch that is not above *theirs*.
        """
        if theirs.end_offset < 0:
            return min(self.high_watermark, log_end_offset)
        if theirs.epoch < 0 or ours.epoch < 0:
            return min(theirs.end_offset, log_end_offset)
        if ours.epoch != theirs.epoch:
            # The leader's epoch is not in this log: truncate to our last one below it, and fetch again.
            return min(ours.end_offset, log_end_offset)
        return min(theirs.end_offset, ours.end_offset, log_end_offset)

    def truncated(self, log_end_offset: int) -> None:
        """Handle our log ending at *log_end_offset* now."""
        self.high_watermark = min(self.high_watermark, log_end_offset)

    def update_high_watermark(self, high_watermark: int, log_end_offset: int) -> bool:
        """Handle the leader's high watermark, after its records were appended; return whether ours rose.

        KAFKA-14704: the bound is the log end after the append, not before it.
        """
        known = self.high_watermark
        self.high_watermark = max(known, min(high_watermark, log_end_offset))
        return self.high_watermark > known
