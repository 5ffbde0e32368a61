"""The limit of the bytes per second that one direction fetches, `fetch.max.bytes.per.second`. Pure.

Theory of operation
===================
A fetch may be sent while the *debt* is zero. Each response adds its bytes to the debt, and the debt shrinks by the
rate. So the average is at most the rate over every interval, plus the responses that were in flight at its start. This
holds for every size of a batch. A batch that is larger than a second's worth is fetched, and the next fetch waits
longer. A fetch asks for at most a second's worth (`most`), so that the debt of small batches is paid within about a
second.

In: sizes of responses   Out: how long to wait   Owner: the flow
"""

from __future__ import annotations


class Bandwidth:
    """Limits fetched bytes to *rate* per second; 0 is no limit. Times are seconds of one clock that never goes back.

    >>> link = Bandwidth(1000, now=0.0)
    >>> link.fetched(2500, now=0.0)
    >>> link.wait(now=1.0)
    1.5
    """

    def __init__(self, rate: int, *, now: float) -> None:
        self._rate = rate
        self.free_at = now
        """The time at which the debt is zero."""

    def wait(self, now: float) -> float:
        """Return the seconds until a fetch may be sent; 0.0 now."""
        return max(0.0, self.free_at - now)

    def fetched(self, size: int, now: float) -> None:
        """Add a response of *size* bytes to the debt."""
        if self._rate:
            self.free_at = max(self.free_at, now) + size / self._rate

    def most(self, wanted: int) -> int:
        """Return how many of *wanted* bytes a fetch may ask for, at least 1."""
        return max(1, min(wanted, self._rate)) if self._rate else wanted
