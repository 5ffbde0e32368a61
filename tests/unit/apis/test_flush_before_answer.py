"""flush.messages and flush.ms: a record is synced before its append is acknowledged, or counted as a replica's copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from tests.kit.log_managers import Pool
from tests.kit.logs import FaultyDisk, batch_of
from tests.kit.producer_batches import numbered_batch
from tests.unit.apis.kit import ApiBroker, broker_in


@pytest.fixture
def pool() -> Pool:
    """The disk pool; it runs its work when the test calls it."""
    return Pool(holds=True)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def broker(tmp_path: Path, pool: Pool, disk: FaultyDisk) -> Iterator[ApiBroker]:
    with broker_in(tmp_path / "log", pool=pool, disk=disk) as made:
        yield made


def configure(broker: ApiBroker, topic: str = "t", **settings: Any) -> None:
    """Give *topic* settings, as an operator does while the broker runs."""
    broker.topic_configs[topic] = replace(broker.topic_config(topic), **settings)
    broker.replica_manager.reconfigure([topic])


def sync(broker: ApiBroker, pool: Pool) -> None:
    """Run what the pool has now, and not what follows from it; let the reactor have a turn."""
    for work in [pool.waiting.pop(0) for _ in list(pool.waiting)]:
        work()
    broker.clock.advance(0)


def lead_with_follower(broker: ApiBroker, **settings: Any) -> None:
    """Lead r-0 with broker 2 in the ISR."""
    configure(broker, "r", **settings)
    state = LeaderAndIsrPartitionState(0, 1, 1, 0, [1, 2], 0, [1, 2])
    topic = LeaderAndIsrTopicState("r", None, [state])
    broker.become_leader_or_follower(LeaderAndIsrRequest(controller_epoch=1, topic_states=[topic]))


def follower_has(broker: ApiBroker, offset: int) -> None:
    """Fetch r-0 as broker 2 with log end offset *offset*."""
    partition = broker.replica_manager.partition("r", 0)
    partition.read_as_follower(2, offset, 100, min_one_batch=True, current_leader_epoch=0)
    broker.clock.advance(0)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("settings", [{"flush_messages": 1}, {"flush_ms": 0}])
def test_an_append_is_acknowledged_after_its_sync(
    broker: ApiBroker, pool: Pool, acks: int, settings: dict[str, int]
) -> None:
    configure(broker, **settings)
    broker.lead("t", 1)
    answer = broker.produce(batch_of(1), acks=acks)
    broker.clock.advance(0.5)
    assert not answer.called
    sync(broker, pool)
    assert answer.result[0].error_code == 0
    assert answer.result[0].base_offset == 0
    partition = broker.replica_manager.partition("t", 0)
    assert partition.log is not None
    assert partition.log.recovery_point == 1
    assert not broker.clock.getDelayedCalls()


def test_consumers_do_not_see_a_record_before_its_sync(broker: ApiBroker, pool: Pool) -> None:
    configure(broker, flush_messages=1)
    broker.lead("t", 1)
    broker.produce(batch_of(1))
    assert broker.replica_manager.partition("t", 0).high_watermark == 0
    sync(broker, pool)
    assert broker.replica_manager.partition("t", 0).high_watermark == 1


def test_an_append_under_acks_none_waits_for_nothing(broker: ApiBroker, pool: Pool) -> None:
    configure(broker, flush_messages=1)
    broker.lead("t", 1)
    assert broker.produce(batch_of(1), acks=0) is None
    assert len(pool.waiting) == 1
    assert len(broker.replica_manager.purgatory) == 0


def test_appends_during_a_sync_share_the_next_one(broker: ApiBroker, pool: Pool) -> None:
    configure(broker, flush_messages=1)
    broker.lead("t", 1)
    first = broker.produce(batch_of(1))
    later = [broker.produce(batch_of(1)) for _ in range(5)]
    assert len(pool.waiting) == 1
    sync(broker, pool)
    assert first.called
    assert not any(answer.called for answer in later)
    assert len(pool.waiting) == 1
    sync(broker, pool)
    assert [answer.result[0].base_offset for answer in later] == [1, 2, 3, 4, 5]
    assert not pool.waiting


def test_other_partitions_answer_during_a_sync(broker: ApiBroker, pool: Pool) -> None:
    configure(broker, flush_messages=1)
    broker.lead("t", 1)
    broker.lead("u", 1)
    waiting = broker.produce(batch_of(1))
    assert broker.produce(batch_of(1), topic="u")[0].error_code == 0
    assert not waiting.called


def test_a_request_waits_for_the_slowest_of_its_partitions(broker: ApiBroker, pool: Pool) -> None:
    configure(broker, flush_messages=1)
    broker.lead("t", 2)
    answer = broker.produce(batch_of(1), batch_of(1))
    one, other = pool.waiting
    pool.waiting.clear()
    one()
    broker.clock.advance(0)
    assert not answer.called
    other()
    broker.clock.advance(0)
    assert [outcome.error_code for outcome in answer.result] == [0, 0]


def test_appends_below_flush_messages_wait_for_no_sync(broker: ApiBroker, pool: Pool) -> None:
    configure(broker, flush_messages=3)
    broker.lead("t", 1)
    assert [broker.produce(batch_of(1))[0].base_offset for _ in range(2)] == [0, 1]
    third = broker.produce(batch_of(1))
    assert not third.called
    assert broker.replica_manager.partition("t", 0).high_watermark == 2
    sync(broker, pool)
    assert third.result[0].base_offset == 2
    assert broker.produce(batch_of(1))[0].base_offset == 3


def test_an_append_waits_for_the_sync_that_flush_ms_makes_due(
    broker: ApiBroker, pool: Pool
) -> None:
    now = 1_000_000.0
    broker.wall_clock = lambda: now
    configure(broker, flush_ms=100)
    broker.lead("t", 1)
    assert broker.produce(batch_of(1))[0].base_offset == 0
    now += 0.05
    assert broker.produce(batch_of(1))[0].base_offset == 1
    now += 0.05
    third = broker.produce(batch_of(1))
    assert not third.called
    sync(broker, pool)
    assert third.result[0].base_offset == 2
    assert broker.produce(batch_of(1))[0].base_offset == 3


def test_a_batch_that_is_sent_again_is_acknowledged_after_the_sync_of_the_first(
    broker: ApiBroker, pool: Pool
) -> None:
    configure(broker, flush_messages=1)
    broker.lead("t", 1)
    batch = numbered_batch(7, 0)
    answers = [broker.produce(batch) for _ in range(2)]
    assert not any(answer.called for answer in answers)
    sync(broker, pool)
    assert [answer.result[0].base_offset for answer in answers] == [0, 0]


def test_a_failed_sync_is_a_storage_error_for_all_that_wait(
    broker: ApiBroker, pool: Pool, disk: FaultyDisk
) -> None:
    configure(broker, flush_messages=1)
    broker.lead("t", 1)
    answers = [broker.produce(batch_of(1), acks=acks) for acks in (1, -1, 1)]
    disk.fail("fsync")
    sync(broker, pool)
    codes = [ErrorCode(answer.result[0].error_code) for answer in answers]
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    assert "log director" in broker.fatal[0]


def test_a_sync_that_takes_longer_than_the_timeout_is_a_timeout(
    broker: ApiBroker, pool: Pool
) -> None:
    configure(broker, flush_messages=1)
    broker.lead("t", 1)
    answer = broker.produce(batch_of(1), timeout_ms=500)
    broker.clock.advance(0.6)
    assert ErrorCode(answer.result[0].error_code) is ErrorCode.REQUEST_TIMED_OUT
    assert answer.result[0].base_offset == -1
    assert len(broker.replica_manager.purgatory) == 0


def test_an_append_that_waits_for_its_sync_is_refused_when_leadership_goes(
    broker: ApiBroker, pool: Pool
) -> None:
    lead_with_follower(broker, flush_messages=1)
    answer = broker.produce(batch_of(1), topic="r")
    state = LeaderAndIsrPartitionState(0, 1, 2, 1, [1, 2], 0, [1, 2])
    topic = LeaderAndIsrTopicState("r", None, [state])
    broker.become_leader_or_follower(LeaderAndIsrRequest(controller_epoch=1, topic_states=[topic]))
    broker.clock.advance(0)
    assert ErrorCode(answer.result[0].error_code) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_leaders_own_copy_counts_after_its_sync(broker: ApiBroker, pool: Pool) -> None:
    lead_with_follower(broker, flush_messages=1)
    answer = broker.produce(batch_of(1), topic="r", acks=-1)
    follower_has(broker, 1)
    assert not answer.called
    assert broker.replica_manager.partition("r", 0).high_watermark == 0
    sync(broker, pool)
    assert answer.result[0].error_code == 0
    assert broker.replica_manager.partition("r", 0).high_watermark == 1


def test_followers_fetch_a_record_while_the_leader_syncs_it(broker: ApiBroker, pool: Pool) -> None:
    lead_with_follower(broker, flush_messages=1)
    broker.produce(batch_of(1), topic="r")
    partition = broker.replica_manager.partition("r", 0)
    read = partition.read_as_follower(2, 0, 1000, min_one_batch=True, current_leader_epoch=0)
    assert read.found.size > 0


def test_a_change_of_flush_messages_holds_for_the_next_append(
    broker: ApiBroker, pool: Pool
) -> None:
    broker.lead("t", 1)
    assert broker.produce(batch_of(1))[0].base_offset == 0
    configure(broker, flush_messages=1)
    second = broker.produce(batch_of(1))
    assert not second.called
    configure(broker, flush_messages=1000)
    assert broker.produce(batch_of(1)).called is False  # behind one that waits
    sync(broker, pool)
    assert second.called
    assert broker.produce(batch_of(1))[0].base_offset == 3


def test_the_broker_level_setting_is_the_topics_default(tmp_path: Path) -> None:
    pool = Pool(holds=True)
    settings = {"log.flush.interval.messages": "1"}
    with broker_in(tmp_path / "log", settings, pool=pool) as broker:
        broker.lead("t", 1)
        answer = broker.produce(batch_of(1))
        assert not answer.called
        sync(broker, pool)
        assert answer.called


def test_a_log_that_is_opened_with_records_that_were_not_synced_counts_them_after_a_sync(
    tmp_path: Path,
) -> None:
    with broker_in(tmp_path / "log", pool=Pool(holds=True)) as first:
        first.lead("r", 1)
        first.produce(batch_of(1), topic="r")
        first.replica_manager.log_manager.release()  # kill -9: the records are in the page cache
    pool = Pool(holds=True)
    with broker_in(tmp_path / "log", pool=pool) as broker:
        lead_with_follower(broker, flush_messages=1)
        follower_has(broker, 1)
        assert broker.replica_manager.partition("r", 0).high_watermark == 0
        sync(broker, pool)
        assert broker.replica_manager.partition("r", 0).high_watermark == 1
