"""The link of one partition: what to fetch, what to append, and what to believe after a failure.

Theory of operation
===================
Batches keep their offsets, so the target's log end *is* the position of the mirror: nothing else is
stored anywhere, and nothing can disagree with it. Every append is conditional: the target's leader takes
a run of batches only behind the very batch that this link thinks is the log's last, known by its end
offset and its CRC (see kclient.wire.produce), and answers with its real log end otherwise. Appends are
pipelined; each is meant to follow the one before it, so when one is lost all behind it are refused,
even if somebody else's record took its place.

A target that loses records does so under a new leader epoch. An append finds that out; a link with nothing to
append asks both logs where they are when the target's metadata show another epoch.

After any failure (refusal, timeout, lost connection, new leader) the link does not guess. It forgets
the whole pipeline, asks both logs where they are (`Locate`), and goes on from the target's log end.
An append that was thought lost and arrives later finds another log end and is refused; a reply that
was lost is found as a log end that moved; a second mirror (a zombie) is refused in the same way. So
every batch acknowledged at the source is in the target once, in order, at its own offset, after any
number of kills of the mirror and of brokers on either side.

Somebody else may have written to the target, or the source may have lost or recreated its log. So
each time before the first append the last batch below the target's log end is compared with the
source's batch there: a target that is not a prefix of the source stops the link with a typed
problem; nothing is ever skipped in silence. (As in Raft: logs that agree at one entry and took every
later one behind its predecessor agree everywhere.)

Invariants:
1. The target is a prefix of the source, from the first offset copied on; only runs that follow the
   log end are offered.
2. `appended` never passes the oldest run that is not acknowledged.
3. An answer to a question of an earlier generation changes nothing.
4. Offsets left out are in `gaps`, with their cause.

In: located, fetched, out_of_range, diverged, corrupt, appended, refused, lost, recreated
Out: Locate, Declared, Finished, Stopped; what to fetch and append is asked for
Owner: the flow's reactor thread
"""

from __future__ import annotations

from collections import deque
from uuid import UUID

from kclient.types import TopicPartition
from kclient.wire.errors import (
    CorruptMessage,
    KafkaError,
    MessageTooLarge,
    PolicyViolation,
    RecordListTooLarge,
)
from mirrormaker.prefix import aged_out, mismatch, target_ahead
from mirrormaker.runs import Run
from mirrormaker.words import (
    Append,
    Cause,
    Declared,
    Effect,
    Ends,
    Finished,
    Gap,
    GapPolicy,
    LinkState,
    Locate,
    Problem,
    Stopped,
)

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
"""Seconds before both logs are asked again: doubles from the first to the longest."""

PATIENCE = 8
"""How often an answer that may only be early is asked for again (a watermark not yet up to date)."""

CORRUPT_TRIES = 3
"""How often a batch with a wrong CRC is fetched again before it is believed to be damaged."""

_TRIES: dict[type[KafkaError], int] = {
    CorruptMessage: CORRUPT_TRIES,
    MessageTooLarge: PATIENCE,  # a config that was raised a moment ago
    RecordListTooLarge: PATIENCE,
    PolicyViolation: PATIENCE,  # the mark of a mirror that was set a moment ago
}
"""How often a refusal is believed to pass."""

NOTHING = -1


