"""Replication quotas: how fast replicas may catch up, on the leader's side and on the follower's (KIP-73).

Theory of operation
===================
A reassignment copies whole logs and would starve other traffic on the network and the disks. An operator therefore
lists replicas (`leader.replication.throttled.replicas`, `follower.…`, per topic) and sets a rate in bytes per second
(per broker). All bytes of the listed replicas count, in sync or not: their sum must keep to the rate. Only replicas
out of sync are held back while the rate is exceeded: a held-back ISR member would leave the ISR.

The rate is Kafka's `SimpleRate`. That is the bytes of the last samples, divided by the time since the first of them
began. There are replication.quota.window.num (11) samples of replication.quota.window.size.seconds (1). An answer may
exceed the rate; then nothing is sent until the average is at the rate again.

Invariants:
1. After an answer that exceeds the rate nothing is allowed before the average over the window is at the rate again.
2. Without a rate, and for replicas that are not listed, nothing is ever held back.

In: bytes, time (seconds), settings   Out: whether to hold back, and for how long   Owner: replica.replica_manager
"""

from __future__ import annotations

from typing import Final

from kbroker.config import LogConfig
from kbroker.quota.core.sampled_sum import SampledSum

UNLIMITED: Final = 2**63 - 1
"""The rate of a broker without one (Kafka's Long.MAX_VALUE)."""
ALL_REPLICAS: Final = "*"


class ReplicationQuota:
    """The quota of one side: which of this broker's replicas are listed, and whether the rate is exceeded."""

    __slots__ = ("_broker_id", "_named", "_rate", "_setting", "bytes_per_second")

    def __init__(self, broker_id: int, setting: str) -> None:
        self.bytes_per_second = UNLIMITED
        self._broker_id = broker_id
        self._rate = SampledSum()
        self._setting = setting
        self._named: dict[tuple[str, int], tuple[LogConfig, bool]] = {}

    def is_throttled(self, key: tuple[str, int], config: LogConfig) -> bool:
        """Return whether our replica of partition *key* is listed in its topic's *config*."""
        listed: tuple[str, ...] = getattr(config, self._setting)
        if not listed:
            return False
        known = self._named.get(key)
        if known is None or known[0] is not config:
            is_named = listed[0] == ALL_REPLICAS or f"{key[1]}:{self._broker_id}" in listed
            known = self._named[key] = (config, is_named)
        return known[1]

    def record(self, size: int, now: float) -> None:
        """Count *size* bytes of a listed replica."""
        self._rate.record(size, now)

    def is_quota_exceeded(self, now: float) -> bool:
        """Return whether listed replicas out of sync are held back."""
        return self.throttle_time(now) > 0

    def throttle_time(self, now: float) -> float:
        """Return the seconds until the next check is useful, if nothing is recorded meanwhile; 0: not exceeded."""
        if self.bytes_per_second == UNLIMITED:
            return 0.0
        total, seconds = self._rate.measure(now)
        if total <= self.bytes_per_second * max(seconds, self._rate.sample_seconds):
            return 0.0
        if not self.bytes_per_second:
            return float("inf")
        return total / self.bytes_per_second - seconds


class ReplicationQuotas:
    """The quotas of both sides of one broker."""

    __slots__ = ("follower", "leader")

    def __init__(self, broker_id: int) -> None:
        self.leader = ReplicationQuota(broker_id, "leader_replication_throttled_replicas")
        self.follower = ReplicationQuota(broker_id, "follower_replication_throttled_replicas")

    def limit(self, *, leader: int, follower: int) -> None:
        """Set the rates, in bytes per second; UNLIMITED for none."""
        self.leader.bytes_per_second = leader
        self.follower.bytes_per_second = follower
