"""The client quotas of this broker: requests of clients with a quota are measured, and may throttle the connection.

Theory of operation
===================
Without a quota `is_enabled` is False, and a request costs one look at it. Otherwise the request pipeline has a
`RequestQuota` for each request of a client that has a quota. The response is sent at once, with `throttle_time_ms`.
Then the connection processes no request for that time (KIP-219). The longest of a request's throttle times counts.

Connections that proved to come from a broker are exempt: replication has quotas of its own (KIP-73).

In: quotas, requests   Out: throttle times, in ms and in `Peer.throttle_seconds`   Owner: the reactor's thread
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from kbroker.config import KafkaConfig
from kbroker.network.service import Peer
from kbroker.quota.core.entities import ClientQuotas, QuotaEntity, QuotaKind
from kbroker.quota.core.meters import Rate, TokenBucket
from kclient.wire.errors import ThrottlingQuotaExceeded

MAX_MS: Final = 2**31 - 1


class RequestQuotas(Protocol):
    """What the request pipeline needs of the quotas."""

    @property
    def is_enabled(self) -> bool:
        """Whether there is any quota."""

    def begin(self, peer: Peer, client_id: str, size: int, /) -> RequestQuota | None:
        """Begin to measure a request of *size* bytes; None: its client has no quota."""


class ClientQuotaManager:
    """The quotas of all kinds. *seconds* is a monotonic clock, *work_clock* one that measures short work precisely."""

    def __init__(
        self,
        config: KafkaConfig,
        seconds: Callable[[], float],
        work_clock: Callable[[], float],
    ) -> None:
        samples, sample_seconds = config.quota_window_num, config.quota_window_size_seconds
        new_rate = partial(Rate, samples, sample_seconds)
        self.seconds = seconds
        self.work_clock = work_clock
        self.fetch_window_seconds = (samples - 1) * sample_seconds
        self.longest_request_throttle = float(sample_seconds)
        self.produce: ClientQuotas[Rate] = ClientQuotas(new_rate)
        self.fetch: ClientQuotas[Rate] = ClientQuotas(new_rate)
        self.request: ClientQuotas[Rate] = ClientQuotas(new_rate)
        self.controller_mutation: ClientQuotas[TokenBucket] = ClientQuotas(
            partial(
                TokenBucket,
                config.controller_quota_window_num,
                config.controller_quota_window_size_seconds,
            )
        )
        self.is_enabled = False
        """Whether there is any quota."""

    def replace(self, limits: Mapping[QuotaKind, Mapping[QuotaEntity, float]]) -> None:
        """Use these limits from now on."""
        self.produce.replace(limits.get(QuotaKind.PRODUCE, {}))
        self.fetch.replace(limits.get(QuotaKind.FETCH, {}))
        self.request.replace(limits.get(QuotaKind.REQUEST, {}))
        self.controller_mutation.replace(limits.get(QuotaKind.CONTROLLER_MUTATION, {}))
        self.is_enabled = any(limits.values())

    def begin(self, peer: Peer, client_id: str, size: int) -> RequestQuota | None:
        """Begin to measure a request of *size* bytes; None: its client has no quota."""
        user, now = _user(peer), self.seconds()
        for quotas in (self.produce, self.fetch, self.request, self.controller_mutation):
            if quotas.of(user, client_id, now) is not None:
                return RequestQuota(self, peer, client_id, size)
        return None


class RequestQuota:
    """One request's use of the quotas of its client."""

    __slots__ = (
        "_began",
        "_client_id",
        "_manager",
        "_mutations_allowed_at",
        "_peer",
        "_size",
        "_user",
        "_worked",
    )

    def __init__(self, manager: ClientQuotaManager, peer: Peer, client_id: str, size: int) -> None:
        self._manager = manager
        self._peer = peer
        self._user = _user(peer)
        self._client_id = client_id
        self._size = size
        self._worked = 0.0
        """Seconds of work on this request, in turns that are over."""
        self._began: float | None = manager.work_clock()
        """When this turn's work began; None while the request waits."""
        self._mutations_allowed_at = 0.0

    def waits(self) -> None:
        """Stop the time: the turn is over, and the request may not be answered yet."""
        if self._began is not None:
            self._worked += self._manager.work_clock() - self._began
            self._began = None

    # -- what a request uses -------------------------------------------------------------------

    def produced(self, *, is_answered: bool) -> int:
        """Count the request's bytes, and throttle; return the throttle time, in ms. *is_answered*: acks is not 0."""
        now = self._manager.seconds()
        seconds = 0.0
        quota = self._manager.produce.of(self._user, self._client_id, now)
        if quota is not None:
            quota.meter.record(self._size, quota.limit, now)
            seconds = quota.meter.throttle_seconds(quota.limit, now)
        if is_answered:
            seconds = max(seconds, self._request_seconds(now))
        return self._throttle(seconds)

    def max_fetch_bytes(self, limit: int) -> int:
        """Return the most bytes, up to *limit*, that a fetch may have without being throttled in an idle window."""
        quota = self._manager.fetch.of(self._user, self._client_id, self._manager.seconds())
        if quota is None:
            return limit
        return min(limit, max(int(quota.limit * self._manager.fetch_window_seconds), 1))

    def fetched(self, size: int) -> tuple[int, bool]:
        """Count *size* bytes of records, and throttle; return the throttle time, in ms, and whether to send them.

        Above the rate the records are not sent, and not counted. The first response of a window is sent in any case.
        Otherwise a batch that is larger than the quota of a window would never be read.
        """
        now = self._manager.seconds()
        seconds, is_sent = 0.0, True
        quota = self._manager.fetch.of(self._user, self._client_id, now)
        if quota is not None:
            is_first = not quota.meter.total(now)
            quota.meter.record(size, quota.limit, now)
            seconds = quota.meter.throttle_seconds(quota.limit, now)
            is_sent = is_first or not seconds
            if not is_sent:
                quota.meter.record(-size, quota.limit, now)
        return self._throttle(max(seconds, self._request_seconds(now))), is_sent

    def mutate(self, partitions: int, *, is_strict: bool) -> None:
        """Count partitions that are created or deleted (KIP-599).

        ThrottlingQuotaExceeded if *is_strict* and no more may be changed now; then nothing is counted. Otherwise the
        request is throttled.
        """
        now = self._manager.seconds()
        quota = self._manager.controller_mutation.of(self._user, self._client_id, now)
        if quota is None:
            return
        seconds = quota.meter.throttle_seconds(quota.limit, now)
        if not (is_strict and seconds):
            quota.meter.record(partitions, quota.limit, now)
            if is_strict:
                return
            seconds = quota.meter.throttle_seconds(quota.limit, now)
        self._mutations_allowed_at = max(self._mutations_allowed_at, now + seconds)
        if is_strict:
            raise ThrottlingQuotaExceeded(
                f"the quota of {quota.limit:g} controller mutations a second is exceeded;"
                f" retry in {_milliseconds(seconds)} ms"
            )

    # -- throttling ----------------------------------------------------------------------------

    def throttle_response(self, response: Any) -> None:
        """Throttle by request time and mutations, and set *throttle_time_ms* of a response that has it."""
        now = self._manager.seconds()
        seconds = max(self._request_seconds(now), self._mutations_allowed_at - now)
        ms = self._throttle(seconds)
        if ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = ms

    def _request_seconds(self, now: float) -> float:
        """Count the time of work on this request, in percent of a second (KIP-124); return how long to throttle."""
        quota = self._manager.request.of(self._user, self._client_id, now)
        if quota is None:
            return 0.0
        self.waits()
        worked, self._worked = self._worked, 0.0
        quota.meter.record(worked * 100, quota.limit, now)
        seconds = quota.meter.throttle_seconds(quota.limit, now)
        return min(seconds, self._manager.longest_request_throttle)

    def _throttle(self, seconds: float) -> int:
        ms = _milliseconds(seconds)
        if ms > 0:
            self._peer.throttle_seconds = max(self._peer.throttle_seconds, ms / 1000)
        return ms


def _user(peer: Peer) -> str:
    """Return the name of a principal without its type."""
    return peer.principal.partition(":")[2]


def _milliseconds(seconds: float) -> int:
    """Return whole milliseconds, as a response can carry them; 0 for a negative time."""
    if seconds <= 0:
        return 0
    return MAX_MS if math.isinf(seconds) else min(round(seconds * 1000), MAX_MS)
