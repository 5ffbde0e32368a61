"""The controller's state changes as lines of the log (Kafka's StateChangeLogger): leader, ISR, epoch and reason.

Theory of operation
===================
When a round of states has been written, each is compared with the one before. A partition has a `StateChange`; its
reason follows from the tables, which are those of the decision. Up to `LINES_LOGGED` changes are a line each. More, as
after the failure of a large broker, become a line for each kind of change. It has the number, the leaders and the
reason, and the first few names. New partitions always share a line. At DEBUG every change is logged.

In: what was written, the tables before they hold it   Out: lines   Owner: controller.effect_performer. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.steps import Steps
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import Broker, ControllerContext, ReplicaAssignment
from kbroker.controller.core.effects import StateWrite
from kclient.wire.interbroker import NO_LEADER

LINES_LOGGED: Final = 20
"""The most changes of one round that have a line each."""
NAMES_LOGGED: Final = 5
"""The most partitions of a kind that are named."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """The written change of one partition's state."""

    partition: TopicPartition
    before: LeaderAndIsr | None
    after: LeaderAndIsr
    why: str

    @property
    def kind(self) -> tuple[str, str]:
        """The leaders and the reason, which many changes share."""
        return self._leaders, self.why

    @property
    def _leaders(self) -> str:
        now = _named(self.after.leader)
        if self.before is None:
            return f"first leader {now}"
        if self.before.leader == self.after.leader:
            return f"leader {now} stays"
        return f"leader {_named(self.before.leader)} -> {now}"

    def __str__(self) -> str:
        isr = _listed(self.after.isr)
        if self.before is not None and set(self.before.isr) != set(self.after.isr):
            isr = f"{_listed(self.before.isr)} -> {isr}"
        return (
            f"{_name(self.partition)}: {self._leaders} in leader epoch {self.after.leader_epoch},"
            f" ISR {isr}: {self.why}"
        )


def state_changes(
    context: ControllerContext, writes: Iterable[StateWrite]
) -> Steps[list[StateChange]]:
    """Return the change of each of *writes*, which succeeded; *context* does not hold them yet."""
    changes = []
    for write in writes:
        yield
        before = context.leader_and_isr.get(write.partition)
        changes.append(
            StateChange(
                write.partition, before, write.state, _why(context, write.partition, before, write)
            )
        )
    return changes


def state_change_lines(changes: Sequence[StateChange]) -> list[str]:
    """Return the lines for *changes*: one for each, or one for each kind; new partitions by topic."""
    new = [change for change in changes if change.before is None]
    known = [change for change in changes if change.before is not None]
    lines = _new_partition_lines(new) if new else []
    if len(known) <= LINES_LOGGED:
        return lines + [str(change) for change in known]
    kinds: dict[tuple[str, str], list[StateChange]] = {}
    for change in known:
        kinds.setdefault(change.kind, []).append(change)
    for (leaders, why), alike in kinds.items():
        names = ", ".join(_name(change.partition) for change in alike[:NAMES_LOGGED])
        more = "" if len(alike) <= NAMES_LOGGED else ", ..."
        lines.append(f"{_many(alike)} ({names}{more}): {leaders}: {why}")
    return lines


def reassignment_lines(moved: Mapping[TopicPartition, ReplicaAssignment]) -> list[str]:
    """Return the lines for replicas that were written: one for each partition, or one for each kind of step."""
    if len(moved) <= LINES_LOGGED:
        return [
            f"{_name(partition)} is on brokers {_listed(now.replicas)}"
            f" (adding {_listed(now.adding) or 'none'}, removing {_listed(now.removing) or 'none'})"
            for partition, now in moved.items()
        ]
    kinds: dict[str, list[TopicPartition]] = {}
    for partition, now in moved.items():
        step = "are being reassigned" if now.is_being_reassigned else "have their target replicas"
        kinds.setdefault(step, []).append(partition)
    return [
        f"{len(alike)} partitions ({', '.join(map(_name, alike[:NAMES_LOGGED]))}, ...) {step}"
        for step, alike in kinds.items()
    ]


