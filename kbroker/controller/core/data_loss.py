"""Replicas that should have every committed record and may not: what the operator is told of them (S8).

A partition waits without a leader when all that ZooKeeper knows to be in sync are dead, or back without what they
had. The dead may come back; of the others only a person can say that what they have is enough.
"""

from __future__ import annotations

from typing import Final

from kbroker.common.log_dir_integrity import LogDirCondition
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import ControllerContext, LeaderAndIsr
from kbroker.controller.core.effects import WarnOfDataLoss
from kbroker.controller.core.election import candidates_of, longest_log
from kclient.wire.interbroker import NO_LEADER, RECOVERING

_WHY: Final = {
    LogDirCondition.POWER_LOSS: "its machine went down: records that were not synced may be gone",
    LogDirCondition.PARTIAL: "one of its log directories is missing or new, and its log may have been there",
    LogDirCondition.NEW: "its log directories are new: wiped, not mounted, or of another disk",
}
_OLDER: Final = "its log directories are of another time: restored from a copy, or another disk"
_INCOMPLETE: Final = "its log of this partition is gone, or ends before what it had"


def warning_for(
    context: ControllerContext, partition: TopicPartition, before: LeaderAndIsr, after: LeaderAndIsr
) -> WarnOfDataLoss | None:
    """Return what is to be told of *partition*, whose state becomes *after*; None if there is no doubt."""
    if after.leader == before.leader != NO_LEADER:
        return None
    if after.leader not in (NO_LEADER, *before.isr) and after.leader_recovery_state != RECOVERING:
        return None
    found = []
    for replica, isr_epoch in before.isr_epoch_by_member.items():
        broker = context.brokers.get(replica)
        if broker is None or context.holds(replica, partition, isr_epoch):
            continue
        if after.leader in before.isr and after.leader != replica:
            continue
        lacks = partition in context.incomplete.get(replica, ()) or isr_epoch < 0
        found.append((replica, _INCOMPLETE if lacks else _WHY.get(broker.start, _OLDER)))
    if not found:
        return None
    return WarnOfDataLoss(
        partition, after.leader, tuple(found), _reason(context, partition, before, after)
    )


def _reason(
    context: ControllerContext, partition: TopicPartition, before: LeaderAndIsr, after: LeaderAndIsr
) -> str:
    """Say why the leader of *after* leads, whatever it may lack."""
    replicas = context.replicas(partition)
    if after.leader == NO_LEADER:
        return ""
    if len(replicas) == 1:
        return "its only replica"
    if longest_log(replicas, before, candidates_of(context, partition)) == after.leader:
        return "the longest log of those in sync, whose machines all went down: nobody has more"
    return "an unclean election"
