"""The limits of a group, from the broker's configuration."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Times in seconds, sizes in bytes. Names as in the broker's config, without ``group.``."""

    min_session_timeout: float = 6.0
    max_session_timeout: float = 1800.0
    initial_rebalance_delay: float = 3.0
    new_member_join_timeout: float = 300.0
    """How long the first JoinGroup of a new member may wait: the member cannot heartbeat yet (KAFKA-6670)."""

    max_size: int = 1000
    """``group.max.size``: finite, because the whole group is one znode."""

    max_state_bytes: int = 900_000
    """Upper bound of the state znode; ZooKeeper closes the connection of a write above 1 MiB."""

    max_pending_members: int = 10_000
    """MemberMetadata ids that were sent and are not joined with yet (KIP-394)."""

    def allow_session_timeout(self, seconds: float) -> bool:
        """Return whether a member may have a session timeout of *seconds*."""
        return self.min_session_timeout <= seconds <= self.max_session_timeout