def outcome_lines(outcomes: Mapping[TopicPartition, str]) -> list[str]:
    """Return the lines for the outcomes of a request: one for each partition, or one for each outcome."""
    if len(outcomes) <= LINES_LOGGED:
        return [f"{_name(partition)}: {outcome}" for partition, outcome in outcomes.items()]
    kinds: dict[str, list[TopicPartition]] = {}
    for partition, outcome in outcomes.items():
        kinds.setdefault(outcome, []).append(partition)
    return [
        f"{len(alike)} partitions ({', '.join(map(_name, alike[:NAMES_LOGGED]))}, ...): {outcome}"
        for outcome, alike in kinds.items()
    ]


def _new_partition_lines(new: list[StateChange]) -> list[str]:
    topics = sorted({change.partition[0] for change in new})
    names = ", ".join(topics[:NAMES_LOGGED]) + (", ..." if len(topics) > NAMES_LOGGED else "")
    leaders = Counter(change.after.leader for change in new)
    led = ", ".join(f"{_named(leader)} ({count})" for leader, count in sorted(leaders.items()))
    return [f"{_many(new)} of {names} for the first time: led by {led}"]


def _many(changes: Sequence[StateChange]) -> str:
    return f"{len(changes)} partition{'' if len(changes) == 1 else 's'}"


def broker_change_line(before: Mapping[int, Broker], after: Mapping[int, Broker]) -> str | None:
    """Return how the live brokers changed, None if they did not."""
    changes = [
        f"{what} {_listed(sorted(ids))}"
        for what, ids in (
            ("gone", before.keys() - after.keys()),
            ("joined", after.keys() - before.keys()),
            (
                "registered again",
                {n for n, b in after.items() if n in before and b.epoch != before[n].epoch},
            ),
        )
        if ids
    ]
    return (
        f"live brokers are {_listed(sorted(after)) or 'none'}: {'; '.join(changes)}"
        if changes
        else None
    )


def _why(
    context: ControllerContext,
    partition: TopicPartition,
    before: LeaderAndIsr | None,
    write: StateWrite,
) -> str:
    after = write.state
    if before is None:
        return "the partition is new"
    if after.leader_recovery_state and after.leader != before.leader:
        return f"UNCLEAN, broker {after.leader} may lack committed records: they are lost"
    if before.leader == NO_LEADER:
        if after.leader == NO_LEADER:
            return "no replica that may lead is alive"
        return f"broker {after.leader}, which has all that is committed, is alive"
    if not context.is_online(before.leader, partition):
        return _trouble(context, before.leader)
    if before.leader in context.shutting_down:
        return f"broker {before.leader} is shutting down"
    if after.leader == before.leader:
        return _why_it_stays(context, partition, before, after)
    target = context.assignment(partition).target_replicas
    if before.leader not in target:
        return f"the partition is reassigned away from broker {before.leader}"
    if before.leader not in after.isr:
        return f"broker {before.leader} may lack committed records"
    if after.leader == target[0]:
        return f"broker {after.leader} is the preferred leader"
    return "an election was requested"


def _why_it_stays(
    context: ControllerContext,
    partition: TopicPartition,
    before: LeaderAndIsr,
    after: LeaderAndIsr,
) -> str:
    gone = sorted(set(before.isr) - set(after.isr))
    for broker_id in gone:
        if not context.is_online(broker_id, partition):
            return _trouble(context, broker_id)
        if broker_id in context.shutting_down:
            return f"broker {broker_id} is shutting down"
    if gone and not _came_back(context, gone[0], before):
        return f"the partition is reassigned away from broker {gone[0]}"
    if gone:
        return f"broker {gone[0]} came back and may lack committed records"
    if context.assignment(partition).is_being_reassigned:
        return "its replicas are being reassigned"
    return "its replicas are sent its state again"


def _came_back(context: ControllerContext, broker_id: int, before: LeaderAndIsr) -> bool:
    """Return whether *broker_id*, which is online, has registered again since it joined the ISR."""
    isr_epoch = dict(zip(before.isr, before.isr_epochs, strict=False))
    now = context.brokers[broker_id].epoch
    return isr_epoch.get(broker_id, now) != now


def _trouble(context: ControllerContext, broker_id: int) -> str:
    if broker_id not in context.brokers:
        return f"broker {broker_id} is down"
    return f"broker {broker_id} lost its log directory"


def _named(leader: int) -> str:
    return "none" if leader == NO_LEADER else str(leader)


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))
