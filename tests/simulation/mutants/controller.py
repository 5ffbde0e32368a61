"""Known bugs of the controller: elections, fences, watches, and failed log directories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kbroker.controller.core import replica_events, state_writes
from kbroker.controller.core.context import ControllerContext
from kbroker.controller.zk_client import ControllerZkClient
from kbroker.metadata.epoch_fences import ControllerFence
from kbroker.replica.log_dir_failure_channel import LogDirFailureChannel
from kbroker.zk.interface import Check
from kbroker.zk.session_state import SessionState
from kbroker.zk.watches import StandingWatch
from tests.simulation.mutants.registry import Change, frequent_mutant, mutant


@frequent_mutant
def election_without_a_new_epoch() -> list[Change]:
    """A new leader leads in its predecessor's epoch."""
    original = state_writes.elect  # type: ignore[attr-defined]

    def elect(replicas: Any, current: Any, *args: Any, **named: Any) -> Any:
        elected = original(replicas, current, *args, **named)
        return elected and replace(elected, leader_epoch=current.leader_epoch)

    return [(state_writes, "elect", elect)]


@mutant
def zombie_controllers() -> list[Change]:
    """A controller's writes check neither its epoch nor its session (KAFKA-6082), nor is a write bound to the session
    of its decision.

    While its session is over, ZooKeeper refuses what it sends; before it sends anything in another session,
    `Reconnect.connected` and the end of all requests that were under way have ended its work. So the binding to the
    session is the second guard of two, and this alone is found by what the epoch's check is for: a controller that was
    replaced while its session is alive, and writes until it learns of that.
    """
    begin, send = ControllerZkClient.__init__, SessionState.send

    def unfenced(self: ControllerZkClient, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        self._fence = Check(self._fence.path, -1)

    def unbound(self: Any, message: Any, paths: Any, convert: Any, _tag: Any = None) -> Any:
        return send(self, message, paths, convert)

    return [(ControllerZkClient, "__init__", unfenced), (SessionState, "send", unbound)]


@frequent_mutant
def watches_not_read_again() -> list[Change]:
    """A watch is not read again when the connection is back."""
    return [
        (StandingWatch, "_failed", lambda self, _failure: setattr(self, "_reading", False)),
        (SessionState, "_emit_connected", _announce_without_watches),
    ]


def _announce_without_watches(self: Any, session: Any, is_new: bool) -> None:
    watches, self._watches = self._watches, {} if not is_new else self._watches
    try:
        _emit_connected(self, session, is_new)
    finally:
        self._watches = watches


_emit_connected = SessionState._emit_connected


@mutant
def requests_of_any_controller() -> list[Change]:
    """A broker executes requests of a controller that was replaced (KAFKA-1188).

    Leader epochs cover LeaderAndIsr. Nothing else covers a StopReplica that deletes: its leader epoch is
    higher than any, and it names the topic, not the topic's id. If it comes late, another controller has finished the
    deletion and the topic was made again, it takes the new one's records.
    And a late UpdateMetadata names a controller that is none any more. The numbers of requests, which are compared
    across controllers, are a second guard, and go, too.
    """
    original = ControllerFence.is_overtaken

    def is_overtaken(self: ControllerFence, epoch: int, *rest: int) -> bool:
        return epoch >= self._sender[0] and original(self, epoch, *rest)

    return [
        (ControllerFence, "admits", lambda _self, _epoch: True),
        (ControllerFence, "is_overtaken", is_overtaken),
    ]


@mutant
def overtaken_requests_are_executed() -> list[Change]:
    """A broker executes a controller's request that arrives after a later one."""
    return [(ControllerFence, "is_overtaken", lambda *_given: False)]


@mutant
def every_disk_is_trusted() -> list[Change]:
    """A member of the ISR counts as complete, whatever its disk has lost since (S8, KIP-903)."""
    return [
        (ControllerContext, "holds", lambda self, broker, _where, _since: broker in self.brokers)
    ]


@mutant
def any_live_replica_may_lead() -> list[Change]:
    """Any live replica is elected where no member of the ISR can lead, though no setting allows it (S18)."""
    original = state_writes.elect  # type: ignore[attr-defined]

    def elect(*args: Any, **named: Any) -> Any:
        return original(*args, **{**named, "unclean": True})

    return [(state_writes, "elect", elect)]


@mutant
def failed_log_dirs_are_not_reported() -> list[Change]:
    """A broker that lost a log directory does not report it, as before 8ff1aa8."""
    return [(LogDirFailureChannel, "report", lambda _self: None)]


@mutant
def a_failed_log_dir_is_reported_once() -> list[Change]:
    """The notification of a failed log directory is written once, whether or not ZooKeeper accepted it."""

    def not_reported(self: LogDirFailureChannel, _failure: Any) -> None:
        self._writing, self._unreported = False, 0

    return [(LogDirFailureChannel, "_not_reported", not_reported)]


@mutant
def log_dir_events_are_ignored() -> list[Change]:
    """A controller deletes the notification of a failed log directory and does nothing else."""

    def nothing(_context: Any, _event: Any, _rounds: Any) -> Iterator[None]:
        return iter(())

    return [(replica_events, "log_dirs_failed", nothing)]
