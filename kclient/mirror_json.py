"""The JSON in the records that kmirror writes about its copies: the gap ledger, and the evidence for kaudit. Pure.

The key of a record has its type, the value its schema version. Any client may have written a record, so each field is
checked.

In: fields; keys and values of records   Out: bytes; checked fields   Owner: the caller
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

NOT_READABLE: Final = (ValueError, KeyError, TypeError, RecursionError)
"""What reading a record of another client may raise."""


def encoded(fields: Mapping[str, Any]) -> bytes:
    """Encode a key or a value: equal fields give equal bytes."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def decoded(
    key: bytes | None, value: bytes, types: Collection[str], schema_version: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a key and its value. Raise one of `NOT_READABLE` unless it has one of *types*."""
    names, fields = json.loads(key or b""), json.loads(value)
    if names["type"] not in types or fields["schema_version"] != schema_version:
        raise ValueError("another type of record, or another version")
    return names, fields


def text(found: Any) -> str:
    """Return a field that is text, else raise TypeError."""
    if not isinstance(found, str):
        raise TypeError(f"{found!r} is no text")
    return found


def number(found: Any) -> int:
    """Return a field that is an offset or a count, else raise ValueError."""
    if type(found) is not int or not 0 <= found < 1 << 63:
        raise ValueError(f"{found!r} is no offset or count")
    return found
