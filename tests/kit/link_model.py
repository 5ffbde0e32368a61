"""A source log, a target log and a network between them, as simple as possible, for tests of links.

Offsets and CRCs stand for records: every batch has a CRC of its own.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

from kclient.errors import ConnectionClosed
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError, NotEnoughReplicas
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import (
    Append,
    Effect,
    Gap,
    GapPolicy,
    LastBatch,
    LinkState,
    Locate,
    LogEnds,
    RecordGap,
    Stopped,
)
from mirrormaker.runs import Run

TP = TopicPartition("t", 0)


class Batch(NamedTuple):
    base: int
    end: int
    crc: int
    epoch: int = 0


def tail_of(log: list[Batch], offset: int, start: int) -> LastBatch | None:
    """The batch that holds the offset before *offset*."""
    for batch in log:
        if batch.end >= offset and batch.end > start:
            if batch.base >= offset:
                return None
            return LastBatch(batch.base, batch.end, batch.crc, batch.epoch)
    return None


class CarriedRun(NamedTuple):
    """A run with the batches it would hold."""

    batches: tuple[Batch, ...]

    def run(self) -> Run:
        first, last = self.batches[0], self.batches[-1]
        spans = sum(b.end - b.base for b in self.batches)
        made = Run(
            memoryview(b"x" * len(self.batches)),
            first.base,
            last.end,
            len(self.batches),
            spans,
            last.end - first.base - spans,
            1000,
            last.epoch,
            last.crc,
        )
        _CARRIED[id(made)] = (made, self.batches)
        return made


_CARRIED: dict[int, tuple[Run, tuple[Batch, ...]]] = {}


def batches_of(append: Append) -> tuple[Batch, ...]:
    return _CARRIED[id(append.run)][1]


@dataclass
class Request:
    """An append in flight, and the link that waits for the answer (None: no link does)."""

    append: Append
    link: PartitionLink | None


@dataclass
class LinkModel:
    """The source log, the target log and the network of one link. *aligned* source batches hold one record each."""

    cut: int | None = None
    compacted: bool = False
    gap_policy: GapPolicy = GapPolicy.FAIL
    source: list[Batch] = field(default_factory=list)
    source_start: int = 0
    source_epoch: int = 0
    target: list[Batch] = field(default_factory=list)
    versions: list[list[Batch]] = field(default_factory=list)
    """What the source held before it lost records."""
    ledger: dict[int, Gap] = field(default_factory=dict)
    """The gap ledger, by first offset."""
    foreign: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._crcs = itertools.count(1)
        self.wire: list[Request] = []
        self.zombies: list[Request] = []
        self.replies: list[tuple[Request, int | KafkaError | None]] = []
        """None: appended; else the log end the target answered with, or its error."""
        self.fetches: list[tuple[int, int, CarriedRun | str | None, int]] = []
        self.locates: list[int] = []
        self.to_record: list[RecordGap] = []
        self.acknowledged: list[RecordGap] = []
        self.stopped: Stopped | None = None
        self.new_link()

    @property
    def source_end(self) -> int:
        return self.source[-1].end if self.source else self.source_start

    @property
    def target_end(self) -> int:
        return self.target[-1].end if self.target else 0

    # --- the logs

    def produce(self, *spans: int, gap: int = 0) -> None:
        for span in spans:
            base = self.source_end + gap
            self.source.append(Batch(base, base + span, next(self._crcs), self.source_epoch))

    def lose_source_tail(self, count: int) -> None:
        """An unclean election: the last batches are gone, the next leader writes others."""
        self.versions.append(list(self.source))
        del self.source[max(0, len(self.source) - count) :]
        self.source_epoch += 1

    def write_to_target(self, span: int = 1) -> None:
        """Another client produces to the target."""
        base = self.target_end
        batch = Batch(base, base + span, next(self._crcs))
        self.target.append(batch)
        self.foreign.append(batch)

    def age_out(self, count: int) -> None:
        """The source deletes its oldest batches."""
        gone = self.source[:count]
        if gone:
            self.versions.append(list(self.source))
            self.source_start = gone[-1].end
            del self.source[:count]

    def delete_records(self, count: int) -> None:
        """The source deletes its oldest *count* offsets; the log may start inside a batch, which stays whole."""
        self.versions.append(list(self.source))
        self.source_start = min(self.source_start + count, self.source_end)
        self.source = [b for b in self.source if b.end > self.source_start]

    def judge(self, append: Append) -> int | None:
        """Do what the target's leader does; the answer as in `replies`."""
        crc = self.target[-1].crc if self.target else 0
        begins = not self.target and append.expected_log_end > 0
        if append.previous_crc != crc or not (append.expected_log_end == self.target_end or begins):
            return self.target_end
        self.target += batches_of(append)
        return None

    # --- the link

    def new_link(self) -> None:
        """The mirror was killed and starts again: it remembers nothing."""
        self.zombies += self.wire
        for request in self.zombies:
            request.link = None
        self.wire.clear()
        self.replies.clear()
        self.fetches.clear()
        self.locates.clear()
        self.to_record.clear()
        self.acknowledged.clear()
        self.link = PartitionLink(
            TP, cut=self.cut, compacted=self.compacted, gap_policy=self.gap_policy
        )
        self.perform(self.link.start())

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Locate):
                self.locates.append(effect.generation)
            elif isinstance(effect, RecordGap):
                self.to_record.append(effect)
            elif isinstance(effect, Stopped):
                self.stopped = effect

    def write_ledger(self) -> None:
        """The entry of a gap is durable; its acknowledgement is on its way."""
        effect = self.to_record.pop(0)
        self.ledger[effect.gap.first] = effect.gap
        self.acknowledged.append(effect)

    def ledger_fails(self) -> None:
        """A gap could not be written."""
        self.perform(self.link.not_recorded(self.to_record.pop(0).generation))

    def acknowledge_gap(self) -> None:
        effect = self.acknowledged.pop(0)
        self.perform(self.link.recorded(effect.generation, effect.gap))

    def locate(self) -> None:
        generation = self.locates.pop(0)
        start = self.target[0].base if self.target else 0
        source_last_batch = None
        if self.source_start < self.target_end <= self.source_end:
            source_last_batch = tail_of(self.source, self.target_end, self.source_start)
        ends = LogEnds(
            self.source_start,
            self.source_end,
            start,
            self.target_end,
            source_last_batch,
            tail_of(self.target, self.target_end, start) if self.target else None,
            source_first_batch=tail_of(self.source, self.source_start + 1, self.source_start),
        )
        self.perform(self.link.located(generation, ends))

    def ask(self, most: int = 3) -> None:
        """The source answers a fetch; the answer is on its way."""
        link = self.link
        offset, generation = link.fetch_offset, link.generation
        answer: CarriedRun | str | None = None
        before = [b for b in self.source if b.end <= offset]
        if not self.source_start <= offset <= self.source_end:
            answer = "out of range"
        elif link.fetched_epoch >= 0 and before and before[-1].epoch != link.fetched_epoch:
            answer = "diverged"
        else:
            found = [
                b for b in self.source if b.end > offset and (self.cut is None or b.base < self.cut)
            ][:most]
            if found:
                answer = CarriedRun(tuple(found))
            elif self.cut is not None and self.source_end > self.cut:
                answer = "nothing below"
        self.fetches.append((generation, offset, answer, self.source_end))

    def fetched(self) -> None:
        generation, asked, answer, end = self.fetches.pop(0)
        link = self.link
        if answer == "out of range":
            self.perform(link.out_of_range(generation))
        elif answer == "diverged":
            self.perform(link.diverged(generation))
        elif answer == "nothing below":
            self.perform(link.nothing_below_cut(generation))
        else:
            assert answer is None or isinstance(answer, CarriedRun)
            self.perform(link.fetched(generation, asked, answer and answer.run(), end))

    def send(self) -> None:
        self.wire.append(Request(self.link.next_append(), self.link))

    def target_handles(self) -> None:
        request = self.wire.pop(0)
        self.replies.append((request, self.judge(request.append)))

    def target_cannot(self) -> None:
        """The target has too few replicas for one append; those behind it are served again."""
        self.replies.append((self.wire.pop(0), NotEnoughReplicas("for a moment")))

    def zombie_arrives(self, number: int) -> None:
        """A request of a lost connection, or one more copy of it, reaches the target after all."""
        self.judge(self.zombies[number % len(self.zombies)].append)

    def reply(self) -> None:
        request, answer = self.replies.pop(0)
        link, append = self.link, request.append
        if answer is None:
            self.perform(link.appended(append.generation, append.run.next_offset))
        elif isinstance(answer, KafkaError):
            self.perform(link.append_failed(append.generation, answer))
        else:
            self.perform(link.append_rejected(append.generation, answer))

    def lose_connection(self) -> None:
        """What was sent may or may not arrive yet; its answers will not."""
        appends_in_flight = [request for request, _ in self.replies] + self.wire
        self.zombies += appends_in_flight
        self.wire.clear()
        self.replies.clear()
        for request in appends_in_flight:
            self.perform(
                self.link.append_failed(request.append.generation, ConnectionClosed("gone"))
            )

    # --- the end

    def settle(self, turns: int = 2000) -> None:
        """Let everything go its way without further trouble."""
        for _ in range(turns):
            if not self.step():
                return
        raise AssertionError(f"the link does not settle: {self.link.state} {self.link.generation}")

    def step(self) -> bool:
        """Do one thing that is due; return whether there was one."""
        if self.replies:
            self.reply()
        elif self.wire:
            self.target_handles()
        elif self.link.has_append:
            self.send()
        elif self.fetches:
            self.fetched()
        elif self.locates:
            self.locate()
        elif self.to_record:
            self.write_ledger()
        elif self.acknowledged:
            self.acknowledge_gap()
        elif self.link.wants_fetch:
            self.ask()
            if self.fetches[-1][2] is None:
                self.fetches.pop()
                return False
        else:
            return False
        return True

    def fill_pipeline(self, appends: int) -> None:
        """Fetch and send, one batch at a time, until so many appends are on the wire."""
        while self.locates:
            self.locate()
        for _ in range(appends):
            if not self.link.has_append and self.link.wants_fetch:
                self.ask(1)
                self.fetched()
            if self.link.has_append:
                self.send()

    @property
    def copied(self) -> list[Batch]:
        """The target without what others wrote."""
        return [b for b in self.target if b not in self.foreign]

    @property
    def is_done(self) -> bool:
        return self.link.state in (LinkState.FINISHED, LinkState.STOPPED)
