"""What a follower does with its log: where it agrees with its leader, and what it takes from it.

Theory of operation
===================
A follower fetches from its log's end on and names the leader epoch of its last record. If that epoch ended earlier
at the leader, or never was there, the leader answers with the largest epoch it knows that is not above, and that
epoch's end (`diverging_epoch`, KIP-595). The follower cuts its log off there, or where its own share of that epoch
ends, and asks again, until both agree: one epoch further back each time (KIP-101, KIP-279). The high watermark
says nothing about where logs part: a follower never truncates to it (KIP-101, scenario 1).

What the leader sends is appended as it is; the watermark follows the leader's, as far as the log reaches, and so
does the log start. A follower whose end is out of the leader's range begins anew where the leader's log begins; so
does one that ends just there with an epoch older than any that the leader knows: whether they ever agreed was
deleted (DeleteRecords), and what is left of it must not come to light when this one leads.

Invariants:
1. high_watermark <= log end; it falls only by a truncation.
2. After a truncation that was the last one, the log is a prefix of the leader's.
3. Nothing is cut that both logs have.

In: the leader's answers, our log's ends   Out: where to cut   Owner: replica.follower_log
"""

from __future__ import annotations

from typing import NamedTuple


class EpochEnd(NamedTuple):
    """A leader epoch and the offset after its last record; -1 and -1: not known."""

    epoch: int
    end_offset: int


class FollowerState:
    """A follower's view of one partition, under one leader epoch."""

    __slots__ = ("high_watermark", "leader", "leader_epoch")

    def __init__(self, leader: int, leader_epoch: int, high_watermark: int) -> None:
        self.leader = leader
        """Whom we follow; -1 while the partition has no leader."""
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        """The end of what is committed, as far as we have heard of it and have it."""

    def agreed_end(self, theirs: EpochEnd, ours: EpochEnd, log_end_offset: int) -> int:
        """Return the offset to truncate to when the leader answered with *theirs*.

        *ours* is our own end of the largest epoch that is not above *theirs*.
        """
        if theirs.end_offset < 0:
            return min(self.high_watermark, log_end_offset)
        if theirs.epoch < 0 or ours.epoch < 0:
            return min(theirs.end_offset, log_end_offset)
        if ours.epoch != theirs.epoch:
            # The leader's epoch is not here: go back to our last one below it, and ask again.
            return min(ours.end_offset, log_end_offset)
        return min(theirs.end_offset, ours.end_offset, log_end_offset)

    def truncated(self, log_end_offset: int) -> None:
        """Handle our log ending at *log_end_offset* now."""
        self.high_watermark = min(self.high_watermark, log_end_offset)

    def update_high_watermark(self, high_watermark: int, log_end_offset: int) -> bool:
        """Handle the leader's watermark, after what came with it was appended; return whether ours rose.

        KAFKA-14704: it is bounded by what was appended, not by what was there before.
        """
        known = self.high_watermark
        self.high_watermark = max(known, min(high_watermark, log_end_offset))
        return self.high_watermark > known
