"""Which appends of one log wait for a sync, by flush.messages and flush.ms.

Theory of operation
===================
Kafka syncs within the append that reaches flush.messages, so that the append is acknowledged after the sync. Here the
sync runs in the pool, and the append waits. `held_at` is the log end offset that counts as this replica's copy until
the sync has ended. One sync covers all appends that were made before it began; appends during a sync wait for the next
one (group commit). docs/design/flush.md has the proof.

Invariants:
1. held_at <= up_to <= the log end offset; every record at or above held_at that waits is below up_to.
2. held_at never falls, except by a truncation.
3. Nothing is held once the recovery point has reached up_to.

In: appends, recovery points, truncations   Out: whether a sync is due   Owner: `FlushState`
"""

from __future__ import annotations

from kbroker.config.log import LogConfig


class PendingFlush:
    """The sync that appends of one log wait for."""

    __slots__ = ("_since_ms", "held_at", "up_to")

    def __init__(self) -> None:
        self.held_at: int | None = None
        """The log end offset that counts until the sync has ended; None: the log end offset itself."""
        self.up_to = 0
        """The end of the last append that asked for a sync."""
        self._since_ms: int | None = None
        """When the first record was appended that no sync covers, or one before it that a sync covers meanwhile."""

    def appended(
        self, base_offset: int, end_offset: int, recovery_point: int, config: LogConfig, now_ms: int
    ) -> bool:
        """Handle an append; return whether it waits for a sync."""
        covered = max(recovery_point, self.up_to)
        if self._since_ms is None or base_offset <= covered:
            self._since_ms = now_ms  # a sync that the timer began may have covered all before
        unflushed = end_offset - covered
        if unflushed < config.flush_messages and now_ms - self._since_ms < config.flush_ms:
            return False
        self._hold(base_offset, end_offset)
        return True

    def opened(self, end_offset: int, recovery_point: int, config: LogConfig) -> bool:
        """Handle the begin of a role; return whether records that were not synced wait for a sync.

        An earlier run of the broker appended them, and did not acknowledge them before they were synced.
        """
        flushed = max(recovery_point, self.up_to)
        unflushed = end_offset - flushed
        if unflushed <= 0 or (unflushed < config.flush_messages and config.flush_ms > 0):
            return False
        self._hold(flushed, end_offset)
        return True

    def truncated_fully(self, former_end: int, offset: int) -> bool:
        """Handle the log beginning again at *offset*; return whether that waits for a sync.

        *former_end* is what counted before. A power loss may bring that log back: the replica does not reach *offset*
        before the new segment is on the disk.
        """
        self.truncated(offset)
        self._since_ms = None
        if offset <= former_end:
            return False
        self._hold(former_end, offset)
        return True

    def _hold(self, base_offset: int, end_offset: int) -> None:
        if self.held_at is None:
            self.held_at = base_offset
        self.up_to = end_offset
        self._since_ms = None

    def synced(self, recovery_point: int) -> None:
        """Handle the end of a sync: everything below *recovery_point* is on the disk."""
        if self.held_at is None:
            return
        if recovery_point >= self.up_to:
            self.held_at = None
        else:
            self.held_at = max(self.held_at, recovery_point)

    def truncated(self, offset: int) -> None:
        """Handle the log ending at *offset* now."""
        self.up_to = min(self.up_to, offset)
        if self.held_at is not None:
            self.held_at = min(self.held_at, offset)
