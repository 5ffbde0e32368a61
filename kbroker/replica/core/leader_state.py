"""The in-sync replicas and the high watermark of a partition that this broker leads.

Theory of operation
===================
A record is committed when every in-sync replica has it. The high watermark is the end of the committed records, and
consumers read nothing beyond it. The offset of a follower's fetch is that follower's log end.

The ISR is stored in ZooKeeper. One write at a time is in flight, conditional on the version of the state znode. Until
the outcome of a write is known, ZooKeeper may hold either ISR, and the controller may elect from either. So the high
watermark counts the union of both (`maximal_isr`, KIP-497). A write without an answer stays pending until the znode
was read (S5). Our own value there means that the write was applied. A newer leader epoch means that a later role is on
its way, and this state writes no more (S4).

A follower joins when it has everything below the high watermark and has reached the offset at which our epoch began
(KAFKA-7128). Below it, an earlier leader may have committed more. It leaves when it was not caught up for
replica.lag.time.max.ms. A follower that is catching up already holds the high watermark back, or under load it never
would catch up. With fewer members than min.insync.replicas the high watermark does not advance (KAFKA-15583).

Each member is stored with the broker epoch under which it joined (KIP-903). An election can then distinguish a broker
that earned its place from one that restarted without its disk. A replica that leaves while the ISR is, or becomes,
smaller than min.insync.replicas has all committed records as long as the ISR stays that small. Such replicas are
remembered (`elr`, KIP-966), and the high watermark does not advance while ZooKeeper may hold any.

An unclean election sets leader_recovery_state to RECOVERING (KIP-704): the elected leader may lack records. Its first
ISR write, which starts at once, ends the recovery. Until then the high watermark does not advance: otherwise the
accepted loss of one election could cover records that were acknowledged after it.

Invariants:
1. The high watermark never falls under one leader epoch.
2. high_watermark <= the end of every replica in maximal_isr, from when it advances here. Our own end is
   `durable_end`: with flush.messages or flush.ms, a record counts as our copy only after its sync.
3. At most one ISR write is pending; every ISR that ZooKeeper may hold is a subset of maximal_isr.
4. A fetch with another leader epoch than ours changes nothing.
5. high_watermark <= the end of every replica in elr; it does not advance while there is one.
6. The high watermark does not advance while ZooKeeper may hold that the leader recovers.
7. log_start_offset <= high_watermark, as the followers require before they delete what we deleted.

In: our log's end, fetches of followers, outcomes of writes, time (seconds)   Out: effects   Owner: replica.partition
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from kbroker.replica.core.remote_replicas import NEVER, FollowerLiveness, RemoteReplica


@dataclass(frozen=True, slots=True)
class WriteIsr:
    """Ask ZooKeeper to replace the ISR, conditional on *zk_version*."""

    isr: frozenset[int]
    zk_version: int
    epochs: tuple[tuple[int, int], ...] = ()
    """(member, broker epoch under which it joined), for members with a known epoch."""
    elr: tuple[tuple[int, int], ...] = ()
    """The same for replicas outside the ISR that are eligible to lead."""


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """More records are committed: delayed requests may complete."""

    high_watermark: int


Effect = WriteIsr | HighWatermarkAdvanced


@dataclass(frozen=True, slots=True)
class FoundState:
    """The content of the partition's state znode."""

    leader: int
    leader_epoch: int
    isr: frozenset[int]
    zk_version: int
    epochs: tuple[tuple[int, int], ...] = ()
    elr: tuple[tuple[int, int], ...] = ()


