"""The partitions this broker hosts: what the controller orders, and what the API handlers ask for.

Theory of operation
===================
LeaderAndIsr and StopReplica pass the fences (controller epoch, broker epoch, leader epoch, topic id), then
logs are created, roles taken or replicas deleted, and only after that anybody hears of it: waiting
requests, and who registered by `on_leadership` (T9). Of thousands of partitions a hundred have their turn at a time,
so that everybody else is heard in between; then the fences are passed anew.

A replica that is to lead and finds its log gone, or shorter than it was, says so and does not (INELIGIBLE_REPLICA,
S8): the controller elects another, or nobody, unless the election was an unclean one, which accepts what there is.

A log directory that fails takes its partitions offline: KAFKA_STORAGE_ERROR for everybody until the broker
is restarted. When the last one fails the broker has to go (S15): *fatal* is called.

Owner: the reactor's thread. Loading and closing run in the pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID, uuid4

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from kbroker.config import BrokerConfig, LogConfig
from kbroker.controller.election import RECOVERING
from kbroker.controller.steps import at_once
from kbroker.log.disk import OS_DISK, Disk
from kbroker.log.log_dirs import LogDirs
from kbroker.log.partition_log import PartitionLog
from kbroker.replication.role import ControllerFence, Standing, fences_broker
from kbroker.replication.throttle import Throttles
from kbroker.runtime import found_logs
from kbroker.runtime.log_upkeep import LogUpkeep
from kbroker.runtime.partition import Key, Partition
from kbroker.runtime.surroundings import Surroundings
from kbroker.runtime.turns import Turn, in_turns
from kbroker.runtime.waiting_requests import WaitingRequests
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import (
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
    code_of,
)
from kclient.wire.interbroker import (
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
)

log = Logger()

PARTITIONS_TOLD = 20
"""Of so many partitions in one order each has its line in the log; of more there is one for all."""

T = TypeVar("T")

Changed: TypeAlias = list[tuple[Partition, bool]]
"""Partitions whose role changed, and whether each was led from here before."""


class LeadershipListener(Protocol):
    """Hears that leadership of a partition came or went; once more with the same epoch is possible."""

    def __call__(
        self, topic: str, partition: int, leader_epoch: int, zk_version: int, is_leader: bool, /
    ) -> None:
        """Take note."""


class Replicas:
    """All partitions of this broker.

    *topic_config* gives a topic's settings, *is_known* says whether the cluster has a partition at all
    (the metadata cache), *fatal* is called with a cause when no log directory is left.
    """

    def __init__(
        self,
        reactor: Any,
        config: BrokerConfig,
        *,
        broker_id: int,
        topic_config: Callable[[str], LogConfig],
        wall_clock: Callable[[], float],
        is_known: Callable[[str, int], bool] = lambda _topic, _partition: False,
        fatal: Callable[[str], None] = lambda _cause: None,
        disk: Disk = OS_DISK,
        pool: Executor | None = None,
        new_uuid: Callable[[], UUID] = uuid4,
        boot_id: str = "",
    ) -> None:
        self.reactor = reactor
        self.broker_id = broker_id
        self.broker_epoch = -1
        """czxid of our registration; see `registered`."""
        self.is_expired = False
        """Whether the session of that registration is over, and there is no other yet."""
        self.is_leaving = False
        """Whether a controlled shutdown has begun."""
        self._unconfirmed: dict[Key, None] = {}
        """Roles of before that registration, which the controller has not confirmed since."""
        self._topic_config = topic_config
        self._is_known = is_known
        self._fatal = fatal
        self._wall_clock = wall_clock
        self._pool = pool or ThreadPoolExecutor(config.background_threads, "disk")
        self.log_dirs = LogDirs(
            config.directories,
            config_of=topic_config,
            executor=self._pool,
            call_owner=reactor.callFromThread,
            now_ms=self.now_ms,
            on_failure=self._directory_failed,
            disk=disk,
            new_uuid=new_uuid,
            boot_id=boot_id,
            recovery_threads=config.num_recovery_threads_per_data_dir,
        )
        self.fence = ControllerFence()
        self._closed = False
        self._partitions: dict[Key, Partition] = {}
        self._hosted_of: Counter[str] = Counter()
        """How many partitions of a topic are hosted."""
        self._topic_names: dict[UUID, str] = {}
        self._listeners: list[LeadershipListener] = []
        self._role_listeners: list[Callable[[list[Partition]], None]] = []
        self.around = Surroundings(
            reactor.seconds, lag_time_max=config.replica_lag_time_max_ms / 1000
        )
        self.around.followers.silence = max(3.0, 4 * config.replica_fetch_wait_max_ms / 1000)
        self.throttles = Throttles(lambda: self.broker_id)
        """How fast replicas that are named may be caught up with."""
        self.waiting = WaitingRequests(reactor)
        """Requests of clients that wait for a partition's watermark here."""
        self.waiting_followers = WaitingRequests(reactor)
        """Fetches of followers that wait for a partition's log to grow."""
        self.around.appended = self.waiting_followers.wake
        self.upkeep = LogUpkeep(
            reactor, config, self.log_dirs, self.high_watermark, self._log_start_moved
        )

    def now_ms(self) -> int:
        """Return the wall clock in ms: what records are stamped with."""
        return int(self._wall_clock() * 1000)

    # -- start and stop ------------------------------------------------------------------------

    def load(self) -> Deferred[None]:
        """Open and recover every log of the claimed directories, in the pool; then begin the sweeps.

        Fails with KafkaStorageError when none is usable.
        """
        loading: Deferred[None] = self._in_pool(self.log_dirs.load)
        return loading.addCallback(lambda _: self._loaded())

    def _loaded(self) -> None:
        for note in self.log_dirs.notes:
            log.info("{note}", note=note)
        log.info("{past}", past=str(self.log_dirs.lives.past))
        self.upkeep.start()

    def close(self) -> Deferred[bool]:
        """Stop the sweeps and close every log cleanly, in the pool; fires with whether all was clean."""
        self._closed = True
        self.upkeep.stop()
        high_watermarks = self.upkeep.high_watermarks()
        self._partitions.clear()
        self._hosted_of.clear()

        def close() -> bool:
            self._pool.shutdown(wait=True)
            return self.log_dirs.close(
                broker_epoch=self.broker_epoch, high_watermarks=high_watermarks
            )

        closing: Deferred[bool] = deferToThreadPool(
            self.reactor, self.reactor.getThreadPool(), close
        )
        return closing

    def _in_pool(self, work: Callable[[], None]) -> Deferred[None]:
        """Run *work* in the disk pool."""
        done: Deferred[None] = Deferred()
        future = self._pool.submit(work)

        def came_back() -> None:
            error = future.exception()
            if error is None:
                done.callback(None)
            else:
                done.errback(error)

        future.add_done_callback(lambda _: self.reactor.callFromThread(came_back))
        return done

    def high_watermark(self, key: Key) -> int | None:
        """Return a hosted partition's high watermark as far as it is known here; None if it is not hosted."""
        partition = self._partitions.get(key)
        return partition.high_watermark if partition is not None else None

    def _log_start_moved(self, key: Key) -> None:
        partition = self._partitions.get(key)
        if partition is not None:
            partition.log_start_moved()

    # -- look-ups ------------------------------------------------------------------------------

    def partition(self, topic: str, partition: int) -> Partition:
        """Return a hosted partition.

        Raise NotLeaderOrFollower where another broker has it, UnknownTopicOrPartition where nobody has.
        """
        found = self._partitions.get((topic, partition))
        if found is not None:
            return found
        if (topic, partition) in self.log_dirs.failed:
            raise KafkaStorageError(f"{topic}-{partition} is in a log directory that failed")
        if self._is_known(topic, partition):
            raise NotLeaderOrFollower(f"{topic}-{partition} has no replica on this broker")
        raise UnknownTopicOrPartition(f"{topic}-{partition}")

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of a hosted topic."""
        return self._topic_names.get(topic_id)

    def hosts_topic(self, topic: str) -> bool:
        """Say whether a partition of *topic* is hosted."""
        return topic in self._hosted_of

    def leads(self, topic: str, partition: int) -> bool:
        """Say whether this broker leads a partition."""
        found = self._partitions.get((topic, partition))
        return found is not None and found.leading is not None

    @property
    def hosted(self) -> Iterable[Partition]:
        """Every hosted partition."""
        return self._partitions.values()

    # -- leadership ----------------------------------------------------------------------------

    @property
    def epoch_to_join_by(self) -> int:
        """The broker epoch by which our fetches ask for a place in the ISR; -1 when we are about to go.

        Who follows until the end, but joins no more, leaves nobody with an ISR that he is missing from
        (KAFKA-14140).
        """
        return -1 if self.is_leaving or self.is_expired else self.broker_epoch

    def on_leadership(self, callback: LeadershipListener) -> None:
        """Have *callback* called when this broker begins or ceases to lead a partition."""
        self._listeners.append(callback)

    def on_roles(self, callback: Callable[[list[Partition]], None]) -> None:
        """Have *callback* called with the partitions whose role, or leader, changed."""
        self._role_listeners.append(callback)

    def apply_leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Become leader or follower as the controller says; one error code per partition."""
        return at_once(self._lead_and_follow(request))

    def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Give replicas up, and delete those that are to be deleted; one error code per partition."""
        return at_once(self._give_up(request))

    async def obey_leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Do as `apply_leader_and_isr`, some partitions in every turn of the reactor."""
        return await in_turns(self.reactor, self._lead_and_follow(request))

    async def obey_stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Do as `stop_replicas`, some partitions in every turn of the reactor."""
        return await in_turns(self.reactor, self._give_up(request))

    def registered(self, broker_epoch: int) -> None:
        """Take note of our registration. After another one every role waits for its confirmation.

        The controller took us for dead: it may have given our partitions away, and deleted topics, without
        asking us. What it does not name from now on until it has told everything is not ours any more.
        """
        if self.broker_epoch not in (-1, broker_epoch):
            self._unconfirmed = dict.fromkeys(self._partitions)
        self.broker_epoch = broker_epoch
        self.is_expired = self.around.is_cut_off = False

    def cut_off(self) -> None:
        """Take note that our session may be over by now, which nobody can tell us (S11).

        From now on a partition is led only where nobody else can have been elected, until we are registered in
        the same session, which was not over then, or in another one.
        """
        self.around.is_cut_off = True
        led = [partition for partition in self.hosted if partition.leading is not None]
        log.warn(
            "cut off from ZooKeeper for too long: of {count} partitions that this broker leads it serves those "
            "whose in-sync replicas all follow it",
            count=len(led),
        )
        for partition in led:
            self.waiting.wake(partition.key)

    def expired(self) -> None:
        """Lead nothing any more: our session is over, and others were elected, or will be.

        Only orders for the next registration count from now on.
        """
        self.is_expired = True
        self.around.is_cut_off = False
        changed = []
        for partition in self.hosted:
            if partition.leading is not None:
                partition.stop()
                changed.append((partition, True))
        if changed:
            log.warn("gave up {count} partitions: the session is over", count=len(changed))
        self._tell(changed)

    def unfollowed(self, follower: int, keys: Iterable[Key | None]) -> None:
        """Take note that broker *follower* does not fetch these from us any more."""
        for key in keys:
            partition = self._partitions.get(key) if key is not None else None
            if partition is not None and partition.leading is not None:
                partition.leading.unfollowed(follower)

    def give_up_unconfirmed(self, broker_epoch: int) -> None:
        """Neither lead nor follow what the controller, who has told everything, did not name; logs stay."""
        if broker_epoch != self.broker_epoch:
            return
        changed: Changed = []
        for key in list(self._unconfirmed):
            self._give_up_role(key, changed)
        self._tell(changed)

    def _give_up_role(self, key: Key, changed: Changed) -> None:
        """Host a partition no longer, as if we had been restarted."""
        del self._unconfirmed[key]
        partition = self._partitions.get(key)
        if partition is None or partition.offline is not None:
            return
        log.warn("{partition} is not ours any more", partition=partition)
        self.log_dirs.high_watermarks[key] = partition.high_watermark
        changed.append((partition, partition.leading is not None))
        partition.stop()
        self._forget(partition)

    def _lead_and_follow(
        self, request: LeaderAndIsrRequest
    ) -> Generator[None, None, LeaderAndIsrResponse]:
        """Apply LeaderAndIsr, as `_obey` does."""
        count = sum(len(topic.partition_states) for topic in request.topic_states)
        told = count <= PARTITIONS_TOLD
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
            code = self._apply(topic.topic_name, topic_id, state, changed, told=told)
            codes[code.name] += 1
            partition = self._partitions.get((topic.topic_name, state.partition_index))
            end = found_logs.end_of_leaderless(self.log_dirs, partition, state)
            answer.partition_errors.append(
                LeaderAndIsrPartitionError(state.partition_index, int(code), *end)
            )

        orders = (
            (topic, answer, state)
            for topic, answer in zip(request.topic_states, answers, strict=True)
            for state in topic.partition_states
        )
        refused = yield from self._obey(request, orders, apply)
        if refused is not ErrorCode.NONE:
            return LeaderAndIsrResponse(error_code=int(refused))
        if not told:
            log.info(
                "LeaderAndIsr for {count} partitions of {topics} topics: {codes}",
                count=count, topics=len(request.topic_states),
                codes=", ".join(f"{code} {number}" for code, number in codes.items()),
            )  # fmt: skip
        return LeaderAndIsrResponse(topics=answers)

    def _give_up(self, request: StopReplicaRequest) -> Generator[None, None, StopReplicaResponse]:
        """Apply StopReplica, as `_obey` does."""
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
        refused = yield from self._obey(request, orders, stop)
        if refused is not ErrorCode.NONE:
            return StopReplicaResponse(error_code=int(refused))
        return StopReplicaResponse(partition_errors=answers)

    def _obey(
        self,
        request: LeaderAndIsrRequest | StopReplicaRequest,
        orders: Iterable[T],
        one: Callable[[T, Changed], None],
    ) -> Generator[None, None, ErrorCode]:
        """Do *one* for each of *orders*; yields where others may have their turn, and passes the fences anew then.

        Who waits and listens hears of it at the end of each turn. Returns what refused the rest.
        """
        if (refused := self._refused(request)) is not ErrorCode.NONE:
            return refused
        changed: Changed = []
        turn = Turn(self.reactor.seconds)
        for order in orders:
            if turn.is_over():
                self._tell(changed)
                changed = []
                yield
                turn = Turn(self.reactor.seconds)
                if (refused := self._refused(request)) is not ErrorCode.NONE:
                    return refused
            one(order, changed)
        self._tell(changed)
        return ErrorCode.NONE

    def _refused(self, request: LeaderAndIsrRequest | StopReplicaRequest) -> ErrorCode:
        if self._closed:
            return ErrorCode.STALE_BROKER_EPOCH
        over = self.broker_epoch + 1 if self.is_expired else self.broker_epoch
        if fences_broker(request.broker_epoch, over):
            log.warn(
                "refused controller {id}: its request is for broker epoch {theirs}, ours is {ours}",
                id=request.controller_id, theirs=request.broker_epoch, ours=self.broker_epoch,
            )  # fmt: skip
            return ErrorCode.STALE_BROKER_EPOCH
        if not self.fence.admits(request.controller_epoch):
            log.warn(
                "refused controller {id}: its epoch {theirs} is over, {ours} is on",
                id=request.controller_id, theirs=request.controller_epoch, ours=self.fence.epoch,
            )  # fmt: skip
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if request.broker_epoch > self.broker_epoch > -1:
            self.registered(request.broker_epoch)  # the controller knows before we do
        return ErrorCode.NONE

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
        partition, stray = self._ordered(key, topic_id, state, changed)
        if partition.offline is not None or key in self.log_dirs.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        code = partition.role.judge(state, topic_id)
        if code is not ErrorCode.NONE:
            if told:
                log.info("LeaderAndIsr for {topic}-{number}: {code}",
                         topic=topic, number=state.partition_index, code=code.name)  # fmt: skip
            return code
        led = partition.leading is not None
        lacks = "" if stray else found_logs.lacking(self.log_dirs, partition, state)
        if lacks and state.leader == self.broker_id and state.leader_recovery_state != RECOVERING:
            log.error(
                "{partition} is not led from here: {lacks}. The controller is told, and decides again.",
                partition=partition, lacks=lacks,
            )  # fmt: skip
            return ErrorCode.INELIGIBLE_REPLICA
        try:
            if stray:
                self._set_aside(key, topic_id)
            found = self._log(key, topic_id, is_new=stray or state.is_new)
        except KafkaError as error:
            log.error("no log for {topic}-{number}: {error}",
                      topic=topic, number=state.partition_index, error=error)  # fmt: skip
            return code_of(error)
        # Who follows a leader gets what is missing; who follows nobody goes on lacking it.
        partition.lacks_records = lacks if state.leader < 0 else ""
        if state.leader >= 0:
            found.missing_below = None
        checkpointed = self.log_dirs.high_watermarks.pop(key, 0)
        partition.take_role(state, topic_id, found, checkpointed)
        if told and not state.is_new:
            log.info(
                "{partition}: {standing} in epoch {epoch} (leader {leader}, ISR {isr}, log end {end},"
                " high watermark {mark})",
                partition=partition, standing=partition.role.standing.value,
                epoch=state.leader_epoch, leader=state.leader, isr=sorted(state.isr),
                end=found.log_end_offset, mark=partition.high_watermark,
            )  # fmt: skip
        if key not in self._partitions:
            self._partitions[key] = partition
            self._hosted_of[topic] += 1
        if topic_id is not None:
            self._topic_names[topic_id] = topic
        changed.append((partition, led))
        return ErrorCode.NONE

    def _ordered(
        self,
        key: Key,
        topic_id: UUID | None,
        state: LeaderAndIsrPartitionState,
        changed: Changed,
    ) -> tuple[Partition, bool]:
        """Return the partition that an order is about, new where there is none, and whether its log is another's."""
        if key in self._unconfirmed:
            if topic_id in (None, self._partitions[key].topic_id):
                del self._unconfirmed[key]
            else:  # a namesake: the topic that we had was deleted behind our back
                self._give_up_role(key, changed)
        partition = self._partitions.get(key) or Partition(
            key, self.broker_id, self.waiting.wake, self.around
        )
        on_disk = self.log_dirs.get(*key)
        stray = False
        if partition.role.topic_id is None and on_disk is not None:
            stray = topic_id is not None and found_logs.is_stray(
                self.log_dirs, on_disk, topic_id, state, self.broker_id
            )
            partition.role.topic_id = topic_id if stray else on_disk.topic_id
        return partition, stray

    def _set_aside(self, key: Key, topic_id: UUID | None) -> None:
        """Make room for a topic whose name an earlier one had; raise KafkaError.

        The earlier one was deleted, and its log came back: after a power loss the directory has the name
        that it had before (S27). Nobody has led or followed with it since this broker was started.
        """
        log.warn(
            "{topic}-{number} belongs to topic id {id} now; the log of an earlier one is kept in {path}",
            topic=key[0], number=key[1], id=topic_id, path=self.log_dirs.set_aside(*key),
        )  # fmt: skip

    def _log(self, key: Key, topic_id: UUID | None, *, is_new: bool) -> PartitionLog:
        """Return the log of a partition, made if there is none; raise KafkaError."""
        found = self.log_dirs.create(*key, topic_id, is_new=is_new)
        if topic_id is not None and found.topic_id is None:
            found.assign_topic_id(topic_id)
        return found

    def _stop(
        self,
        topic: str,
        state: StopReplicaPartitionState,
        changed: Changed,
    ) -> ErrorCode:
        key = (topic, state.partition_index)
        partition = self._partitions.get(key)
        if partition is not None:
            if partition.offline is not None:
                return ErrorCode.KAFKA_STORAGE_ERROR
            code = partition.role.judge_stop(state.leader_epoch)
            if code is not ErrorCode.NONE:
                return code
            led = partition.leading is not None
            partition.stop()
            changed.append((partition, led))
        if not state.delete_partition:
            return ErrorCode.NONE
        if partition is not None:
            partition.role.standing = Standing.NONE
            partition.log = partition.following = None
            self._forget(partition)
        if self.log_dirs.get(*key) is None:
            return ErrorCode.KAFKA_STORAGE_ERROR if key in self.log_dirs.failed else ErrorCode.NONE
        try:
            self.log_dirs.delete(*key)
        except KafkaError as error:
            log.error("deleting {topic}-{number} failed: {error}",
                      topic=topic, number=state.partition_index, error=error)  # fmt: skip
            return code_of(error)
        self.log_dirs.high_watermarks.pop(key, None)
        return ErrorCode.NONE

    def _forget(self, partition: Partition) -> None:
        topic, _ = partition.key
        del self._partitions[partition.key]
        self._unconfirmed.pop(partition.key, None)
        self._hosted_of[topic] -= 1
        if not self._hosted_of[topic]:
            del self._hosted_of[topic]
            if partition.topic_id is not None:
                self._topic_names.pop(partition.topic_id, None)

    def _tell(self, changed: Changed) -> None:
        """Tell who waits and who listens, now that the state is consistent."""
        for heard in self._role_listeners:
            heard([partition for partition, _ in changed])
        for partition, led in changed:
            self.waiting.wake(partition.key)
            self.waiting_followers.wake(partition.key)
            leads = partition.leading is not None
            if not leads and not led:
                continue
            role = partition.role
            for listener in self._listeners:
                try:
                    listener(*partition.key, role.leader_epoch, role.partition_epoch, leads)
                except Exception:
                    log.failure(
                        "hearing of leadership of {partition} failed", partition=repr(partition)
                    )

    # -- settings and failures -----------------------------------------------------------------

    def reconfigure(self, topic: str) -> None:
        """Apply a topic's settings that changed to its logs."""
        config = self._topic_config(topic)
        for key in list(self.log_dirs):
            if key[0] == topic:
                found = self.log_dirs.get(*key)
                if found is not None:
                    found.config = config
        for key, partition in self._partitions.items():
            if key[0] == topic and partition.leading is not None:
                required = min(config.min_insync_replicas, len(partition.role.replicas))
                partition.perform(partition.leading.require(required))

    def throttle(self, config: BrokerConfig) -> None:
        """Take the broker's replication rates."""
        self.throttles.limit(
            as_leader=config.leader_replication_throttled_rate,
            as_follower=config.follower_replication_throttled_rate,
        )

    def _directory_failed(self, path: str, error: Exception, lost: list[Key]) -> None:
        """Take the partitions in a failed log directory offline (S15)."""
        log.error(
            "log directory {path} failed and is offline with {count} partitions: {error}",
            path=path, count=len(lost), error=error,
        )  # fmt: skip
        changed = []
        for key in lost:
            partition = self._partitions.get(key)
            if partition is not None:
                changed.append((partition, partition.leading is not None))
                partition.go_offline(f"log directory {path}: {error}")
        self._tell(changed)
        if not self.log_dirs.online:
            self._fatal(f"the last log directory failed: {path}: {error}")
