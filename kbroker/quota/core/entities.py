"""The clients of a quota: a user, a client id, both, or the defaults of these (KIP-55); and which quota applies.

The most specific quota applies, in Kafka's order. Clients share one meter if their row has the same key:

    znode                                     key of the meter
    ----------------------------------------  ----------------
    /config/users/U/clients/C                 U, C
    /config/users/U/clients/<default>         U, C
    /config/users/U                           U
    /config/users/<default>/clients/C         U, C
    /config/users/<default>/clients/<default> U, C
    /config/users/<default>                   U
    /config/clients/C                         C
    /config/clients/<default>                 C

A client without a client id has only the quotas of /config/users/U and /config/users/<default>, as in Kafka. Each kind
of quota has its own order: a user's producer_byte_rate does not hide the consumer_byte_rate of a default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

MAX_PAIRS: Final = 10_000
"""Pairs of user and client id that are remembered. Client ids are the clients' choice."""


class Default(Enum):
    """The name of a default; a user may be called "<default>", too."""

    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT
EntityName = str | Default


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """The clients of a quota; None: the quota does not ask for that part."""

    user: EntityName | None = None
    client_id: EntityName | None = None


class QuotaKind(Enum):
    """What is limited; the values are the settings in ZooKeeper and on the wire."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"


QUOTA_SETTINGS: Final = frozenset(kind.value for kind in QuotaKind)
WHOLE_NUMBERS: Final = frozenset({QuotaKind.PRODUCE.value, QuotaKind.FETCH.value})
"""Settings of type LONG; the others are DOUBLE."""

MeterKey = tuple[str | None, str | None]


def precedence(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, MeterKey]]:
    """Yield the entities that a client belongs to, the most specific first, each with the key of its meter."""
    for name in (user, DEFAULT):
        if client_id:
            yield QuotaEntity(name, client_id), (user, client_id)
            yield QuotaEntity(name, DEFAULT), (user, client_id)
        yield QuotaEntity(name, None), (user, None)
    if client_id:
        yield QuotaEntity(None, client_id), (None, client_id)
        yield QuotaEntity(None, DEFAULT), (None, client_id)


class Meter(Protocol):
    """Measures what one key uses."""

    def is_idle(self, now: float, /) -> bool:
        """Return whether a new meter would measure the same."""


M = TypeVar("M", bound=Meter)


@dataclass(frozen=True, slots=True)
class Quota(Generic[M]):
    """The quota that applies to a client: its meter, shared with all clients of the key, and its limit per second."""

    meter: M
    limit: float


class ClientQuotas(Generic[M]):
    """The quotas of one kind."""

    def __init__(self, new_meter: Callable[[], M]) -> None:
        self._new_meter = new_meter
        self._limits: Mapping[QuotaEntity, float] = {}
        self._meters: dict[MeterKey, M] = {}
        self._quotas: dict[tuple[str, str], Quota[M] | None] = {}
        self.is_set = False
        """Whether there is any quota of this kind."""

    def replace(self, limits: Mapping[QuotaEntity, float]) -> None:
        """Use *limits* from now on; what was measured stays."""
        self._limits = dict(limits)
        self._quotas.clear()
        self.is_set = bool(limits)
        if not limits:
            self._meters.clear()

    def of(self, user: str, client_id: str, now: float) -> Quota[M] | None:
        """Return the quota of a client; None: it has none."""
        if not self.is_set:
            return None
        pair = user, client_id
        try:
            return self._quotas[pair]
        except KeyError:
            if len(self._quotas) >= MAX_PAIRS:
                self._forget_idle(now)
            quota = self._quotas[pair] = self._find(user, client_id)
            return quota

    def _find(self, user: str, client_id: str) -> Quota[M] | None:
        for entity, key in precedence(user, client_id):
            limit = self._limits.get(entity)
            if limit is not None:
                meter = self._meters.get(key)
                if meter is None:
                    meter = self._meters[key] = self._new_meter()
                return Quota(meter, limit)
        return None

    def _forget_idle(self, now: float) -> None:
        self._quotas.clear()
        self._meters = {key: meter for key, meter in self._meters.items() if not meter.is_idle(now)}