class LeaderState:
    """The leader's view of the replicas of one partition.

    *previous* is this broker's state of the epoch before, which no other broker can have led after: what it knew of the
    followers still holds.
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
        log_start_offset: int = 0,
    ) -> None:
        self.broker_id = broker_id
        self.leader_epoch = leader_epoch
        self.led_since_epoch = leader_epoch
        """The first of the epochs that this broker has led without a break."""
        self.led_since_offset = log_end_offset
        """Our log's end when they began: below it, earlier leaders may have committed more than is known here."""
        self.epoch_start_offset = self.log_end_offset = log_end_offset
        self.durable_end = log_end_offset if durable_end is None else durable_end
        """The end of our own durable copy: below the log end offset while appends wait for a sync."""
        self.isr = isr
        """The ISR in ZooKeeper, as far as known."""
        self.zk_version = zk_version
        self.pending: frozenset[int] | None = None
        """The ISR of the write that has no known outcome yet."""
        self._pending_write: WriteIsr | None = None
        self.epochs = dict(epochs or {})
        """The broker epoch under which each member joined, where known."""
        self.elr = dict(elr or {})
        """Replicas outside the ISR that are eligible to lead in ZooKeeper, with their broker epochs."""
        self.is_recovering = is_recovering
        """ZooKeeper holds leader_recovery_state RECOVERING; every ISR write of ours resets it."""
        self.is_fenced = False
        """ZooKeeper holds a later epoch than ours: no more writes."""
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
        if is_recovering:
            # A replica outside the ISR may know of a high watermark above what it has synced. No client can read
            # below the log start offset, so that nothing there waits for a sync.
            synced = max(self.durable_end, log_start_offset)
            self.high_watermark = min(self.high_watermark, synced)
        self._update_maximal_isr()
        self.advance()

    # -- queries -------------------------------------------------------------------------------

    @property
    def has_min_insync_replicas(self) -> bool:
        """Whether acks=all may be served: the ISR has at least min.insync.replicas members."""
        return len(self.isr) >= self.min_insync_replicas

    def follower_left(self, replica: int) -> None:
        """Handle *replica* dropping this partition from its fetches."""
        follower = self._followers.get(replica)
        if follower is not None:
            follower.follows = False

    def is_backed(self, liveness: FollowerLiveness, now: float) -> bool:
        """Return whether no other broker can have been elected: every possible successor still follows us (S11).

        A successor is a member of the ISR, and stops following us when it is elected. A partition with one replica has
        no successor. A leader that is alone in the ISR may have one (elr, unclean election), which all others follow.
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
        """Return the latest known time at which certainly no other broker had begun to lead; or `NEVER`.

        Unlike `is_backed`, this also holds after a pause of the process (docs/design/groups-without-zookeeper.md).
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
        """Return whether *replica* is in the ISR, or in the pending write: it has nothing to join."""
        return replica in (self.isr if self.pending is None else self.pending)

    def follower_starts_at(self, replica: int, log_start_offset: int) -> bool:
        """Handle the log start offset in a fetch of *replica*; return whether it is another one."""
        known = self._followers.get(replica)
        if known is None or known.start == log_start_offset:
            return False
        known.start = log_start_offset
        return True

    def low_watermark(self, log_start_offset: int, live: Container[int]) -> int:
        """Return the smallest of our *log_start_offset* and those of the followers on *live* brokers (KIP-107)."""
        starts = (known.start for replica, known in self._followers.items() if replica in live)
        return min(log_start_offset, min(starts, default=log_start_offset))

    def in_sync_followers(self) -> list[tuple[int, RemoteReplica]]:
        """Return the followers in the ISR, with their fetch state."""
        followers = self._followers
        return [(replica, followers[replica]) for replica in self.isr if replica in followers]

    def log_end(
        self, log_end_offset: int, now: float = NEVER, durable_end: int | None = None
    ) -> bool:
        """Handle our own log reaching *log_end_offset*; return whether the high watermark advanced.

        *durable_end* is given while appends wait for a sync: records behind it are no copy of ours yet.

        With followers the high watermark waits for them: our own end is the largest of all. A follower that had
        everything was caught up until *now*: within a fetch session an idle partition is not fetched (KIP-227).
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
        """Handle the end of a sync: our own durable copy ends at *durable_end* now."""
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
        """Handle *replica*, a follower of *leader_epoch*, fetching from *fetch_offset* on.

        *broker_epoch* is the epoch in the fetch. Without *may_join* the follower does not join the ISR: that
        registration is over, or its broker is shutting down (KIP-903, KAFKA-14140).
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
        """Propose an ISR without the followers that lag for too long."""
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
        """Apply another min.insync.replicas."""
        self.min_insync_replicas = min_insync_replicas
        self._update_maximal_isr()
        effects = self.propose_again()
        if self.advance():
            effects.append(HighWatermarkAdvanced(self.high_watermark))
        return effects

    def propose_again(self) -> list[Effect]:
        """Propose the current ISR where ZooKeeper holds more than it: a recovery to end, or eligible replicas.

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
        """Propose another ISR; *joining* gives the broker epochs of joining replicas."""
        if self.pending is not None or self.is_fenced:
            return []
        epochs = {**self.epochs, **joining}
        known = sorted((r, epochs[r]) for r in isr if epochs.get(r, -1) >= 0)
        write = WriteIsr(isr, self.zk_version, tuple(known), self._eligible_beside(isr))
        self.pending, self._pending_write = isr, write
        self._update_maximal_isr()
        return [write]

    def _eligible_beside(self, isr: frozenset[int]) -> tuple[tuple[int, int], ...]:
        """Return the replicas that are eligible to lead beside the members of *isr*, once it is the ISR."""
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
        """Handle the content of the znode, read after a write that was rejected or got no answer.

        None: the znode does not exist, the topic was deleted.
        """
        write = self._pending_write
        if write is None:
            return []
        if (
            found is None
            or found.leader_epoch > self.leader_epoch
            or found.leader != self.broker_id
        ):
            # The write stays pending: the high watermark goes on counting every replica in it.
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
        """Derive `maximal_isr` and whether this broker commits alone."""
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
        """Advance the high watermark to the smallest end in `maximal_isr`; return whether it advanced."""
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
