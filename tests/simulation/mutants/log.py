"""Known bugs of the log: recovery, syncs, retention, and producer state."""

from __future__ import annotations

from typing import Any

from kbroker.log.partition_log import PartitionLog
from kbroker.log.producer_state import ProducerStates
from tests.simulation.mutants.registry import Change, frequent_mutant


@frequent_mutant
def replays_are_appended() -> list[Change]:
    """A batch that an idempotent producer repeats is appended once more."""
    return [(ProducerStates, "check", lambda _self, _info: None)]


@frequent_mutant
def answer_before_the_sync() -> list[Change]:
    """flush.messages starts a sync, and the append is acknowledged, and counts as a copy, before it has ended."""
    original = PartitionLog._ask_for_flush

    def ask(self: PartitionLog, *given: Any) -> None:
        original(self, *given)
        self.held_at = None

    return [(PartitionLog, "_ask_for_flush", ask)]
