"""Which brokers hold a new partition: those of `kclient.admin.assignment`, or those that a person named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kclient.admin.assignment import InvalidAssignmentError, assign_replicas, row_of

__all__ = ["InvalidAssignmentError", "assign_replicas", "check_manual_assignment", "row_of"]


def check_manual_assignment(
    assignment: Mapping[int, Sequence[int]],
    live_brokers: frozenset[int] | set[int],
    *,
    first_partition: int = 0,
) -> dict[int, tuple[int, ...]]:
    """Check an assignment that a person gave: {partition: replicas}; InvalidAssignmentError if unfit.

    Partitions must be consecutive from *first_partition*, each with the same number (>= 1) of
    distinct, live brokers.
    """
    if not assignment:
        raise InvalidAssignmentError("The manual partition assignment is empty.")
    wanted = range(first_partition, first_partition + len(assignment))
    if sorted(assignment) != list(wanted):
        raise InvalidAssignmentError(
            f"Partitions should be a consecutive 0-based integer sequence; expected "
            f"{wanted.start}..{wanted.stop - 1}, got {sorted(assignment)[:20]}."
        )
    factor = len(assignment[first_partition])
    checked: dict[int, tuple[int, ...]] = {}
    for partition in wanted:
        replicas = tuple(assignment[partition])
        if not replicas:
            raise InvalidAssignmentError(f"Partition {partition} has an empty replica list.")
        if len(set(replicas)) != len(replicas):
            raise InvalidAssignmentError(
                f"Duplicate brokers in the replica assignment of partition {partition}: "
                f"{list(replicas)}."
            )
        unknown = sorted(set(replicas) - live_brokers)
        if unknown:
            raise InvalidAssignmentError(
                f"Unknown broker(s) {unknown} in the replica assignment of partition {partition}; "
                f"live brokers: {sorted(live_brokers)}."
            )
        if len(replicas) != factor:
            raise InvalidAssignmentError(
                f"All partitions should have the same number of replicas: partition {partition} "
                f"has {len(replicas)}, partition {first_partition} has {factor}."
            )
        checked[partition] = replicas
    return checked
