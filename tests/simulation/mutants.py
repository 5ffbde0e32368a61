"""Known bugs, to be put in on purpose: what the simulation is worth is which of them it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kbroker.apis import api00_produce
from kbroker.controller import replica_news, rounds
from kbroker.controller.context import ControllerContext
from kbroker.log.producer_state import ProducerStates
from kbroker.replication.leading import Leading
from kbroker.replication.role import ControllerFence
from kbroker.runtime.controller_store import ControllerStore
from kbroker.runtime.directory_news import DirectoryNews
from kbroker.runtime.partition import Partition
from kbroker.zk.interface import Check
from kbroker.zk.life import SessionLife
from kbroker.zk.session import ZooKeeperSession
from kbroker.zk.watches import StandingWatch

Change = tuple[Any, str, Any]
"""Where, which attribute, and what it is replaced by."""

Planting = Callable[[], list[Change]]
"""Says what to change; called before anything is changed."""

MUTANTS: dict[str, Planting] = {}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have the bug *name* in the code, for a while."""
    changes = [] if name is None else MUTANTS[name]()
    before = [(where, attribute, getattr(where, attribute)) for where, attribute, _ in changes]
    for where, attribute, value in changes:
        setattr(where, attribute, value)
    try:
        yield
    finally:
        for where, attribute, value in before:
            setattr(where, attribute, value)


def mutant(plant: Planting) -> Planting:
    """Add a bug by its name."""
    MUTANTS[plant.__name__] = plant
    return plant


@mutant
def watermark_by_committed_isr() -> list[Change]:
    """The watermark counts the ISR that was answered, not the one that may have been written (KIP-497)."""

    original = Leading.advance

    def advance(self: Leading) -> bool:
        maximal, joining = self.maximal_isr, self._joining
        self.maximal_isr, self._joining = self.isr, set()
        try:
            return original(self)
        finally:
            self.maximal_isr, self._joining = maximal, joining

    return [(Leading, "advance", advance)]


@mutant
def truncation_to_the_watermark() -> list[Change]:
    """A new follower cuts its log at the watermark it knows, as before KIP-101."""
    original = Partition.take_role

    def take_role(self: Partition, *args: Any) -> None:
        original(self, *args)
        if self.following is not None and self.log is not None:
            self.log.truncate_to(self.following.high_watermark)

    return [(Partition, "take_role", take_role)]


@mutant
def state_written_unconditionally() -> list[Change]:
    """The ISR is written whatever the version of the znode is (KAFKA-2729 cured too well)."""
    original = ZooKeeperSession.set

    def set_any(self: ZooKeeperSession, path: str, data: bytes, version: int, **tag: Any) -> Any:
        return original(self, path, data, -1 if path.endswith("/state") else version, **tag)

    return [(ZooKeeperSession, "set", set_any)]


@mutant
def election_without_a_new_epoch() -> list[Change]:
    """A new leader leads in its predecessor's epoch."""
    original = rounds.elect  # type: ignore[attr-defined]

    def elect(replicas: Any, current: Any, *args: Any, **named: Any) -> Any:
        elected = original(replicas, current, *args, **named)
        return elected and replace(elected, leader_epoch=current.leader_epoch)

    return [(rounds, "elect", elect)]


@mutant
def joining_the_isr_early() -> list[Change]:
    """Whoever fetches joins the ISR, wherever its log ends."""
    original = Leading.follower_fetched

    def fetched(self: Leading, replica: int, offset: int, *rest: Any, **named: Any) -> Any:
        mark, start = self.high_watermark, self.epoch_start_offset
        self.high_watermark = self.epoch_start_offset = min(offset, mark)
        try:
            effects = original(self, replica, offset, *rest, **named)
        finally:
            self.high_watermark = max(mark, self.high_watermark)
            self.epoch_start_offset = start
        return effects

    return [(Leading, "follower_fetched", fetched)]


@mutant
def joining_before_the_epoch_start() -> list[Change]:
    """A follower joins the ISR at the watermark that a new leader happens to know (KAFKA-7128)."""
    original = Leading.follower_fetched

    def fetched(self: Leading, *given: Any, **named: Any) -> Any:
        start, self.epoch_start_offset = self.epoch_start_offset, 0
        try:
            return original(self, *given, **named)
        finally:
            self.epoch_start_offset = start

    return [(Leading, "follower_fetched", fetched)]


