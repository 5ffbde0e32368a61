"""How many bytes one direction may fetch now: ``buffer.memory`` and ``fetch.max.bytes.per.second``. Pure.

Theory of operation
===================
``buffer.memory`` bounds the bytes that are fetched and not acknowledged, plus the maximal size of every response in
flight. A fetch reserves its size before it is sent, and its response releases it. With nothing buffered and nothing in
flight one fetch is always possible.

Invariants:
1. Each channel has at most one fetch in flight.
2. `room` is 0 or the most that the caller wants; or less, but not less than one partition's fetch, or half of
   ``buffer.memory``. The bandwidth may allow less than that.

In: sizes   Out: how large the next response may be   Owner: the flow
"""

from __future__ import annotations

from mirrormaker.bandwidth import Bandwidth
from mirrormaker.settings import LinkSettings

Channel = tuple[int, str]
"""A source leader and the name of a connection to it."""


class FetchBudget:
    """The bytes that are buffered and in flight. `bandwidth` has the limit over time."""

    def __init__(self, settings: LinkSettings, *, now: float) -> None:
        self._memory = settings.buffer_memory
        self._least = min(settings.max_partition_fetch_bytes, settings.buffer_memory // 2)
        self._in_flight: dict[Channel, int] = {}
        """Per channel with a fetch in flight, the maximal size of its response in bytes."""
        self.buffered = 0
        """Bytes that are fetched and not acknowledged."""
        self.bandwidth = Bandwidth(settings.fetch_max_rate, now=now)

    def room(self, most: int) -> int:
        """Return the bytes that a response may have, at most *most*; 0 if ``buffer.memory`` is used up."""
        free = self._memory - self.buffered - sum(self._in_flight.values())
        if free < self._least and (self.buffered or self._in_flight):
            return 0
        return self.bandwidth.most(min(most, max(free, self._least)))

    def in_flight(self, channel: Channel) -> bool:
        """Return whether *channel* has a fetch in flight."""
        return channel in self._in_flight

    def reserve(self, channel: Channel, size: int) -> None:
        """Count a fetch that is sent on *channel*, with a response of at most *size* bytes."""
        assert channel not in self._in_flight
        self._in_flight[channel] = size

    def release(self, channel: Channel) -> None:
        """Count the end of the fetch on *channel*."""
        del self._in_flight[channel]
