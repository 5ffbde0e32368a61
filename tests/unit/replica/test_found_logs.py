"""What a broker reports of the logs that it found (S8)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kbroker.common.isr_epochs import void
from kbroker.common.log_dir_integrity import BrokerEpochs, broker_epochs
from kbroker.replica.found_logs import end_of_leaderless
from kclient.wire.interbroker import LeaderAndIsrPartitionState

BROKER = 7


def reported(intact: BrokerEpochs | None, isr_epoch: int | None) -> tuple[int, ...]:
    """Return the covered range that broker 7 reports of a log in a directory that covers *intact*."""
    log = SimpleNamespace(
        leader_epochs=SimpleNamespace(latest=3),
        log_end_offset=9,
        missing_below=None,
        lacks_until_in_sync="",
    )
    logs: Any = SimpleNamespace(
        get=lambda *_key: log,
        vouched_for=lambda _key: intact,
        histories=SimpleNamespace(found_logs=None),
    )
    partition: Any = SimpleNamespace(
        key=("t", 0), offline=None, lacks_records="", role=SimpleNamespace(broker_id=BROKER)
    )
    state = LeaderAndIsrPartitionState(leader=-1, isr=[1, BROKER])
    if isr_epoch is not None:
        state.isr_epochs = [5, isr_epoch]
    found = end_of_leaderless(logs, partition, state)
    assert found[:2] == (3, 9)
    return found[2:]


def test_s08_the_log_of_a_leaderless_partition_counts_if_its_own_isr_epoch_is_covered() -> None:
    intact = broker_epochs(10, 40)
    assert reported(intact, 10) == reported(intact, 40) == (10, 40)
    assert reported(intact, void(10)) == (10, 40), "found again after it was reported lost"
    assert reported(intact, 20) == reported(intact, void(20)) == (-1, -1), (
        "an epoch that was missed"
    )
    assert reported(intact, None) == reported(intact, -1) == (10, 40), "no ISR epoch is known"
    assert reported(None, 10) == (-1, -1)
