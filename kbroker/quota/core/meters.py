"""What is measured for one quota: a rate over a window (KIP-13, KIP-124), or a token bucket (KIP-599).

Theory of operation
===================
The rate is Kafka's `Rate`: the sum over the window, divided by its length. The length is never less than all samples
but one, so that the first burst of a client is not taken for its rate. Above the limit a client waits until the same
sum over a longer time is at the limit: sum / limit - length.

The rate copes badly with bursts: a large burst keeps it above the limit until its sample leaves the window. Controller
mutations are bursts, so a token bucket counts them. It holds limit x samples x sample seconds tokens at most, and is
refilled at the limit. Below zero tokens a client waits until they are zero again.

In: values, limits (units per second), time (seconds)   Out: seconds to throttle
"""

from __future__ import annotations

from kbroker.quota.core.sampled_sum import SampledSum

MIN_WINDOW_SECONDS = 0.001


class Rate:
    """A rate over *samples* of *sample_seconds* each."""

    __slots__ = ("_samples", "_sum")

    def __init__(self, samples: int, sample_seconds: float) -> None:
        self._samples = samples
        self._sum = SampledSum(samples, sample_seconds)

    def record(self, value: float, limit: float, now: float) -> None:
        """Count *value*; the limit does not matter."""
        self._sum.record(value, now)

    def total(self, now: float) -> float:
        """Return the sum over the window."""
        return self._sum.measure(now)[0]

    def throttle_seconds(self, limit: float, now: float) -> float:
        """Return the time until the rate is at *limit*, if nothing is recorded meanwhile; 0: it is not above."""
        total, length = self._sum.measure(now)
        sample_seconds = self._sum.sample_seconds
        missing = self._samples - 1 - int(length / sample_seconds)
        if missing > 0:
            length += missing * sample_seconds
        return max(total / limit - max(length, MIN_WINDOW_SECONDS), 0.0)

    def is_idle(self, now: float) -> bool:
        """Return whether a new meter would measure the same."""
        return not self._sum.measure(now)[0]


class TokenBucket:
    """A token bucket of *samples* x *sample_seconds* seconds; it begins full."""

    __slots__ = ("_seconds", "_tokens", "_updated")

    def __init__(self, samples: int, sample_seconds: float) -> None:
        self._seconds = samples * sample_seconds
        self._tokens = 0.0
        self._updated: float | None = None

    def record(self, value: float, limit: float, now: float) -> None:
        """Take *value* tokens, even if there are not so many."""
        self._tokens = min(self._refilled(limit, now) - value, limit * self._seconds)

    def throttle_seconds(self, limit: float, now: float) -> float:
        """Return the time until the tokens are zero again; 0: they are not below zero."""
        return max(-self._refilled(limit, now) / limit, 0.0)

    def is_idle(self, now: float) -> bool:
        """Return whether a new meter would measure the same."""
        if self._updated is None:
            return True
        return self._tokens >= 0 and now - self._updated >= self._seconds

    def _refilled(self, limit: float, now: float) -> float:
        burst = limit * self._seconds
        if self._updated is None:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + limit * (now - self._updated))
        self._updated = now
        return self._tokens
