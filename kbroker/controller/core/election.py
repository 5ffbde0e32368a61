"""Leader election: one rule, applied again whenever something that it depends on has changed.

Theory of operation
===================
`elect` looks at a partition's replicas, its present state and the live brokers, and returns the state that it should
have. It is a function of the present only. So it gives the right answer again after a lost race (the leader changed the
ISR meanwhile), and in another controller. Kafka has the same rule in four election algorithms and the replica state
machine.

- A new partition is led by its first live replica; its ISR is its live replicas.
- A live leader stays (preferred election is a separate request).
- Otherwise the first replica in assignment order leads that is alive and in the ISR. If there is none, the partition
  has no leader and **keeps its ISR**: only its members are known to have every committed record.
- With unclean election any live replica may lead, alone in the ISR.
- Dead members leave an ISR that has a live one. A broker that is shutting down counts as dead where another replica can
  lead. Where none can, it counts as alive: a controlled shutdown with RF=1 moves nothing.
- Every change takes leader epoch + 1.

Where classic Kafka loses records (S8, S9) this does not. **A place in the ISR is worth what the log is worth that
earned it.** The state has the broker epoch under which each member joined the ISR. A member that came back counts only
if its broker's registration vouches that its log directories kept everything since that epoch
(`Candidates.is_complete`, KIP-903, KIP-966). It does so after a clean restart, and after kill -9 while the machine kept
running. It does not after a power loss, nor with a wiped or another disk. A member that itself reported missing records
has its epoch voided. The state keeps the epoch; it counts again when the broker has been restarted and found that very
log complete (`LogEnd.intact`).

After a power loss there is one exception, which is logged as a warning and loses nothing that waiting could save. The
only replica of a partition leads again. After a power loss of all members of an ISR (two or more), or of all replicas,
the longest log leads. It is known when all are back and have reported their log ends. No replica can have more. (The
last member of an ISR waits while other replicas are alive. It may have records that no other replica has, and an
operator may prefer to wait for it.)

A replica that leaves an ISR below min.insync.replicas has all that will be committed until the ISR is large enough
again. The leader commits nothing meanwhile. Such replicas are remembered, and lead where no member of the ISR can
(eligible leader replicas, KIP-966).

Invariants: 1. the leader is in the ISR, or there is none; 2. an ISR that the controller wrote is not empty, and is a
subset of the replicas; 3. a new leader epoch is the old one + 1; 4. a leader that was elected without *unclean* has
every committed record, as far as any replica still has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kbroker.common.isr_epochs import is_void, void
from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.log_dir_integrity import LogDirCondition
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import ControllerContext, LogEnd
from kclient.wire.interbroker import NO_LEADER, RECOVERING


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is known of the replicas of one partition."""

    online: Callable[[int], bool]
    epoch_of: Callable[[int], int]
    """The broker epoch of a live broker, else -1."""
    holds: Callable[[int, int], bool]
    """Whether a live replica still has all that it had when it was in sync under a broker epoch."""
    is_empty: Callable[[int], bool]
    """Whether a live replica is known to have lost its whole log."""
    is_incomplete: Callable[[int], bool]
    """Whether a live replica itself reported that it lacks records."""
    end_after_power_loss: Callable[[int], LogEnd | None]
    """The log end of a live replica after a power loss of its machine, if it has reported it."""

    def is_complete(self, replica: int, isr_epoch: int) -> bool:
        """Return whether *replica* is online and has all that it had under the broker epoch *isr_epoch*."""
        return self.online(replica) and self.holds(replica, isr_epoch)

    def isr_epochs(self, isr: Sequence[int], old: dict[int, int]) -> tuple[int, ...]:
        """Return the broker epochs of *isr*'s members now; those not online keep their *old* ones."""
        epochs = tuple(
            void(old.get(replica, -1))
            if self.is_incomplete(replica)
            else self.epoch_of(replica)
            if self.is_complete(replica, old.get(replica, -1))
            else old.get(replica, -1)
            for replica in isr
        )
        return epochs if any(epoch != -1 for epoch in epochs) else ()


def candidates_of(context: ControllerContext, partition: TopicPartition) -> Candidates:
    """Return what *context* knows of the replicas of *partition*."""
    alone = len(context.replicas(partition)) == 1

    def holds(replica: int, isr_epoch: int) -> bool:
        if context.holds(replica, partition, isr_epoch):
            return True
        # No replica has more than the only one, unless that has nothing at all: an empty directory may be a
        # disk that was not mounted.
        broker = context.brokers.get(replica)
        return alone and broker is not None and broker.integrity.condition is LogDirCondition.POWER_LOSS and (
            not is_void(isr_epoch) and not context.is_empty(replica, partition)
        )  # fmt: skip

    return Candidates(
        lambda replica: context.is_online(replica, partition),
        context.epoch_of,
        holds,
        lambda replica: context.is_empty(replica, partition),
        lambda replica: partition in context.incomplete.get(replica, ()),
        lambda replica: context.end_after_power_loss(replica, partition),
    )


