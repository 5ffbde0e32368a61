"""JSON that Kafka's tools read and print, in Kafka's form. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from kclient.cli.kafka_tools import java_order
from kclient.cli.kafka_tools.tool import Failure
from kclient.types import TopicPartition


def partitions_in(
    text: str, what: str, *others: str
) -> list[tuple[TopicPartition, tuple[Any, ...]]]:
    """Return each entry of ``partitions``: topic and partition, and the numbers called *others*.

    Raise `Failure`; *what* names the file in the error.
    """
    try:
        content = json.loads(text)
    except ValueError:
        raise Failure(f"{what} is not a valid JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("partitions"), list):
        raise Failure("Missing partitions field")
    version = content.get("version", 1)
    if version != 1:
        raise Failure(f"Not supported version field value {version}")
    found = []
    for entry in content["partitions"]:
        fields = entry if isinstance(entry, dict) else {}
        topic = fields.get("topic")
        numbers = [fields.get(name) for name in ("partition", *others)]
        ints = tuple(n for n in numbers if type(n) is int)
        if not isinstance(topic, str) or len(ints) < len(numbers):
            expected = ", ".join(["topic", "partition", *others])
            raise Failure(f"{json.dumps(entry)} is no object with {expected}")
        found.append((TopicPartition(topic, ints[0]), ints[1:]))
    return found


def repeated(tps: Iterable[TopicPartition]) -> list[str]:
    """Return the partitions that are there more than once, in the order in which Java prints a HashMap of them."""
    return [str(tp) for tp in java_order.partitions(tp for tp, n in Counter(tps).items() if n > 1)]


def compact(value: Any) -> str:
    """Return *value* as Kafka prints it: without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def in_map_order(**fields: Any) -> dict[str, Any]:
    """Return *fields* in the order in which Java prints a HashMap of them."""
    return {name: fields[name] for name in java_order.strings(fields)}