@mutant
def answer_before_the_watermark() -> list[Change]:
    """acks=all is answered when the leader has it."""
    return [(api00_produce, "ALL_IN_SYNC", 77)]


@mutant
def no_divergence() -> list[Change]:
    """A leader never tells a follower that its log is another one."""
    return [(Partition, "diverges", lambda *_args, **_more: None)]


@mutant
def lost_answer_taken_for_a_refusal() -> list[Change]:
    """An ISR write whose answer was lost counts as not done (S5)."""

    def found(self: Leading, *_found: Any) -> Any:
        self.pending = None
        self._settle()
        return []

    return [(Leading, "isr_found", found)]


@mutant
def replays_are_appended() -> list[Change]:
    """A batch that an idempotent producer repeats is appended once more."""
    return [(ProducerStates, "check", lambda _self, _info: None)]


@mutant
def zombie_controllers() -> list[Change]:
    """A controller's writes check neither its epoch nor its session (KAFKA-6082 and rule K4).

    While its session is over, ZooKeeper refuses what it sends; before it sends anything in another session,
    `Reconnect.connected` and the end of all requests that were under way have ended its work. So the binding (K4)
    is the second guard of two, and this alone is found by what the epoch's check is for: a controller that was
    unseated while its session lives, writes for as long as it has not heard of it.
    """
    begin, send = ControllerStore.__init__, ZooKeeperSession._send

    def unfenced(self: ControllerStore, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        self._fence = Check(self._fence.path, -1)

    def unbound(self: Any, message: Any, paths: Any, convert: Any, _tag: Any = None) -> Any:
        return send(self, message, paths, convert)

    return [(ControllerStore, "__init__", unfenced), (ZooKeeperSession, "_send", unbound)]


@mutant
def watches_not_read_again() -> list[Change]:
    """A watch is not read again when the connection is back (K3)."""
    return [
        (StandingWatch, "_failed", lambda self, _failure: setattr(self, "_reading", False)),
        (SessionLife, "_announce_connection", _announce_without_watches),
    ]


def _announce_without_watches(self: Any, session: Any, is_new: bool) -> None:
    watches, self._watches = self._watches, {} if not is_new else self._watches
    try:
        _announce(self, session, is_new)
    finally:
        self._watches = watches


_announce = SessionLife._announce_connection


@mutant
def orders_of_any_controller() -> list[Change]:
    """A broker obeys a deposed controller (KAFKA-1188).

    Leader epochs cover what LeaderAndIsr says. Nothing else covers a StopReplica that deletes: its leader epoch is
    higher than any, and it names the topic, not the topic's id. If it comes late, another controller has finished the
    deletion and the topic was made again, it takes the new one's records.
    And a late UpdateMetadata has clients told of who is no controller any more.
    """
    return [(ControllerFence, "admits", lambda _self, _epoch: True)]


@mutant
def every_disk_is_believed() -> list[Change]:
    """A place in the ISR counts, whatever became of the disk that earned it (S8, KIP-903)."""
    return [
        (ControllerContext, "holds", lambda self, broker, _where, _since: broker in self.brokers)
    ]


@mutant
def anybody_may_lead() -> list[Change]:
    """Any live replica is elected where nobody in the ISR can lead, though nobody allowed it (S18)."""
    original = rounds.elect  # type: ignore[attr-defined]

    def elect(*args: Any, **named: Any) -> Any:
        return original(*args, **{**named, "unclean": True})

    return [(rounds, "elect", elect)]


@mutant
def failed_disks_are_kept_secret() -> list[Change]:
    """A broker that lost one of its disks says so to nobody, as before 8ff1aa8."""
    return [(DirectoryNews, "tell", lambda _self: None)]


@mutant
def a_failed_disk_is_told_once() -> list[Change]:
    """The news of a failed disk is written once, whether or not ZooKeeper took it."""

    def not_told(self: DirectoryNews, _failure: Any) -> None:
        self._telling, self._untold = False, 0

    return [(DirectoryNews, "_not_told", not_told)]


@mutant
def news_of_failed_disks_is_thrown_away() -> list[Change]:
    """A controller takes the news of a failed disk away and does nothing about it."""

    def nothing(_context: Any, _event: Any, _rounds: Any) -> Iterator[None]:
        return iter(())

    return [(replica_news, "log_dirs_failed", nothing)]
