"""The controller's LeaderAndIsr and StopReplica requests, applied to roles and logs.

Theory of operation
===================
A request passes the fences (broker epoch, controller epoch), then each partition passes its own (leader epoch, topic
id). Then logs are created, roles taken or replicas deleted. The changes are announced only after that. Of
thousands of partitions a hundred are applied per turn of the reactor, so that other requests are served in between.
After each turn its changes are announced, and before the next one the fences are checked again. Applied changes are
announced even when the rest fails.

A replica that is elected, and finds its log missing, truncated or replaced, does not lead and answers
INELIGIBLE_REPLICA (S8). The controller elects another replica, or none, unless the election was unclean, which accepts
the log as it is. A follower in the ISR, or in the ELR, answers the same and takes no role. The controller writes a
state without it, and with the next LeaderAndIsr it follows. A log created while the state names the replica would pass
for the lost one after the next restart. While the partition has no leader, no log is created in place of a lost one:
the lost log may come back. Until it was in sync after a loss, a replica answers the same to every state with its place
(docs/design/damaged-log-directory.md).

In: LeaderAndIsrRequest, StopReplicaRequest, full UpdateMetadataRequest
Out: roles and logs, one error code per partition, `RoleChanges.announce`
Owner: the reactor's thread
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable
from typing import Any, TypeVar
from uuid import UUID

from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.common.turns import Turn, in_turns
from kbroker.log.log_manager import LogManager
from kbroker.log.unified_log import UnifiedLog
from kbroker.metadata.epoch_fences import ControllerFence, Registration
from kbroker.replica import found_logs
from kbroker.replica.core.role import Role
from kbroker.replica.partition import Partition
from kbroker.replica.partition_registry import PartitionRegistry
from kbroker.replica.role_changes import Changed, RoleChanges
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import InvalidUpdateVersion, KafkaError, code_of
from kclient.wire.interbroker import (
    LEADER_DURING_DELETE,
    RECOVERING,
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

log = Logger()

PARTITIONS_LOGGED = 20
"""Up to so many partitions of a request are logged one by one; more, in one line."""

T = TypeVar("T")


class ReplicaStateChanges:
    """Applies the controller's requests.

    *new_partition* makes a partition that is not hosted yet. *registered* is called with the broker epoch of a request
    that is for a later registration than the known one. *isr_settled* waits for the ISR writes of a partition.
    """

    def __init__(
        self,
        reactor: Any,
        registry: PartitionRegistry,
        role_changes: RoleChanges,
        log_manager: LogManager,
        registration: Registration,
        controller_fence: ControllerFence,
        *,
        new_partition: Callable[[TopicPartition], Partition],
        registered: Callable[[int], None],
        isr_settled: Callable[[TopicPartition], Awaitable[None]],
    ) -> None:
        self._reactor = reactor
        self._registry = registry
        self._role_changes = role_changes
        self._log_manager = log_manager
        self._registration = registration
        self._new_partition = new_partition
        self._registered = registered
        self._isr_settled = isr_settled
        self.fence = controller_fence
        self._closed = False

    def close(self) -> None:
        """Apply nothing more: the logs are about to be closed."""
        self._closed = True

    # -- requests ------------------------------------------------------------------------------

    async def become_leader_or_follower(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Apply LeaderAndIsr, some partitions in every turn of the reactor."""
        return await in_turns(self._reactor, self._become_leader_or_follower(request))

    async def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Apply StopReplica, some partitions in every turn of the reactor.

        A deletion is confirmed when no ISR write of the partition can be applied any more. With the last confirmation
        the controller deletes the state znode, and a topic of the same name may be created.
        """
        response = await in_turns(self._reactor, self._stop_replicas(request))
        for topic in request.topic_states:
            for state in topic.partition_states:
                if state.delete_partition:
                    await self._isr_settled((topic.topic_name, state.partition_index))
        return response

    async def stop_unconfirmed(self, request: UpdateMetadataRequest) -> None:
        """Stop hosting what the controller did not confirm before its full UpdateMetadata; logs stay.

        Some partitions in every turn of the reactor. A partition that is confirmed meanwhile is kept.
        """
        if request.broker_epoch == self._registration.broker_epoch:
            await in_turns(self._reactor, self._stop_unconfirmed(request))

    def _stop_unconfirmed(self, request: UpdateMetadataRequest) -> Generator[None, None, None]:
        keys = list(self._registry.unconfirmed)
        logs_each = len(keys) <= PARTITIONS_LOGGED
        stopped = 0

        def stop_one(key: TopicPartition, changed: Changed) -> None:
            nonlocal stopped
            if key in self._registry.unconfirmed:
                before = len(changed)
                self._stop_hosting(key, changed, logs_each=logs_each)
                stopped += len(changed) - before

        yield from self._apply_each(request, keys, stop_one)
        if stopped and not logs_each:
            log.warn("{count} partitions are not assigned to this broker any more", count=stopped)

    async def stop_recreated_topics(self, request: UpdateMetadataRequest) -> None:
        """Stop hosting partitions of a deleted topic with a name that belongs to another topic id now; logs stay.

        The StopReplica may have arrived too late, or never. Until this broker stops hosting the partition, its leader
        would write the old topic's ISR into the new topic's state znode.
        """
        ids = {
            topic.topic_name: topic.topic_id
            for topic in request.topic_states
            if self._registry.hosts_topic(topic.topic_name) and _is_alive(topic)
        }
        names = {name for name, topic_id in ids.items() if not self._is_known(name, topic_id)}
        if not names:
            return
        keys = [key for key in self._registry.partitions if key[0] in names]

        def stop_one(key: TopicPartition, changed: Changed) -> None:
            partition = self._registry.partitions.get(key)
            if partition is not None and partition.topic_id not in (None, ids[key[0]]):
                self._stop_hosting(key, changed)

        await in_turns(self._reactor, self._apply_each(request, keys, stop_one))

    async def stop_deleted_topics(
        self, request: UpdateMetadataRequest, partitions: Collection[Partition]
    ) -> None:
        """Stop hosting *partitions* of deleted topics; logs stay. Those that are replaced meanwhile are kept."""
        by_key = {partition.key: partition for partition in partitions}

        def stop_one(key: TopicPartition, changed: Changed) -> None:
            if self._registry.partitions.get(key) is by_key[key]:
                self._stop_hosting(key, changed)

        await in_turns(self._reactor, self._apply_each(request, list(by_key), stop_one))

    def _is_known(self, topic: str, topic_id: UUID | None) -> bool:
        return topic_id is None or self._registry.topic_name(topic_id) == topic

    def _stop_hosting(
        self, key: TopicPartition, changed: Changed, *, logs_each: bool = True
    ) -> None:
        """Host a partition no longer, as after a restart."""
        self._registry.unconfirmed.pop(key, None)
        partition = self._registry.partitions.get(key)
        if partition is None or partition.offline is not None:
            return
        if logs_each:
            log.warn("{partition} is not assigned to this broker any more", partition=partition)
        self._log_manager.high_watermarks[key] = partition.high_watermark
        changed.append((partition, partition.leader_state is not None))
        partition.stop()
        self._registry.remove(partition)

    # -- LeaderAndIsr and StopReplica as a whole -----------------------------------------------

    def _become_leader_or_follower(
        self, request: LeaderAndIsrRequest
    ) -> Generator[None, None, LeaderAndIsrResponse]:
        """Apply LeaderAndIsr, as `_apply_each` does."""
        count = sum(len(topic.partition_states) for topic in request.topic_states)
        logs_each = count <= PARTITIONS_LOGGED
        codes: Counter[str] = Counter()
        answers = [LeaderAndIsrTopicError(topic.topic_id, []) for topic in request.topic_states]

        def apply(
            order: tuple[
                LeaderAndIsrTopicState, LeaderAndIsrTopicError, LeaderAndIsrPartitionState
            ],
            changed: Changed,
        ) -> None:
            topic, answer, state = order
            topic_id = topic.topic_id if topic.topic_id and topic.topic_id.int else None
            if topic_id is not None and request.request_number >= 0:
                self._stop_recreated_topic(
                    (topic.topic_name, state.partition_index), topic_id, changed
                )
            code = self._apply(topic.topic_name, topic_id, state, changed, logs_each=logs_each)
            codes[code.name] += 1
            partition = self._registry.partitions.get((topic.topic_name, state.partition_index))
            end = found_logs.end_of_leaderless(self._log_manager, partition, state)
            answer.partition_errors.append(
                LeaderAndIsrPartitionError(state.partition_index, int(code), *end)
            )

        each_partition = (
            (topic, answer, state)
            for topic, answer in zip(request.topic_states, answers, strict=True)
            for state in topic.partition_states
        )
        refused = yield from self._apply_each(request, each_partition, apply)
        if refused is not ErrorCode.NONE:
            return LeaderAndIsrResponse(error_code=int(refused))
        if not logs_each:
            log.info(
                "LeaderAndIsr for {count} partitions of {topics} topics: {codes}",
                count=count, topics=len(request.topic_states),
                codes=", ".join(f"{code} {number}" for code, number in codes.items()),
            )  # fmt: skip
        return LeaderAndIsrResponse(topics=answers)

    def _stop_replicas(
        self, request: StopReplicaRequest
    ) -> Generator[None, None, StopReplicaResponse]:
        """Apply StopReplica, as `_apply_each` does."""
        answers: list[StopReplicaPartitionError] = []

        def stop(order: tuple[str, StopReplicaPartitionState], changed: Changed) -> None:
            topic, state = order
            code = self._stop(topic, state, changed)
            answers.append(StopReplicaPartitionError(topic, state.partition_index, int(code)))

        each_partition = (
            (topic.topic_name, state)
            for topic in request.topic_states
            for state in topic.partition_states
        )
        refused = yield from self._apply_each(request, each_partition, stop)
        if refused is not ErrorCode.NONE:
            return StopReplicaResponse(error_code=int(refused))
        return StopReplicaResponse(partition_errors=answers)

    def _apply_each(
        self,
        request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest,
        items: Iterable[T],
        one: Callable[[T, Changed], None],
    ) -> Generator[None, None, ErrorCode]:
        """Apply *one* to each of *items*; yields between turns, and checks the fences again after each yield.

        The changes of each turn are announced at its end. Returns the error that stopped the rest.
        """
        if (refused := self._check_epochs(request)) is not ErrorCode.NONE:
            return refused
        changed: Changed = []
        turn = Turn(self._reactor.seconds)
        try:
            for item in items:
                if turn.is_over():
                    done, changed = changed, []
                    self._announce(done)
                    yield
                    turn = Turn(self._reactor.seconds)
                    if (refused := self._check_epochs(request)) is not ErrorCode.NONE:
                        return refused
                one(item, changed)
        finally:
            # Also after an error: a repeated request is not applied again, so these would never be announced.
            self._announce(changed)
        return ErrorCode.NONE

    def _announce(self, changed: Changed) -> None:
        """Announce role changes; before that, correct the checkpoints of logs that may take appends from now on.

        A log that lost records ends below its high watermark on the disk. A start after a power loss accepts less than
        the disk has. If the log grew back to that entry and the process died, the next start would take records for
        committed that are not.
        """
        self._log_manager.lower_checkpoints(
            {
                partition.key: partition.high_watermark
                for partition, _ in changed
                if partition.role.leader >= 0 and partition.log is not None
            }
        )
        self._role_changes.announce(changed)

    def _check_epochs(
        self, request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest
    ) -> ErrorCode:
        if self._closed:
            return ErrorCode.STALE_BROKER_EPOCH
        ours = self._registration
        # Of an UpdateMetadata only the stray replicas are left to delete: the metadata cache has checked its number.
        check_number = not isinstance(request, UpdateMetadataRequest)
        try:
            self.fence.check(request, ours.lowest_accepted, check_number=check_number)
        except KafkaError as error:
            is_late = isinstance(error, InvalidUpdateVersion)
            line = log.info if is_late else log.warn
            line(
                "rejected a request of controller {id}: {why}", id=request.controller_id, why=error
            )
            return error.code
        if ours.is_behind(request.broker_epoch):
            self._registered(request.broker_epoch)  # the controller received it before us
        return ErrorCode.NONE

    # -- one partition -------------------------------------------------------------------------

    def _apply(
        self,
        topic: str,
        topic_id: UUID | None,
        state: LeaderAndIsrPartitionState,
        changed: Changed,
        *,
        logs_each: bool,
    ) -> ErrorCode:
        key = (topic, state.partition_index)
        partition, stray = self._partition_for(key, topic_id, state, changed)
        if partition.offline is not None or key in self._log_manager.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        code = partition.role.check_leader_and_isr(state, topic_id)
        if code is not ErrorCode.NONE:
            if logs_each:
                log.info("LeaderAndIsr for {topic}-{number}: {code}",
                         topic=topic, number=state.partition_index, code=code.name)  # fmt: skip
            return code
        led = partition.leader_state is not None
        lacks = found_logs.missing_records(self._log_manager, partition, state)
        if stray:  # a new partition cannot have records yet
            lacks = "" if state.is_new else stray
        if lacks and (refused := self._refused_for(lacks, partition, state, stray)) is not None:
            return refused
        try:
            if stray:
                self._set_aside(key, topic_id)
            found = self._log(key, topic_id, state, is_new=bool(stray) or state.is_new)
        except KafkaError as error:
            log.error("no log for {topic}-{number}: {error}",
                      topic=topic, number=state.partition_index, error=error)  # fmt: skip
            return code_of(error)
        partition.lacks_records = lacks if state.leader < 0 else ""
        if state.leader >= 0:
            found.missing_below = None
            # A place in the ISR may be that of an earlier run's late fetch, until this log was in sync.
            is_leader = state.leader == partition.role.broker_id
            found.lacks_until_in_sync = "" if is_leader else lacks
        checkpointed = self._log_manager.high_watermarks.pop(key, 0)
        partition.take_role(state, topic_id, found, checkpointed)
        if logs_each and not state.is_new:
            log.info(
                "{partition}: {role} in epoch {epoch} (leader {leader}, ISR {isr}, log end {end},"
                " high watermark {mark})",
                partition=partition, role=partition.role.current.value,
                epoch=state.leader_epoch, leader=state.leader, isr=sorted(state.isr),
                end=found.log_end_offset, mark=partition.high_watermark,
            )  # fmt: skip
        self._registry.add(partition)
        changed.append((partition, led))
        return ErrorCode.NONE

    def _refused_for(
        self, lacks: str, partition: Partition, state: LeaderAndIsrPartitionState, stray: str
    ) -> ErrorCode | None:
        """Return the error of a replica that lacks records and takes no role; None where it takes the role."""
        if state.leader == partition.role.broker_id:
            if state.leader_recovery_state == RECOVERING:
                return None
            log.error(
                "{partition} is not led from here: {lacks}. The response makes the controller elect again.",
                partition=partition, lacks=lacks,
            )  # fmt: skip
            return ErrorCode.INELIGIBLE_REPLICA
        if state.leader >= 0 and partition.role.broker_id in (*state.isr, *state.elr):
            log.warn(
                "{partition} leaves the ISR: {lacks}. It follows when the controller has written the new state.",
                partition=partition, lacks=lacks,
            )  # fmt: skip
            return ErrorCode.INELIGIBLE_REPLICA
        is_absent = (
            self._log_manager.get(*partition.key) is None and not self._log_manager.unreadable_dirs
        )
        if state.leader >= 0 or not (stray or is_absent):
            return None
        log.warn("{partition} waits for a leader, and its files are not changed: {lacks}",
                 partition=partition, lacks=lacks)  # fmt: skip
        return ErrorCode.NONE

    def _stop_recreated_topic(self, key: TopicPartition, topic_id: UUID, changed: Changed) -> None:
        """Stop hosting a partition of another topic id: the controller's latest request names *topic_id*.

        A request without a number may be a late one for the earlier topic. It gets INCONSISTENT_TOPIC_ID, as in Kafka.
        """
        partition = self._registry.partitions.get(key)
        if partition is not None and partition.role.topic_id not in (None, topic_id):
            self._stop_hosting(key, changed)

    def _partition_for(
        self,
        key: TopicPartition,
        topic_id: UUID | None,
        state: LeaderAndIsrPartitionState,
        changed: Changed,
    ) -> tuple[Partition, str]:
        """Return the partition of a request, new where there is none, and why the log here is not its own, or ""."""
        if key in self._registry.unconfirmed:
            if topic_id in (None, self._registry.partitions[key].topic_id):
                del self._registry.unconfirmed[key]
            else:  # another topic of that name: the hosted one was deleted without a StopReplica
                self._stop_hosting(key, changed)
        partition = self._registry.partitions.get(key) or self._new_partition(key)
        on_disk = self._log_manager.get(*key)
        role, stray = partition.role, ""
        # A log without an id that waited for a leader is judged again: now there may be one to copy from.
        has_waited = role.leader < 0 and on_disk is not None and on_disk.topic_id is None
        if on_disk is not None and (role.topic_id is None or has_waited):
            stray = found_logs.stray(self._log_manager, on_disk, topic_id, state, role.broker_id)
            if role.topic_id is None:
                role.topic_id = topic_id if stray else on_disk.topic_id
        return partition, stray

    def _set_aside(self, key: TopicPartition, topic_id: UUID | None) -> None:
        """Set the log of another partition in this partition's directory aside; raise KafkaError.

        Directories were exchanged. Or an earlier topic of that name was deleted, and its log came back: after a power
        loss the directory has its former name (S27). That log has had no role since this broker started.
        """
        found = self._log_manager.get(*key)
        other = found.metadata if found is not None else None
        log.warn(
            "{topic}-{number} belongs to topic id {id}; the log of another ({other}) is kept in {path}",
            topic=key[0], number=key[1], id=topic_id, other=other, path=self._log_manager.set_aside(*key),
        )  # fmt: skip

    def _log(
        self,
        key: TopicPartition,
        topic_id: UUID | None,
        state: LeaderAndIsrPartitionState,
        *,
        is_new: bool,
    ) -> UnifiedLog:
        """Return the log of a partition, created if there is none; raise KafkaError."""
        found = self._log_manager.create(*key, topic_id, is_new=is_new)
        # A log that was copied from another broker, or has lost its topic id, belongs to this replica once there is a
        # leader. Before, it may be the log of another partition: directories were exchanged after a power loss.
        is_empty = found.topic_id is None and found.log_end_offset == 0
        if topic_id is not None and (state.leader >= 0 or is_empty):
            self._log_manager.identify(*key, topic_id)
        return found

    def _stop(
        self,
        topic: str,
        state: StopReplicaPartitionState,
        changed: Changed,
    ) -> ErrorCode:
        key = (topic, state.partition_index)
        partition = self._registry.partitions.get(key)
        if partition is not None:
            if partition.offline is not None:
                return ErrorCode.KAFKA_STORAGE_ERROR
            code = partition.role.check_stop_replica(state.leader_epoch)
            if code is not ErrorCode.NONE:
                return code
            led = partition.leader_state is not None
            partition.stop()
            changed.append((partition, led))
        if not state.delete_partition:
            return ErrorCode.NONE
        self._log_manager.missing_logs.discard(key)
        if partition is not None:
            partition.role.current = Role.NONE
            partition.log = partition.follower_state = None
            self._registry.remove(partition)
        found = self._log_manager.get(*key)
        if found is None:
            return (
                ErrorCode.KAFKA_STORAGE_ERROR if key in self._log_manager.failed else ErrorCode.NONE
            )
        try:
            if found.metadata.partition in (None, state.partition_index):
                self._log_manager.delete(*key)
            else:
                self._set_aside(key, None)
        except KafkaError as error:
            log.error("deleting {topic}-{number} failed: {error}",
                      topic=topic, number=state.partition_index, error=error)  # fmt: skip
            return code_of(error)
        self._log_manager.high_watermarks.pop(key, None)
        return ErrorCode.NONE


def _is_alive(topic: UpdateMetadataTopicState) -> bool:
    """Return whether a metadata update describes a topic that is not being deleted."""
    return any(state.leader != LEADER_DURING_DELETE for state in topic.partition_states)
