"""Topics and partitions in options: TOPIC or TOPIC:0,1,2, as in Kafka's tools. Pure."""

from __future__ import annotations

import re


def parse_topic(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Return the topic and its partitions, None for all; raise ValueError. A duplicate partition counts once."""
    name, given, numbers = text.partition(":")
    if not name or (given and not re.fullmatch(r"[0-9]+(,[0-9]+)*", numbers)):
        raise ValueError(f"{text!r}: expected topic or topic:0,1,2")
    return name, tuple(sorted({int(number) for number in numbers.split(",")})) if given else None
