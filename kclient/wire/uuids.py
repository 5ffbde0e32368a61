"""UUIDs as text, in the form of Kafka's `org.apache.kafka.common.Uuid`: 22 characters of URL-safe base64. Pure."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

_TEXT = re.compile(r"[A-Za-z0-9_-]{22}")


def encode_uuid(value: UUID) -> str:
    """Return the text of *value*, without padding.

    >>> encode_uuid(UUID(int=1))
    'AAAAAAAAAAAAAAAAAAAAAQ'
    """
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_uuid(text: str) -> UUID:
    """Return the UUID of *text*; ValueError if it is none."""
    if _TEXT.fullmatch(text) is None:
        raise ValueError(f"{text!r:.80} is not an id of 22 base64 characters")
    return UUID(bytes=urlsafe_b64decode(text + "=="))