def elect_first(
    replicas: Sequence[int], candidates: Candidates, controller_epoch: int
) -> LeaderAndIsr | None:
    """Return a new partition's first state; None while none of its *replicas* is online."""
    live = tuple(filter(candidates.online, replicas))
    if not live:
        return None
    # The partition has no records yet that a member could have lost.
    epochs = tuple(map(candidates.epoch_of, live))
    isr_epochs = epochs if any(epoch != -1 for epoch in epochs) else ()
    return LeaderAndIsr(live[0], 0, live, controller_epoch, isr_epochs=isr_epochs)


def elect(
    replicas: Sequence[int],
    current: LeaderAndIsr,
    candidates: Candidates,
    *,
    shutting_down: frozenset[int] | set[int],
    unclean: bool,
    min_insync_replicas: int,
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """Return the state that *current* should become; None if it is right."""
    isr_epoch_by_member = current.isr_epoch_by_member
    members = [
        r
        for r in current.isr
        if r in replicas and candidates.is_complete(r, isr_epoch_by_member[r])
    ]
    staying = [r for r in members if r not in shutting_down]
    eligible = {r: isr_epoch for r, isr_epoch in current.elr if r in replicas}
    recovery, accepts_data_loss = current.leader_recovery_state, False
    if current.leader in staying:
        leader, isr = current.leader, staying
    elif staying:
        # In assignment order, so that leadership goes to the most preferred replica left.
        leader, isr = next(r for r in replicas if r in staying), staying
    elif current.leader in members:
        # Only brokers that shut down are left: the leader leads until it is gone.
        leader, isr = current.leader, members
    elif members:
        leader, isr = next(r for r in replicas if r in members), members
    else:
        eligible_replicas = (
            r for r in replicas if r in eligible and candidates.is_complete(r, eligible[r])
        )
        successor = next(eligible_replicas, NO_LEADER)
        if successor == NO_LEADER:
            successor = longest_log(replicas, current, candidates)
            if successor == NO_LEADER and unclean:
                successor = _most_complete(replicas, current, candidates)
            if successor != NO_LEADER:
                recovery, accepts_data_loss = RECOVERING, True
        leader, isr = successor, [successor] if successor != NO_LEADER else list(current.isr)
    isr_epochs, elr = candidates.isr_epochs(isr, {**eligible, **isr_epoch_by_member}), current.elr
    if accepts_data_loss:
        # Whatever it lacks is accepted now: no other replica has the same log.
        isr_epochs, elr = (candidates.epoch_of(leader),), ()
    elif leader != NO_LEADER:
        left = {
            r: isr_epoch
            for r, isr_epoch in isr_epoch_by_member.items()
            if r in replicas and isr_epoch >= 0
        }
        lacks_members = len(isr) < min_insync_replicas
        elr = _without({**eligible, **left}, isr, candidates) if lacks_members else ()
    else:
        elr = tuple((r, void(g) if candidates.is_incomplete(r) else g) for r, g in current.elr)
    epochs_unchanged = isr_epochs == current.isr_epochs or (
        not current.isr_epochs and not any(map(is_void, isr_epochs))
    )
    has_newly_incomplete = any(
        candidates.is_incomplete(r) and not is_void(g) for r, g in current.elr
    )
    if (
        leader == current.leader
        and tuple(isr) == current.isr
        and epochs_unchanged
        and not has_newly_incomplete
    ):
        return None
    return replace(
        current,
        leader=leader,
        leader_epoch=current.leader_epoch + 1,
        isr=tuple(isr),
        controller_epoch=controller_epoch,
        isr_epochs=isr_epochs,
        elr=elr,
        leader_recovery_state=recovery,
    )


def longest_log(replicas: Sequence[int], current: LeaderAndIsr, candidates: Candidates) -> int:
    """Return the replica with the longest log after a power loss of all that may have it; else NO_LEADER.

    Those are the members of the ISR if it has several, else all replicas. The sessions of machines that lose power
    together expire one after the other. So the last member of the ISR may not have been alone at all. The longest log
    is known when each of them has reported its log end since the partition lost its leader, and is online.
    """
    epochs = {**dict(current.elr), **current.isr_epoch_by_member}
    known = {}
    for replica in replicas:
        end = candidates.end_after_power_loss(replica)
        if (
            end is None
            or end.leader_epoch != current.leader_epoch
            or not candidates.online(replica)
        ):
            continue  # a log directory may have failed after its report
        if not is_void(epochs.get(replica, -1)):
            known[replica] = (end.last_epoch, end.offset)
    wanted = epochs if len(current.isr) > 1 else (*replicas, *epochs)
    if len(replicas) < 2 or not all(replica in known for replica in wanted):
        return NO_LEADER
    return max((r for r in replicas if r in wanted), key=lambda replica: known[replica])


def _without(
    eligible: dict[int, int], isr: Iterable[int], candidates: Candidates
) -> tuple[tuple[int, int], ...]:
    members = frozenset(isr)
    return tuple(
        sorted(
            (r, isr_epoch)
            for r, isr_epoch in eligible.items()
            if r not in members and not is_void(isr_epoch) and not candidates.is_incomplete(r)
        )
    )


def _most_complete(replicas: Sequence[int], current: LeaderAndIsr, candidates: Candidates) -> int:
    """Return the live replica that likely lacks the least: former members first, emptied ones last."""
    once = {*current.isr, *(r for r, _ in current.elr)}
    online = [r for r in replicas if candidates.online(r)]
    return min(online, key=lambda r: (candidates.is_empty(r), r not in once), default=NO_LEADER)
