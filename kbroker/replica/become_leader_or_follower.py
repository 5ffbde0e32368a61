"""What the controller orders: LeaderAndIsr and StopReplica, done to logs and roles.

Theory of operation
===================
An order passes the fences (broker epoch, controller epoch), then each partition in it its own (leader epoch, topic id).
Then logs are made, roles taken or replicas deleted, and only after that anybody hears of it (T9). Of thousands of
partitions a hundred have their turn at a time, so that everybody else is heard in between; after each turn the
listeners hear, and before the next one the fences are passed anew. What was done is told, too, when the rest fails.

A replica that is to lead and finds its log gone, shorter than it was, or another one in its place, does not lead and
answers INELIGIBLE_REPLICA (S8): the controller elects another, or none, unless the election was an unclean one, which
accepts what there is. A follower in the ISR, or eligible beside it, gives the same answer, and takes no role: the
controller writes a state without it, and with that order it follows. A log that was begun while the state names the
replica would pass for the lost one after the next restart. While the partition has no leader nothing is begun in the
place of what is lost: it may be brought back.

In: LeaderAndIsrRequest, StopReplicaRequest, the end of all confirmations
Out: roles and logs, one error code per partition, `PartitionRegistry.announce`
Owner: the reactor's thread
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar
from uuid import UUID

from twisted.logger import Logger

from kbroker.common.epoch_fences import ControllerFence
from kbroker.common.steps import at_once
from kbroker.common.topic_partition import TopicPartition
from kbroker.common.turns import Turn, in_turns
from kbroker.log.log_manager import LogManager
from kbroker.log.unified_log import UnifiedLog
from kbroker.replica import found_logs
from kbroker.replica.core.broker_epoch import Registration
from kbroker.replica.core.role import Role
from kbroker.replica.partition import Partition
from kbroker.replica.partition_registry import Changed, PartitionRegistry
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError, code_of
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
"""Of so many partitions in one order each has its line in the log; of more there is one for all."""

T = TypeVar("T")


class ReplicaStateChanges:
    """Obeys the controller.

    *new_partition* makes a partition that is not hosted yet. *registered* is called with the broker epoch of an
    order that knows of a later registration of ours than we do.
    """

    def __init__(
        self,
        reactor: Any,
        registry: PartitionRegistry,
        log_manager: LogManager,
        registration: Registration,
        controller_fence: ControllerFence,
        *,
        new_partition: Callable[[TopicPartition], Partition],
        registered: Callable[[int], None],
    ) -> None:
        self._reactor = reactor
        self._registry = registry
        self._log_manager = log_manager
        self._registration = registration
        self._new_partition = new_partition
        self._registered = registered
        self.fence = controller_fence
        self._closed = False

    def close(self) -> None:
        """Obey no more: the logs are about to be closed."""
        self._closed = True

    # -- orders --------------------------------------------------------------------------------

    def become_leader_or_follower_at_once(
        self, request: LeaderAndIsrRequest
    ) -> LeaderAndIsrResponse:
        """Become leader or follower as the controller says; one error code per partition."""
        return at_once(self._lead_and_follow(request))

    def stop_replicas_at_once(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Give replicas up, and delete those that are to be deleted; one error code per partition."""
        return at_once(self._stop_replicas(request))

    async def become_leader_or_follower(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Do as `become_leader_or_follower_at_once`, some partitions in every turn of the reactor."""
        return await in_turns(self._reactor, self._lead_and_follow(request))

    async def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Do as `stop_replicas_at_once`, some partitions in every turn of the reactor."""
        return await in_turns(self._reactor, self._stop_replicas(request))

    async def stop_unconfirmed(self, request: UpdateMetadataRequest) -> None:
        """Neither lead nor follow what the controller, who has told everything, did not name; logs stay.

        Some partitions in every turn of the reactor. What is named meanwhile is kept.
        """
        if request.broker_epoch == self._registration.broker_epoch:
            await in_turns(self._reactor, self._stop_unconfirmed(request))

    def _stop_unconfirmed(self, request: UpdateMetadataRequest) -> Generator[None, None, None]:
        keys = list(self._registry.unconfirmed)
        told = len(keys) <= PARTITIONS_LOGGED
        given_up = 0

        def give_up(key: TopicPartition, changed: Changed) -> None:
            nonlocal given_up
            if key in self._registry.unconfirmed:
                before = len(changed)
                self._stop_hosting(key, changed, told=told)
                given_up += len(changed) - before

        yield from self._apply_each(request, keys, give_up)
        if given_up and not told:
            log.warn("{count} partitions are not ours any more", count=given_up)

    async def stop_recreated_topics(self, request: UpdateMetadataRequest) -> None:
        """Neither lead nor follow partitions of a deleted topic whose name has another topic id by now; logs stay.

        The deletion may have reached this broker too late, or never. Until it gives the role up, its leader would write
        the old topic's ISR into the new topic's state znode.
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

        def give_up(key: TopicPartition, changed: Changed) -> None:
            partition = self._registry.partitions.get(key)
            if partition is not None and partition.topic_id not in (None, ids[key[0]]):
                self._stop_hosting(key, changed)

        await in_turns(self._reactor, self._apply_each(request, keys, give_up))

    def _is_known(self, topic: str, topic_id: UUID | None) -> bool:
        return topic_id is None or self._registry.topic_name(topic_id) == topic

    def _stop_hosting(self, key: TopicPartition, changed: Changed, *, told: bool = True) -> None:
        """Host a partition no longer, as if we had been restarted."""
        self._registry.unconfirmed.pop(key, None)
        partition = self._registry.partitions.get(key)
        if partition is None or partition.offline is not None:
            return
        if told:
            log.warn("{partition} is not ours any more", partition=partition)
        self._log_manager.high_watermarks[key] = partition.high_watermark
        changed.append((partition, partition.leader_state is not None))
        partition.stop()
        self._registry.remove(partition)

    # -- LeaderAndIsr and StopReplica as a whole -----------------------------------------------

    def _lead_and_follow(
        self, request: LeaderAndIsrRequest
    ) -> Generator[None, None, LeaderAndIsrResponse]:
        """Apply LeaderAndIsr, as `_apply_each` does."""
        count = sum(len(topic.partition_states) for topic in request.topic_states)
        told = count <= PARTITIONS_LOGGED
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
            code = self._apply(topic.topic_name, topic_id, state, changed, told=told)
            codes[code.name] += 1
            partition = self._registry.partitions.get((topic.topic_name, state.partition_index))
            end = found_logs.end_of_leaderless(self._log_manager, partition, state)
            answer.partition_errors.append(
                LeaderAndIsrPartitionError(state.partition_index, int(code), *end)
            )

        orders = (
            (topic, answer, state)
            for topic, answer in zip(request.topic_states, answers, strict=True)
            for state in topic.partition_states
        )
        refused = yield from self._apply_each(request, orders, apply)
        if refused is not ErrorCode.NONE:
            return LeaderAndIsrResponse(error_code=int(refused))
        if not told:
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

        orders = (
            (topic.topic_name, state)
            for topic in request.topic_states
            for state in topic.partition_states
        )
        refused = yield from self._apply_each(request, orders, stop)
        if refused is not ErrorCode.NONE:
            return StopReplicaResponse(error_code=int(refused))
        return StopReplicaResponse(partition_errors=answers)

    def _apply_each(
        self,
        request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest,
        orders: Iterable[T],
        one: Callable[[T, Changed], None],
    ) -> Generator[None, None, ErrorCode]:
        """Do *one* for each of *orders*; yields where others may have their turn, and passes the fences anew then.

        Who waits and listens hears of it at the end of each turn. Returns what refused the rest.
        """
        if (refused := self._check_epochs(request)) is not ErrorCode.NONE:
            return refused
        changed: Changed = []
        turn = Turn(self._reactor.seconds)
        try:
            for order in orders:
                if turn.is_over():
                    told, changed = changed, []
                    self._registry.announce(told)
                    yield
                    turn = Turn(self._reactor.seconds)
                    if (refused := self._check_epochs(request)) is not ErrorCode.NONE:
                        return refused
                one(order, changed)
        finally:
            # Whatever happened: an order that comes again is not applied again, so nobody would hear of these.
            self._registry.announce(changed)
        return ErrorCode.NONE

    def _check_epochs(
        self, request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest
    ) -> ErrorCode:
        if self._closed:
            return ErrorCode.STALE_BROKER_EPOCH
        ours = self._registration
        if ours.refuses(request.broker_epoch):
            log.warn(
                "refused controller {id}: its request is for broker epoch {theirs}, ours is {ours}",
                id=request.controller_id, theirs=request.broker_epoch, ours=ours.broker_epoch,
            )  # fmt: skip
            return ErrorCode.STALE_BROKER_EPOCH
        if not self.fence.admits(request.controller_epoch):
            log.warn(
                "refused controller {id}: its epoch {theirs} is over, {ours} is on",
                id=request.controller_id, theirs=request.controller_epoch, ours=self.fence.epoch,
            )  # fmt: skip
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if not isinstance(request, UpdateMetadataRequest) and self.fence.is_overtaken(
            request.controller_epoch, request.broker_epoch, request.request_number
        ):
            log.info(
                "ignored request {number} of controller {id}: a later one arrived before it",
                id=request.controller_id, number=request.request_number,
            )  # fmt: skip
            return ErrorCode.INVALID_UPDATE_VERSION
        if ours.is_behind(request.broker_epoch):
            self._registered(request.broker_epoch)  # the controller knows before we do
        return ErrorCode.NONE

    # -- one partition -------------------------------------------------------------------------

    def _apply(
        self,
        topic: str,
        topic_id: UUID | None,
        state: LeaderAndIsrPartitionState,
        changed: Changed,
        *,
        told: bool,
    ) -> ErrorCode:
        key = (topic, state.partition_index)
        partition, stray = self._partition_for(key, topic_id, state, changed)
        if partition.offline is not None or key in self._log_manager.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        code = partition.role.check_leader_and_isr(state, topic_id)
        if code is not ErrorCode.NONE:
            if told:
                log.info("LeaderAndIsr for {topic}-{number}: {code}",
                         topic=topic, number=state.partition_index, code=code.name)  # fmt: skip
            return code
        led = partition.leader_state is not None
        lacks = found_logs.missing_records(self._log_manager, partition, state)
        if stray:  # there cannot be any records yet of a partition that is new
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
        checkpointed = self._log_manager.high_watermarks.pop(key, 0)
        partition.take_role(state, topic_id, found, checkpointed)
        if told and not state.is_new:
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
        """Return the answer where a replica that lacks records takes no role; None where it takes it."""
        if state.leader == partition.role.broker_id:
            if state.leader_recovery_state == RECOVERING:
                return None
            log.error(
                "{partition} is not led from here: {lacks}. The controller is told, and decides again.",
                partition=partition, lacks=lacks,
            )  # fmt: skip
            return ErrorCode.INELIGIBLE_REPLICA
        if state.leader >= 0 and partition.role.broker_id in (*state.isr, *state.elr):
            log.warn(
                "{partition} loses its place in the ISR: {lacks}. It follows once the controller has written that.",
                partition=partition, lacks=lacks,
            )  # fmt: skip
            return ErrorCode.INELIGIBLE_REPLICA
        is_absent = self._log_manager.get(*partition.key) is None and not self._log_manager.unread
        if state.leader >= 0 or not (stray or is_absent):
            return None
        log.warn("{partition} waits for a leader, and its files are left as they are: {lacks}",
                 partition=partition, lacks=lacks)  # fmt: skip
        return ErrorCode.NONE

    def _stop_recreated_topic(self, key: TopicPartition, topic_id: UUID, changed: Changed) -> None:
        """Give the role of a partition of another topic id up: the latest request of the controller names *topic_id*.

        A request without a number may be a late one of the earlier topic. It gets INCONSISTENT_TOPIC_ID, as in Kafka.
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
        """Return the partition of an order, new where there is none, and why the log here is not its own, or ""."""
        if key in self._registry.unconfirmed:
            if topic_id in (None, self._registry.partitions[key].topic_id):
                del self._registry.unconfirmed[key]
            else:  # a namesake: the topic that we had was deleted behind our back
                self._stop_hosting(key, changed)
        partition = self._registry.partitions.get(key) or self._new_partition(key)
        on_disk = self._log_manager.get(*key)
        stray = ""
        if partition.role.topic_id is None and on_disk is not None:
            stray = found_logs.stray(
                self._log_manager, on_disk, topic_id, state, partition.role.broker_id
            )
            partition.role.topic_id = topic_id if stray else on_disk.topic_id
        return partition, stray

    def _set_aside(self, key: TopicPartition, topic_id: UUID | None) -> None:
        """Make room for a partition in whose directory the log of another one is; raise KafkaError.

        Directories were exchanged; or an earlier topic of that name was deleted, and its log came back: after a power
        loss the directory has the name that it had before (S27). That log has had no role since this broker started.
        """
        found = self._log_manager.get(*key)
        whose = found.metadata if found is not None else None
        log.warn(
            "{topic}-{number} belongs to topic id {id}; the log of another ({whose}) is kept in {path}",
            topic=key[0], number=key[1], id=topic_id, whose=whose, path=self._log_manager.set_aside(*key),
        )  # fmt: skip

    def _log(
        self,
        key: TopicPartition,
        topic_id: UUID | None,
        state: LeaderAndIsrPartitionState,
        *,
        is_new: bool,
    ) -> UnifiedLog:
        """Return the log of a partition, made if there is none; raise KafkaError."""
        found = self._log_manager.create(*key, topic_id, is_new=is_new)
        # A log that was copied from another broker is this replica's once there is a leader to compare it with.
        if topic_id is not None and (found.topic_id is None or state.leader >= 0):
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
        self._log_manager.vanished.discard(key)
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
