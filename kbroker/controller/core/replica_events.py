"""What brokers report of replicas: leaders their ISR changes, and each broker the outcome of LeaderAndIsr.

Theory of operation
===================
*IsrChanged*: leaders write the states of their partitions themselves and announce that. A state that was read is
adopted if it is newer than the known one. A leader does not know all that the controller knows. A member that it added
may have been shutting down (KAFKA-14140), or may lack what it had when it was in sync. Such partitions are evaluated.
*LogDirsFailed*: a broker lost a log directory; the notification does not name it (KIP-112). All replicas on the broker
are sent a LeaderAndIsr again; the responses name those that are offline. *LeaderAndIsrAcked*: the response names the
replicas on a failed log directory, and those that lack records they should have (S8). It also has the log end offsets
of partitions without a leader, with the epochs under which these logs kept everything. Each may change the election. A
response that changes nothing is not evaluated: an evaluation may read a topic's settings from ZooKeeper. A replica with
a log that could not be created because a directory failed is created in another one by the next request. The response
to that request ends its being offline. A replica that was reported offline is sent a request again, since another one
may have been on its way. So is a replica that lacks records and has no place in the state any more. It did not follow
because the request that it answered was older.

Invariants: 1. an older state never replaces a newer one; 2. a response counts for the broker epoch that sent it, and
for assigned replicas of topics that are not being deleted.

In: IsrChanged, LogDirsFailed, LeaderAndIsrAcked, the tables   Out: the tables, `writes`   Owner: state_machine
"""

from __future__ import annotations

from kbroker.common.isr_epochs import VOID_EPOCH
from kbroker.common.log_dir_integrity import LogDirCondition
from kbroker.common.steps import Steps
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core import topic_deletion
from kbroker.controller.core.context import Broker, ControllerContext
from kbroker.controller.core.election import candidates_of, longest_log
from kbroker.controller.core.events import IsrChanged, LeaderAndIsrAcked, LogDirsFailed
from kbroker.controller.core.state_writes import StateWrites
from kclient.wire.interbroker import NO_LEADER


def isr_changed(context: ControllerContext, event: IsrChanged, writes: StateWrites) -> Steps[None]:
    """Adopt the states that leaders wrote."""
    doubtful = []
    for partition, state in event.states.items():
        yield
        known = context.leader_and_isr.get(partition)
        if known is None or partition[0] in context.deleting:
            continue
        if state.zk_version > known.zk_version:
            context.leader_and_isr[partition] = state
            writes.request_batch.metadata.add(partition)
            for replica, isr_epoch in state.isr_epoch_by_member.items():
                if replica not in known.isr and isr_epoch == context.epoch_of(replica):
                    # It has caught up again, whatever it lacked.
                    context.incomplete.get(replica, set()).discard(partition)
                elif not context.holds(replica, partition, isr_epoch):
                    doubtful.append(partition)
                if replica in context.shutting_down:
                    doubtful.append(partition)  # unknown to its leader (KAFKA-14140)
    yield from writes.evaluate(context, dict.fromkeys(doubtful))


def log_dirs_failed(
    context: ControllerContext, event: LogDirsFailed, writes: StateWrites
) -> Steps[None]:
    """Send LeaderAndIsr for all replicas there: the responses name those that are offline (KIP-112)."""
    ids = event.brokers & context.brokers.keys()
    for partition in context.partitions_on(ids):
        yield
        for broker_id in ids.intersection(context.replicas(partition)):
            writes.request_batch.leader_and_isr.setdefault(broker_id, set()).add(partition)


def leader_and_isr_acked(
    context: ControllerContext, event: LeaderAndIsrAcked, writes: StateWrites
) -> Steps[None]:
    """Update the tables with what a broker reports of its replicas."""
    broker = context.brokers.get(event.broker_id)
    if broker is None or broker.epoch != event.broker_epoch:
        return
    failed = context.replicas_on_offline_dirs.setdefault(event.broker_id, set())
    fresh = [
        p
        for p in sorted(event.storage_errors - failed)
        if event.broker_id in context.replicas(p) and p[0] not in context.deleting
    ]
    failed.update(fresh)
    online = sorted(event.online & failed)
    failed.difference_update(online)
    writes.request_batch.metadata |= {*fresh, *online}
    topic_deletion.replicas_online(context, event.broker_id, online, writes.request_batch)
    lacking = [
        p
        for p in sorted(event.incomplete)
        if event.broker_id in context.replicas(p) and p[0] not in context.deleting
    ]
    context.incomplete.setdefault(event.broker_id, set()).update(lacking)
    again = [*fresh, *(p for p in lacking if not _is_in_isr_or_elr(context, p, event.broker_id))]
    if again:
        writes.request_batch.leader_and_isr.setdefault(event.broker_id, set()).update(again)
    ends = {
        p: end
        for p, end in sorted(event.log_ends.items())
        if event.broker_id in context.replicas(p) and p[0] not in context.deleting
    }
    context.log_ends.setdefault(event.broker_id, {}).update(ends)
    # Only a replica with a log that now vouches for its place, or the last log end to be known, changes the election.
    # An evaluation of the others would read settings from ZooKeeper in vain.
    known = [
        p
        for p in ends
        if _is_vouched_by_its_log(context, p, broker)
        or _longest_log_leader(context, p) != NO_LEADER
    ]
    yield from writes.evaluate(context, dict.fromkeys([*fresh, *lacking, *known, *online]))


def _is_in_isr_or_elr(
    context: ControllerContext, partition: TopicPartition, broker_id: int
) -> bool:
    current = context.leader_and_isr.get(partition)
    return current is not None and broker_id in (*current.isr, *dict(current.elr))


def _is_vouched_by_its_log(
    context: ControllerContext, partition: TopicPartition, broker: Broker
) -> bool:
    """Return whether a replica's own log, and not its broker's registration, vouches for its place."""
    current = context.leader_and_isr.get(partition)
    if current is None:
        return False
    places = {**dict(current.elr), **current.isr_epoch_by_member}
    isr_epoch = places.get(broker.broker_id, VOID_EPOCH)
    is_known = broker.integrity.condition is not LogDirCondition.PARTIAL and broker.keeps(isr_epoch)
    return not is_known and context.holds(broker.broker_id, partition, isr_epoch)


def _longest_log_leader(context: ControllerContext, partition: TopicPartition) -> int:
    current = context.leader_and_isr.get(partition)
    if current is None:
        return NO_LEADER
    candidates = candidates_of(context, partition)
    return longest_log(context.replicas(partition), current, candidates)
