"""Topics by a regular expression, as Kafka's IncludeList: a comma is an alternative, quotes around it do not count."""

from __future__ import annotations

import re
from collections.abc import Callable

from kclient.cli.kafka_tools.tool import Failure


def topic_filter(text: str) -> Callable[[str], bool]:
    """Return whether a whole name matches *text*; raise `Failure` if it is no regular expression."""
    raw = text.strip().replace(",", "|").replace(" ", "")
    raw = re.sub(r"[\"']+$", "", re.sub(r"^[\"']+", "", raw))
    try:
        pattern = re.compile(raw)
    except re.error:
        raise Failure(f"{raw} is an invalid regex.") from None
    return lambda name: pattern.fullmatch(name) is not None
