"""Quotas as settings: what is stored for a value, which entities a filter finds, what is refused."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.quota.core.entities import DEFAULT, QuotaEntity, QuotaKind
from kbroker.quota.core.stored_quotas import (
    Component,
    QuotaOperation,
    altered,
    chosen,
    components_of,
    entity_of,
    quota_limits,
)
from kclient.wire.errors import InvalidRequest, KafkaError, UnsupportedVersion

NAMES = ("a", "b", DEFAULT, None)
STORED = {
    QuotaEntity(user, client): {"producer_byte_rate": "1"}
    for user, client in product(NAMES, NAMES)
    if (user, client) != (None, None)
}


def test_values_are_stored_as_kafka_stores_them() -> None:
    after = altered(
        {"SCRAM-SHA-256": "secret", "consumer_byte_rate": "7"},
        [
            QuotaOperation("producer_byte_rate", 1024.0000001),
            QuotaOperation("request_percentage", 12.5),
            QuotaOperation("controller_mutation_rate", 3.0),
            QuotaOperation("consumer_byte_rate", None),
            QuotaOperation("unknown", None),
        ],
    )
    assert after == {
        "SCRAM-SHA-256": "secret",
        "producer_byte_rate": "1024",
        "request_percentage": "12.5",
        "controller_mutation_rate": "3.0",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("producer_byte_rate", 1.5),
        ("producer_byte_rate", 0.0),
        ("consumer_byte_rate", -1.0),
        ("consumer_byte_rate", 2.0**63),
        ("request_percentage", math.nan),
        ("request_percentage", math.inf),
        ("controller_mutation_rate", 0.0),
        ("connection_creation_rate", 1.0),
        ("", 1.0),
    ],
)
def test_what_cannot_be_a_limit_is_refused(key: str, value: float) -> None:
    with pytest.raises(InvalidRequest):
        altered({}, [QuotaOperation(key, value)])


def test_settings_that_cannot_be_used_are_named() -> None:
    entity = QuotaEntity("u", DEFAULT)
    limits, problems = quota_limits(
        {entity: {"producer_byte_rate": "0", "consumer_byte_rate": "10", "other": "x"}}
    )
    assert limits[QuotaKind.FETCH] == {entity: 10}
    assert not limits[QuotaKind.PRODUCE]
    assert problems == ["producer_byte_rate='0' of user 'u', client-id <default>"]


@given(st.floats())
def test_what_is_stored_is_read_again(value: float) -> None:
    entity = QuotaEntity("u")
    try:
        settings = altered({}, [QuotaOperation("request_percentage", value)])
    except InvalidRequest:
        return
    assert quota_limits({entity: settings})[0][QuotaKind.REQUEST] == {entity: value}


FILTERS = st.one_of(st.none(), st.sampled_from([Component(name) for name in NAMES]))


@given(FILTERS, FILTERS, st.booleans())
def test_a_filter_finds_the_entities_that_kafka_describes(
    user: Component | None, client: Component | None, is_strict: bool
) -> None:
    components = {
        name: each for name, each in (("user", user), ("client-id", client)) if each is not None
    }
    found = chosen(STORED, components, is_strict=is_strict)

    def fits(component: Component | None, name: object) -> bool:
        if component is None:
            return not is_strict or name is None
        if component.name is None:
            return name is not None
        return name is component.name or name == component.name

    assert set(found) == {
        each for each in STORED if fits(user, each.user) and fits(client, each.client_id)
    }


def test_entities_without_quotas_are_not_described() -> None:
    assert not chosen({QuotaEntity("u"): {"SCRAM-SHA-256": "secret"}}, {}, is_strict=False)
    assert not chosen(STORED, {"ip": Component(None)}, is_strict=False)


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([], InvalidRequest),
        ([("user", "")], InvalidRequest),
        ([("", "x")], InvalidRequest),
        ([("user", "a"), ("user", "b")], InvalidRequest),
        ([("ip", "1.2.3.4")], InvalidRequest),
        ([("planet", "x")], UnsupportedVersion),
    ],
)
def test_entities_that_do_not_exist_are_refused(
    parts: list[tuple[str, str | None]], error: type[KafkaError]
) -> None:
    with pytest.raises(error):
        entity_of(parts)


def test_entities_and_components_are_read() -> None:
    assert entity_of([("client-id", None), ("user", "u")]) == QuotaEntity("u", DEFAULT)
    read = components_of([("user", 0, "u"), ("client-id", 1, None)])
    assert read == {"user": Component("u"), "client-id": Component(DEFAULT)}
    assert components_of([("ip", 2, None)]) == {"ip": Component(None)}


@pytest.mark.parametrize(
    "parts",
    [
        [("user", 0, None)],
        [("user", 1, "x")],
        [("user", 3, None)],
        [("user", 2, None), ("user", 2, None)],
        [("ip", 2, None), ("user", 2, None)],
    ],
)
def test_filters_that_contradict_themselves_are_refused(
    parts: list[tuple[str, int, str | None]],
) -> None:
    with pytest.raises(InvalidRequest):
        components_of(parts)
