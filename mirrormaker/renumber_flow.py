"""A flow into a target that renumbers offsets: its links append in transactions, one of them at a time.

Theory of operation
===================
The links are those of `mirrormaker.flow`: a transaction takes the place of the append requests, and the stored position
that of the target's log end. Runs of all links are collected for linger.ms, or up to transaction.max.bytes, and become
the parts of one transaction. Each link gets the outcome of its runs when the transaction is committed or aborted.

Log ends are read between two transactions: then the stored positions are those of the machine, and no run of the link
is under way. A partition without a position gets one at offset 0 in a transaction, before a record is appended to it.
So a log with records and without a position never comes from a mirror that was killed.

A committed offset of a group without members expires offsets.retention.minutes after its commit, whether its partition
gets records or not. So each position is stored again at the start and every hour.

In: responses of both clusters   Out: requests, lines for the operator   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError, MessageTooLarge
from mirrormaker.flow import Flow
from mirrormaker.lineage import text_of
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import Append, LogEnds
from mirrormaker.locator import Timers, add_due, kafka_error
from mirrormaker.marks import is_prefix
from mirrormaker.position import Position
from mirrormaker.renumber import batches_of, last_base_offset, visible_batches
from mirrormaker.renumbered_ends import lineage_of, position_of, read_renumbered_ends
from mirrormaker.transaction import Batch, Part, State, TransactionMachine
from mirrormaker.transactional_target import TransactionAborted, TransactionalTarget

REFRESH = 3600.0
"""Seconds after which a position is stored again, without records, so that it does not expire."""

MOST_PARTS = 500
"""Partitions in a transaction: their positions, of at most 1000 bytes each, are one batch in __consumer_offsets."""


class PositionLocator:
    """Reads the log ends of partitions, after each link's delay, and only between two transactions."""

    def __init__(self, timers: Timers, send_requests: Callable[[], None]) -> None:
        self._timers = timers
        self._send_requests = send_requests
        self.due: dict[TopicPartition, int] = {}
        """Partitions with log ends to read, and the generation of the answer."""

    def request(self, tp: TopicPartition, generation: int, delay: float) -> None:
        """Read the log ends of *tp* after *delay* seconds; the answer carries *generation*."""

        def mark_due() -> None:
            add_due(self.due, tp, generation)
            self._send_requests()

        self._timers.later(delay, mark_due)


