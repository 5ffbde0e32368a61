"""Builders of hosted partitions over real logs, and a follower that fetches without a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kbroker.common.topic_partition import TopicPartition
from kbroker.metadata.epoch_fences import Registration
from kbroker.replica import follower_log
from kbroker.replica.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from kbroker.replica.core.remote_replicas import FollowerLiveness
from kbroker.replica.partition import Partition, Read
from kbroker.replica.partition_dependencies import AlterPartition, PartitionDependencies
from kclient.wire.errors import KafkaError, OffsetOutOfRange, code_of
from kclient.wire.fetch import EpochEndOffset, FetchPartitionResponse
from kclient.wire.interbroker import LeaderAndIsrPartitionState
from tests.kit.logs import batch_of, open_log
from tests.kit.replica_fakes import NoFetchers, RecordedIsrWrites

KEY = ("t", 0)


class HostedPartition(Partition):
    """A partition on broker *broker_id*, its log below *directory*; *clock* is turned by hand."""

    def __init__(
        self,
        directory: Path,
        broker_id: int,
        *,
        alter_partition: AlterPartition | None = None,
        add_partitions_to_txn_manager: AddPartitionsToTxnManager | None = None,
        **settings: Any,
    ) -> None:
        self.clock = 0.0
        self.woken = 0
        self.isr_writes = RecordedIsrWrites()
        self.followers = FollowerLiveness()
        self.appended: list[TopicPartition] = []
        """The partition, once for each wake-up of followers."""
        dependencies = PartitionDependencies(
            now=lambda: self.clock,
            now_ms=lambda: int(self.clock * 1000),
            lag_time_max=10,
            registration=Registration(),
            followers=self.followers,
            may_join_isr=lambda _replica, _broker_epoch: True,
            alter_partition=alter_partition or self.isr_writes,
            fetchers=NoFetchers(),
            high_watermark_advanced=self._wake,
            log_end_advanced=self.appended.append,
            add_partitions_to_txn_manager=add_partitions_to_txn_manager,
        )
        super().__init__(KEY, broker_id, dependencies)
        self._own_log = open_log(directory / f"broker-{broker_id}", **settings)

    def _wake(self, _key: object) -> None:
        self.woken += 1

    def take(
        self,
        leader: int,
        epoch: int,
        isr: Sequence[int] = (1, 2, 3),
        *,
        replicas: Sequence[int] = (1, 2, 3),
        version: int = 0,
        mark: int = 0,
    ) -> None:
        """Take the role that a controller gives."""
        state = LeaderAndIsrPartitionState(
            0, 1, leader, epoch, list(isr), version, list(replicas), is_new=False
        )
        self.take_role(state, None, self._own_log, mark)

    def put(self, *timestamps: int, acks: int = 1, value: bytes = b"v") -> None:
        """Append one batch as leader."""
        self.append(batch_of(*(timestamps or (1000,)), value=value), acks, 1000)

    @property
    def end(self) -> int:
        """The log's end."""
        assert self.log is not None
        return self.log.log_end_offset

    def content(self) -> bytes:
        """Every byte of the log."""
        directory = Path(self._own_log.directory)
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def fetch(follower: HostedPartition, leader: HostedPartition, max_bytes: int = 1 << 20) -> int:
    """Make one fetch as the brokers do; return the bytes appended. Raise what the leader refuses."""
    asked = follower_log.build_fetch(follower, max_bytes)
    answer = FetchPartitionResponse(0)
    try:
        leader.require_leader_for_followers(asked.current_leader_epoch)
        diverging = (
            leader.diverging_epoch(asked.fetch_offset, asked.last_fetched_epoch, follower=True)
            if asked.last_fetched_epoch >= 0
            else None
        )
        if diverging is not None:
            answer.diverging_epoch = EpochEndOffset(*diverging)
        else:
            _fill(answer, _read(leader, follower, asked.fetch_offset, max_bytes))
    except OffsetOutOfRange:
        assert leader.log is not None
        log = leader.log
        follower_log.fetch_offset_and_truncate(
            follower, log.log_start_offset, log.log_end_offset, 0
        )
        return 0
    return follower_log.process_partition_data(follower, answer, 0)


def _read(leader: HostedPartition, follower: HostedPartition, offset: int, max_bytes: int) -> Read:
    return leader.read_as_follower(
        follower.role.broker_id,
        offset,
        max_bytes,
        min_one_batch=True,
        current_leader_epoch=follower.role.leader_epoch,
    )


def _fill(answer: FetchPartitionResponse, read: Read) -> None:
    answer.high_watermark = read.high_watermark
    answer.log_start_offset = read.log_start_offset
    answer.records = (b"".join(part.read() for part in read.found.slices),)
    for part in read.found.slices:
        part.release()


def fetch_all(follower: HostedPartition, leader: HostedPartition) -> None:
    """Fetch until nothing comes any more."""
    for _ in range(100):
        end = follower.end
        if not fetch(follower, leader) and follower.end == end:
            return
    raise AssertionError("a follower that never catches up")


def refusal(call: Callable[[], object]) -> str:
    """Return the name of the error that *call* ends with; empty if it does not."""
    try:
        call()
    except KafkaError as error:
        return code_of(error).name
    return ""
