"""What a leader knows of its followers: how far each log is, and whether its broker is alive.

A follower's log end is the offset that it fetches. As in Kafka it is caught up when it fetches from our log end, or
from what was our log end at its previous fetch. Then it had everything at the time of that fetch.

In: fetches, the time (seconds)   Out: verdicts   Owner: `LeaderState` of a partition; `FollowerLiveness`: the
replica manager
"""

from __future__ import annotations

from typing import Final

NEVER: Final = float("-inf")


class RemoteReplica:
    """The fetch state of one follower."""

    __slots__ = ("_leader_end_then", "caught_up_at", "end", "fetched_at", "follows", "start")

    def __init__(self, caught_up_at: float) -> None:
        self.end = -1
        """Its log end; -1 before its first fetch from this leader."""
        self.start = 0
        """Its log start offset; 0 before its first fetch from this leader."""
        self.caught_up_at = caught_up_at
        """When it last had everything in our log."""
        self.fetched_at = NEVER
        self.follows = False
        """Whether it has fetched in our epoch, and has not dropped the partition since."""
        self._leader_end_then = -1

    def update_fetch_state(self, offset: int, leader_end: int, now: float) -> None:
        """Handle a fetch from *offset* on: its log has everything below."""
        if offset >= leader_end:
            self.caught_up_at = now
        elif offset >= self._leader_end_then >= 0:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.end = offset
        self._leader_end_then = leader_end
        self.fetched_at = now
        self.follows = True

    def is_caught_up(self, leader_end: int, now: float, lag_time_max: float) -> bool:
        """Whether it has everything, or had everything not longer than *lag_time_max* ago (S32: no flapping)."""
        return self.end == leader_end or now - self.caught_up_at <= lag_time_max


class FollowerLiveness:
    """When each follower's broker sent its last fetch, for whatever partition.

    In a fetch session idle partitions are not named (KIP-227): a partition that was fetched once in it is still
    followed.
    """

    __slots__ = ("_begun_at", "_followed_at", "_last_fetch_at", "timeout")

    def __init__(self, timeout: float = 3.0) -> None:
        self._begun_at: dict[int, float] = {}
        self._followed_at: dict[int, float] = {}
        self._last_fetch_at: dict[int, float] = {}
        self.timeout = timeout
        """Seconds without a fetch after which a broker does not count as live; a fetch waits for less."""

    def fetch_received(self, broker_id: int, now: float, *, is_full: bool) -> None:
        """Handle a fetch of a follower's broker; a full one names every partition that it follows."""
        self._last_fetch_at[broker_id] = now
        if is_full:
            self._begun_at[broker_id] = now
            self._followed_at.pop(broker_id, None)

    def response_received(self, broker_id: int, answered_at: float) -> None:
        """Handle a fetch that proves that the broker received our response of *answered_at*, in the same session.

        The time of a fetch itself proves nothing: it may have waited in our socket while this process was paused.
        """
        self._followed_at[broker_id] = answered_at

    def followed_at(self, broker_id: int, fetched_at: float) -> float:
        """Return a time at which a broker certainly followed what it fetched last at *fetched_at*, or `NEVER`."""
        if fetched_at < self._begun_at.get(broker_id, NEVER):
            return NEVER
        return self._followed_at.get(broker_id, NEVER)

    def is_live(self, broker_id: int, fetched_at: float, now: float) -> bool:
        """Return whether a broker is alive, and still fetches a partition that it fetched last at *fetched_at*."""
        if now - self._last_fetch_at.get(broker_id, NEVER) > self.timeout:
            return False
        return fetched_at >= self._begun_at.get(broker_id, NEVER)
