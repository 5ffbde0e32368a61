"""The link of one partition, a state machine: what to fetch, what to append, and how to recover from a failure.

Theory of operation
===================
Batches keep their offsets, so the target's log end is the position of the mirror. The position is stored nowhere else.
Every append is conditional (`kclient.wire.produce`). It names the end offset and the CRC of the batch that the link
expects to be the last in the target's log. The leader appends the run only after exactly that batch; otherwise it
rejects the append and returns its log end offset. Appends are pipelined, and each names its predecessor. So when one
fails, the leader rejects all that follow it, even if another producer's record is at that offset.

After any failure (rejection, timeout, lost connection, new leader) the link drops the whole pipeline. It reads both log
ends (`Locate`) and continues from the target's log end. A delayed append finds another log end and is rejected. A lost
response shows as a log end that has moved. A second mirror (a zombie) is rejected in the same way. A zombie of an
earlier topic of the same name is rejected by the topic ids that an append names (docs/design/mirror.md). So every batch
acknowledged at the source is in the target once, in order, at its own offset. This holds after any number of crashes of
the mirror and of brokers on either side.

Another producer may have written to the target, or the source may have lost or recreated its log. So before its first
append the link compares the last batch below the target's log end with the source's batch there. A target that is not
a prefix of the source stops the link with a `Problem`; the link never skips records silently. As in Raft, logs that
agree at one entry, and appended every later entry after its predecessor, agree everywhere. That batch may be gone at
the source; so the link also compares the topic id that the target states for its records (`mirrormaker.lineage`).

A gap that the policy skips is written into the gap ledger first (`RecordGap`). The link waits for the acknowledgement,
then reads both log ends again, and continues if the gap is still the same. So no record is appended behind a gap that
is not in the ledger (docs/design/mirror-ledger.md).

A target loses records only under a new leader epoch, and the next append detects it. A link without records to append
reads both log ends when the target's metadata show a new epoch.

A stop with a cause in `RETRIABLE_CAUSES` (rejected records, an unreadable source, a damaged batch) is not final. The
flow calls `retry` after a delay: an operator may have removed the cause. A target that is no prefix stays stopped.

Invariants:
1. From the first copied offset on, the target is a prefix of the source; the link offers only runs that follow the
   log end.
2. `appended_end` never passes the oldest run without an acknowledgement.
3. A response to a request of an earlier generation changes nothing.
4. Skipped offsets are in `gaps`, with their cause.
5. From the prefix check's gap on, nothing is fetched or appended before `recorded` was called for exactly that gap.

In: located, not_located, recorded, not_recorded, retry, fetched, nothing_below_cut, out_of_range, diverged, corrupt,
    unreadable, appended, append_rejected, append_failed, target_epoch_changed, not_a_mirror, marked
Out: Locate, RecordGap, ReportGap, Finished, Stopped, Recovered; the flow polls `wants_fetch` and `next_append`
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
from kclient.wire.produce import NO_TOPICS, CopiedTopics
from mirrormaker.lineage import Lineage, text_of
from mirrormaker.link_state import (
    RETRIABLE_CAUSES,
    Append,
    Cause,
    Effect,
    Finished,
    Gap,
    GapPolicy,
    LinkCounts,
    LinkState,
    Locate,
    LogEnds,
    Problem,
    RecordGap,
    Recovered,
    ReportGap,
    Stopped,
)
from mirrormaker.prefix import judgement
from mirrormaker.runs import Run

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
"""Seconds before both log ends are read again: exponential backoff from the first to the longest delay."""

MAX_TRIES = 8
"""Reads of log ends before a result that may be stale counts as final (a high watermark may lag after an election)."""

CORRUPT_TRIES = 3
"""Fetches of a batch with a wrong CRC before it counts as damaged on the source's disk."""

_TRIES: dict[type[KafkaError], int] = {
    CorruptMessage: CORRUPT_TRIES,
    MessageTooLarge: MAX_TRIES,  # max.message.bytes may have been raised, but not be in effect yet
    RecordListTooLarge: MAX_TRIES,
    PolicyViolation: MAX_TRIES,  # the marks may have been set, but not be in effect yet
}
"""Attempts after which an error that may be temporary stops the link."""

FIRST_RETRY = 5.0
LONGEST_RETRY = 60.0
"""Seconds before a stopped link tries again: exponential backoff from the first to the longest delay."""

