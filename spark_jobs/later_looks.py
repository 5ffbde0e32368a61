"""The later looks of one run: wait, take a new cut of what differs, compare again, and keep what the rules allow.

`spark_jobs.settle` has the rules, and their proof: which partitions are looked at again, and which earlier findings a
later look may replace. A `Moment` is both clusters at the later cut; the caller of the run waits and reads it.

In: the first look, `Again`   Out: the look that counts, `Settled`   Owner: the caller
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.comparison import Comparison, compacted_topics
from spark_jobs.cut import PartitionCut
from spark_jobs.findings import FindingClass
from spark_jobs.gap_ledger import LedgerRead
from spark_jobs.kept import Lineage, Refusal
from spark_jobs.looks import Look, held, only, with_ranges
from spark_jobs.settle import (
    NotReplaced,
    Settled,
    cut_objection,
    is_stable,
    replaced,
    same_logs,
    suspects,
    vanished,
)
from spark_jobs.snapshot import WHOLE_TOPIC, ClusterSnapshot


class Moment(NamedTuple):
    """Both clusters at a later cut."""

    source: ClusterSnapshot
    target: ClusterSnapshot
    lineage: Lineage = Lineage()
    """`Lineage.at_proof` is at the offset before the earlier cut."""
    ledger: LedgerRead | None = None


Again = Callable[[Sequence[PartitionCut]], Moment | str]
"""Waits for the settle time, then reads the log ranges of the partitions again; a text is why that was not possible."""


@dataclass(slots=True)
class LaterLooks:
    """The later looks of one run."""

    run: Comparison
    look: Look
    again: Again
    rounds: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    gone: Counter[FindingClass] = field(default_factory=Counter)
    read_later: set[TopicPartition] = field(default_factory=set)
    standing: dict[TopicPartition, str] = field(default_factory=dict)
    problem: str = ""

    def done(self) -> tuple[Comparison, Look, Settled]:
        """Look again until nothing changes any more, or the rounds are used up; return what counts then."""
        patience, cost = self.run.options.patience, self.run.cost
        read_before = cost.records_read
        todo = suspects(self.look.seen()) - self.look.kept.aside.keys()
        while todo and self.rounds < patience.rounds and not self.problem:
            todo = self._look_again(todo)
        settled = Settled(
            patience,
            self.rounds,
            len(self.partitions),
            cost.records_read - read_before,
            self.gone,
            len(self.read_later),
            [NotReplaced(*tp, reason) for tp, reason in sorted(self.standing.items())],
            self.problem,
        )
        return self.run, self.look, settled

    def _look_again(self, todo: set[TopicPartition]) -> set[TopicPartition]:
        """Look at *todo*; return what to look at after that."""
        run, before = self.run, self.look.seen()
        run.progress(
            f"{len(todo):,} partitions differ: looking again after {run.options.patience.settle_s:g} s"
        )
        moment = self.again([self.look.cuts[tp] for tp in sorted(todo)])
        if isinstance(moment, str):
            self.problem = moment
            return set()
        self.rounds += 1
        self.partitions |= todo
        reasons, later = self._later(moment, todo)
        after = {} if later is None else later.seen()
        reasons |= replaced(before, after, renumbered=run.options.renumbered, unknown=run.unknown)
        accepted = {tp for tp, reason in reasons.items() if not reason}
        for tp in accepted:
            self.gone += vanished(before[tp], after[tp])
            if before[tp].unread and not after[tp].unread:
                self.read_later.add(tp)
        self.standing = {tp: why for tp, why in self.standing.items() if tp not in accepted}
        self.standing |= {tp: reason for tp, reason in reasons.items() if reason}
        if later is not None and accepted:
            self.look = self.look.replaced_by(later, accepted)
            self.run = run = _at_moment(run, moment, accepted)
            if run.options.kept is not None:
                # A later look may be the first one that knows a topic.
                compacted = compacted_topics(run.source) | compacted_topics(run.target)
                clusters = run.source, run.target
                kept = self.look.kept.checked(run.options.kept, clusters, compacted)
                self.look = replace(self.look, kept=kept)
        now = self.look.seen()
        unsettled = {
            tp: now[tp] for tp in todo if tp not in accepted or not is_stable(before[tp], after[tp])
        }
        return suspects(unsettled)

    def _later(
        self, moment: Moment, todo: set[TopicPartition]
    ) -> tuple[dict[TopicPartition, str], Look | None]:
        """Look at *todo* as they are at *moment*, without those that the moment itself excludes, with the reason."""
        run, look = self.run, self.look
        cuts = Comparison.at_cut(
            run.engine,
            only(moment.source, todo),
            only(moment.target, todo),
            replace(run.options, ledger=moment.ledger),
            run.cost,
            run.progress,
        )
        found = {
            cut.topic_partition: cut for cut in cuts.cuts if cut.topic_partition not in cuts.unknown
        }
        reasons = {tp: _moment_objection(run, moment, found.get(tp), look.cuts[tp]) for tp in todo}
        possible = frozenset(tp for tp, reason in reasons.items() if not reason)
        refused = {tp: reason for tp, reason in reasons.items() if reason}
        if not possible:
            return refused, None
        later = cuts.only(possible)
        then, now = run.options.lineage.at_cut, moment.lineage.at_proof
        compared = {
            tp
            for tp in possible - run.unknown
            if look.cuts[tp].compared and not run.options.renumbered
        }
        whole = {tp for tp in compared if not same_logs(then, now, tp)}
        kept = look.kept.at_later(later.cuts, run.options.kept)
        kept = kept.without(
            [
                Refusal(*tp, "a log may have been written again during the run")
                for tp in sorted(whole & kept.carried.keys())
            ]
        )
        whole |= possible - compared
        return refused, later.look(kept, held(look, later.cuts, run.options.window, whole), {})


def _moment_objection(
    run: Comparison, moment: Moment, cut: PartitionCut | None, old: PartitionCut
) -> str:
    """Return why a partition, with its later *cut* if that is known, cannot be looked at again; "" if it can."""
    tp = old.topic_partition
    if cut is None:
        return "a cluster did not report its log range"
    for before, now in ((run.source, moment.source), (run.target, moment.target)):
        then, found = before.topic_ids.get(tp.topic, ""), now.topic_ids.get(tp.topic, "")
        # A cluster that has no topic id yet may learn it later.
        if then != found and (then or tp in before.ranges):
            what = "created again in" if found else "deleted, or is no longer listed, in"
            return f"the topic was {what} {now.name}"
    missed = _not_known(run, moment, tp.topic)
    if missed:
        return f"partition {missed[0]} of the topic was not known at the first look"
    return cut_objection(old, cut, unknown=tp in run.unknown)


def _not_known(run: Comparison, moment: Moment, topic: str) -> list[int]:
    """Return the partitions of *topic* that are no part of *run*, because a cluster did not list them."""
    whole = TopicPartition(topic, WHOLE_TOPIC)
    if not any(whole in each.unreadable for each in (run.source, run.target)):
        return []
    known = {cut.topic_partition for cut in run.cuts}
    found = {
        tp
        for each in (moment.source, moment.target)
        for tp in (*each.ranges, *each.unreadable)
        if tp.topic == topic and tp != whole
    }
    return sorted(tp.partition for tp in found - known)


def _at_moment(
    run: Comparison, moment: Moment, partitions: Collection[TopicPartition]
) -> Comparison:
    """Return *run* with *partitions* as they are at *moment*."""
    at_cut = [
        {tp: each for tp, each in of_side.items() if tp not in partitions}
        | {tp: each for tp, each in later.items() if tp in partitions}
        for of_side, later in zip(run.options.lineage.at_cut, moment.lineage.at_cut, strict=True)
    ]
    lineage = replace(run.options.lineage, at_cut=(at_cut[0], at_cut[1]))
    return replace(
        run,
        source=with_ranges(run.source, moment.source, partitions),
        target=with_ranges(run.target, moment.target, partitions),
        options=replace(run.options, lineage=lineage, ledger=moment.ledger),
        unknown=run.unknown - frozenset(partitions),
    )
