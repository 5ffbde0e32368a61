"""The text of a .properties file is read as Java reads it."""

from __future__ import annotations

import pytest

from kbroker.config.properties import decode, parse


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("  a=b", {"a": "b"}),
        ("a=b=c", {"a": "b=c"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("# a=b\n! c=d\n", {}),
        ("a=b\r\nc=d\r\n", {"a": "b", "c": "d"}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a=\\u0041\\t\\n", {"a": "A\t\n"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a=${env:HOME}", {"a": "${env:HOME}"}),
        ("", {}),
    ],
)
def test_lines_are_split_as_java_splits_them(text: str, values: dict[str, str]) -> None:
    assert parse(text).values == values


def test_the_last_of_equal_keys_counts_with_a_warning() -> None:
    found = parse("a=1\na=2\n")
    assert found.values == {"a": "2"}
    assert found.warnings == ["line 2: a is set more than once, the last one counts"]


@pytest.mark.parametrize("text", ["a=\\u00g1", "=b"])
def test_broken_lines_are_problems_with_their_number(text: str) -> None:
    assert parse(text).problems[0].startswith("line 1: ")


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b"\xef\xbb\xbfa=b", "a=b"), ("a=é".encode(), "a=é"), ("a=é".encode("latin-1"), "a=é")],
)
def test_text_is_utf8_with_or_without_mark_else_latin_1(raw: bytes, text: str) -> None:
    assert decode(raw) == text
