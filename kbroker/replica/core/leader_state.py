"""The in-sync replicas and the high watermark of a partition that this broker leads.

Theory of operation
===================
A record is committed when every in-sync replica has it; the high watermark is the end of what is committed, and
consumers see nothing beyond. A follower's end is known from the offset it fetches next.

The ISR lives in ZooKeeper and is written from here, one write at a time, conditional on the znode's version. Until
the outcome of a write is known, ZooKeeper may hold either ISR and the controller may elect from either. So the
watermark goes by the union of both (`maximal_isr`, KIP-497): whoever may be elected has what was shown. A write
whose answer was lost stays pending until the znode was read (S5): our own value there means it was applied, a
newer leader epoch means that another leader, or a later term of ours, is on its way, and we write no more (S4).

A follower joins once it has everything below the watermark and has reached the offset at which our epoch began
(KAFKA-7128: else it may lack what an earlier leader committed); it leaves when it was not caught up for
replica.lag.time.max.ms. One that is catching up holds the watermark too, or under load it never would. Under
min.insync.replicas the watermark does not advance at all (KAFKA-15583).

With each member goes the broker epoch under which it joined (KIP-903): whoever elects from the ISR can tell the
broker that earned its place from one that came back without its disk. And who leaves while the ISR is, or comes
to be, under min.insync.replicas has all that is committed until it no longer is: such replicas are remembered
(`elr`, KIP-966), and the watermark stands still as long as ZooKeeper may hold any.

An unclean election sets leader_recovery_state to RECOVERING (KIP-704): the elected leader may lack records. That
leader's first ISR write, which it begins at once, ends the recovery. Until then the watermark stands still: an
acceptance of one loss must not be in ZooKeeper when records are acknowledged that a later loss could take.

Invariants:
1. The high watermark never falls under one leader epoch.
2. high_watermark <= the end of every replica in maximal_isr, from when it advances here. Our own end is
   `durable_end`: where flush.messages or flush.ms asks for it, a record is no copy before it is synced.
3. At most one ISR write is unanswered; every ISR that ZooKeeper may hold is a subset of maximal_isr.
4. A fetch that goes by another leader epoch than ours changes nothing.
5. high_watermark <= the end of every replica in elr; it does not advance while there is one.
6. The high watermark does not advance while ZooKeeper may hold that the leader recovers.

In: our log's end, follower fetches, outcomes of writes, time (seconds)   Out: effects   Owner: replica.partition
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.replica.core.remote_replicas import NEVER, FollowerLiveness, RemoteReplica


@dataclass(frozen=True, slots=True)
class WriteIsr:
    """Ask ZooKeeper to replace the ISR, conditional on *zk_version*."""

    isr: frozenset[int]
    zk_version: int
    epochs: tuple[tuple[int, int], ...] = ()
    """(member, broker epoch that it is in the ISR under), of those of whom it is known."""
    elr: tuple[tuple[int, int], ...] = ()
    """The same of replicas that are out of the ISR and eligible to lead."""


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """More is committed: who waits for that can be answered."""

    high_watermark: int


Effect = WriteIsr | HighWatermarkAdvanced


@dataclass(frozen=True, slots=True)
class FoundState:
    """What the partition's state znode holds."""

    leader: int
    leader_epoch: int
    isr: frozenset[int]
    zk_version: int
    epochs: tuple[tuple[int, int], ...] = ()
    elr: tuple[tuple[int, int], ...] = ()


