"""Which partitions `kmirror translate` translates offsets of, and that it names the others."""

from __future__ import annotations

from kclient.types import TopicPartition
from mirrormaker.topics import Plan
from mirrormaker.translate import partitions_of


def test_offsets_that_are_left_out_are_named() -> None:
    """Before, conflicts and partitions that the target lacks were left out without a word, and with exit code 0."""
    plan = Plan(
        mirrored={"orders": "east.orders", "new": "east.new"},
        conflicts={"stray": "is a mirror of another cluster"},
        skipped={"loop": "its records come from west"},
    )
    pairs, problems = partitions_of(plan, {"orders": 2, "new": 1}, {"east.orders": {0}})
    assert pairs == {TopicPartition("orders", 0): TopicPartition("east.orders", 0)}
    assert problems == [
        "orders-1: east.orders-1 is not at the target yet",
        "new-0: east.new-0 is not at the target yet",
        "stray: is a mirror of another cluster",
    ]
