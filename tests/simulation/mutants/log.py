"""Known bugs of the log: recovery, syncs, retention, and producer state."""

from __future__ import annotations

from kbroker.log.producer_state import ProducerStates
from tests.simulation.mutants.registry import Change, frequent_mutant


@frequent_mutant
def replays_are_appended() -> list[Change]:
    """A batch that an idempotent producer repeats is appended once more."""
    return [(ProducerStates, "check", lambda _self, _info: None)]
