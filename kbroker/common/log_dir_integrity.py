"""What log directories vouch for: one value, from the disk through the registration znode to the election (KIP-966).

A broker reads the value from its log directories at the start, and publishes it with its registration. The controller
elects a member of the ISR only if the value covers the member's ISR broker epoch. docs/design/log-integrity.md has a
worked example and the proof.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from typing import Final, NamedTuple

EpochRange = tuple[int, int]
"""First and last broker epoch, both included."""

MAX_BROKER_EPOCH: Final = 2**63 - 1
"""The end of a range with an unknown last broker epoch: the broker was registering."""

MAX_RANGES: Final = 64
"""A set of broker epochs keeps so many ranges. Beyond, the oldest two become one, with the epochs between them."""


class LogDirCondition(Enum):
    """How a broker found its log directories at the start."""

    UNKNOWN = ""
    """The registration does not state it: an earlier version, or Apache Kafka."""
    CLEAN = "clean"
    """The last shutdown was clean: everything was synced."""
    CRASHED = "crashed"
    """The process was killed, the machine stayed up: the page cache was kept."""
    POWER_LOSS = "power-loss"
    """The machine went down: records that were not synced may be lost."""
    NEW = "new"
    """The directories are new, or wiped."""
    PARTIAL = "partial"
    """One of several directories is missing, or another disk is in its place; the others are intact."""


class BrokerEpochs(NamedTuple):
    """A set of broker epochs, never empty.

    Most ranges are one epoch: that of one registration. Epochs between two ranges are those of registrations that
    these directories did not see, because a copy of them was restored later.
    """

    ranges: tuple[EpochRange, ...]
    """Ascending, with epochs between each two."""

    @property
    def first(self) -> int:
        """The least epoch."""
        return self.ranges[0][0]

    @property
    def last(self) -> int:
        """The greatest epoch; `MAX_BROKER_EPOCH` if the set has no known end."""
        return self.ranges[-1][1]

    @property
    def is_open(self) -> bool:
        """Whether the last epoch is not known."""
        return self.last == MAX_BROKER_EPOCH

    def covers(self, broker_epoch: int) -> bool:
        """Return whether *broker_epoch* is in the set."""
        index = bisect_right(self.ranges, (broker_epoch, MAX_BROKER_EPOCH)) - 1
        return index >= 0 and broker_epoch <= self.ranges[index][1]

    def opened(self, since: int = 0) -> BrokerEpochs:
        """Return the set with every later epoch, or with those from *since* on."""
        first, last = self.ranges[-1]
        if since <= last + 1:
            return BrokerEpochs((*self.ranges[:-1], (first, MAX_BROKER_EPOCH)))
        return _limited((*self.ranges, (since, MAX_BROKER_EPOCH)))

    def registered(self, broker_epoch: int) -> BrokerEpochs:
        """Return the set with the epoch of a registration, where an open end now ends.

        An epoch below the set is of a ZooKeeper ensemble that began again: the older epochs mean nothing any more.
        """
        *others, (first, last) = self.ranges
        if self.is_open and broker_epoch >= first:
            return BrokerEpochs((*others, (first, broker_epoch)))
        if self.is_open and others:
            # The registration before the open end is still there.
            return BrokerEpochs(tuple(others)).registered(broker_epoch)
        if broker_epoch == last:
            return self
        if self.is_open or broker_epoch < last:
            return broker_epochs(broker_epoch)
        return _limited((*self.ranges, (broker_epoch, broker_epoch)))

    def since(self, broker_epoch: int) -> BrokerEpochs | None:
        """Return the epochs that are not below *broker_epoch*; None if there is none."""
        ranges = tuple(
            (max(low, broker_epoch), high) for low, high in self.ranges if high >= broker_epoch
        )
        return BrokerEpochs(ranges) if ranges else None

    def common_with(self, other: BrokerEpochs) -> BrokerEpochs | None:
        """Return the epochs in both sets; None if there is none."""
        ranges = sorted(
            (max(low, lower), min(high, higher))
            for low, high in self.ranges
            for lower, higher in other.ranges
            if max(low, lower) <= min(high, higher)
        )
        return BrokerEpochs(tuple(ranges)) if ranges else None


def _limited(ranges: tuple[EpochRange, ...]) -> BrokerEpochs:
    if len(ranges) > MAX_RANGES:
        ranges = ((ranges[0][0], ranges[1][1]), *ranges[2:])
    return BrokerEpochs(ranges)


def broker_epochs(*items: int | EpochRange) -> BrokerEpochs:
    """Return the set of these epochs and ranges, which ascend."""
    return BrokerEpochs(tuple((item, item) if isinstance(item, int) else item for item in items))


class LogDirIntegrity(NamedTuple):
    """What log directories vouch for."""

    condition: LogDirCondition
    intact: BrokerEpochs | None
    """The broker epochs under which every record that was written is still there; None: under none."""

    def covers(self, broker_epoch: int) -> bool:
        """Return whether every record that was written under *broker_epoch* is still there."""
        return self.intact is not None and self.intact.covers(broker_epoch)

    def __str__(self) -> str:
        return _DESCRIPTIONS[self.condition]


UNKNOWN_INTEGRITY: Final = LogDirIntegrity(
    LogDirCondition.UNKNOWN, broker_epochs((0, MAX_BROKER_EPOCH))
)
"""That of a registration without these fields: the controller trusts it, as classic Kafka does."""

_DESCRIPTIONS: Final = {
    LogDirCondition.UNKNOWN: "the condition of the log directories is not known",
    LogDirCondition.CLEAN: "the last shutdown was clean",
    LogDirCondition.CRASHED: "the last process was killed; the machine stayed up and kept what was written",
    LogDirCondition.POWER_LOSS: "the machine went down: records that were not synced may be lost; complete replicas"
    " lead first",
    LogDirCondition.NEW: "the log directories are new",
    LogDirCondition.PARTIAL: "a log directory of the last run is missing, or another disk is in its place",
}
