"""Which logs are compacted when, what their checkpoint has, and what is set aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.common.topic_partition import TopicPartition
from kbroker.config import KafkaConfig
from kbroker.log.cleaner import CleanerSizes
from kbroker.log.log_cleaner import CleanerConfig, LookSteps
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import TRANSACTIONAL, parse
from kclient.wire.errors import UnknownServerError
from kclient.wire.records import ABORT
from tests.kit.inline_cleaner import CONFIG, CompactingBroker, filled, put
from tests.kit.log_managers import ID
from tests.kit.logs import records
from tests.kit.transactional_logs import marker

T0: TopicPartition = ("t", 0)


def offsets(log: UnifiedLog) -> list[int]:
    return [offset for offset, _ in records(log)]


def cleaner_offsets(directory: Path) -> str:
    return (directory / "cleaner-offset-checkpoint").read_text()


@pytest.fixture
def broker(tmp_path: Path) -> CompactingBroker:
    broker = CompactingBroker(tmp_path / "a")
    broker.start()
    return broker


def test_a_log_that_is_due_is_compacted_and_its_checkpoint_written(
    broker: CompactingBroker, tmp_path: Path
) -> None:
    log = filled(broker)
    broker.dirs.compact(lambda _key: 8)
    assert offsets(log) == [2, 3, 4, 5, 6, 7]
    assert log.clean_below == 6
    broker.dirs.checkpoint({})
    assert cleaner_offsets(tmp_path / "a") == "0\n1\nt 0 6\n"
    # The files of the old segments are removed after file.delete.delay.ms.
    deleted = list((tmp_path / "a" / "t-0").glob("*.deleted"))
    assert deleted
    broker.now_ms += log.config.file_delete_delay_ms
    broker.dirs.remove_due()
    assert not [each for each in deleted if each.exists()]
    # A start takes the checkpoint over.
    broker.dirs.close()
    again = CompactingBroker(tmp_path / "a").start().get("t", 0)
    assert again is not None
    assert again.clean_below == 6
    assert offsets(again) == [2, 3, 4, 5, 6, 7]


def test_what_is_not_committed_or_not_compacted_stays(broker: CompactingBroker) -> None:
    log = filled(broker)
    broker.dirs.compact(lambda _key: None)
    broker.dirs.compact(lambda _key: 3)
    assert offsets(log) == list(range(8))
    log.config = log.config.overridden({"cleanup.policy": "delete"})
    broker.dirs.compact(lambda _key: 8)
    assert offsets(log) == list(range(8))


def test_every_log_that_is_due_gets_its_round_with_one_cleaner(broker: CompactingBroker) -> None:
    logs = [filled(broker, number) for number in range(3)]
    broker.dirs.compact(lambda _key: 8)
    assert [log.clean_below for log in logs] == [6, 6, 6]


@pytest.mark.parametrize("change", ["deleted", "cut", "not compacted"])
def test_a_log_that_changes_between_two_turns_of_a_look_is_passed_over(
    broker: CompactingBroker, change: str
) -> None:
    changed, other = filled(broker, 0), filled(broker, 1)
    other.clean_below = 2  # the first one is dirtier
    looks: list[LookSteps] = []
    broker.dirs.compact(lambda _key: 8, looks.append)
    broker.dirs.compact(lambda _key: 8, looks.append)
    (steps,) = looks  # not two at a time
    next(steps)
    next(steps)
    if change == "deleted":
        broker.dirs.delete("t", 0)
    elif change == "cut":
        changed.truncate_to(0)
    else:
        changed.config = changed.config.overridden({"cleanup.policy": "delete"})
    assert len(list(steps)) == 1
    assert other.clean_below == 6
    assert changed.clean_below is None
    assert broker.workers[0].rounds == 1
    broker.dirs.compact(lambda _key: 8, looks.append)
    assert len(looks) == 2


def test_a_truncation_lowers_the_checkpoint_before_the_next_append(
    broker: CompactingBroker, tmp_path: Path
) -> None:
    log = filled(broker)
    broker.dirs.compact(lambda _key: 8)
    broker.dirs.checkpoint({})
    log.truncate_to(4)
    assert log.clean_below == 4
    assert cleaner_offsets(tmp_path / "a") == "0\n1\nt 0 4\n"
    log.truncate_fully_and_start_at(0)
    assert cleaner_offsets(tmp_path / "a") == "0\n1\nt 0 0\n"


def test_a_topic_that_is_created_again_does_not_get_the_checkpoint_of_the_earlier_one(
    broker: CompactingBroker, tmp_path: Path
) -> None:
    filled(broker)
    broker.dirs.compact(lambda _key: 8)
    broker.dirs.checkpoint({})
    broker.dirs.delete("t", 0)
    again = broker.dirs.create("t", 0, ID)
    assert again.clean_below is None
    assert cleaner_offsets(tmp_path / "a") == "0\n0\n"


def test_a_checkpoint_above_the_end_of_the_log_counts_as_none(
    broker: CompactingBroker, tmp_path: Path
) -> None:
    filled(broker)
    broker.dirs.close()
    (tmp_path / "a" / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 9\n")
    log = CompactingBroker(tmp_path / "a").start().get("t", 0)
    assert log is not None
    assert log.clean_below is None


def test_a_damaged_log_is_set_aside_with_the_reason_and_others_are_compacted(
    broker: CompactingBroker,
) -> None:
    damaged, log = filled(broker, 0), filled(broker, 1)
    path = Path(damaged.segments[1].path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    broker.dirs.compact(lambda _key: 8)
    assert log.clean_below == 6
    assert damaged.clean_below is None
    assert list(broker.rounds.aside) == list(broker.dirs.uncleanable) == [T0]
    assert path.name in str(broker.rounds.aside[T0])
    assert not broker.failures
    put(damaged, b"x")  # it is served as before
    broker.dirs.delete("t", 0)
    broker.dirs.compact(lambda _key: 8)
    assert not broker.dirs.uncleanable


def test_a_log_without_its_transaction_index_is_set_aside_and_not_tried_again(
    broker: CompactingBroker,
) -> None:
    log = broker.dirs.create("t", 0, ID)
    put(log, b"a", producer_id=5, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    batch = marker(5, ABORT)
    log.append_as_leader(batch, parse(batch), 0, 1)
    put(log, b"a", b"a", b"a", b"a")
    log.flush()
    log.segments[0].transaction_index.reset()
    for _ in range(2):
        broker.dirs.compact(lambda _key: 6)
    assert "transaction index contradicts" in str(broker.rounds.aside[T0])
    assert broker.workers[0].rounds == 1
    assert offsets(log) == list(range(6))


def test_a_cleaner_that_ends_within_a_round_is_no_fault_of_the_log(
    broker: CompactingBroker,
) -> None:
    log = filled(broker)
    broker.workers[0].failing.append(UnknownServerError("the process ended"))
    broker.dirs.compact(lambda _key: 8)
    assert log.clean_below is None
    assert not broker.rounds.aside
    assert ["ended" in str(each) for each in broker.rounds.failed] == [True]
    broker.dirs.compact(lambda _key: 8)
    assert log.clean_below == 6


def test_a_log_with_rounds_that_fail_does_not_keep_others_from_theirs(tmp_path: Path) -> None:
    broker = CompactingBroker(tmp_path / "a", holds_rounds=True)
    broker.start()
    failing, other = filled(broker, 0), filled(broker, 1)

    def look() -> None:
        failing.clean_below, other.clean_below = None, 2  # the first one is dirtier
        broker.dirs.compact(lambda _key: 8)
        broker.executor.run()

    broker.workers[0].failing.append(UnknownServerError("the process ended"))
    look()
    assert broker.rounds.failed
    assert not broker.rounds.done
    look()
    assert [key for key, _ in broker.rounds.done] == [("t", 1), ("t", 0)]
    look()  # it has succeeded, and is the first one again
    assert [key for key, _ in broker.rounds.done[2:]] == [("t", 0), ("t", 1)]


def test_a_log_that_is_deleted_during_its_round_frees_the_worker_at_once(tmp_path: Path) -> None:
    broker = CompactingBroker(tmp_path / "a", holds_rounds=True)
    broker.start()
    filled(broker, 0)
    broker.dirs.compact(lambda _key: 8)
    broker.dirs.compact(lambda _key: 8)
    assert not broker.workers[0].kills
    broker.dirs.delete("t", 0)
    broker.dirs.compact(lambda _key: 8)
    assert broker.workers[0].kills
    broker.executor.run()
    assert not broker.failures
    assert not broker.rounds.failed
    log = filled(broker, 1)
    broker.dirs.compact(lambda _key: 8)
    broker.executor.run()
    assert log.clean_below == 6


def test_a_log_that_is_deleted_while_its_new_segment_is_written_is_no_failure_of_the_disk(
    tmp_path: Path,
) -> None:
    broker = CompactingBroker(tmp_path / "a", holds_rounds=True)
    broker.start()
    filled(broker)
    worker = broker.workers[0]
    worker.between_buffers = lambda: broker.dirs.delete("t", 0)
    broker.dirs.compact(lambda _key: 8)
    broker.executor.run()
    assert not broker.failures
    log = filled(broker)  # a topic of the same name
    assert not list((tmp_path / "a" / "t-0").glob("*.cleaned"))
    broker.dirs.compact(lambda _key: 8)
    broker.executor.run()
    assert log.clean_below == 6


def test_a_round_over_a_log_that_was_cut_is_not_waited_for(tmp_path: Path) -> None:
    broker = CompactingBroker(tmp_path / "a", holds_rounds=True)
    broker.start()
    log = filled(broker)
    broker.workers[0].failing_groups.append(UnknownServerError("killed"))
    broker.dirs.compact(lambda _key: 8)
    broker.executor.waiting.pop(0)()  # the map; the next step filters a group
    log.truncate_to(7)
    broker.dirs.compact(lambda _key: 8)
    assert broker.workers[0].kills == 1
    broker.executor.run()
    assert not broker.rounds.failed
    assert log.clean_below is None


def test_rounds_do_not_wait_for_the_pool_of_the_disks_nor_that_for_them(tmp_path: Path) -> None:
    broker = CompactingBroker(tmp_path / "a", holds_rounds=True)
    broker.start()
    log = filled(broker)
    broker.dirs.compact(lambda _key: 8)
    assert broker.executor.waiting
    put(log, b"g", b"h")
    broker.dirs.checkpoint({})
    assert (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text().startswith("0\n1\n")


def test_without_threads_nothing_is_compacted(tmp_path: Path) -> None:
    broker = CompactingBroker(tmp_path / "a", config=CONFIG._replace(threads=0))
    broker.start()
    log = filled(broker)
    broker.dirs.compact(lambda _key: 8)
    assert log.clean_below is None
    broker.dirs.configure_cleaner(CONFIG)
    broker.dirs.compact(lambda _key: 8)
    assert log.clean_below == 6


def test_other_settings_end_the_rounds_under_way_and_the_next_look_begins_them_again(
    tmp_path: Path,
) -> None:
    broker = CompactingBroker(tmp_path / "a", config=CONFIG._replace(threads=2), holds_rounds=True)
    broker.start()
    logs = [filled(broker, number) for number in range(3)]
    for worker in broker.workers:
        worker.failing.append(UnknownServerError("ended"))
    broker.dirs.compact(lambda _key: 8)
    assert len(broker.executor.waiting) == 2
    broker.dirs.configure_cleaner(CONFIG._replace(threads=2))  # nothing has changed
    assert len(broker.workers) == 2
    broker.dirs.configure_cleaner(CONFIG._replace(max_bytes_per_second=5))
    *former, new = broker.workers
    assert all(each.is_ended for each in former)
    assert new.max_bytes_per_second == 5
    broker.executor.run()
    assert all(each.is_closed for each in former)
    assert not broker.rounds.failed
    while not all(log.clean_below == 6 for log in logs):
        broker.dirs.compact(lambda _key: 8)
        assert broker.executor.waiting
        broker.executor.run()
    assert not new.is_closed


def test_the_end_of_the_broker_ends_the_rounds_and_is_clean(tmp_path: Path) -> None:
    broker = CompactingBroker(tmp_path / "a", holds_rounds=True)
    broker.start()
    log = filled(broker)
    broker.dirs.compact(lambda _key: 8)
    broker.dirs.stop_compaction()
    assert broker.workers[0].is_ended
    broker.executor.run()
    broker.dirs.compact(lambda _key: 8)
    assert not broker.executor.waiting
    assert log.clean_below is None
    assert broker.dirs.close()
    assert broker.workers[0].is_closed
    assert not broker.rounds.failed


def test_the_settings_are_divided_among_the_rounds() -> None:
    given = {
        "zookeeper.connect": "zk:2181",
        "log.cleaner.threads": "4",
        "log.cleaner.dedupe.buffer.size": "8000000",
        "log.cleaner.io.buffer.size": "800000",
        "log.cleaner.io.buffer.load.factor": "0.5",
        "log.cleaner.io.max.bytes.per.second": "1000",
    }
    config = CleanerConfig.of(KafkaConfig.of(given))
    assert config == CleanerConfig(4, CleanerSizes(2_000_000, 0.5, 100_000), 250)
    off = CleanerConfig.of(KafkaConfig.of({**given, "log.cleaner.enable": "false"}))
    assert off.threads == 0
    small = CleanerConfig.of(KafkaConfig.of({**given, "log.cleaner.io.buffer.size": "0"}))
    assert small.sizes.buffer_bytes == 4096
