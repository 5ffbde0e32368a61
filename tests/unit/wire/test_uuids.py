"""UUIDs as text."""

from __future__ import annotations

from uuid import UUID

import pytest

from kclient.wire.uuids import decode_uuid, encode_uuid


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "AAAAAAAAAAAAAAAAAAAAAA"), (1, "AAAAAAAAAAAAAAAAAAAAAQ"), (2**128 - 1, "_" * 21 + "w")],
)
def test_an_id_has_kafkas_text(value: int, text: str) -> None:
    assert encode_uuid(UUID(int=value)) == text
    assert decode_uuid(text) == UUID(int=value)


@pytest.mark.parametrize("text", ["", "A" * 21, "A" * 23, "A" * 22 + "==", "+" * 22, "é" * 22])
def test_another_text_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match="22 base64 characters"):
        decode_uuid(text)
