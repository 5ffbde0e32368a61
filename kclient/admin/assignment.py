"""Kafka's replica assignment for new partitions: round robin with an increasing shift, rack-aware if racks are known.

Theory of operation
===================
The brokers are in a list by id. If every broker has a rack, neighbours are in different racks (KIP-36: the first of
each rack, then the second of each, ...). First replicas go round the list from *start_index*. Further replicas of a
partition follow at a distance that grows by one each time the first replicas have gone round once. So the partitions of
a failed broker spread over all others. With racks, a follower is skipped if its rack already has a replica while
another rack has none.

The controller uses this for new topics and partitions, `kclient reassign generate` for partitions to move.

Invariants: 1. the replicas of a partition are distinct; 2. first replicas are even: no broker has two more than
another; 3. with racks, a partition's replicas are in min(replication factor, number of racks) racks; 4. the first
replicas of partitions that are added later, with the same list and start, are where they would have been. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

Racks = Mapping[int, str]
"""Rack by broker id."""


class InvalidAssignmentError(ValueError):
    """The requested assignment is impossible, or the given one is invalid; the text has the reason."""


def row_of(broker_ids: Collection[int], racks: Racks | None = None) -> list[int]:
    """Return the brokers in the order in which first replicas go round them.

    *racks* counts only if it contains every broker.
    """
    row = sorted(broker_ids)
    if not _know_all(racks, row):
        return row
    # Broker n of its rack comes after every broker n-1 of any rack.
    places: dict[int, tuple[int, str]] = {}
    seen: dict[str, int] = {}
    for broker in row:
        rack = racks[broker]  # type: ignore[index]
        places[broker] = (seen.get(rack, 0), rack)
        seen[rack] = seen.get(rack, 0) + 1
    return sorted(row, key=places.__getitem__)


def assign_replicas(
    broker_ids: Collection[int],
    partitions: int,
    replication_factor: int,
    *,
    start_index: int,
    start_shift: int | None = None,
    first_partition: int = 0,
    racks: Racks | None = None,
) -> dict[int, tuple[int, ...]]:
    """Assign *partitions* new partitions to *broker_ids*; return {partition: replicas}.

    The caller draws *start_index* (0 <= start_index < number of brokers) at random for a new topic. For an existing
    topic it passes the index of partition 0's first replica in `row_of`. *start_shift* defaults to *start_index*. Raise
    InvalidAssignmentError for invalid numbers.
    """
    row = row_of(broker_ids, racks)
    if partitions <= 0:
        raise InvalidAssignmentError("Number of partitions must be larger than 0.")
    if replication_factor <= 0:
        raise InvalidAssignmentError("Replication factor must be larger than 0.")
    if replication_factor > len(row):
        raise InvalidAssignmentError(
            f"Replication factor: {replication_factor} larger than available brokers: {len(row)}."
        )
    shift = start_index if start_shift is None else start_shift
    rack_of: Racks = racks if racks is not None and _know_all(racks, row) else {}
    assignment: dict[int, tuple[int, ...]] = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(row) == 0:
            shift += 1
        first = (partition + start_index) % len(row)
        assignment[partition] = _replicas(row, first, shift, replication_factor, rack_of)
    return assignment


def _replicas(
    row: Sequence[int], first: int, shift: int, factor: int, rack_of: Racks
) -> tuple[int, ...]:
    """Return the replicas of one partition, with the broker at index *first* as preferred leader."""
    others = len(row) - 1
    if not rack_of:
        distances = ((shift + n) % others for n in range(factor - 1))
        return (row[first], *(row[(first + 1 + d) % len(row)] for d in distances))
    racks = len(set(rack_of.values()))
    chosen = [row[first]]
    used = {rack_of[row[first]]}
    # At most twice round: first one broker of each rack, then any other broker.
    for n in range(2 * others):
        if len(chosen) == factor:
            break
        # In a list of alternating racks a shift of one would change racks; a shift by all racks changes brokers.
        broker = row[(first + 1 + (shift * racks + n) % others) % len(row)]
        if broker in chosen or (rack_of[broker] in used and len(used) < racks):
            continue
        chosen.append(broker)
        used.add(rack_of[broker])
    return tuple(chosen)


def _know_all(racks: Racks | None, brokers: Collection[int]) -> bool:
    return bool(racks) and all(broker in racks for broker in brokers)  # type: ignore[operator]
