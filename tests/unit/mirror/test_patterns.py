"""Lists of regular expressions: what users of MirrorMaker 2 write for Java means the same here, or is refused."""

from __future__ import annotations

import pytest

from mirrormaker.patterns import compiled


@pytest.mark.parametrize(
    ("text", "name", "matches"),
    [
        ("orders, pay.*", "payments", True),
        ("orders, pay.*", "my-orders", False),
        ("a|b, c", "b", True),
        ("(?i)orders, payments", "ORDERS", True),
        ("(?i)orders, payments", "PAYMENTS", False),
        ("", "orders", False),
        (" , ", "", False),
    ],
)
def test_a_name_matches_as_a_whole(text: str, name: str, matches: bool) -> None:
    assert bool(compiled(text).fullmatch(name)) is matches


@pytest.mark.parametrize(
    "text",
    ["[a-z&&[^b]]+", "[[:alpha:]]+", "ord{1,2}", r"\p{Alpha}+", "(", "x, (?U)orders", "orders(?i)"],
)
def test_what_means_something_else_than_in_java_is_refused(text: str) -> None:
    """Python would take a set operation literally, and the halves of a quantifier as names."""
    with pytest.raises(ValueError, match="is not a regular expression"):
        compiled(text)


@pytest.mark.parametrize(
    "text",
    [
        "a{99999999999}",
        pytest.param("(" * 5000 + ")" * 5000, id="nested"),
        "(?P<name>a), (?P<name>b)",
    ],
)
def test_what_cannot_be_compiled_is_refused_by_one_type_of_error(text: str) -> None:
    with pytest.raises(ValueError, match="regular expression"):
        compiled(text)