class LeaderState:
    """The leader's view of the replicas of one partition.

    *previous* is our own view of an earlier epoch that nobody else can have led after: what it knew
    of the followers still holds.
    """

    __slots__ = (
        "_alone",
        "_followers",
        "_joining",
        "_pending_write",
        "broker_id",
        "durable_end",
        "elr",
        "epoch_start_offset",
        "epochs",
        "high_watermark",
        "is_fenced",
        "is_followed",
        "is_recovering",
        "isr",
        "lag_time_max",
        "leader_epoch",
        "led_since_epoch",
        "led_since_offset",
        "log_end_offset",
        "maximal_isr",
        "min_insync_replicas",
        "pending",
        "zk_version",
    )

    def __init__(
        self,
        broker_id: int,
        isr: frozenset[int],
        *,
        log_end_offset: int,
        high_watermark: int,
        replicas: frozenset[int] | None = None,
        leader_epoch: int = 0,
        zk_version: int = 0,
        min_insync_replicas: int = 1,
        lag_time_max: float = 30.0,
        now: float = 0.0,
        previous: LeaderState | None = None,
        epochs: Mapping[int, int] | None = None,
        elr: Mapping[int, int] | None = None,
        is_recovering: bool = False,
        durable_end: int | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.leader_epoch = leader_epoch
        self.led_since_epoch = leader_epoch
        """The first of the epochs that we have led without a break."""
        self.led_since_offset = log_end_offset
        """Our log's end when they began: below that others may have shown more than we know of."""
        self.epoch_start_offset = self.log_end_offset = log_end_offset
        self.durable_end = log_end_offset if durable_end is None else durable_end
        """The end of what counts as our own copy: below the log end offset while appends wait for a sync."""
        self.isr = isr
        """The ISR as ZooKeeper holds it, as far as we know."""
        self.zk_version = zk_version
        self.pending: frozenset[int] | None = None
        """The ISR whose write is not answered yet."""
        self._pending_write: WriteIsr | None = None
        self.epochs = dict(epochs or {})
        """The broker epoch under which each member is in the ISR; unknown of those that are missing."""
        self.elr = dict(elr or {})
        """Replicas out of the ISR that ZooKeeper holds for eligible to lead, by their broker epochs."""
        self.is_recovering = is_recovering
        """ZooKeeper holds leader_recovery_state RECOVERING; every ISR write of ours resets it."""
        self.is_fenced = False
        """ZooKeeper knows a later epoch than ours: no more writes."""
        self.min_insync_replicas = min_insync_replicas
        self.lag_time_max = lag_time_max
        self._followers = {
            replica: RemoteReplica(now if replica in isr else NEVER)
            for replica in (replicas or isr) | isr
            if replica != broker_id
        }
        self.is_followed = bool(self._followers)
        """Whether the partition has other replicas at all."""
        if previous is not None and previous.leader_epoch + 1 == leader_epoch:
            self.led_since_epoch = previous.led_since_epoch
            self.led_since_offset = previous.led_since_offset
            for replica, known in previous._followers.items():
                if replica in self._followers:
                    self._followers[replica] = known
                    known.follows = False
        self._joining: set[int] = set()
        self.high_watermark = min(high_watermark, log_end_offset)
        self._update_maximal_isr()
        self.advance()

    # -- what is known -------------------------------------------------------------------------

    @property
    def has_min_insync_replicas(self) -> bool:
        """Whether acks=all may be served: the ISR holds min.insync.replicas."""
        return len(self.isr) >= self.min_insync_replicas

    def replica_end(self, replica: int) -> int:
        """Return what is known of a replica's log end; -1 before its first fetch."""
        if replica == self.broker_id:
            return self.log_end_offset
        known = self._followers.get(replica)
        return known.end if known is not None else -1

    def follower_left(self, replica: int) -> None:
        """Handle *replica* saying that it does not fetch this partition from us any more."""
        follower = self._followers.get(replica)
        if follower is not None:
            follower.follows = False

    def is_backed(self, liveness: FollowerLiveness, now: float) -> bool:
        """Say whether nobody else can have been elected: all who could still follow us (S11).

        A successor comes out of the ISR, and follows us no more from then on. Where there is no other replica
        nobody can succeed; where we are alone in the ISR somebody may (elr, unclean election), and be followed
        by all the others.
        """
        if not self.is_followed:
            return True
        if self.maximal_isr <= {self.broker_id} or self.elr:
            return False
        return all(
            known.follows and liveness.is_live(replica, known.fetched_at, now)
            for replica, known in self._followers.items()
            if replica in self.maximal_isr
        )

    @property
    def is_alone(self) -> bool:
        """Whether no other replica can be in the ISR."""
        return self.maximal_isr <= {self.broker_id}

    def no_successor_at(self, liveness: FollowerLiveness, now: float) -> float:
        """Return a time at which certainly no other broker had begun to lead, as late as known; or `NEVER`.

        Unlike `is_backed` this holds after a stop of the process, too (docs/design/groups-without-zookeeper.md).
        """
        if self.is_fenced:
            return NEVER
        if not self.is_followed:
            return now
        if self.is_alone or self.elr:
            return NEVER
        return min(
            liveness.followed_at(replica, known.fetched_at) if known.follows else NEVER
            for replica, known in self._followers.items()
            if replica in self.maximal_isr
        )

    # -- the log and the followers -------------------------------------------------------------

    def is_in_proposed_isr(self, replica: int) -> bool:
        """Say whether *replica* is in the ISR, or the write on its way says so: it has nothing to ask for."""
        return replica in (self.isr if self.pending is None else self.pending)

    def follower_starts_at(self, replica: int, log_start_offset: int) -> None:
        """Handle what *replica* says of its log start; only consumers that read there ask (KIP-392)."""
        known = self._followers.get(replica)
        if known is not None:
            known.start = log_start_offset

    def in_sync_followers(self) -> list[tuple[int, RemoteReplica]]:
        """Return the followers in the ISR, with what we know of them."""
        followers = self._followers
        return [(replica, followers[replica]) for replica in self.isr if replica in followers]

    def log_end(
        self, log_end_offset: int, now: float = NEVER, durable_end: int | None = None
    ) -> bool:
        """Handle our own log reaching *log_end_offset*; return whether the watermark advanced.

        *durable_end* is given while appends wait for a sync: what lies behind is no copy of ours yet.

        With followers it waits for them: our own end is the largest of all. Who had everything was caught
        up until *now*: in a fetch session nothing is heard of a partition while it is idle (KIP-227).
        """
        for follower in self._followers.values():
            if follower.end == self.log_end_offset and follower.caught_up_at < now:
                follower.caught_up_at = now
        self.log_end_offset = log_end_offset
        if durable_end is not None:
            self.durable_end = durable_end
            return self._alone and self.advance()
        self.durable_end = log_end_offset
        if self._alone:
            self.high_watermark = log_end_offset
        return self._alone

    def flushed(self, durable_end: int) -> list[Effect]:
        """Handle the end of a sync: our own copy ends at *durable_end* now."""
        self.durable_end = durable_end
        return [HighWatermarkAdvanced(self.high_watermark)] if self.advance() else []

    def follower_fetched(
        self,
        replica: int,
        fetch_offset: int,
        leader_epoch: int,
        now: float,
        broker_epoch: int = -1,
        *,
        may_join: bool = True,
    ) -> list[Effect]:
        """Handle *replica*, a follower of *leader_epoch*, asking for what begins at *fetch_offset*.

        It asks in its life of *broker_epoch*; unless it *may_join* it is not taken into the ISR: that life is
        over, or ends (KIP-903, KAFKA-14140).
        """
        follower = self._followers.get(replica)
        if follower is None or leader_epoch != self.leader_epoch:
            return []
        follower.update_fetch_state(fetch_offset, self.log_end_offset, now)
        effects: list[Effect] = []
        if replica not in self.maximal_isr:
            if may_join and follower.is_caught_up(self.log_end_offset, now, self.lag_time_max):
                self._joining.add(replica)
            else:
                self._joining.discard(replica)
            if may_join and fetch_offset >= max(self.high_watermark, self.epoch_start_offset):
                effects += self._propose(self.isr | {replica}, {replica: broker_epoch})
            self._update_maximal_isr()
        if self.advance():
            effects.append(HighWatermarkAdvanced(self.high_watermark))
        return effects

    def maybe_shrink_isr(self, now: float) -> list[Effect]:
        """Handle time: followers that lag for too long leave the ISR."""
        lagging = {
            replica
            for replica in self.isr
            if replica != self.broker_id and not self._in_sync(replica, now)
        }
        effects: list[Effect] = (
            self._propose(self.isr - lagging, {}) if lagging else self.propose_again()
        )
        if self._joining:
            self._joining = {replica for replica in self._joining if self._in_sync(replica, now)}
            self._update_maximal_isr()
            if self.advance():
                effects.append(HighWatermarkAdvanced(self.high_watermark))
        return effects

    def set_min_insync_replicas(self, min_insync_replicas: int) -> list[Effect]:
        """Take another min.insync.replicas."""
        self.min_insync_replicas = min_insync_replicas
        self._update_maximal_isr()
        effects = self.propose_again()
        if self.advance():
            effects.append(HighWatermarkAdvanced(self.high_watermark))
        return effects

    def propose_again(self) -> list[Effect]:
        """Write the ISR again where ZooKeeper holds more than that: a recovery to end, or eligible replicas.

        Eligible replicas are removed when the ISR is large enough to commit without them.
        """
        needed = self.is_recovering or (self.elr and self.has_min_insync_replicas)
        return self._propose(self.isr, {}) if needed else []

    def _in_sync(self, replica: int, now: float) -> bool:
        follower = self._followers.get(replica)
        return follower is not None and follower.is_caught_up(
            self.log_end_offset, now, self.lag_time_max
        )

    # -- writes of the ISR ---------------------------------------------------------------------

    def _propose(self, isr: frozenset[int], joining: Mapping[int, int]) -> list[Effect]:
        """Ask for another ISR; *joining* gives the broker epochs of who joins."""
        if self.pending is not None or self.is_fenced:
            return []
        epochs = {**self.epochs, **joining}
        known = sorted((r, epochs[r]) for r in isr if epochs.get(r, -1) >= 0)
        write = WriteIsr(isr, self.zk_version, tuple(known), self._eligible_beside(isr))
        self.pending, self._pending_write = isr, write
        self._update_maximal_isr()
        return [write]

    def _eligible_beside(self, isr: frozenset[int]) -> tuple[tuple[int, int], ...]:
        """Return who is eligible to lead beside the members of *isr*, once it is the ISR."""
        if len(isr) >= self.min_insync_replicas:
            return ()
        left = {r: self.epochs[r] for r in self.isr - isr if self.epochs.get(r, -1) >= 0}
        return tuple(sorted((r, e) for r, e in {**self.elr, **left}.items() if r not in isr))

    def isr_written(self, zk_version: int) -> list[Effect]:
        """Handle the pending write's success; the znode has *zk_version* now."""
        write = self._pending_write
        if write is None:
            return []
        return self._adopt(write.isr, zk_version, write.epochs, write.elr)

    def isr_found(self, found: FoundState | None) -> list[Effect]:
        """Handle what the znode holds, read after a write that was refused or not answered.

        None: there is no such znode, the topic is gone.
        """
        write = self._pending_write
        if write is None:
            return []
        if (
            found is None
            or found.leader_epoch > self.leader_epoch
            or found.leader != self.broker_id
        ):
            # What is pending stays so: the watermark goes on counting everybody.
            self.is_fenced = True
            return []
        if found.zk_version <= self.zk_version:
            return [write]
        return self._adopt(found.isr, found.zk_version, found.epochs, found.elr)

    def _adopt(
        self,
        isr: frozenset[int],
        zk_version: int,
        epochs: tuple[tuple[int, int], ...] = (),
        elr: tuple[tuple[int, int], ...] = (),
    ) -> list[Effect]:
        self.isr, self.zk_version, self.pending, self._pending_write = isr, zk_version, None, None
        self.epochs, self.elr, self.is_recovering = dict(epochs), dict(elr), False
        self._update_maximal_isr()
        return [HighWatermarkAdvanced(self.high_watermark)] if self.advance() else []

    # -- the watermark -------------------------------------------------------------------------

    def _update_maximal_isr(self) -> None:
        """Work out what follows from the ISR."""
        self.maximal_isr = self.isr if self.pending is None else self.isr | self.pending
        self._joining -= self.maximal_isr
        self._alone = (
            self.maximal_isr <= {self.broker_id}
            and not self._joining
            and self.has_min_insync_replicas
            and not self.elr
            and not self.is_recovering
        )

    def advance(self) -> bool:
        """Move the watermark to what all of `maximal_isr` have; return whether it moved."""
        if not self.has_min_insync_replicas or self.elr or self.is_recovering:
            return False
        committed = self.durable_end
        for replica, follower in self._followers.items():
            if follower.end < committed and (
                replica in self.maximal_isr or replica in self._joining
            ):
                committed = follower.end
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True
