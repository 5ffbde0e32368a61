"""One direction of the mirror at work: links, fetches and appends of all its partitions.

Theory of operation
===================
Two pumps turn around the links (`PartitionLink`, which decide everything). The fetch pump asks each
source leader for what its partitions want next; the append pump sends each target leader what was
fetched, several partitions in one request and several requests in flight. Between them stands
``buffer.memory``: what was fetched and is not acknowledged counts, what a fetch may bring is
reserved before it is sent, so a slow target makes the source wait and memory stays bounded.

Appends of one partition follow each other on one connection. Everything that fails is given to the
link, which starts over from the target's log end.

In: answers of both clusters   Out: requests, lines for the operator   Owner: the reactor's thread
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.types import TopicPartition
from kclient.wire.errors import CorruptMessage, KafkaError, LeaderNotAvailable
from mirrormaker import source as reading
from mirrormaker import target as writing
from mirrormaker.link import PartitionLink
from mirrormaker.locator import Locator, Timers, kafka_error
from mirrormaker.marks import Marks, is_checked, no_prefix
from mirrormaker.progress import Progress
from mirrormaker.settings import LinkSettings
from mirrormaker.source import BULK_LANE, TAIL_LANE, Ask, Diverged, Fetched, OutOfRange
from mirrormaker.words import Append, Declared, Effect, Ends, Finished, LinkState, Locate, Stopped

ASIDE = 0.2
"""Seconds that a partition or leader is left alone after an error that will pass."""

MARK_AGAIN = 1.0
"""Seconds before a topic that could not be marked is tried again."""

PER_PARTITION = 3
"""A partition holds at most so many times max.partition.fetch.bytes."""

Lane = tuple[int, str]


class Flow:
    """Copies partitions of *source* to *target*. *report* gets (about what, what happened).

    *done* is called when the last link that was copying has finished or stopped; *defect* with a
    failure that is no Kafka error. *mark* marks a topic of the target as a mirror (`mirrormaker.marks`).
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
        mark: Callable[[str], Awaitable[None]],
    ) -> None:
        self.source = source
        self.target = target
        self.reactor = source.reactor
        self.settings = settings
        self.links: dict[TopicPartition, PartitionLink] = {}
        self.progress = Progress(self.reactor.seconds())
        self._report = report
        self._done = done
        self._defect = defect
        self._mark = mark
        self.marks = Marks()
        self._copies: dict[TopicPartition, TopicPartition] = {}
        self._hungry: dict[TopicPartition, PartitionLink] = {}
        self._ready: dict[TopicPartition, PartitionLink] = {}
        self._fetching: set[TopicPartition] = set()
        self._aside: set[TopicPartition] = set()
        self._busy: dict[Lane, int] = {}
        """Lanes with a fetch in flight, and the bytes it may bring."""
        self._owing: dict[int, int] = defaultdict(int)
        """Append requests that a target leader has not answered."""
        self._sent_to: dict[TopicPartition, int] = {}
        self._connecting: set[int] = set()
        self._held = 0
        self._timers = Timers(self.reactor)
        self._locator = Locator(
            source,
            target,
            self._timers,
            self._copies,
            found=self._located,
            all_found=self.pump,
            defect=defect,
        )
        self._pumping = False
        self._again = False
        self.stopping = False
        self._target_epochs: dict[TopicPartition, int] = {}
        """The target's leader epochs under which its logs were looked at, by the source's partition."""
        target.on_change(lambda _metadata: self._look_at_target_epochs())
        for cluster in (source, target):  # a partition without a leader waits for one
            cluster.on_change(lambda _metadata: self.pump())

    # --- which partitions

    def add(self, link: PartitionLink, copy: TopicPartition) -> None:
        """Begin to copy *link*'s partition to *copy*."""
        self.links[link.tp] = link
        self._copies[link.tp] = copy
        self._perform(link, link.start())

    def remove(self, tp: TopicPartition) -> None:
        """Forget a partition; what is in flight is still appended."""
        link = self.links.pop(tp, None)
        if link is not None:
            self._held -= link.held_bytes
            for known in (
                self._hungry, self._ready, self._copies, self._sent_to, self._target_epochs,
            ):  # fmt: skip
                known.pop(tp, None)

    def recreated(self, tp: TopicPartition, detail: str) -> None:
        """Stop a partition whose topic is another one now."""
        link = self.links[tp]
        self._tell(link, link.recreated, detail)

    @property
    def settled(self) -> bool:
        """Whether no link has anything left to do."""
        return all(
            link.state in (LinkState.FINISHED, LinkState.STOPPED) for link in self.links.values()
        )

    @property
    def unanswered(self) -> int:
        """Append requests in flight."""
        return sum(self._owing.values())

    def stop(self) -> None:
        """Fetch no more, append no more; answers are still taken."""
        self.stopping = True
        self._timers.stop()

    # --- the pumps

    def pump(self) -> None:
        """Send every append and every fetch that may be sent now."""
        if self._pumping:
            self._again = True
            return
        self._pumping = True
        try:
            while not self.stopping:
                self._again = False
                self._send()
                self._fetch()
                if not self._again:
                    break
        finally:
            self._pumping = False

    def _send(self) -> None:
        by_leader: dict[int, list[PartitionLink]] = defaultdict(list)
        leader_of = self.target.metadata.leader
        unmarked: dict[str, None] = {}
        for tp, link in self._ready.items():
            if not self.marks.has(self._copies[tp].topic):
                unmarked[self._copies[tp].topic] = None
                continue
            leader = leader_of(self._copies[tp])
            if leader is None:
                self.target.update_soon()
            elif not link.in_flight or self._sent_to.get(tp) == leader:
                by_leader[leader].append(link)
        for leader, links in by_leader.items():
            connection = self.target.brokers.ready(leader, writing.LANE)
            if connection is None:
                self._connect(leader)
                continue
            while links and self._owing[leader] < self.settings.max_in_flight:
                links = self._send_one(leader, connection, links)

        for topic in unmarked:
            self._maybe_mark(topic)

    def _maybe_mark(self, topic: str) -> None:
        """Mark a topic of the target if all its partitions are prefixes of the source's."""
        links = [link for tp, link in self.links.items() if self._copies[tp].topic == topic]
        if not is_checked(links):
            return  # the last one that is located brings us back
        other = no_prefix(links)
        if other is not None:
            detail = f"{topic} was not marked, for {other.tp} was stopped: {other.problem}"
            for link in links:
                self._tell(link, link.not_a_mirror, detail)
        elif self.marks.begin(topic):

            async def mark() -> None:
                await self._mark(topic)

            marked = Deferred.fromCoroutine(mark())
            marked.addBoth(self._marking_ended, topic).addErrback(self._defect)

    def _marking_ended(self, result: Any, topic: str) -> None:
        """Append to a topic that is marked now, or try again in a moment."""
        if isinstance(result, Failure):
            self._report(f"topic {topic}", f"cannot be marked as a mirror: {kafka_error(result)}")

            def again() -> None:
                self.marks.ended(topic, marked=False)
                self.pump()

            self._timers.later(MARK_AGAIN, again)
        else:
            self.marks.ended(topic, marked=True)
            self._report(f"topic {topic}", "is marked as a mirror now")
            self.pump()

    def _send_one(
        self, leader: int, connection: Connection, links: list[PartitionLink]
    ) -> list[PartitionLink]:
        """Send one request with a run of each link, as many as it holds; return who has more."""
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
            self._sent_to[link.tp] = leader
            if link.has_append:
                left.append(link)
            else:
                self._ready.pop(link.tp, None)
        self._owing[leader] += 1
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
        """Connect to a target leader, and look whether it can be written to."""
        if leader in self._connecting:
            return
        self._connecting.add(leader)

        async def connect() -> None:
            writing.check_target(await self.target.connection(leader, writing.LANE))

        def connected(result: Any) -> None:
            self._connecting.discard(leader)
            if isinstance(result, Failure):
                problem = kafka_error(result)
                self._report(f"target broker {leader}", str(problem))
                for tp, link in list(self._ready.items()):
                    if self.target.metadata.leader(self._copies[tp]) == leader:
                        self._tell(link, link.lost, link.generation, problem)
            self.pump()

        Deferred.fromCoroutine(connect()).addBoth(connected).addErrback(self._defect)

    def _fetch(self) -> None:
        by_lane: dict[Lane, list[PartitionLink]] = defaultdict(list)
        leader_of = self.source.metadata.leader
        most = PER_PARTITION * self.settings.max_partition_fetch_bytes
        for tp, link in self._hungry.items():
            if link.held_bytes >= most:
                continue
            leader = leader_of(tp)
            if leader is None:
                self.source.update_soon()
                continue
            lane = (leader, TAIL_LANE if link.caught_up else BULK_LANE)
            if lane not in self._busy:
                by_lane[lane].append(link)
        for lane, links in by_lane.items():
            self._fetch_one(lane, links)

    def _fetch_one(self, lane: Lane, links: list[PartitionLink]) -> None:
        """Send one fetch if there is room for what it may bring."""
        settings = self.settings
        free = settings.buffer_memory - self._held - sum(self._busy.values())
        least = min(settings.max_partition_fetch_bytes, settings.buffer_memory // 2)
        if free < least and (self._held or self._busy):
            return
        leader, name = lane
        most = settings.fetch_max_bytes if name == BULK_LANE else settings.max_partition_fetch_bytes
        room = min(most, max(free, least))
        asks = []
        for link in links:
            tp = link.tp
            self._fetching.add(tp)
            del self._hungry[tp]  # and to the end of the line with it, when it comes back
            asks.append(
                Ask(
                    tp,
                    link.generation,
                    link.fetch_offset,
                    settings.max_partition_fetch_bytes,
                    link.fetched_epoch,
                    link.cut,
                    link.topic_id,
                )
            )
        self._busy[lane] = room
        answer = Deferred.fromCoroutine(
            reading.fetch(
                self.source,
                leader,
                asks,
                lane=name,
                max_wait_ms=settings.fetch_max_wait_ms if name == TAIL_LANE else 0,
                max_bytes=room,
            )
        )
        answer.addBoth(self._fetched, lane, asks).addErrback(self._defect)

    # --- answers

    def _fetched(self, result: Any, lane: Lane, asks: list[Ask]) -> None:
        """Give every partition its outcome; a whole request that failed is left alone for a moment."""
        del self._busy[lane]
        for ask in asks:
            self._fetching.discard(ask.tp)
        if self.stopping:
            return
        if isinstance(result, Failure):
            problem = kafka_error(result)
            self._report(f"source broker {lane[0]}", str(problem))
            if problem.needs_metadata:
                self.source.update_soon()
            for ask in asks:
                self._set_aside(ask.tp)
        else:
            for ask in asks:
                link = self.links.get(ask.tp)
                if link is not None:
                    self._outcome(link, ask, result[ask.tp])
        self.pump()

    def _outcome(self, link: PartitionLink, ask: Ask, outcome: reading.Outcome) -> None:
        generation = ask.generation
        if isinstance(outcome, Fetched):
            self._tell(link, link.fetched, generation, ask.offset, outcome.run, outcome.source_end)
            if outcome.nothing_below_end:
                self._tell(link, link.nothing_below_cut, generation)
        elif isinstance(outcome, OutOfRange):
            self._tell(link, link.out_of_range, generation)
        elif isinstance(outcome, Diverged):
            self._tell(link, link.diverged, generation)
        else:
            self._report(str(link.tp), str(outcome))
            if isinstance(outcome, CorruptMessage):
                self._tell(link, link.corrupt, generation, outcome)
            elif not outcome.retriable:
                self._tell(link, link.unreadable, generation, outcome)
            if outcome.needs_metadata:
                self.source.update_soon()
            self._set_aside(link.tp)

    def _appended(
        self, result: Any, leader: int, appends: list[tuple[PartitionLink, Append]]
    ) -> None:
        """Give every run its outcome; without an answer nothing is known of any of them."""
        self._owing[leader] -= 1
        if isinstance(result, Failure):
            problem = kafka_error(result)
            self._report(f"target broker {leader}", str(problem))
            outcomes: Mapping[TopicPartition, writing.Outcome] = {}
        else:
            problem = LeaderNotAvailable("no answer")
            outcomes = result
        for link, append in appends:
            copy = self._copies.get(link.tp)
            if copy is None:
                continue
            outcome = outcomes.get(copy, problem)
            if isinstance(outcome, writing.Appended):
                if append.generation == link.generation:
                    self.progress.appended(link, append.run, self.reactor.seconds())
                self._tell(link, link.appended, append.generation, append.run.next_offset)
            elif isinstance(outcome, writing.Refused):
                self._tell(link, link.refused, append.generation, outcome.log_end)
            else:
                if outcome is not problem:
                    self._report(str(copy), str(outcome))
                if outcome.needs_metadata:
                    self.target.update_soon()
                self._tell(link, link.lost, append.generation, outcome)
        self.pump()

    # --- links

    def _tell(self, link: PartitionLink, event: Callable[..., list[Effect]], *args: Any) -> None:
        """Give *link* an event, do what it says, and put it where it now belongs."""
        before = link.held_bytes
        effects = event(*args)
        if self.links.get(link.tp) is not link:
            return
        self._held += link.held_bytes - before
        self._perform(link, effects)
        self._place(link)

    def _place(self, link: PartitionLink) -> None:
        """Note whether *link* has something to append and wants something fetched."""
        tp = link.tp
        if link.has_append:
            self._ready[tp] = link
        else:
            self._ready.pop(tp, None)
        if link.wants_fetch and tp not in self._fetching and tp not in self._aside:
            self._hungry.setdefault(tp, link)
        else:
            self._hungry.pop(tp, None)

    def _perform(self, link: PartitionLink, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Locate):
                self._locator.ask(link.tp, effect.generation, effect.delay)
            elif isinstance(effect, Declared):
                gap = effect.gap
                self._report(
                    f"GAP {link.tp}",
                    f"offsets {gap.first}-{gap.until - 1} are left out: {gap.cause.value}",
                )
            elif isinstance(effect, Stopped):
                self._report(f"STOPPED {link.tp}", str(effect.problem))
                self._maybe_done()
            elif isinstance(effect, Finished):
                self._maybe_done()

    def _maybe_done(self) -> None:
        if self.settled:
            self._done()

    def _set_aside(self, tp: TopicPartition) -> None:
        """Fetch nothing of *tp* for a moment."""
        self._hungry.pop(tp, None)
        self._aside.add(tp)

        def back() -> None:
            self._aside.discard(tp)
            link = self.links.get(tp)
            if link is not None:
                self._place(link)
                self.pump()

        self._timers.later(ASIDE, back)

    # --- where the logs are

    def _look_at_target_epochs(self) -> None:
        """Have idle links look at a target that has another leader epoch: busy ones do so by their appends."""
        for tp, link in list(self.links.items()):
            epoch = self.target.metadata.leader_epoch(self._copies[tp])
            if epoch < 0:
                continue  # not known for now
            known = self._target_epochs.setdefault(tp, epoch)
            if epoch > known and link.is_idle and not self.stopping:
                self._target_epochs[tp] = epoch
                self._tell(link, link.target_led_anew, link.generation)

    def _located(self, tp: TopicPartition, generation: int, answer: Ends | KafkaError) -> None:
        link = self.links.get(tp)
        if link is None or self.stopping:
            return
        if isinstance(answer, Ends):
            self._tell(link, link.located, generation, answer)
        else:
            self._report(str(tp), str(answer))
            self._tell(link, link.not_located, generation, answer)
