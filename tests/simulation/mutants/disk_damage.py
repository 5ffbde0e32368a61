"""Known bugs of what is found on a disk: exchanged directories, and checkpoints that name other offsets."""

from __future__ import annotations

from typing import Any

from kbroker.log import offset_checkpoint_file
from kbroker.log.offset_checkpoint_file import LogStarts
from kbroker.replica.become_leader_or_follower import ReplicaStateChanges
from tests.simulation.mutants.registry import Change, mutant


@mutant
def strays_are_led_empty() -> list[Change]:
    """A replica that finds another log in its directory sets it aside and leads without any, as before 456c4b4."""
    original = ReplicaStateChanges._refused_for

    def refused_for(
        self: ReplicaStateChanges, lacks: str, partition: Any, state: Any, stray: str
    ) -> Any:
        return None if stray else original(self, lacks, partition, state, stray)

    return [(ReplicaStateChanges, "_refused_for", refused_for)]


@mutant
def a_lost_log_is_begun_in_the_isr() -> list[Change]:
    """A follower without its log begins another one while the state names it, as before 8266a12."""
    original = ReplicaStateChanges._refused_for

    def refused_for(
        self: ReplicaStateChanges, lacks: str, partition: Any, state: Any, stray: str
    ) -> Any:
        follows = state.leader not in (-1, partition.role.broker_id)
        return None if follows else original(self, lacks, partition, state, stray)

    return [(ReplicaStateChanges, "_refused_for", refused_for)]


@mutant
def every_log_start_is_trusted() -> list[Change]:
    """A log begins at the offset of its line in the checkpoint, whatever that is, as before 682838a."""
    return [
        (
            offset_checkpoint_file,
            "accepted_log_starts",
            lambda lines, *_others: LogStarts(dict(lines), {}),
        )
    ]
