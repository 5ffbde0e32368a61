"""Changes of the ISR as they are logged."""

from __future__ import annotations

from kbroker.replica.alter_partition_manager import CHANGES_LOGGED, isr_change_lines

ALL, TWO = frozenset({1, 2, 3}), frozenset({1, 2})


def test_a_few_changes_are_a_line_each():
    assert isr_change_lines([("t-0", 4, ALL, TWO), ("t-1", 5, TWO, ALL)]) == [
        "ISR of t-0 in epoch 4: [1, 2, 3] -> [1, 2]",
        "ISR of t-1 in epoch 5: [1, 2] -> [1, 2, 3]",
    ]


def test_many_are_a_line_for_each_kind():
    back = [(f"t-{n}", 4, TWO, ALL) for n in range(CHANGES_LOGGED)]
    assert isr_change_lines([*back, ("t-99", 4, ALL, TWO)]) == [
        f"ISR of {CHANGES_LOGGED} partitions (t-0, t-1, t-2, t-3, t-4, ...): [1, 2] -> [1, 2, 3]",
        "ISR of 1 partition (t-99): [1, 2, 3] -> [1, 2]",
    ]
