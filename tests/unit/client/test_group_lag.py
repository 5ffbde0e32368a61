"""The lag of groups, of their topics, as rows."""

from __future__ import annotations

from typing import Any

from kclient.cli.group_lag import topic_rows


def row(topic: str, partition: int, lag: int | None, member: str | None = None) -> dict[str, Any]:
    return {
        "group": "g", "topic": topic, "partition": partition, "lag": lag, "consumer_id": member,
    }  # fmt: skip


def test_the_lag_of_a_topic_is_that_of_its_partitions() -> None:
    rows = [row("a", 0, 3, "m1"), row("a", 1, 4, "m2"), row("a", 2, 0, "m2"), row("b", 0, 5)]
    a, b = topic_rows(rows)
    assert a == {
        "group": "g", "topic": "a", "partitions": 3, "members": 2,
        "lag": 7, "max_lag": 4, "unknown": 0,
    }  # fmt: skip
    assert (b["topic"], b["members"], b["lag"]) == ("b", 0, 5)


def test_partitions_without_a_lag_are_counted_and_not_added() -> None:
    (one,) = topic_rows([row("a", 0, None), row("a", 1, 4)])
    assert (one["lag"], one["max_lag"], one["unknown"]) == (4, 4, 1)
    (none,) = topic_rows([row("a", 0, None)])
    assert (none["lag"], none["max_lag"], none["unknown"]) == (None, None, 1)
    assert topic_rows([]) == []
