"""Which topics of a cluster an audit takes, and what it cannot read of them."""

from __future__ import annotations

import pytest

from kclient.errors import TopicAuthorizationFailed
from kclient.types import TopicPartition
from spark_jobs.cluster import is_audited, without_settings


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("orders", True),
        ("east.orders", True),
        ("heartbeats", True),
        ("checkpoints.internal", True),
        ("east.gaps.internal", False),
        ("east.evidence.internal", False),
        ("east.latency.internal", False),
        ("east.checkpoints.internal", False),
    ],
)
def test_the_topics_that_a_mirror_writes_for_itself_are_not_audited(
    topic: str, expected: bool
) -> None:
    assert is_audited(topic) is expected


def test_each_partition_of_a_topic_without_settings_is_unreadable_and_no_other() -> None:
    partitions = [
        TopicPartition(topic, number) for topic in ("here", "orders") for number in (0, 1)
    ]
    refused = TopicAuthorizationFailed("denied")
    causes = without_settings(partitions, {"orders": refused, "unknown": refused})
    assert causes == dict.fromkeys(partitions[2:], f"its settings: {refused}")