UNKNOWN = -1


class PartitionLink:
    """Copies one partition. *cut* (`--once`) is the source offset to stop at."""

    def __init__(
        self,
        tp: TopicPartition,
        *,
        topic_id: UUID | None = None,
        lineage: Lineage | None = None,
        cut: int | None = None,
        compacted: bool = False,
        gap_policy: GapPolicy = GapPolicy.FAIL,
        retries: bool = False,
    ) -> None:
        self.tp = tp
        """The partition at the source."""
        self.topic_id = topic_id
        """The topic id at the source: the link never reads a later topic of the same name."""
        self.lineage = lineage or Lineage()
        self.cut = cut
        self.compacted = compacted
        """Whether compaction may rewrite batches on either side: then CRCs are not compared."""
        self.gap_policy = gap_policy
        self.retries = retries
        """Whether the link tries again after a stop with a cause in `RETRIABLE_CAUSES`."""
        self.is_checked = False
        """Whether both logs were compared, with any outcome."""
        self._stops = 0
        """Stops since the link last copied."""
        self.state = LinkState.LOCATING
        self.generation = 0
        self.appended_end = UNKNOWN
        """The target's log end as last acknowledged."""
        self.fetch_offset = UNKNOWN
        """The next offset to fetch from the source."""
        self.fetched_epoch = -1
        """The source's leader epoch of the last batch fetched (KIP-320)."""
        self.source_end = UNKNOWN
        """The source's last stable offset in its last response."""
        self.source_high_watermark = UNKNOWN
        """The source's high watermark as last read: open transactions are below it, and above `source_end`."""
        self.problem: Problem | None = None
        """Why the link stopped; kept while it tries again, until it copies."""
        self.gaps: list[Gap] = []
        self._recorded: Gap | None = None
        """The gap that was written into the ledger last."""
        self.buffered_bytes = 0
        self.counts = LinkCounts()
        self._topics = NO_TOPICS
        """The topics that the last prefix check compared: a leader rejects runs after either was created again."""
        self._fetched_end = UNKNOWN
        self._copy_start = UNKNOWN
        """The offset where the copy started or resumed: offsets below do not count as lag."""
        self._fetched_crc = 0
        """The CRC of the last batch below `_fetched_end`."""
        self._queue: deque[Append] = deque()
        self._in_flight: deque[Append] = deque()
        self._draining = False
        self._failures = 0
        # The target's log end in its last rejection; the fetch offset that the source rejected as out of range.
        self._known_end = self._out_of_range = UNKNOWN
        self._stale_answers = self._corrupt = 0
        # By its end, the source's leader epoch of the last copied batch, and of those with an unknown outcome.
        self._copied_epochs: dict[int, int] = {}
        self._ignore_epochs = False
        """Whether the source rejected an epoch of its own batches: then fetches carry no epoch."""

    # --- requests to send

    @property
    def wants_fetch(self) -> bool:
        """Whether to fetch from `fetch_offset`."""
        return (
            self.state is LinkState.COPYING
            and not self._draining
            and (self.cut is None or self.fetch_offset < self.cut)
        )

    @property
    def caught_up(self) -> bool:
        """Whether the link has fetched up to the source's last known log end."""
        return self.fetch_offset >= self.source_end

    @property
    def has_append(self) -> bool:
        """Whether `next_append` has a run to return."""
        return bool(self._queue)

    @property
    def next_size(self) -> int:
        """The size in bytes of the next run to append; 0 without one."""
        return self._queue[0].run.size if self._queue else 0

    @property
    def in_flight(self) -> int:
        """The number of unanswered appends."""
        return len(self._in_flight)

    @property
    def lag(self) -> int | None:
        """The lag of the target behind the source's high watermark, in records; None while unknown."""
        if UNKNOWN in (self.appended_end, self.source_high_watermark):
            return None
        return max(0, self.source_high_watermark - max(self.appended_end, self._copy_start))

    @property
    def open_records(self) -> int:
        """Records of the lag that cannot be read yet: from the first open transaction on."""
        if UNKNOWN in (self.source_end, self.source_high_watermark):
            return 0
        return max(0, self.source_high_watermark - max(self.source_end, self._copy_start))

    def next_append(self) -> Append:
        """Return the oldest queued run and count it as in flight."""
        append = self._queue.popleft()
        self._in_flight.append(append)
        return append

    # --- the logs

    def start(self) -> list[Effect]:
        """Start the link: read both log ends."""
        return [Locate(self.generation, 0.0)]

    def retry(self, generation: int) -> list[Effect]:
        """Try again after a stop: read both log ends."""
        if not self._is_current(generation, LinkState.STOPPED):
            return []
        self.state = LinkState.LOCATING
        return [Locate(self.generation, 0.0)]

    def located(self, generation: int, ends: LogEnds) -> list[Effect]:
        """Handle the log ends of both sides."""
        if not self._is_current(generation, LinkState.LOCATING):
            return []
        self.source_end = max(self.source_end, ends.source_end)
        self._read_ends(ends)
        judged = judgement(ends, self.lineage, self.gap_policy, compacted=self.compacted)
        cause = judged.cause if isinstance(judged, Problem) else None
        if cause is not Cause.RECREATED and self._may_be_stale(ends):
            self._stale_answers += 1
            if self._stale_answers < MAX_TRIES:
                return [Locate(self.generation, self._delay(self._stale_answers))]
        self.is_checked = True
        if isinstance(judged, Problem) and cause in (Cause.RECREATED, Cause.TARGET_AHEAD):
            return self._stop(judged)
        self._stale_answers = 0
        self._known_end = UNKNOWN
        self.source_end = ends.source_end
        if isinstance(judged, Problem):
            return self._stop(judged)
        if judged is not None and judged != self._recorded:
            self.state = LinkState.RECORDING
            return [RecordGap(self.generation, judged)]
        effects = self._add_gap(judged) if judged is not None else []
        self.state = LinkState.COPYING
        self._topics = CopiedTopics(text_of(self.topic_id), ends.target_topic_id)
        self.appended_end = self._fetched_end = ends.target_end
        self._fetched_crc = ends.target_last_batch.crc if ends.target_last_batch is not None else 0
        if ends.target_start == ends.target_end:  # an empty target starts where the source does
            self._fetched_end = max(ends.target_end, ends.source_start)
        self._copy_start = self._fetched_end
        self.fetch_offset = max(ends.target_end, ends.source_start)
        if ends.source_start <= self._out_of_range <= ends.source_end:
            self._ignore_epochs = True  # it was not the offset that the source rejected
        self._out_of_range = UNKNOWN
        tail = ends.source_last_batch
        epoch = -1 if tail is None else tail.leader_epoch
        if self.compacted:  # the batches were not compared: that of the source may be another one
            epoch = self._copied_epochs.get(ends.target_end, epoch)
        self._copied_epochs = {ends.target_end: epoch}
        follows = self.fetch_offset == ends.target_end  # else later epochs may be in between
        self.fetched_epoch = epoch if follows and not self._ignore_epochs else -1
        return effects + self._maybe_finish()

    def recorded(self, generation: int, gap: Gap) -> list[Effect]:
        """Handle that *gap* is in the ledger: read both log ends again, because the source may have deleted more."""
        if not self._is_current(generation, LinkState.RECORDING):
            return []
        self._recorded = gap
        self._failures = 0
        self.state = LinkState.LOCATING
        return [Locate(self.generation, 0.0)]

    def not_recorded(self, generation: int) -> list[Effect]:
        """Handle that a gap could not be written into the ledger: try again after a delay."""
        if not self._is_current(generation, LinkState.RECORDING):
            return []
        self._failures += 1
        self.state = LinkState.LOCATING
        return [Locate(self.generation, self._delay(self._failures))]

    def _read_ends(self, ends: LogEnds) -> None:
        """Take the lag from both logs, also for a link that is going to stop."""
        self.source_high_watermark = max(ends.source_end, ends.source_high_watermark)
        self.appended_end = ends.target_end
        if ends.target_start == ends.target_end:
            self._copy_start = max(ends.target_end, ends.source_start)

    def source_advanced(self, high_watermark: int) -> None:
        """Handle a high watermark of the source that was read for a stopped link."""
        self.source_high_watermark = high_watermark

    def not_located(self, generation: int, problem: KafkaError) -> list[Effect]:
        """Handle an error while reading the log ends: retry if it is retriable, stop otherwise."""
        if not self._is_current(generation, LinkState.LOCATING):
            return []
        if not problem.retriable:
            return self._stop(Problem(Cause.UNREADABLE, str(problem)))
        self._failures += 1
        return [Locate(self.generation, self._delay(self._failures))]

    def _may_be_stale(self, ends: LogEnds) -> bool:
        """Return whether *ends* may be stale: after an election a high watermark may lag for a moment."""
        lost = ends.problem is not None and ends.problem.cause is Cause.TARGET_LOST
        return lost or ends.target_end > ends.source_end or ends.target_end < self._known_end

    # --- the source

    def fetched(
        self,
        generation: int,
        asked: int,
        run: Run | None,
        source_end: int,
        high_watermark: int = UNKNOWN,
    ) -> list[Effect]:
        """Handle the response to a fetch at offset *asked*; *run* is None if it held no batch."""
        if not self._is_current(generation, LinkState.COPYING) or asked != self.fetch_offset:
            return []
        self.source_end = source_end
        self.source_high_watermark = max(source_end, high_watermark)
        if run is None:
            unmarked = self.problem is not None and self.problem.cause is Cause.NO_MIRROR
            return self._recovered() if self.is_idle and not unmarked else []
        self._corrupt = 0
        follows = self._fetched_end
        if run.base_offset < follows and not self._fetched_crc:
            follows = run.base_offset  # the source starts inside a batch, the target below it
        if run.base_offset < max(follows, self.appended_end):
            detail = f"the target ends at {self._fetched_end}, a batch of the source begins at {run.base_offset}"
            return self._stop(Problem(Cause.STRADDLES, detail))
        effects: list[Effect] = []
        missing = run.missing_offsets + max(0, run.base_offset - self.fetch_offset)
        if missing and not self.compacted:
            gap = Gap(self.fetch_offset, run.next_offset, Cause.COMPACTION)
            effects += self._add_gap(gap)
        self._queue.append(Append(run, follows, self._fetched_crc, self.generation, self._topics))
        self.buffered_bytes += run.size
        self._fetched_end = self.fetch_offset = run.next_offset
        self._fetched_crc = run.last_crc
        if not self._ignore_epochs:
            self.fetched_epoch = run.leader_epoch
        return effects

    def nothing_below_cut(self, generation: int) -> list[Effect]:
        """Handle that the source has no batch between `fetch_offset` and the cut."""
        if not self._is_current(generation, LinkState.COPYING) or self.cut is None:
            return []
        self.fetch_offset = self.cut
        return self._maybe_finish()

    def out_of_range(self, generation: int) -> list[Effect]:
        """Handle OFFSET_OUT_OF_RANGE: append the fetched runs, then read both log ends."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        self._draining = True
        self._out_of_range = self.fetch_offset
        return self._maybe_drained()

    def diverged(self, generation: int) -> list[Effect]:
        """Handle a diverging epoch (KIP-320), the source lost fetched records: drop them and compare both logs.

        Of a compacted topic only offsets are compared. There a diverging epoch behind the last copied batch shows that
        the source lost that one, too.
        """
        if not self._is_current(generation, LinkState.COPYING):
            return []
        if self.compacted and self.is_idle and self.fetched_epoch >= 0:
            detail = (
                f"the source lost records below offset {self.fetch_offset}, which the target has"
            )
            return self._stop(Problem(Cause.DIVERGED, detail))
        return self._rewind(FIRST_DELAY)

    def corrupt(self, generation: int, problem: CorruptMessage) -> list[Effect]:
        """Handle a batch with a wrong CRC: fetch it again, because the network may have damaged it."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        self.counts.damaged += 1
        self._corrupt += 1
        if self._corrupt < CORRUPT_TRIES:
            return []
        return self._stop(Problem(Cause.CORRUPT, problem.message))

    def unreadable(self, generation: int, problem: KafkaError) -> list[Effect]:
        """Handle a permanent error of the source."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        return self._stop(Problem(Cause.UNREADABLE, str(problem)))

    # --- the target

    def not_a_mirror(self, detail: str) -> list[Effect]:
        """Handle that the target topic must not be marked as a mirror."""
        return self._stop(Problem(Cause.NO_MIRROR, detail))

    def marked(self) -> list[Effect]:
        """Handle that the target states this source topic as the origin of its records from now on."""
        self.lineage = Lineage(self.lineage.source, self.lineage.source)
        if self.problem is None or self.problem.cause is not Cause.NO_MIRROR:
            return []
        return self._recovered() + self.retry(self.generation)

    def appended(self, generation: int, next_offset: int) -> list[Effect]:
        """Handle the acknowledgement of the oldest append in flight, up to *next_offset*."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        done = self._in_flight[0] if self._in_flight else None
        if done is None or done.run.next_offset != next_offset:
            # Responses out of order: the pipeline is in an unknown state.
            return self._rewind(FIRST_DELAY)
        self._in_flight.popleft()
        self.buffered_bytes -= done.run.size
        self.appended_end = next_offset
        self._copied_epochs = {next_offset: done.run.leader_epoch}
        self._failures = 0
        return self._recovered() + (self._maybe_finish() or self._maybe_drained())

    @property
    def is_idle(self) -> bool:
        """Whether the link is copying without a queued or unanswered append, so no response will show the log end."""
        return self.state is LinkState.COPYING and not self._queue and not self._in_flight

    def target_epoch_changed(self, generation: int) -> list[Effect]:
        """Handle a new leader epoch of the target: an idle link checks whether the target lost records."""
        if not self._is_current(generation, LinkState.COPYING) or not self.is_idle:
            return []
        return self._rewind(0.0)

    def append_rejected(self, generation: int, log_end: int) -> list[Effect]:
        """Handle a rejected append: the target's log ends at *log_end*, or with another batch."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        self.counts.rejected += 1
        self._known_end = log_end
        self._failures += 1
        return self._rewind(0.0 if self._failures == 1 else self._delay(self._failures))

    def append_failed(self, generation: int, problem: KafkaError) -> list[Effect]:
        """Handle a failed append, or one with an unknown outcome."""
        if not self._is_current(generation, LinkState.COPYING):
            return []
        self._failures += 1
        tries = _TRIES.get(type(problem), 0 if not problem.retriable else None)
        if tries is not None and self._failures >= tries:
            return self._stop(Problem(Cause.REJECTED, str(problem)))
        return self._rewind(self._delay(self._failures))

    # --- internals

    def _is_current(self, generation: int, state: LinkState) -> bool:
        return generation == self.generation and self.state is state

    def _rewind(self, delay: float) -> list[Effect]:
        """Drop the whole pipeline and read both log ends again."""
        self.counts.rewinds += 1
        self._drop_pipeline()
        self.state = LinkState.LOCATING
        return [Locate(self.generation, delay)]

    def _drop_pipeline(self) -> None:
        self.generation += 1
        self._queue.clear()
        # These may be appended nevertheless.
        self._copied_epochs |= {
            each.run.next_offset: each.run.leader_epoch for each in self._in_flight
        }
        self._in_flight.clear()
        self.buffered_bytes = 0
        self._draining = False

    def _maybe_drained(self) -> list[Effect]:
        if self._draining and not self._queue and not self._in_flight:
            self._failures += 1
            return self._rewind(self._delay(self._failures))
        return []

    def _maybe_finish(self) -> list[Effect]:
        if self.cut is None or self.fetch_offset < self.cut or self._queue or self._in_flight:
            return []
        self._drop_pipeline()
        self.state = LinkState.FINISHED
        return [Finished()]

    def _stop(self, problem: Problem) -> list[Effect]:
        if self.state is LinkState.STOPPED:
            return []
        self._drop_pipeline()
        self.state = LinkState.STOPPED
        self.problem = problem
        if not self.retries or problem.cause not in RETRIABLE_CAUSES:
            return [Stopped(problem)]
        delay = min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(self._stops, 20))
        self._stops += 1
        return [Stopped(problem, delay)]

    def _recovered(self) -> list[Effect]:
        """End the last problem: the link copies again, or has nothing to copy."""
        if self.problem is None:
            return []
        effect = Recovered(self.problem)
        self.problem, self._stops = None, 0
        return [effect]

    def _add_gap(self, gap: Gap) -> list[Effect]:
        """Add *gap*, unless it was found before: the link may read the log ends twice before its next append."""
        if gap in self.gaps:
            return []
        self.gaps.append(gap)
        return [ReportGap(gap)]

    @staticmethod
    def _delay(failures: int) -> float:
        return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 20))
