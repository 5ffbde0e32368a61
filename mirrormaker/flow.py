"""Runs the links of one direction: sends their fetches and appends, and gives them the responses.

Theory of operation
===================
Each `PartitionLink` decides what to fetch and append; the flow sends it. `send_requests` sends every request that can
be sent now: appends to the target's leaders, then fetches to the source's leaders. One append request holds runs of
several partitions, and several requests are in flight per leader. ``buffer.memory`` bounds the flow: a slow target
stops the fetches (`mirrormaker.fetch_budget`). ``fetch.max.bytes.per.second`` delays them (`mirrormaker.bandwidth`).

A partition that is caught up waits in the fetch session of its leader. It is touched only when the leader sends a
change of it (`mirrormaker.tail_fetches`). It leaves the session when its link wants another fetch than the leader has.

All appends of one partition in flight use one connection, so they stay in order. The link handles every failure: it
starts again from the target's log end.

In: responses of both clusters   Out: requests, lines for the operator   Owner: the reactor's thread
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.types import TopicPartition
from kclient.wire.batches import iterate
from kclient.wire.errors import (
    CorruptMessage,
    KafkaError,
    LeaderNotAvailable,
    MessageTooLarge,
)
from mirrormaker import source as reading
from mirrormaker import target as writing
from mirrormaker.evidence import Evidence
from mirrormaker.fetch_budget import Channel, FetchBudget
from mirrormaker.latency import Latency
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import (
    Append,
    Effect,
    Finished,
    Gap,
    LinkState,
    Locate,
    LogEnds,
    PartitionFetch,
    Problem,
    RecordGap,
    Recovered,
    ReportGap,
    Stopped,
)
from mirrormaker.locator import Locator, ReadsLogEnds, Timers, kafka_error
from mirrormaker.marks import Marks, first_without_prefix, is_checked, is_prefix
from mirrormaker.progress import Progress
from mirrormaker.settings import LinkSettings
from mirrormaker.source import (
    BULK_CHANNEL,
    TAIL_CHANNEL,
    Diverged,
    Fetched,
    OutOfRange,
)
from mirrormaker.tail_fetches import TailFetches

RETRY_BACKOFF = 0.2
"""Seconds before a partition is fetched again after an error."""

MARK_RETRY_BACKOFF = 1.0
"""Seconds before a failed attempt to mark a topic is repeated."""

CLOSE = 1.0
"""Seconds that the source's leaders get to confirm that a fetch session is closed."""

PER_PARTITION = 3
"""Limit of buffered bytes per partition, as a multiple of max.partition.fetch.bytes."""


