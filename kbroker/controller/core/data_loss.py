"""Replicas that should have every committed record and may not: the data-loss warning (S8).

A partition waits without a leader when every member of its ISR is down, or back without the records that it had. A
member that is down may come back. Of the others only an operator can decide that the records they have are enough.
"""

from __future__ import annotations

from typing import Final

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.log_dir_integrity import LogDirCondition
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import ControllerContext
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
    """Return the warning for *partition*, with the state *after* from now on; None if nothing may be lost."""
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
        found.append(
            (replica, _INCOMPLETE if lacks else _WHY.get(broker.integrity.condition, _OLDER))
        )
    if not found:
        return None
    return WarnOfDataLoss(
        partition, after.leader, tuple(found), _reason(context, partition, before, after)
    )


def _reason(
    context: ControllerContext, partition: TopicPartition, before: LeaderAndIsr, after: LeaderAndIsr
) -> str:
    """Return why the leader of *after* leads, whatever it may lack."""
    replicas = context.replicas(partition)
    if after.leader == NO_LEADER:
        return ""
    if len(replicas) == 1:
        return "its only replica"
    if longest_log(replicas, before, candidates_of(context, partition)) == after.leader:
        return "the longest log of those in sync, after a power loss of all their machines: no replica has more"
    return "an unclean election"


def line_for(warning: WarnOfDataLoss) -> str:
    """Return the line to be logged: what may be lost, and what an operator can do."""
    topic, index = warning.partition
    why = "; ".join(f"broker {broker}: {reason}" for broker, reason in warning.untrusted)
    if warning.leader >= 0:
        return (
            f"{topic}-{index} is led again by broker {warning.leader} ({warning.reason}), and may lack acknowledged"
            f" records ({why})"
        )
    return (
        f"{topic}-{index} is OFFLINE: no live replica is known to hold all its acknowledged records ({why}). "
        "Bring back what was there: another in-sync replica, the old disk, or the partition's directory; put it back "
        "while the broker is stopped. If there is nothing to "
        f"bring back, accept the loss: an unclean election of {topic}-{index} (ElectLeaders, election type "
        "UNCLEAN), or unclean.leader.election.enable=true for the topic."
    )
