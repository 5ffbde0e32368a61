"""The limits that a group keeps, from the broker's configuration."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Times in seconds, sizes in bytes. Names as in the broker's config, without ``group.``."""

    min_session_timeout: float = 6.0
    max_session_timeout: float = 1800.0
    initial_rebalance_delay: float = 3.0
    new_member_join_timeout: float = 300.0
    """How long a new member's first JoinGroup may wait: it cannot heartbeat yet (KAFKA-6670)."""

    max_size: int = 1000
    """``group.max.size``: finite, because the whole group is one znode."""

    max_state_bytes: int = 900_000
    """Upper bound of the state znode; ZooKeeper drops whoever writes more than 1 MiB at once."""

    max_pending_members: int = 10_000
    """Members that were given an id and have not joined with it yet."""
