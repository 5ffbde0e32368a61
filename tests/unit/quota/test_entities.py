"""Which quota applies to a client, and which clients share a meter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.quota.core import entities
from kbroker.quota.core.entities import DEFAULT, ClientQuotas, QuotaEntity
from kbroker.quota.core.meters import Rate

U, C = "alice", "app"
ORDER = (
    (QuotaEntity(U, C), (U, C)),
    (QuotaEntity(U, DEFAULT), (U, C)),
    (QuotaEntity(U), (U, "")),
    (QuotaEntity(DEFAULT, C), (U, C)),
    (QuotaEntity(DEFAULT, DEFAULT), (U, C)),
    (QuotaEntity(DEFAULT), (U, "")),
    (QuotaEntity(None, C), ("", C)),
    (QuotaEntity(None, DEFAULT), ("", C)),
)
"""Kafka's order, of ClientQuotaManager: entity, and the tags of the metric that it is measured by."""


@given(st.dictionaries(st.sampled_from([e for e, _ in ORDER]), st.integers(1, 9), max_size=8))
def test_the_most_specific_quota_applies(limits: dict[QuotaEntity, int]) -> None:
    made = ClientQuotas(lambda: Rate(11, 1.0))
    made.replace(limits)
    first = next((each for each in ORDER if each[0] in limits), None)
    quota = made.of(U, C, 0.0)
    assert (quota and quota.limit) == (first and limits[first[0]])
    if quota is None or first is None:
        return
    user, client = first[1]
    for other_user in (U, "bob"):
        for other_client in (C, "other"):
            other = made.of(other_user, other_client, 0.0)
            if user in ("", other_user) and client in ("", other_client):
                assert other is not None
                assert other.meter is quota.meter
            elif other is not None:
                assert other.meter is not quota.meter


@given(st.dictionaries(st.sampled_from([e for e, _ in ORDER]), st.integers(1, 9), max_size=8))
def test_a_client_without_a_client_id_has_only_its_users_quotas(
    limits: dict[QuotaEntity, int],
) -> None:
    made = ClientQuotas(lambda: Rate(11, 1.0))
    made.replace(limits)
    quota = made.of(U, "", 0.0)
    expected = limits.get(QuotaEntity(U)) or limits.get(QuotaEntity(DEFAULT))
    assert (quota and quota.limit) == expected


def test_a_user_may_be_called_default() -> None:
    made = ClientQuotas(lambda: Rate(11, 1.0))
    made.replace({QuotaEntity("<default>"): 5})
    assert made.of(U, C, 0.0) is None
    assert made.of("<default>", C, 0.0) is not None


def test_a_new_limit_keeps_what_was_measured() -> None:
    made = ClientQuotas(lambda: Rate(11, 1.0))
    made.replace({QuotaEntity(U): 100})
    before = made.of(U, C, 0.0)
    made.replace({QuotaEntity(U): 50})
    after = made.of(U, C, 0.0)
    assert before is not None
    assert after is not None
    assert (after.limit, after.meter) == (50, before.meter)


def test_without_limits_nothing_is_remembered() -> None:
    made = ClientQuotas(lambda: Rate(11, 1.0))
    made.replace({QuotaEntity(U): 100})
    made.of(U, C, 0.0)
    made.replace({})
    assert not made.is_set
    assert made.of(U, C, 0.0) is None
    assert not made._meters


def test_clients_cannot_fill_the_memory_with_client_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entities, "MAX_PAIRS", 10)
    made = ClientQuotas(lambda: Rate(11, 1.0))
    made.replace({QuotaEntity(None, DEFAULT): 100})
    busy = made.of(U, "busy", 0.0)
    assert busy is not None
    busy.meter.record(10, 100, 0.0)
    for n in range(100):
        made.of(U, f"client-{n}", 1.0)
    assert len(made._meters) <= 12
    again = made.of(U, "busy", 1.0)
    assert again is not None
    assert again.meter is busy.meter
