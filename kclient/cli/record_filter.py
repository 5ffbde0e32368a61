r"""Which records `kclient consume` prints: patterns for key, value and headers, all of which must match.

    order-*         a glob over the whole text: * any characters, ? one, [ab] one of these
    re:^\d+$        a regular expression that is found anywhere
    .status=paid    the field of a JSON object (also .items.0.id), and a pattern for it; null is the text null
    NAME=PATTERN    for headers; NAME alone: the header is there

A null key or value matches no pattern. Bytes that are no UTF-8 match as \xHH. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fnmatch import translate
from typing import Any

from kclient.types import AnyRecord

Accept = Callable[[AnyRecord], bool]
_Match = Callable[[Any], bool]


def record_filter(
    key: str | None, value: str | None, headers: tuple[str, ...] = ()
) -> Accept | None:
    """Return the function that accepts a record, None if there is no pattern; raise ValueError for a wrong one."""
    checks: list[Accept] = []
    if key is not None:
        match_key = _field_pattern(key)
        checks.append(lambda record: match_key(record.key))
    if value is not None:
        match_value = _field_pattern(value)
        checks.append(lambda record: match_value(record.value))
    checks += map(_header_pattern, headers)
    if not checks:
        return None
    return lambda record: all(check(record) for check in checks)


def _header_pattern(text: str) -> Accept:
    name, given, pattern = text.partition("=")
    if not name:
        raise ValueError(f"{text!r} is no filter of headers: expected NAME or NAME=PATTERN")
    if not given:
        return lambda record: any(each == name for each, _ in record.headers)
    match = _pattern(pattern)
    return lambda record: any(each == name and match(value) for each, value in record.headers)


def _field_pattern(text: str) -> _Match:
    """Return the pattern of a key or a value, which may be one of a field in JSON."""
    path, given, pattern = text.partition("=")
    if not (given and re.fullmatch(r"(\.[\w-]+)+", path)):
        return _pattern(text)
    names = path[1:].split(".")
    match = _pattern(pattern)

    def matches(content: Any) -> bool:
        try:
            found = json.loads(content) if isinstance(content, bytes | str) else content
            for name in names:
                found = found[int(name)] if isinstance(found, list) else found[name]
        except (ValueError, TypeError, LookupError):
            return False
        return match(found if isinstance(found, str) else json.dumps(found, default=str))

    return matches


def _pattern(text: str) -> _Match:
    try:
        is_regex = text.startswith("re:")
        pattern = re.compile(text[3:] if is_regex else translate(text), re.DOTALL)
    except re.error as problem:
        raise ValueError(f"{text!r} is no regular expression: {problem}") from None
    found = pattern.search if is_regex else pattern.match
    return lambda content: content is not None and found(_text(content)) is not None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, bytes):
        return content.decode(errors="backslashreplace")
    return json.dumps(content, default=str)
