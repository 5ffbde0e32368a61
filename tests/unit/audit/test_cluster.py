"""Which topics of a cluster an audit takes."""

from __future__ import annotations

import pytest

from spark_jobs.cluster import is_audited


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