class Flow:
    """Copies partitions of *source* to *target*. *report* gets (subject, event) for the operator.

    *done* is called when the last link has finished or stopped; *defect* with a failure that is not a KafkaError.
    *mark* marks a target topic as a mirror of a source topic with a topic id (`mirrormaker.marks`). *too_large* gets a
    source topic and the size of its batch that the target rejected as too large. *record* writes a gap of a source
    partition, its target partition, and the present topic id into the ledger. *rejected* gets a source partition with a
    target's log that ends elsewhere than this flow expects; it may remove the partition. *evidence* gets what was
    fetched and acknowledged, *latency* what was acknowledged.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        settings: LinkSettings,
        *,
        report: Callable[[str, str], None],
        done: Callable[[], None],
        defect: Callable[[Failure], None],
        mark: Callable[[str, str, str], Awaitable[None]],
        too_large: Callable[[str, int], None],
        record: Callable[[TopicPartition, TopicPartition, Gap, str], Deferred[None]],
        rejected: Callable[[TopicPartition], None],
        evidence: Evidence | None = None,
        latency: Latency | None = None,
    ) -> None:
        self.source = source
        self.target = target
        self.reactor = source.reactor
        self.settings = settings
        self.links: dict[TopicPartition, PartitionLink] = {}
        self.progress = Progress(self.reactor.seconds())
        self._answered: dict[TopicPartition, float] = {}
        """The time of the last successful response that named a source partition."""
        self._report = report
        self._done = done
        self._defect = defect
        self._mark = mark
        self._too_large = too_large
        self._record = record
        self._rejected = rejected
        self._evidence = evidence
        self._latency = latency
        self.marks = Marks()
        self._reported: dict[TopicPartition, Problem] = {}
        """The problem of each stopped partition that was reported last."""
        self._next_generation: dict[TopicPartition, int] = {}
        """The generation of the next link of a removed partition: late responses to its predecessor do not match it."""
        self._copies: dict[TopicPartition, TopicPartition] = {}
        self._to_fetch: dict[TopicPartition, PartitionLink] = {}
        self._to_append: dict[TopicPartition, PartitionLink] = {}
        self._backing_off: set[TopicPartition] = set()
        self._fetching: set[TopicPartition] = set()
        """Partitions in a fetch in flight that has no session."""
        self._budget = FetchBudget(settings, now=self.reactor.seconds())
        self.bandwidth = self._budget.bandwidth
        self._tails = TailFetches(
            source,
            settings,
            self._budget,
            answered=self._give_outcomes,
            failed=self._fetch_failed,
            defect=defect,
        )
        self._in_flight_by_leader: dict[int, int] = defaultdict(int)
        """Unanswered append requests per target leader."""
        self._last_leader: dict[TopicPartition, int] = {}
        self._connecting: set[int] = set()
        self._waiting_for_bandwidth = False
        self._timers = Timers(self.reactor)
        self._locator = self._new_locator()
        self._sending = False
        self._send_again = False
        self.stopping = False
        self._target_epochs: dict[TopicPartition, int] = {}
        """Per source partition, the target's leader epoch at the last read of its log end."""
        target.on_change(lambda _metadata: self._check_target_epochs())
        # New metadata may show a leader for a partition without one.
        for cluster in (source, target):
            cluster.on_change(lambda _metadata: self.send_requests())

    def _new_locator(self) -> ReadsLogEnds:
        """Return what reads the log ends that links wait for."""
        return Locator(
            self.source,
            self.target,
            self._timers,
            self._copies,
            found=self._located,
            all_found=self.send_requests,
            defect=self._defect,
        )

    # --- partitions

    def add(self, link: PartitionLink, copy: TopicPartition) -> None:
        """Start to copy *link*'s partition to *copy*."""
        link.generation = self._next_generation.pop(link.tp, 0)
        self.links[link.tp] = link
        self._copies[link.tp] = copy
        self._perform(link, link.start())

    def remove(self, tp: TopicPartition) -> None:
        """Remove a partition; appends in flight may still be appended."""
        link = self.links.pop(tp, None)
        if link is not None:
            self._tails.discard(tp)
            self.progress.removed(link)
            if self._evidence is not None:
                self._evidence.removed(self._copies[tp])
            self._budget.buffered -= link.buffered_bytes
            self._next_generation[tp] = link.generation + 1
            for known in (
                self._to_fetch, self._to_append, self._copies, self._last_leader, self._target_epochs,
                self._reported, self._answered,
            ):  # fmt: skip
                known.pop(tp, None)

    def copied_to(self, topic: str) -> list[TopicPartition]:
        """Return the source partitions that are copied to the target topic *topic*."""
        return [tp for tp, copy in self._copies.items() if copy.topic == topic]

    def copied_elsewhere(self, mirrored: Mapping[str, str]) -> list[TopicPartition]:
        """Return the partitions that are copied to another target topic than *mirrored* has for their topic."""
        return [
            tp
            for tp, copy in self._copies.items()
            if mirrored.get(tp.topic, copy.topic) != copy.topic
        ]

    def proven_copies(self) -> dict[TopicPartition, TopicPartition]:
        """Return source partition -> target partition, where an offset means the same record on both sides.

        The target topic is marked, its partition is a prefix of the source's, and the source's topic is still the same.
        """
        id_of = self.source.metadata.topic_id
        return {
            tp: copy
            for tp, copy in self._copies.items()
            if self.marks.has(copy.topic)
            and is_prefix(self.links[tp])
            and self.links[tp].topic_id == id_of(tp.topic)
        }

    def answered_at(self, tp: TopicPartition) -> float | None:
        """Return the time of the last successful response to a fetch of the source partition *tp*."""
        at = self._answered.get(tp)
        return None if at is None else max(at, self._tails.answered_at(tp))

    @property
    def stopped_links(self) -> list[PartitionLink]:
        """Links that stopped because of a problem, and do not copy again yet."""
        return [link for link in self.links.values() if link.problem is not None]

    @property
    def settled(self) -> bool:
        """Whether every link has finished or stopped."""
        return all(
            link.state in (LinkState.FINISHED, LinkState.STOPPED) for link in self.links.values()
        )

    @property
    def appends_in_flight(self) -> int:
        """The number of append requests in flight."""
        return sum(self._in_flight_by_leader.values())

    def stop(self) -> None:
        """Send no more fetches and appends; responses are still handled."""
        self.stopping = True
        self._timers.stop()

    async def close_sessions(self) -> None:
        """Close the fetch sessions at the source, for at most `CLOSE` seconds. Call it after `stop`."""
        await self._tails.close(CLOSE)

    # --- sending

    def send_requests(self) -> None:
        """Send every append and every fetch that can be sent now."""
        if self._sending:
            self._send_again = True
            return
        self._sending = True
        try:
            while not self.stopping:
                self._send_again = False
                self._send()
                self._fetch()
                if not self._send_again:
                    break
        finally:
            self._sending = False

    def _send(self) -> None:
        by_leader: dict[int, list[PartitionLink]] = defaultdict(list)
        leader_of = self.target.metadata.leader
        unmarked: dict[str, None] = {}
        for tp, link in self._to_append.items():
            if not self.marks.has(self._copies[tp].topic):
                unmarked[self._copies[tp].topic] = None
                continue
            leader = leader_of(self._copies[tp])
            if leader is None:
                self.target.update_soon()
            elif not link.in_flight or self._last_leader.get(tp) == leader:
                by_leader[leader].append(link)
        for leader, links in by_leader.items():
            connection = self.target.brokers.ready(leader, writing.CHANNEL)
            if connection is None:
                self._connect(leader)
                continue
            while links and self._in_flight_by_leader[leader] < self.settings.max_in_flight:
                links = self._send_one(leader, connection, links)

        for topic in unmarked:
            self._mark_if_prefix(topic)

    def _mark_if_prefix(self, topic: str) -> None:
        """Mark a target topic if all its partitions are prefixes of the source's."""
        links = [link for tp, link in self.links.items() if self._copies[tp].topic == topic]
        if not is_checked(links):
            return  # the last link to be located calls this again
        other = first_without_prefix(links)
        if other is not None:
            detail = f"{topic} was not marked, because {other.tp} stopped: {other.problem}"
            for link in links:
                self._apply(link, link.not_a_mirror, detail)
        elif self.marks.begin(topic):

            async def mark() -> None:
                await self._mark(topic, links[0].tp.topic, links[0].lineage.source)

            marked = Deferred.fromCoroutine(mark())
            marked.addBoth(self._marking_ended, topic).addErrback(self._defect)

    def _marking_ended(self, result: Any, topic: str) -> None:
        """Append to the marked topic, or retry after `MARK_RETRY_BACKOFF`."""
        if isinstance(result, Failure):
            self._report(f"topic {topic}", f"cannot be marked as a mirror: {kafka_error(result)}")

            def again() -> None:
                self.marks.ended(topic, marked=False)
                self.send_requests()

            self._timers.later(MARK_RETRY_BACKOFF, again)
        else:
            self.marks.ended(topic, marked=True)
            for tp in self.copied_to(topic):
                self._apply(self.links[tp], self.links[tp].marked)
            self._report(f"topic {topic}", "is marked as a mirror now")
            self.send_requests()

    def _send_one(
        self, leader: int, connection: Connection, links: list[PartitionLink]
    ) -> list[PartitionLink]:
        """Send one request with one run of each link, up to max.request.size; return the links with more runs."""
        appends: list[tuple[PartitionLink, Append]] = []
        room = self.settings.max_request_size
        left = []
        for link in links:
            if appends and link.next_size > room:
                left.append(link)
                continue
            append = link.next_append()
            room -= append.run.size
            appends.append((link, append))
            self._last_leader[link.tp] = leader
            if link.has_append:
                left.append(link)
            else:
                self._to_append.pop(link.tp, None)
        self._in_flight_by_leader[leader] += 1
        answer = Deferred.fromCoroutine(
            writing.append(
                connection,
                [(self._copies[link.tp], append) for link, append in appends],
                timeout_ms=self.settings.request_timeout_ms,
            )
        )
        answer.addBoth(self._appended, leader, appends).addErrback(self._defect)
        return left

    def _connect(self, leader: int) -> None:
        """Connect to a target leader and check that it supports conditional appends."""
        if leader in self._connecting:
            return
        self._connecting.add(leader)

        async def connect() -> None:
            writing.check_target(await self.target.connection(leader, writing.CHANNEL))

        def connected(result: Any) -> None:
            self._connecting.discard(leader)
            if isinstance(result, Failure):
                problem = kafka_error(result)
                self._report(f"target broker {leader}", str(problem))
                for tp, link in list(self._to_append.items()):
                    if self.target.metadata.leader(self._copies[tp]) == leader:
                        self._apply(link, link.append_failed, link.generation, problem)
            self.send_requests()

        Deferred.fromCoroutine(connect()).addBoth(connected).addErrback(self._defect)

    def _fetch(self) -> None:
        if self._must_wait_for_bandwidth():
            return
        by_channel: dict[Channel, list[PartitionLink]] = defaultdict(list)
        caught_up: list[tuple[int, PartitionLink]] = []
        leader_of = self.source.metadata.leader
        most = PER_PARTITION * self.settings.max_partition_fetch_bytes
        for tp, link in self._to_fetch.items():
            if link.buffered_bytes >= most:
                continue
            leader = leader_of(tp)
            if leader is None:
                self.source.update_soon()
                continue
            if link.caught_up and link.topic_id is not None and self._tails.supports(leader):
                caught_up.append((leader, link))
            else:
                channel = (leader, TAIL_CHANNEL if link.caught_up else BULK_CHANNEL)
                by_channel[channel].append(link)
        for leader, link in caught_up:
            del self._to_fetch[link.tp]
            self._tails.add(leader, self._fetch_of(link))
        lost = self._tails.send_first()
        for channel, links in by_channel.items():
            if not self._budget.in_flight(channel):
                self._fetch_one(channel, links)
        for asked in lost + self._tails.send():
            self._back_off(asked.tp)

    def _must_wait_for_bandwidth(self) -> bool:
        """Return whether no fetch may be sent yet, because of fetch.max.bytes.per.second; continue when one may."""
        wait = self.bandwidth.wait(self.reactor.seconds())
        if wait > 0 and not self._waiting_for_bandwidth:
            self._waiting_for_bandwidth = True

            def again() -> None:
                self._waiting_for_bandwidth = False
                self.send_requests()

            self._timers.later(wait, again)
        return wait > 0

    def _fetch_of(self, link: PartitionLink) -> PartitionFetch:
        return PartitionFetch(
            link.tp,
            link.generation,
            link.fetch_offset,
            self.settings.max_partition_fetch_bytes,
            link.fetched_epoch,
            link.cut,
            link.topic_id,
        )

    def _fetch_one(self, channel: Channel, links: list[PartitionLink]) -> None:
        """Send one fetch if its maximal response fits into buffer.memory."""
        settings = self.settings
        leader, name = channel
        room = self._budget.room(
            settings.fetch_max_bytes if name == BULK_CHANNEL else settings.max_partition_fetch_bytes
        )
        if not room:
            return
        fetches = []
        for link in links:
            self._fetching.add(link.tp)
            del self._to_fetch[link.tp]  # when it is fetched again, it goes to the end: round-robin
            fetches.append(self._fetch_of(link))
        if name == TAIL_CHANNEL:
            self._tails.sent_without_session(leader)
        self._budget.reserve(channel, room)
        answer = Deferred.fromCoroutine(
            reading.fetch(
                self.source,
                leader,
                fetches,
                channel=name,
                max_wait_ms=settings.fetch_max_wait_ms if name == TAIL_CHANNEL else 0,
                max_bytes=room,
            )
        )
        answer.addBoth(self._fetched, channel, fetches).addErrback(self._defect)

    # --- responses

    def _fetched(self, result: Any, channel: Channel, fetches: list[PartitionFetch]) -> None:
        """Handle the end of a fetch without a session."""
        self._budget.release(channel)
        for asked in fetches:
            self._fetching.discard(asked.tp)
        if isinstance(result, Failure):
            self._fetch_failed(channel[0], kafka_error(result), fetches)
        else:
            self._give_outcomes([(asked, result[asked.tp]) for asked in fetches])

    def _fetch_failed(
        self, leader: int, problem: KafkaError, fetches: Iterable[PartitionFetch]
    ) -> None:
        """Let all partitions of a failed fetch back off."""
        if self.stopping:
            return
        self._report(f"source broker {leader}", str(problem))
        if problem.needs_metadata:
            self.source.update_soon()
        for asked in fetches:
            self._back_off(asked.tp)
        self.send_requests()

    def _give_outcomes(self, outcomes: Sequence[tuple[PartitionFetch, reading.Outcome]]) -> None:
        """Give each link its outcome, and count the bytes of the response for the limit of the bandwidth."""
        if self.stopping:
            return
        now = self.reactor.seconds()
        runs = [each.run for _, each in outcomes if isinstance(each, Fetched)]
        size = sum(run.size for run in runs if run is not None)
        self.progress.fetched_bytes += size
        self.bandwidth.fetched(size, now)
        for asked, outcome in outcomes:
            link = self.links.get(asked.tp)
            if link is not None:
                if isinstance(outcome, Fetched):
                    self._answered[asked.tp] = now
                self._outcome(link, asked, outcome)
        self.send_requests()

    def _outcome(
        self, link: PartitionLink, asked: PartitionFetch, outcome: reading.Outcome
    ) -> None:
        generation = asked.generation
        if isinstance(outcome, Fetched):
            ends = outcome.source_end, outcome.high_watermark
            run = outcome.run
            if run is not None and self._evidence is not None:
                run = self._evidence.read(run)
            self._apply(link, link.fetched, generation, asked.offset, run, *ends)
            if outcome.nothing_below_end:
                self._apply(link, link.nothing_below_cut, generation)
        elif isinstance(outcome, OutOfRange):
            self._apply(link, link.out_of_range, generation)
        elif isinstance(outcome, Diverged):
            self._apply(link, link.diverged, generation)
        else:
            self._report(str(link.tp), str(outcome))
            if isinstance(outcome, CorruptMessage):
                self._apply(link, link.corrupt, generation, outcome)
            elif not outcome.retriable:
                self._apply(link, link.unreadable, generation, outcome)
            if outcome.needs_metadata:
                self.source.update_soon()
            self._back_off(link.tp)

    def _appended(
        self, result: Any, leader: int, appends: list[tuple[PartitionLink, Append]]
    ) -> None:
        """Give every run its outcome; without a response the outcome of all is unknown."""
        self._in_flight_by_leader[leader] -= 1
        if isinstance(result, Failure):
            problem = kafka_error(result)
            self._report(f"target broker {leader}", str(problem))
            outcomes: Mapping[TopicPartition, writing.Outcome] = {}
        else:
            problem = LeaderNotAvailable("the response does not contain the partition")
            outcomes = result
        for link, append in appends:
            copy = self._copies.get(link.tp)
            if copy is None:
                continue
            outcome = outcomes.get(copy, problem)
            if isinstance(outcome, writing.Appended):
                if self._latency is not None:
                    self._latency.appended(copy, iterate(append.run.data))
                if append.generation == link.generation:
                    self._count(link, copy, append)
                self._apply(link, link.appended, append.generation, append.run.next_offset)
            elif isinstance(outcome, writing.Rejected):
                is_first = append.generation == link.generation
                self._apply(link, link.append_rejected, append.generation, outcome.log_end)
                if is_first:  # those behind it are rejected in any case
                    self._rejected(link.tp)
            else:
                if outcome is not problem:
                    self._report(str(copy), str(outcome))
                if outcome.needs_metadata:
                    self.target.update_soon()
                if isinstance(outcome, MessageTooLarge):
                    self._too_large(link.tp.topic, append.run.largest_batch)
                self._apply(link, link.append_failed, append.generation, outcome)
        self.send_requests()

    def _count(self, link: PartitionLink, copy: TopicPartition, append: Append) -> None:
        """Count an append that the target acknowledged."""
        self.progress.appended(link, append.run, self.reactor.seconds())
        if self._evidence is not None:
            self._evidence.appended(copy, append, link.lineage.source)

    # --- links

    def _apply(self, link: PartitionLink, event: Callable[..., list[Effect]], *args: Any) -> None:
        """Give *link* an event, perform its effects, and update the queues."""
        before = link.buffered_bytes
        effects = event(*args)
        if self.links.get(link.tp) is not link:
            return
        self._budget.buffered += link.buffered_bytes - before
        self._perform(link, effects)
        self._update_queues(link)

    def _update_queues(self, link: PartitionLink) -> None:
        """Put *link* into the append and fetch queues, or take it out."""
        tp = link.tp
        if tp in self._tails and not _is_fetch_of(self._tails.fetch_of(tp), link):
            self._tails.discard(tp)
        if link.has_append:
            self._to_append[tp] = link
        else:
            self._to_append.pop(tp, None)
        is_fetched = tp in self._fetching or tp in self._tails
        if link.wants_fetch and not is_fetched and tp not in self._backing_off:
            self._to_fetch.setdefault(tp, link)
        else:
            self._to_fetch.pop(tp, None)

    def _perform(self, link: PartitionLink, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Locate):
                self._locator.request(link.tp, effect.generation, effect.delay)
            elif isinstance(effect, RecordGap):
                self._record_gap(link, effect)
            elif isinstance(effect, ReportGap):
                self._report(f"GAP {link.tp}", str(effect.gap))
            elif isinstance(effect, Stopped):
                self._stopped(link, effect)
            elif isinstance(effect, Recovered):
                self._reported.pop(link.tp, None)
                self._report(str(link.tp), f"continues; it was stopped: {effect.problem}")
            elif isinstance(effect, Finished):
                self._maybe_done()

    def _record_gap(self, link: PartitionLink, effect: RecordGap) -> None:
        """Write a gap into the ledger; the link continues when it is durable."""

        def ended(result: Any) -> None:
            if self.stopping or self.links.get(link.tp) is not link:
                return
            if isinstance(result, Failure):
                problem = kafka_error(result)
                self._report(
                    f"gap {link.tp}", f"waits, it cannot be written to the ledger: {problem}"
                )
                self._apply(link, link.not_recorded, effect.generation)
            else:
                self._apply(link, link.recorded, effect.generation, effect.gap)

        recording = self._record(link.tp, self._copies[link.tp], effect.gap, link.lineage.source)
        recording.addBoth(ended).addErrback(self._defect)

    def _stopped(self, link: PartitionLink, effect: Stopped) -> None:
        """Report a stop, once as long as its reason is the same, and have the link try again later."""
        if self._reported.get(link.tp) != effect.problem:
            self._reported[link.tp] = effect.problem
            after = "" if effect.retry_after is None else "; retried until its cause is removed"
            self._report(f"STOPPED {link.tp}", f"{effect.problem}{after}")
        if effect.retry_after is not None:
            generation = link.generation

            def retry() -> None:
                if self.links.get(link.tp) is link:
                    self._apply(link, link.retry, generation)

            self._timers.later(effect.retry_after, retry)
        self._maybe_done()

    def _maybe_done(self) -> None:
        if self.settled:
            self._done()

    def _back_off(self, tp: TopicPartition) -> None:
        """Send no fetch for *tp* for `RETRY_BACKOFF` seconds."""
        self._to_fetch.pop(tp, None)
        self._backing_off.add(tp)

        def back() -> None:
            self._backing_off.discard(tp)
            link = self.links.get(tp)
            if link is not None:
                self._update_queues(link)
                self.send_requests()

        self._timers.later(RETRY_BACKOFF, back)

    # --- log ends

    def _check_target_epochs(self) -> None:
        """Notify idle links of a new leader epoch of the target; other links notice it by their appends."""
        for tp, link in list(self.links.items()):
            epoch = self.target.metadata.leader_epoch(self._copies[tp])
            if epoch < 0:
                continue  # unknown in this metadata
            known = self._target_epochs.setdefault(tp, epoch)
            if epoch > known and link.is_idle and not self.stopping:
                self._target_epochs[tp] = epoch
                self._apply(link, link.target_epoch_changed, link.generation)

    def _located(self, tp: TopicPartition, generation: int, answer: LogEnds | KafkaError) -> None:
        link = self.links.get(tp)
        if link is None or self.stopping:
            return
        if isinstance(answer, LogEnds):
            self._apply(link, link.located, generation, answer)
        else:
            self._report(str(tp), str(answer))
            self._apply(link, link.not_located, generation, answer)


def _is_fetch_of(fetch: PartitionFetch | None, link: PartitionLink) -> bool:
    """Return whether *fetch* is what *link* wants to fetch now."""
    return (
        fetch is not None
        and link.wants_fetch
        and (fetch.generation, fetch.offset) == (link.generation, link.fetch_offset)
    )