class PartitionLink:
    """Copies one partition. *cut* (`--once`) is the source offset to stop at."""

    def __init__(
        self,
        tp: TopicPartition,
        *,
        topic_id: UUID | None = None,
        cut: int | None = None,
        compacted: bool = False,
        gap_policy: GapPolicy = GapPolicy.FAIL,
    ) -> None:
        self.tp = tp
        """The partition at the source."""
        self.topic_id = topic_id
        """The source topic's id: only this topic is read, whatever later has its name."""
        self.cut = cut
        self.compacted = compacted
        """Whether either side may rewrite its batches: then their CRC proves nothing."""
        self.gap_policy = gap_policy
        self.state = LinkState.LOCATING
        self.generation = 0
        self.appended_end = NOTHING
        """The target's log end as last acknowledged."""
        self.fetch_offset = NOTHING
        """The next offset to ask the source for."""
        self.fetched_epoch = -1
        """The source's leader epoch of the last batch fetched (KIP-320)."""
        self.source_end = NOTHING
        """The source's log end as last heard."""
        self.problem: Problem | None = None
        self.gaps: list[Gap] = []
        self.held_bytes = 0
        self.rewinds = 0
        self._fetched_end = NOTHING
        self._begins_at = NOTHING
        """Where the copy begins or went on: what lies below is no lag."""
        self._fetched_crc = 0
        """Of the last batch before `_fetched_end`."""
        self._queue: deque[Append] = deque()
        self._in_flight: deque[Append] = deque()
        self._draining = False
        self._failures = 0
        self._known_end = NOTHING
        self._unlikely = 0
        self._corrupt = 0
        self._was_out_of_range = False
        self._epochs_mislead = False
        """Whether the source denies an epoch that its own batches carry: then it is not told any."""

    # --- what is wanted

    @property
    def wants_fetch(self) -> bool:
        """Whether `fetch_offset` is to be asked for."""
        return (
            self.state is LinkState.COPYING
            and not self._draining
            and (self.cut is None or self.fetch_offset < self.cut)
        )

    @property
    def caught_up(self) -> bool:
        """Whether everything the source is known to have was fetched."""
        return self.fetch_offset >= self.source_end

    @property
    def has_append(self) -> bool:
        """Whether `next_append` has one to give."""
        return bool(self._queue)

    @property
    def next_size(self) -> int:
        """Bytes of what `next_append` would give; 0 if that is nothing."""
        return self._queue[0].run.size if self._queue else 0

    @property
    def in_flight(self) -> int:
        """Appends handed out and not answered."""
        return len(self._in_flight)

    @property
    def lag(self) -> int | None:
        """Records the target is behind by; None while unknown."""
        if NOTHING in (self.appended_end, self.source_end):
            return None
        return max(0, self.source_end - max(self.appended_end, self._begins_at))

    def next_append(self) -> Append:
        """Hand out the oldest run that waits; it is in flight from now on."""
        append = self._queue.popleft()
        self._in_flight.append(append)
        return append

    # --- the logs

    def start(self) -> list[Effect]:
        """Begin: find out where both logs are."""
        return [Locate(self.generation, 0.0)]

    def located(self, generation: int, ends: Ends) -> list[Effect]:
        """Handle both logs being where *ends* says."""
        if not self._is_current(generation, LinkState.LOCATING):
            return []
        self.source_end = max(self.source_end, ends.source_end)
        early = self._too_early(ends)
        if early is not None:
            self._unlikely += 1
            if self._unlikely < PATIENCE:
                return [Locate(self.generation, self._delay(self._unlikely))]
            if early.cause is Cause.TARGET_AHEAD:
                return self._stop(early.cause, early.detail)
        self._unlikely = 0
        self._known_end = NOTHING
        self.source_end = ends.source_end
        problem = mismatch(ends, compacted=self.compacted)
        if problem is not None:
            return self._stop(problem.cause, problem.detail)
        effects: list[Effect] = []
        missing = aged_out(ends)
        if missing is not None:
            if self.gap_policy is GapPolicy.FAIL:
                return self._stop(
                    missing.cause,
                    f"offsets {missing.first}-{missing.until - 1} are gone, the source begins at "
                    f"{ends.source_start}; gap.policy=skip goes on from there",
                )
            effects.append(self._declare(missing))
        self.state = LinkState.COPYING
        self.appended_end = self._fetched_end = ends.target_end
        self._fetched_crc = ends.target_tail.crc if ends.target_tail is not None else 0
        if ends.target_start == ends.target_end:  # it begins where the source does
            self._fetched_end = max(ends.target_end, ends.source_start)
        self._begins_at = self._fetched_end
        self.fetch_offset = max(ends.target_end, ends.source_start)
        if self._was_out_of_range and ends.source_start <= self.fetch_offset <= ends.source_end:
            self._epochs_mislead = True
        self._was_out_of_range = False
        tail = ends.source_tail
        self.fetched_epoch = -1 if tail is None or self._epochs_mislead else tail.leader_epoch
        return effects + self._maybe_finish()

    def not_located(self, generation: int, problem: KafkaError) -> list[Effect]:
        """Handle the logs not being found: ask again, unless that can never help."""
        if not self._is_current(generation, LinkState.LOCATING):
            return []
        if not problem.retriable:
            return self._stop(Cause.UNREADABLE, str(problem))
        self._failures += 1
        return [Locate(self.generation, self._delay(self._failures))]

    def _too_early(self, ends: Ends) -> Problem | None:
        """Say what *ends* seems to lack; after a change of leader a watermark may lag for a moment."""
        ahead = target_ahead(ends)
        if ahead is None and ends.target_end < self._known_end:
            return Problem(Cause.REFUSED, "the target's log end is not committed yet")
        return ahead

    # --- the source

    def fetched(
        self, generation: int, asked: int, run: Run | None, source_end: int
    ) -> list[Effect]:
        """Handle the answer to a fetch at offset *asked*; *run* is None if nothing was there."""
        if not self._is_current(generation, LinkState.COPYING) or asked != self.fetch_offset:
            return []
        self.source_end = source_end
        if run is None:
            return []
        self._corrupt = 0
        follows = self._fetched_end
        if run.base_offset < follows and not self._fetched_crc:
            follows = run.base_offset  # the source begins inside a batch, the target before it
        if run.base_offset < max(follows, self.appended_end):
            return self._stop(
                Cause.STRADDLES,
                f"the target ends at {self._fetched_end}, the source has a batch of offsets from "
                f"{run.base_offset} on",
            )
        effects: list[Effect] = []
        missing = run.missing_offsets + max(0, run.base_offset - self.fetch_offset)
        if missing and not self.compacted:
            gap = Gap(self.fetch_offset, run.next_offset, Cause.COMPACTION)
            effects.append(self._declare(gap))
        self._queue.append(Append(run, follows, self._fetched_crc, self.generation))
        self.held_bytes += run.size
        self._fetched_end = self.fetch_offset = run.next_offset
        self._fetched_crc = run.last_crc
        if not self._epochs_mislead:
            self.fetched_epoch = run.leader_epoch
        return effects

    def nothing_below_cut(self, generation: int) -> list[Effect]:
        """Handle the source having nothing between `fetch_offset` and the cut."""
        if not self._is_current(generation, LinkState.COPYING) or self.cut is None:
            return []
        self.fetch_offset = self.cut
        return self._maybe_finish()

    def out_of_range(self, generation: int) -> list[Effect]:
        """Handle the source not having `fetch_offset`: what was fetched is appended, then it is asked why."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        self._draining = self._was_out_of_range = True
        return self._maybe_drained()

    def diverged(self, generation: int) -> list[Effect]:
        """Handle the source having lost what was fetched from it (KIP-320): forget it and compare."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        return self._rewind(FIRST_DELAY)

    def corrupt(self, generation: int, problem: CorruptMessage) -> list[Effect]:
        """Handle a batch whose CRC is wrong: perhaps it came so, so it is fetched again."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        self._corrupt += 1
        if self._corrupt < CORRUPT_TRIES:
            return []
        return self._stop(Cause.CORRUPT, problem.message)

    def unreadable(self, generation: int, problem: KafkaError) -> list[Effect]:
        """Handle an error of the source that will not pass."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        return self._stop(Cause.UNREADABLE, str(problem))

    def recreated(self, detail: str) -> list[Effect]:
        """Handle the topic having another id than before at the source."""
        return self._stop(Cause.RECREATED, detail)

    # --- the target

    def not_a_mirror(self, detail: str) -> list[Effect]:
        """Handle the target's topic being none that may be written to."""
        return self._stop(Cause.NO_MIRROR, detail)

    def appended(self, generation: int, next_offset: int) -> list[Effect]:
        """Handle the oldest append in flight being acknowledged up to *next_offset*."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        done = self._in_flight[0] if self._in_flight else None
        if done is None or done.run.next_offset != next_offset:
            return self._rewind(FIRST_DELAY)  # answers come in order, or are not to be trusted
        self._in_flight.popleft()
        self.held_bytes -= done.run.size
        self.appended_end = next_offset
        self._failures = 0
        return self._maybe_finish() or self._maybe_drained()

    @property
    def is_idle(self) -> bool:
        """Whether it copies, and has nothing to append: no answer will tell it where the target's log ends."""
        return self.state is LinkState.COPYING and not self._queue and not self._in_flight

    def target_led_anew(self, generation: int) -> list[Effect]:
        """Handle the target having another leader epoch: an idle link looks whether that lost records."""
        if not self._is_current(generation, LinkState.COPYING) or not self.is_idle:
            return []
        return self._rewind(0.0)

    def refused(self, generation: int, log_end: int) -> list[Effect]:
        """Handle an append being refused because the target's log ends at *log_end*, or otherwise."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        self._known_end = log_end
        self._failures += 1
        return self._rewind(0.0 if self._failures == 1 else self._delay(self._failures))

    def lost(self, generation: int, problem: KafkaError) -> list[Effect]:
        """Handle an append that failed, or of which nothing is known."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        self._failures += 1
        tries = _TRIES.get(type(problem), 0 if not problem.retriable else None)
        if tries is not None and self._failures >= tries:
            return self._stop(Cause.REFUSED, str(problem))
        return self._rewind(self._delay(self._failures))

    # --- inside

    def _is_current(self, generation: int, state: LinkState) -> bool:
        return generation == self.generation and self.state is state

    def _rewind(self, delay: float) -> list[Effect]:
        """Forget the whole pipeline and ask both logs where they are."""
        self.rewinds += 1
        self._forget()
        self.state = LinkState.LOCATING
        return [Locate(self.generation, delay)]

    def _forget(self) -> None:
        self.generation += 1
        self._queue.clear()
        self._in_flight.clear()
        self.held_bytes = 0
        self._draining = False

    def _maybe_drained(self) -> list[Effect]:
        if self._draining and not self._queue and not self._in_flight:
            self._failures += 1
            return self._rewind(self._delay(self._failures))
        return []

    def _maybe_finish(self) -> list[Effect]:
        if self.cut is None or self.fetch_offset < self.cut or self._queue or self._in_flight:
            return []
        self._forget()
        self.state = LinkState.FINISHED
        return [Finished()]

    def _stop(self, cause: Cause, detail: str) -> list[Effect]:
        if self.state is LinkState.STOPPED:
            return []
        self._forget()
        self.state = LinkState.STOPPED
        self.problem = Problem(cause, detail)
        return [Stopped(self.problem)]

    def _declare(self, gap: Gap) -> Declared:
        self.gaps.append(gap)
        return Declared(gap)

    @staticmethod
    def _delay(failures: int) -> float:
        return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 20))
