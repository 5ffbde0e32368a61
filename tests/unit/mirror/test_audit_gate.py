"""The form of the target's names that kaudit is given, from the names of a replication policy."""

from __future__ import annotations

import pytest

from mirrormaker.audit_gate import target_form
from mirrormaker.promotion import Refused


@pytest.mark.parametrize(
    ("copies", "form"),
    [
        ({}, ""),
        ({"orders": "orders", "a": "a"}, ""),
        ({"orders": "east.orders", "a": "east.a"}, "east.{}"),
        ({"orders": "orders.from.east"}, "{}.from.east"),
        # The name is in the alias too: only one place is the same for both topics.
        ({"a": "xay.a", "b": "xay.b"}, "xay.{}"),
        ({"a": "a.a"}, "{}.a"),
        ({"aa": "aaa"}, "{}a"),
    ],
)
def test_the_form_has_one_place_for_every_name(copies: dict[str, str], form: str) -> None:
    assert target_form(copies) == form
    assert all(copy == (form or "{}").replace("{}", name) for name, copy in copies.items())


@pytest.mark.parametrize("copies", [{"orders": "EAST.ORDERS"}, {"a": "east.a", "b": "b.east"}])
def test_names_without_a_common_form_are_refused(copies: dict[str, str]) -> None:
    with pytest.raises(Refused, match="--no-audit copies without the proof"):
        target_form(copies)
