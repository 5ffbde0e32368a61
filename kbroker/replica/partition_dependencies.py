"""What a hosted partition needs of its broker, and whom it tells.

Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kbroker.common.topic_partition import TopicPartition
from kbroker.replica.core.leader_state import WriteIsr
from kbroker.replica.core.remote_replicas import FollowerLiveness


class WritesIsr(Protocol):
    """Takes what a partition's machine wants to have written; tells the partition of the outcome."""

    def __call__(self, partition: Any, write: WriteIsr, /) -> None:
        """Begin; *partition* is a `Partition`, which this file knows nothing of."""


class PartitionDependencies:
    """What a partition needs of the broker: time, in seconds, and somebody who writes its ISR.

    *appended* wakes the followers' fetches: those of consumers have nothing new before the watermark moves.
    *directory_failed* tells the controller of a log directory that is gone while others are left.
    *log_flushed* is called when a log that this broker does not lead was synced: its fetches may go on.
    *log_start_moved* hears where retention moved the beginning of a log: our leader is told with the next fetch.
    """

    __slots__ = (
        "appended",
        "directory_failed",
        "followers",
        "is_cut_off",
        "lag_time_max",
        "log_flushed",
        "log_start_moved",
        "may_join_isr",
        "now",
        "write_isr",
    )

    def __init__(
        self, now: Callable[[], float] = lambda: 0.0, *, lag_time_max: float = 30.0
    ) -> None:
        self.now = now
        self.lag_time_max = lag_time_max
        self.is_cut_off = False
        """Whether our session may be over without our knowing: others may have been elected (S11)."""
        self.followers = FollowerLiveness()
        self.appended: Callable[[TopicPartition], None] = lambda _key: None
        self.directory_failed: Callable[[], None] = lambda: None
        self.log_start_moved: Callable[[TopicPartition], None] = lambda _key: None
        self.log_flushed: Callable[[TopicPartition], None] = lambda _key: None
        self.write_isr: WritesIsr = lambda _partition, _write: None
        self.may_join_isr: Callable[[int, int], bool] = lambda _replica, _broker_epoch: True
