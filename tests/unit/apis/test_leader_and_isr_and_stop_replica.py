"""LeaderAndIsr and StopReplica: fences, identity, what is reported, and what stays on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred

from kbroker.config import LogConfig
from kbroker.replica import follower_log
from kbroker.replica.core.leader_state import WriteIsr
from kbroker.replica.offset_lookup import last_offset_for_leader_epoch
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import (
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from kclient.wire.fetch import FetchPartitionResponse
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.kit.logs import batch_of
from tests.unit.apis.kit import ApiBroker, broker_in

A, B = UUID(int=0xA), UUID(int=0xB)


def lead(
    broker: ApiBroker,
    *,
    leader: int = 1,
    leader_epoch: int = 0,
    controller_epoch: int = 1,
    broker_epoch: int = -1,
    topic_id: UUID | None = A,
    replicas: tuple[int, ...] = (1,),
    isr: tuple[int, ...] = (),
    elr: tuple[int, ...] = (),
    partition: int = 0,
    recovering: int = 0,
    number: int = -1,
    is_new: bool = False,
) -> ErrorCode:
    state = LeaderAndIsrPartitionState(
        partition,
        controller_epoch,
        leader,
        leader_epoch,
        list(isr or replicas),
        4,
        list(replicas),
        is_new=is_new,
        leader_recovery_state=recovering,
        elr=list(elr),
        elr_epochs=[10] * len(elr),
    )
    response = broker.become_leader_or_follower(
        LeaderAndIsrRequest(
            controller_id=9,
            controller_epoch=controller_epoch,
            broker_epoch=broker_epoch,
            topic_states=[LeaderAndIsrTopicState("t", topic_id, [state])],
            request_number=number,
        )
    )
    if response.error_code:
        return ErrorCode(response.error_code)
    return ErrorCode(response.topics[0].partition_errors[0].error_code)


def stop(
    broker: ApiBroker,
    *,
    partition: int = 0,
    leader_epoch: int = -2,
    delete: bool = True,
    controller_epoch: int = 1,
    number: int = -1,
) -> ErrorCode:
    response = broker.stop_replicas(
        StopReplicaRequest(
            controller_epoch=controller_epoch,
            topic_states=[
                StopReplicaTopicState(
                    "t", [StopReplicaPartitionState(partition, leader_epoch, delete)]
                )
            ],
            request_number=number,
        )
    )
    return ErrorCode(response.error_code or response.partition_errors[0].error_code)


def append(broker: ApiBroker) -> int:
    return broker.replica_manager.partition("t", 0).append(batch_of(1), 1, 1).base_offset


def error_of(broker: ApiBroker) -> type[Exception]:
    with pytest.raises(KafkaError) as caught:
        append(broker)
    return caught.type


def test_stale_requests_are_refused_and_change_nothing(broker: ApiBroker) -> None:
    broker.replica_manager.registration.broker_epoch = 100
    assert lead(broker, leader_epoch=3, controller_epoch=5, broker_epoch=100) is ErrorCode.NONE
    assert (
        lead(broker, leader=2, leader_epoch=4, controller_epoch=4)
        is ErrorCode.STALE_CONTROLLER_EPOCH
    )
    assert (
        lead(broker, leader=2, leader_epoch=2, controller_epoch=5)
        is ErrorCode.STALE_CONTROLLER_EPOCH
    )
    assert (
        lead(broker, leader=2, leader_epoch=4, controller_epoch=5, broker_epoch=99)
        is ErrorCode.STALE_BROKER_EPOCH
    )
    assert stop(broker, controller_epoch=4) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert stop(broker, controller_epoch=5, leader_epoch=2) is ErrorCode.FENCED_LEADER_EPOCH
    assert append(broker) == 0


def test_a_request_for_a_newer_broker_epoch_is_accepted(broker: ApiBroker) -> None:
    broker.replica_manager.registration.broker_epoch = 100
    assert lead(broker, broker_epoch=101) is ErrorCode.NONE


def test_s11_after_its_session_a_broker_leads_by_requests_for_the_next_only(
    broker: ApiBroker,
) -> None:
    broker.replica_manager.registered(100)
    lead(broker, leader_epoch=3, broker_epoch=100)
    broker.replica_manager.expired()
    assert error_of(broker) is NotLeaderOrFollower
    assert lead(broker, leader_epoch=4, broker_epoch=100) is ErrorCode.STALE_BROKER_EPOCH
    assert broker.replica_manager.registration.epoch_to_join_by == -1
    assert lead(broker, leader_epoch=5, broker_epoch=101) is ErrorCode.NONE
    assert append(broker) == 0
    assert broker.replica_manager.registration.epoch_to_join_by == 101


def test_s11_cut_off_a_broker_leads_what_no_other_can_until_it_is_registered_again(
    broker: ApiBroker,
) -> None:
    broker.replica_manager.registered(100)
    lead(broker, leader_epoch=3, replicas=(1, 2), isr=(1,))
    assert append(broker) == 0
    broker.replica_manager.cut_off()
    assert error_of(broker) is NotLeaderOrFollower
    broker.replica_manager.registered(
        100
    )  # in the same session: the controller did not see it as dead
    assert append(broker) == 1


def test_s08_a_replica_without_its_log_reports_that_and_follows_until_an_operator_accepts_it(
    broker: ApiBroker,
) -> None:
    broker.replica_manager.log_manager.missing_logs.add(("t", 0))
    assert lead(broker, leader_epoch=3) is ErrorCode.INELIGIBLE_REPLICA
    assert lead(broker, leader=-1, leader_epoch=4) is ErrorCode.NONE
    assert lead(broker, leader_epoch=5) is ErrorCode.INELIGIBLE_REPLICA
    assert lead(broker, leader_epoch=6, recovering=1) is ErrorCode.NONE
    assert append(broker) == 0
    assert lead(broker, leader_epoch=7) is ErrorCode.NONE


def test_s08_a_request_with_an_accepted_loss_has_the_leader_end_the_recovery(
    broker: ApiBroker,
) -> None:
    written = broker.isr_writes.submitted
    broker.replica_manager.log_manager.missing_logs.add(("t", 0))
    assert lead(broker, leader_epoch=6, recovering=1) is ErrorCode.NONE
    assert written == [WriteIsr(frozenset({1}), 4)]
    broker.replica_manager.partition("t", 0).leader_state.isr_written(5)  # type: ignore[union-attr]
    assert lead(broker, leader_epoch=7) is ErrorCode.NONE
    assert len(written) == 1


def test_a_follower_refuses_clients(broker: ApiBroker) -> None:
    lead(broker, leader=2, replicas=(1, 2))
    assert error_of(broker) is NotLeaderOrFollower


def test_a_partition_of_other_brokers_is_distinguished_from_an_unknown_one(
    broker: ApiBroker,
) -> None:
    assert error_of(broker) is UnknownTopicOrPartition
    elsewhere = UpdateMetadataPartitionState(0, 1, leader=2, replicas=[2])
    broker._update(UpdateMetadataTopicState("t", A, [elsewhere]))
    assert error_of(broker) is NotLeaderOrFollower


def test_another_topic_id_is_another_topic(broker: ApiBroker) -> None:
    lead(broker)
    assert lead(broker, leader_epoch=9, topic_id=B) is ErrorCode.INCONSISTENT_TOPIC_ID


def test_the_controllers_latest_request_replaces_a_topic_by_its_namesake(
    broker: ApiBroker, tmp_path: Path
) -> None:
    assert lead(broker, leader_epoch=4, number=1) is ErrorCode.NONE
    append(broker)
    assert lead(broker, topic_id=B, number=2, is_new=True) is ErrorCode.NONE
    assert broker.replica_manager.registry.topic_name(A) is None
    assert append(broker) == 0
    assert list(tmp_path.glob("**/t-0.*-stray")), "the old log is kept"


def test_metadata_of_a_namesake_ends_the_role_in_the_deleted_topic(broker: ApiBroker) -> None:
    lead(broker)
    append(broker)

    def update(*topics: UpdateMetadataTopicState) -> None:
        request = UpdateMetadataRequest(controller_epoch=1, topic_states=list(topics))
        coroutine = broker.replica_manager.state_changes.stop_recreated_topics(request)
        Deferred.fromCoroutine(coroutine)

    here = UpdateMetadataPartitionState(0, leader=2, replicas=[2])
    update(UpdateMetadataTopicState("t", A, [here]), UpdateMetadataTopicState("u", B, [here]))
    update(UpdateMetadataTopicState("t", B, [UpdateMetadataPartitionState(0, leader=-2)]))
    assert append(broker) == 1
    update(UpdateMetadataTopicState("t", B, [here]))
    assert error_of(broker) is UnknownTopicOrPartition


def test_after_a_restart_the_log_of_an_earlier_topic_makes_room_and_is_kept(tmp_path: Path) -> None:
    with broker_in(tmp_path) as broker:
        lead(broker)
        append(broker)
    with broker_in(tmp_path) as broker:
        assert lead(broker, topic_id=A) is ErrorCode.NONE
        assert lead(broker, leader_epoch=9, topic_id=B) is ErrorCode.INCONSISTENT_TOPIC_ID
    with broker_in(tmp_path) as broker:
        assert lead(broker, topic_id=B, is_new=True) is ErrorCode.NONE
        assert append(broker) == 0
    (stray,) = tmp_path.rglob("t-0.*-stray")
    assert (stray / "00000000000000000000.log").stat().st_size > 0
    with broker_in(tmp_path) as broker:
        assert lead(broker, topic_id=B, leader_epoch=10) is ErrorCode.NONE
        assert append(broker) == 1


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def of_another_topic(tmp_path: Path) -> None:
    with broker_in(tmp_path) as broker:
        lead(broker)
        append(broker)
    with broker_in(tmp_path / "other") as broker:
        lead(broker, topic_id=B)
        append(broker)
    exchange(tmp_path / "t-0", tmp_path / "other" / "t-0")


def of_another_partition(tmp_path: Path) -> None:
    with broker_in(tmp_path) as broker:
        lead(broker)
        lead(broker, partition=1)
        append(broker)
        broker.replica_manager.partition("t", 1).append(batch_of(1), 1, 1)
    exchange(tmp_path / "t-0", tmp_path / "t-1")


def of_another_broker(tmp_path: Path) -> None:
    for home in (tmp_path, tmp_path / "other"):
        with broker_in(home) as broker:
            lead(broker)
            append(broker)
    exchange(tmp_path / "t-0", tmp_path / "other" / "t-0")


def get_in_sync(broker: ApiBroker) -> None:
    """Have t-0 receive a response of its leader that it has everything."""
    partition = broker.replica_manager.registry.partitions["t", 0]
    assert partition.log is not None
    end = partition.log.log_end_offset
    answer = FetchPartitionResponse(0, high_watermark=end, log_start_offset=0)
    follower_log.process_partition_data(partition, answer, 0)


EXCHANGES = [of_another_topic, of_another_partition, of_another_broker]


@pytest.mark.parametrize("exchanged", EXCHANGES)
def test_s08_a_log_that_is_not_this_replicas_is_not_led_with(
    tmp_path: Path, exchanged: Callable[[Path], None]
) -> None:
    exchanged(tmp_path)
    files = files_of(tmp_path / "t-0")
    for _ in range(2):  # a restart changes nothing
        with broker_in(tmp_path) as broker:
            assert lead(broker, leader_epoch=3) is ErrorCode.INELIGIBLE_REPLICA
            assert lead(broker, leader=-1, leader_epoch=4) is ErrorCode.NONE
            assert lead(broker, leader_epoch=5) is ErrorCode.INELIGIBLE_REPLICA
        assert files_of(tmp_path / "t-0") == files
        assert not list(tmp_path.rglob("*-stray"))
    with broker_in(tmp_path) as broker:
        assert lead(broker, leader_epoch=6, recovering=1) is ErrorCode.NONE
        assert append(broker) == (1 if exchanged is of_another_broker else 0)


@pytest.mark.parametrize("exchanged", EXCHANGES)
def test_s08_a_log_that_is_brought_back_is_led_with(
    tmp_path: Path, exchanged: Callable[[Path], None]
) -> None:
    exchanged(tmp_path)
    with broker_in(tmp_path) as broker:
        assert lead(broker, leader_epoch=3) is ErrorCode.INELIGIBLE_REPLICA
        assert lead(broker, leader=-1, leader_epoch=4) is ErrorCode.NONE
    if exchanged is of_another_partition:
        exchange(tmp_path / "t-0", tmp_path / "t-1")
    else:
        exchange(tmp_path / "t-0", tmp_path / "other" / "t-0")
    with broker_in(tmp_path) as broker:
        assert lead(broker, leader_epoch=5) is ErrorCode.NONE
        assert append(broker) == 1


@pytest.mark.parametrize("exchanged", EXCHANGES)
@pytest.mark.parametrize("isr", [(1, 2), (2,)], ids=["in the ISR", "eligible"])
def test_s08_a_follower_without_its_log_begins_none_as_long_as_it_is_in_the_isr(
    tmp_path: Path, exchanged: Callable[[Path], None], isr: tuple[int, ...]
) -> None:
    exchanged(tmp_path)
    files = files_of(tmp_path / "t-0")
    both, elr = (1, 2), (1,) if 1 not in isr else ()
    follow = {"leader": 2, "replicas": both}
    for _ in range(2):  # the answer may be lost, and the broker killed
        with broker_in(tmp_path) as broker:
            assert (
                lead(broker, **follow, isr=isr, elr=elr, leader_epoch=3)  # type: ignore[arg-type]
                is ErrorCode.INELIGIBLE_REPLICA
            )
            assert ("t", 0) not in broker.replica_manager.registry.partitions
        assert files_of(tmp_path / "t-0") == files
        assert not list(tmp_path.rglob("*-stray"))
    with broker_in(tmp_path) as broker:
        assert (
            lead(broker, replicas=both, isr=both, leader_epoch=4) is ErrorCode.INELIGIBLE_REPLICA
        ), "it was elected before the controller read the answer"
        assert lead(broker, **follow, isr=(2,), leader_epoch=5) is ErrorCode.NONE  # type: ignore[arg-type]
        assert broker.replica_manager.registry.partitions["t", 0].follower_state is not None
        assert lead(broker, replicas=both, leader_epoch=6) is ErrorCode.INELIGIBLE_REPLICA, (
            "a late fetch of an earlier run may have given it its place"
        )
        get_in_sync(broker)
        assert lead(broker, replicas=both, leader_epoch=6) is ErrorCode.NONE
    with broker_in(tmp_path) as broker:
        assert lead(broker, replicas=both, leader_epoch=7) is ErrorCode.NONE


def test_s08_what_is_lost_is_lost_after_a_restart_too_and_counts_again_when_it_is_back(
    tmp_path: Path,
) -> None:
    with broker_in(tmp_path) as broker:
        lead(broker)
        append(broker)
        broker.replica_manager.log_manager.checkpoint({("t", 0): 1})
    (tmp_path / "t-0").rename(tmp_path / "taken away")
    for _ in range(3):
        with broker_in(tmp_path) as broker:
            assert lead(broker, leader_epoch=3) is ErrorCode.INELIGIBLE_REPLICA
            assert lead(broker, leader=-1, leader_epoch=4) is ErrorCode.NONE
            broker.replica_manager.log_manager.checkpoint(
                broker.replica_manager.log_schedule.high_watermarks()
            )
    (tmp_path / "taken away").rename(tmp_path / "t-0")
    with broker_in(tmp_path) as broker:
        assert lead(broker, leader_epoch=5) is ErrorCode.NONE
        assert append(broker) == 1


def test_s08_a_log_that_was_cut_misses_records_after_a_restart_too(tmp_path: Path) -> None:
    with broker_in(tmp_path) as broker:
        lead(broker)
        append(broker)
        append(broker)
        broker.replica_manager.log_manager.checkpoint({("t", 0): 2})
    (segment,) = (tmp_path / "t-0").glob("*.log")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-1])
    for _ in range(3):
        with broker_in(tmp_path) as broker:
            assert lead(broker, leader_epoch=3) is ErrorCode.INELIGIBLE_REPLICA
            assert lead(broker, leader=-1, leader_epoch=4) is ErrorCode.NONE
            broker.replica_manager.log_manager.checkpoint(
                broker.replica_manager.log_schedule.high_watermarks()
            )
    segment.write_bytes(whole)
    with broker_in(tmp_path) as broker:
        assert lead(broker, leader_epoch=5) is ErrorCode.NONE
        assert append(broker) == 2


def test_s08_a_follower_that_misses_records_misses_them_until_it_is_out_of_the_isr(
    tmp_path: Path,
) -> None:
    with broker_in(tmp_path) as broker:
        lead(broker)
        append(broker)
        append(broker)
        broker.replica_manager.log_manager.checkpoint({("t", 0): 2})
    (segment,) = (tmp_path / "t-0").glob("*.log")
    segment.write_bytes(segment.read_bytes()[:-1])
    both = (1, 2)
    for _ in range(2):
        with broker_in(tmp_path) as broker:
            assert (
                lead(broker, leader=2, replicas=both, isr=both, leader_epoch=3)
                is ErrorCode.INELIGIBLE_REPLICA
            )
            broker.replica_manager.log_manager.checkpoint(
                broker.replica_manager.log_schedule.high_watermarks()
            )
    with broker_in(tmp_path) as broker:
        assert lead(broker, replicas=both, isr=both, leader_epoch=4) is ErrorCode.INELIGIBLE_REPLICA
        assert lead(broker, leader=2, replicas=both, isr=(2,), leader_epoch=5) is ErrorCode.NONE
        get_in_sync(broker)
        assert lead(broker, replicas=both, leader_epoch=6) is ErrorCode.NONE


def test_the_log_of_another_partition_is_not_deleted_with_this_one(tmp_path: Path) -> None:
    of_another_partition(tmp_path)
    with broker_in(tmp_path) as broker:
        assert lead(broker, leader=-1, leader_epoch=4) is ErrorCode.NONE
        assert stop(broker) is ErrorCode.NONE
        assert not (tmp_path / "t-0").exists()
    (kept,) = tmp_path.glob("t-0.*-stray")
    assert (kept / "00000000000000000000.log").stat().st_size > 0


def test_a_topic_that_is_deleted_is_not_missed(tmp_path: Path) -> None:
    with broker_in(tmp_path) as broker:
        lead(broker)
        broker.replica_manager.log_manager.checkpoint({("t", 0): 0})
    shutil.rmtree(tmp_path / "t-0")
    with broker_in(tmp_path) as broker:
        assert stop(broker) is ErrorCode.NONE
        broker.replica_manager.log_manager.checkpoint({})
    with broker_in(tmp_path) as broker:
        assert not broker.replica_manager.log_manager.missing_logs


def test_records_and_epochs_survive_a_restart(tmp_path: Path) -> None:
    with broker_in(tmp_path) as broker:
        lead(broker, leader_epoch=2)
        append(broker)
    with broker_in(tmp_path) as broker:
        lead(broker, leader_epoch=3)
        partition = broker.replica_manager.partition("t", 0)
        assert (append(broker), partition.high_watermark) == (1, 2)
        assert last_offset_for_leader_epoch(partition, 2, 3) == (2, 1)


def test_a_deleted_topic_can_be_created_again_at_once(broker: ApiBroker) -> None:
    lead(broker)
    append(broker)
    assert stop(broker) is ErrorCode.NONE
    assert broker.replica_manager.registry.topic_name(A) is None
    assert error_of(broker) is UnknownTopicOrPartition
    assert lead(broker, topic_id=B) is ErrorCode.NONE
    assert append(broker) == 0


def test_a_stop_replica_that_arrives_once_more_does_not_delete_the_new_topics_log(
    broker: ApiBroker,
) -> None:
    lead(broker, number=7)
    assert stop(broker, number=8) is ErrorCode.NONE
    assert stop(broker, number=8) is ErrorCode.NONE, "sent again, because no answer came"
    assert lead(broker, topic_id=B, number=9) is ErrorCode.NONE
    append(broker)
    assert stop(broker, number=8) is ErrorCode.INVALID_UPDATE_VERSION
    assert append(broker) == 1


def test_each_controller_and_each_registration_numbers_requests_from_its_own_start(
    broker: ApiBroker,
) -> None:
    broker.replica_manager.registration.broker_epoch = 100
    assert lead(broker, broker_epoch=100, number=50) is ErrorCode.NONE
    assert lead(broker, leader_epoch=1, broker_epoch=101, number=3) is ErrorCode.NONE
    assert (
        lead(broker, leader_epoch=2, broker_epoch=101, controller_epoch=2, number=0)
        is ErrorCode.NONE
    )


def test_a_log_is_deleted_even_before_it_had_a_leader(tmp_path: Path) -> None:
    with broker_in(tmp_path) as broker:
        lead(broker)
    with broker_in(tmp_path) as broker:
        assert stop(broker) is ErrorCode.NONE
        assert not (tmp_path / "t-0").exists()


def test_a_stop_without_deletion_keeps_the_log(broker: ApiBroker) -> None:
    lead(broker)
    append(broker)
    assert stop(broker, leader_epoch=0, delete=False) is ErrorCode.NONE
    assert error_of(broker) is NotLeaderOrFollower
    assert lead(broker, leader_epoch=1) is ErrorCode.NONE
    assert append(broker) == 1


def test_deleting_what_is_not_here_is_done_already(broker: ApiBroker) -> None:
    assert stop(broker) is ErrorCode.NONE


def test_the_listener_receives_when_leadership_begins_and_ends(broker: ApiBroker) -> None:
    lead(broker)
    lead(broker)
    lead(broker, leader_epoch=1)
    lead(broker, leader=2, leader_epoch=2, replicas=(1, 2))
    lead(broker, leader=2, leader_epoch=3, replicas=(1, 2))
    lead(broker, leader_epoch=4)
    stop(broker)
    assert broker.leadership == [
        ("t", 0, 0, 4, True),
        ("t", 0, 1, 4, True),
        ("t", 0, 2, 4, False),
        ("t", 0, 4, 4, True),
        ("t", 0, 4, 4, False),
    ]


def test_a_listener_that_breaks_breaks_neither_the_order_nor_the_next_listener(
    tmp_path: Path,
) -> None:
    def broken(*_what: Any) -> None:
        raise RuntimeError("broken")

    with broker_in(tmp_path / "log", leadership_listeners=[broken]) as broker:
        assert lead(broker) is ErrorCode.NONE
        assert broker.leads("t", 0)
        assert broker.leadership == [("t", 0, 0, 4, True)]


def test_a_failed_directory_takes_its_partitions_offline_and_no_others(tmp_path: Path) -> None:
    paths = f"{tmp_path}/one,{tmp_path}/two"
    with broker_in(tmp_path / "unused", {"log.dirs": paths}) as broker:
        for partition in (0, 1):
            lead(broker, partition=partition)
        leadership = broker.leadership
        leadership.clear()
        dirs = broker.replica_manager.log_manager
        lost = dirs.directory_of("t", 0)
        dirs._directory_failed(dirs._where["t", 0], OSError("gone"))
        assert error_of(broker) is KafkaStorageError
        assert broker.replica_manager.partition("t", 1).append(batch_of(1), 1, 1).base_offset == 0
        assert leadership == [("t", 0, 0, 4, False)]
        assert lead(broker, leader_epoch=1) is ErrorCode.KAFKA_STORAGE_ERROR
        assert stop(broker) is ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.fatal == []
        dirs._directory_failed(dirs._where["t", 1], OSError("gone, too"))
        assert "gone, too" in broker.fatal[0]
        assert lost in dirs.offline


def test_a_new_log_goes_where_others_were_deleted(tmp_path: Path) -> None:
    paths = f"{tmp_path}/one,{tmp_path}/two"
    with broker_in(tmp_path / "unused", {"log.dirs": paths}) as broker:
        for partition in range(4):
            lead(broker, partition=partition)
        where = broker.replica_manager.log_manager.directory_of
        left = where("t", 1)
        assert sorted(str(where("t", p))[-3:] for p in range(4)) == ["one", "one", "two", "two"]
        stop(broker, partition=1)
        for partition in (4, 5, 6):
            lead(broker, partition=partition)
        homes = [where("t", p) for p in (0, 2, 3, 4, 5, 6)]
        assert homes[3] == left
        assert {homes.count(f"{tmp_path}/one"), homes.count(f"{tmp_path}/two")} == {3}


def test_a_topics_new_settings_reach_its_logs(broker: ApiBroker) -> None:
    from dataclasses import replace

    lead(broker)
    broker.topic_configs["t"] = replace(broker.config.log_defaults, max_message_bytes=10)
    broker.replica_manager.reconfigure(["t"])
    assert error_of(broker).__name__ == "MessageTooLarge"


def many(count: int, controller_epoch: int = 1, leader_epoch: int = 0) -> LeaderAndIsrRequest:
    states = [
        LeaderAndIsrPartitionState(index, controller_epoch, 1, leader_epoch, [1], 0, [1])
        for index in range(count)
    ]
    return LeaderAndIsrRequest(
        controller_epoch=controller_epoch, topic_states=[LeaderAndIsrTopicState("t", A, states)]
    )


def test_thousands_of_partitions_change_a_hundred_in_a_turn(broker: ApiBroker) -> None:
    answer: Any = Deferred.fromCoroutine(
        broker.replica_manager.state_changes.become_leader_or_follower(many(250))
    )
    assert not answer.called
    assert sum(broker.leads("t", index) for index in range(250)) == 100
    broker.clock.advance(0)
    assert sum(broker.leads("t", index) for index in range(250)) == 250
    errors = answer.result.topics[0].partition_errors
    assert [(each.partition_index, each.error_code) for each in errors] == [
        (index, 0) for index in range(250)
    ]
    stops = [StopReplicaPartitionState(index, -2, True) for index in range(250)]
    request = StopReplicaRequest(
        controller_epoch=1, topic_states=[StopReplicaTopicState("t", stops)]
    )
    stopped: Any = Deferred.fromCoroutine(
        broker.replica_manager.state_changes.stop_replicas(request)
    )
    assert len(list(broker.replica_manager.registry)) == 150
    broker.clock.advance(0)
    broker.clock.advance(0)
    assert [each.error_code for each in stopped.result.partition_errors] == [0] * 250
    assert not broker.replica_manager.registry.hosts_topic("t")


def test_completed_changes_are_reported_although_the_rest_fails(broker: ApiBroker) -> None:
    class BrokenSettings(dict[str, LogConfig]):
        """There are none for topic u."""

        def get(self, topic: str, default: Any = None) -> Any:
            if topic == "u":
                raise RuntimeError("no settings")
            return default

    broker.topic_configs = BrokenSettings()
    request = many(2)
    request.topic_states += [
        LeaderAndIsrTopicState("u", B, request.topic_states[0].partition_states)
    ]
    with pytest.raises(RuntimeError):
        broker.become_leader_or_follower(request)
    assert broker.fetchers.roles == [("t", 0), ("t", 1)]


def test_a_request_is_broken_off_when_one_of_a_later_controller_arrived(broker: ApiBroker) -> None:
    answer: Any = Deferred.fromCoroutine(
        broker.replica_manager.state_changes.become_leader_or_follower(many(250))
    )
    broker.become_leader_or_follower(many(1, controller_epoch=2, leader_epoch=1))
    broker.clock.advance(0)
    assert answer.result.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert not broker.leads("t", 100)


def test_fewer_partitions_change_in_a_turn_where_each_takes_long(broker: ApiBroker) -> None:
    class SlowSettings(dict[str, LogConfig]):
        """Every log that is made asks for its settings; to ask takes 15 ms."""

        def get(self, _topic: str, default: Any = None) -> Any:
            broker.clock.rightNow += 0.015
            return default

    broker.topic_configs = SlowSettings()
    answer: Any = Deferred.fromCoroutine(
        broker.replica_manager.state_changes.become_leader_or_follower(many(5))
    )
    assert not answer.called
    assert sum(broker.leads("t", index) for index in range(5)) == 2
    broker.clock.advance(0)
    assert [each.error_code for each in answer.result.topics[0].partition_errors] == [0] * 5