class RenumberFlow(Flow):
    """Copies partitions of *source* to *target* at other offsets. *source_id* returns the cluster id of the source."""

    def __init__(self, *args: Any, source_id: Callable[[], str], **options: Any) -> None:
        super().__init__(*args, **options)
        settings = self.settings
        self.machine = TransactionMachine(
            timeout=settings.transaction_timeout_ms / 1000,
            is_transactional=settings.is_transactional,
        )
        self.writer = TransactionalTarget(
            self.target,
            settings,
            self.machine,
            self._timers,
            source_id=source_id,
            ready=self.send_requests,
            committed=self._committed,
            aborted=self._aborted,
            report=self._report,
            defect=self._defect,
        )
        self._is_started = False
        self._first_positions: dict[TopicPartition, Part] = {}
        """By target partition, the part that stores the first position."""
        self._waiting_for_first: dict[TopicPartition, tuple[TopicPartition, int]] = {}
        """By target partition, the source partition and the generation of a link without a position yet."""
        self._sent: dict[TopicPartition, list[tuple[PartitionLink, Append]]] = {}
        """By target partition, the runs in the open transaction."""
        self._lingers_until: float | None = None
        self._to_refresh: list[TopicPartition] = []
        """Target partitions with a position to store again."""
        self._refresh_at = 0.0

    def _new_locator(self) -> PositionLocator:
        self._positions_wanted = PositionLocator(self._timers, self.send_requests)
        return self._positions_wanted

    @property
    def appends_in_flight(self) -> int:
        """1 while a transaction is open."""
        return int(bool(self._sent))

    def proven_copies(self) -> dict[TopicPartition, TopicPartition]:
        """Return source partition -> target partition, where the records below the position are the source's.

        An offset of the source is another record at the target: it has to be translated.
        """
        id_of = self.source.metadata.topic_id
        return {
            tp: copy
            for tp, copy in self._copies.items()
            if is_prefix(self.links[tp]) and self.links[tp].topic_id == id_of(tp.topic)
        }

    def _check_target_epochs(self) -> None:
        """Do nothing: the end of the target's log is compared with the position when a link is located."""

    def remove(self, tp: TopicPartition) -> None:
        """Remove a partition; a first position that waits is not stored: it has the topic ids of this link."""
        copy = self._copies.get(tp)
        if copy is not None and self._first_positions.pop(copy, None) is not None:
            self._waiting_for_first.pop(copy, None)
        super().remove(tp)

    # --- a transaction

    def _send(self) -> None:
        """Begin a transaction if none is open, and there is something to copy."""
        if self.links and not self._is_started:
            self._is_started = True
            self.writer.start()
        if self.machine.state is not State.IDLE:
            return
        self._read_due()
        stored = self._first() or self._refreshed()
        if stored:
            self.writer.begin(stored)
        elif self._to_append and self._has_lingered():
            self._begin()

    def _first(self) -> list[Part]:
        """Return the parts that store first positions; where there is one meanwhile, have the log ends read again."""
        parts = []
        for copy in list(self._first_positions)[:MOST_PARTS]:
            part = self._first_positions.pop(copy)
            if self.machine.accepts(part):
                parts.append(part)
            else:
                self._first_position_ended(copy)
                self._send_again = True
        return parts

    def _refreshed(self) -> list[Part]:
        """Return the parts that store positions again, if it is time."""
        now = self.reactor.seconds()
        if now >= self._refresh_at and self.machine.positions:
            self._refresh_at = now + REFRESH
            self._timers.later(REFRESH, self.send_requests)
            self._to_refresh = list(self._copies.values())
        some, self._to_refresh = self._to_refresh[:MOST_PARTS], self._to_refresh[MOST_PARTS:]
        parts: list[Part] = []
        for copy in some:
            position = position_of(self.machine.positions, self.target, copy)
            if position is not None:
                parts.append(Part(copy, position.offset, (), position))
        return parts

    def _has_lingered(self) -> bool:
        """Return whether to begin now: enough is collected, or linger.ms are over; else try again then."""
        now = self.reactor.seconds()
        if self._lingers_until is None:
            self._lingers_until = now + self.settings.linger_ms / 1000
            self._timers.later(self._lingers_until - now, self.send_requests)
        queued = sum(link.buffered_bytes for link in self._to_append.values())
        return now >= self._lingers_until or queued >= self.settings.transaction_max_bytes

    def _begin(self) -> None:
        self._lingers_until = None
        room = self.settings.transaction_max_bytes
        parts: list[Part] = []
        for tp, link in list(self._to_append.items()):
            if room <= 0 or len(parts) == MOST_PARTS:
                break
            appends: list[Append] = []
            while link.has_append and (room > 0 or not appends):
                append = link.next_append()
                room -= append.run.size
                appends.append(append)
            self._update_queues(link)
            part = self._part(link, self._copies[tp], appends)
            if part is not None:
                self._sent[part.tp] = [(link, append) for append in appends]
                parts.append(part)
        if parts:
            self.writer.begin(parts)

    def _part(
        self, link: PartitionLink, copy: TopicPartition, appends: list[Append]
    ) -> Part | None:
        """Return the part of *link*; None if its runs do not follow the position, or cannot be decoded."""
        stored = self.machine.positions.get(copy)
        last = appends[-1].run
        batches: list[Batch] = []
        try:
            for append in appends:
                batches += batches_of(append.run)
        except KafkaError as problem:
            self._apply(link, link.append_failed, link.generation, problem)
            return None
        ids = text_of(link.topic_id), text_of(self.target.metadata.topic_id(copy.topic))
        position = Position(
            last.next_offset,
            last_base_offset(last),
            last.last_crc,
            last.leader_epoch,
            *ids,
            0 if stored is None else stored.target_end,
            () if stored is None else stored.pairs_for(last.next_offset, *ids),
        )
        part = Part(copy, link.appended_end, batches, position)
        if not self.machine.accepts(part):
            changed = TransactionAborted(f"{copy}: the position has changed")
            self._apply(link, link.append_failed, link.generation, changed)
            return None
        return part

    def _committed(self, parts: tuple[Part, ...]) -> None:
        for part in parts:
            self._first_position_ended(part.tp)
            for link, append in self._sent.pop(part.tp, ()):
                if self._latency is not None:
                    self._latency.appended(part.tp, visible_batches(append.run))
                if append.generation == link.generation and self.links.get(link.tp) is link:
                    self._count(link, part.tp, append)
                self._apply(link, link.appended, append.generation, append.run.next_offset)

    def _aborted(
        self,
        parts: tuple[Part, ...],
        blamed: Mapping[TopicPartition, KafkaError],
        cause: KafkaError,
    ) -> None:
        for part in parts:
            self._first_position_ended(part.tp)
            problem = blamed.get(part.tp) or TransactionAborted(f"{part.tp}: {cause.message}")
            for link, append in self._sent.pop(part.tp, ()):
                if isinstance(problem, MessageTooLarge) and append.generation == link.generation:
                    self._too_large(link.tp.topic, append.run.largest_batch)
                self._apply(link, link.append_failed, append.generation, problem)

    # --- log ends

    def _first_position_ended(self, copy: TopicPartition) -> None:
        """Have the log ends read again, if the first position of *copy* was stored, or could not be."""
        waiting = self._waiting_for_first.pop(copy, None)
        if waiting is not None:
            add_due(self._positions_wanted.due, *waiting)

    def _read_due(self) -> None:
        """Read the log ends that links wait for; the positions are those between two transactions."""
        due, self._positions_wanted.due = self._positions_wanted.due, {}
        pairs = {tp: self._copies[tp] for tp in due if tp in self._copies}
        if not pairs:
            return
        positions = dict(self.machine.positions)

        def answered(result: Any) -> None:
            for tp, copy in pairs.items():
                answer = kafka_error(result) if isinstance(result, Failure) else result[tp]
                self._take_ends(tp, copy, due[tp], answer, positions)
            self.send_requests()

        ends = read_renumbered_ends(
            self.source,
            self.target,
            pairs,
            positions,
            self.writer.group,
            is_transactional=self.settings.is_transactional,
        )
        Deferred.fromCoroutine(ends).addBoth(answered).addErrback(self._defect)

    def _take_ends(
        self,
        tp: TopicPartition,
        copy: TopicPartition,
        generation: int,
        answer: LogEnds | KafkaError,
        positions: Mapping[TopicPartition, Position],
    ) -> None:
        """Give the link its log ends, or store the first position and read them again."""
        link = self.links.get(tp)
        if link is None or self._copies.get(tp) != copy or self.stopping:
            return
        position = position_of(positions, self.target, copy)
        if isinstance(answer, LogEnds) and answer.problem is None and position is None:
            earlier = positions.get(copy)
            ids = text_of(link.topic_id), text_of(self.target.metadata.topic_id(copy.topic))
            first = Position(0, topic_id=ids[0], target_topic_id=ids[1])
            follows = None if earlier is None else earlier.offset
            self._first_positions[copy] = Part(copy, follows, (), first)
            self._waiting_for_first[copy] = tp, generation
            return
        if isinstance(answer, LogEnds):
            link.lineage = lineage_of(position, text_of(link.topic_id))
        self._located(tp, generation, answer)
