"""Produce with transactions: the coordinator is asked before the first batch, and its answer counts once (KIP-890)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.log.unified_log import UnifiedLog
from kbroker.replica.add_partitions_to_txn_manager import (
    AddPartitionsToTxnManager,
    Coordinator,
)
from kbroker.replica.core.leader_transactions import EndTxnMarker
from kclient.wire.batches import iterate
from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from kclient.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from tests.kit.producer_batches import numbered_batch
from tests.kit.transactional_logs import transactional
from tests.unit.apis.kit import ApiBroker, TestReactor, broker_in

P = 7


class Coordinators:
    """Requests to coordinators, which a test answers."""

    def __init__(self) -> None:
        self.clock = TestReactor()
        self.sent: list[tuple[Any, Deferred[Any]]] = []
        self.is_enabled = True
        self.is_known = True
        self.verifier = AddPartitionsToTxnManager(
            self.clock,
            self._send,
            lambda _name: Coordinator(2, "there", 9092) if self.is_known else None,
            is_enabled=lambda: self.is_enabled,
        )

    def _send(self, *request: Any) -> Deferred[Any]:
        self.sent.append((request[-1], Deferred()))
        return self.sent[-1][1]

    def turn(self) -> int:
        """Run the scheduled calls; return how many requests were sent in all."""
        self.clock.advance(0)
        return len(self.sent)

    def answer(self, code: int = 0, *, number: int = 5) -> None:
        """Answer the oldest request for all its partitions."""
        request, answer = self.sent.pop(0)
        answer.callback(
            AddPartitionsToTxnResponse(
                results_by_transaction=[
                    AddPartitionsToTxnResult(
                        each.transactional_id,
                        [
                            AddPartitionsToTxnTopicResult(
                                topic.name,
                                [
                                    AddPartitionsToTxnPartitionResult(n, code)
                                    for n in topic.partitions
                                ],
                            )
                            for topic in each.topics
                        ],
                        number,
                    )
                    for each in request.transactions
                ]
            )
        )


@pytest.fixture
def coordinators() -> Coordinators:
    return Coordinators()


@pytest.fixture
def broker(tmp_path: Path, coordinators: Coordinators) -> Iterator[ApiBroker]:
    with broker_in(tmp_path / "log", add_partitions_to_txn_manager=coordinators.verifier) as broker:
        broker.lead("t", 3)
        yield broker


def send(broker: ApiBroker, *batches: bytes, **named: Any) -> list[Any]:
    """Produce; return the list that will have the outcomes."""
    outcomes: list[Any] = []
    answer = broker.produce(*batches, transactional_id="x", **{"acks": -1, **named})
    if isinstance(answer, Deferred):
        answer.addCallback(outcomes.extend)
        broker.clock.pump([0.0] * 3)
    else:
        outcomes.extend(answer)
    return outcomes


def settle(broker: ApiBroker) -> None:
    broker.clock.pump([0.0] * 5)


def codes(outcomes: list[Any]) -> list[int]:
    return [each.error_code for each in outcomes]


def log_of(broker: ApiBroker, index: int = 0) -> UnifiedLog:
    log = broker.replica_manager.partition("t", index).log
    assert log is not None
    return log


def sequences(log: UnifiedLog) -> list[int]:
    data = b"".join(each.file.pread(each.size, 0) for each in log.segments)
    return [info.base_sequence for info in iterate(data)]


def end(broker: ApiBroker, *, number: int = 5, epoch: int = 0, index: int = 0) -> int:
    partition = broker.replica_manager.partition("t", index)
    return partition.end_transaction(EndTxnMarker(P, epoch, 3, is_commit=True, number=number), 1000)


def begun(broker: ApiBroker, coordinators: Coordinators, *, number: int = 5) -> None:
    """Begin a transaction by its first batch."""
    outcomes = send(broker, transactional(P))
    coordinators.turn()
    coordinators.answer(number=number)
    settle(broker)
    assert codes(outcomes) == [0]


def test_the_first_batch_waits_for_the_answer_and_the_others_do_not(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    outcomes = send(broker, transactional(P))
    assert coordinators.turn() == 1
    assert (outcomes, log_of(broker).log_end_offset) == ([], 0)
    coordinators.answer()
    settle(broker)
    assert [(each.error_code, each.base_offset) for each in outcomes] == [(0, 0)]
    assert codes(send(broker, transactional(P, sequence=1))) == [0]
    assert coordinators.turn() == 0
    assert broker.replica_manager.partition("t", 0).transactions.in_epoch.number_of(P) == 5


def test_the_partitions_of_a_request_are_asked_about_together(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    outcomes = send(broker, *[transactional(P)] * 3)
    assert coordinators.turn() == 1
    (transaction,) = coordinators.sent[0][0].transactions
    assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("t", [0, 1, 2])]
    coordinators.answer()
    settle(broker)
    assert codes(outcomes) == [0, 0, 0]
    assert coordinators.turn() == 0


def test_other_batches_ask_nothing(broker: ApiBroker, coordinators: Coordinators) -> None:
    assert codes(send(broker, numbered_batch(P, 0), numbered_batch(8, 0))) == [0, 0]
    assert coordinators.turn() == 0


@pytest.mark.parametrize(
    ("code", "version", "error"),
    [
        (ErrorCode.NOT_COORDINATOR, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.PRODUCER_FENCED, 11, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 11, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_errors_of_the_answer_are_those_of_kafka(
    broker: ApiBroker, coordinators: Coordinators, code: int, version: int, error: int
) -> None:
    outcomes = send(broker, transactional(P), version=version)
    coordinators.turn()
    coordinators.answer(code)
    settle(broker)
    assert codes(outcomes) == [error]
    assert log_of(broker).log_end_offset == 0


def test_without_a_coordinator_the_producer_repeats_the_batch(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    coordinators.is_known = False
    outcomes = send(broker, transactional(P))
    settle(broker)
    assert codes(outcomes) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert "COORDINATOR_NOT_AVAILABLE" in outcomes[0].error_message


def test_requests_that_wait_for_one_response_are_appended_in_order(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    outcomes = [send(broker, transactional(P, sequence=n)) for n in (0, 1, 0, 2)]
    assert coordinators.turn() == 1
    coordinators.answer()
    settle(broker)
    assert [(codes(each), each[0].base_offset) for each in outcomes] == [
        ([0], 0), ([0], 1), ([0], 0), ([0], 2),
    ]  # fmt: skip
    assert sequences(log_of(broker)) == [0, 1, 2]


def test_a_later_batch_is_not_first_while_the_first_one_is_repeated(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    """The log does not know the producer, and would take any sequence (KAFKA-14920)."""
    first = send(broker, transactional(P, sequence=0))
    coordinators.turn()
    coordinators.answer(ErrorCode.NOT_COORDINATOR)
    settle(broker)
    second = send(broker, transactional(P, sequence=1))
    coordinators.turn()
    coordinators.answer()
    settle(broker)
    assert codes(first + second) == [
        ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ]  # fmt: skip
    assert codes(send(broker, transactional(P, sequence=0))) == [0]
    assert codes(send(broker, transactional(P, sequence=1))) == [0]
    assert coordinators.turn() == 0


@pytest.mark.parametrize("number", [5, -1])
def test_an_answer_that_a_marker_overtook_does_not_count(
    broker: ApiBroker, coordinators: Coordinators, number: int
) -> None:
    outcomes = send(broker, transactional(P))
    coordinators.turn()
    end(broker, number=number)
    coordinators.answer()
    settle(broker)
    assert codes(outcomes) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert sequences(log_of(broker)) == [-1]  # the marker


def test_a_late_marker_of_the_transaction_before_does_not_matter(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    begun(broker, coordinators, number=4)
    end(broker, number=4)
    outcomes = send(broker, transactional(P, sequence=1))
    coordinators.turn()
    end(broker, number=4)
    coordinators.answer()
    settle(broker)
    assert codes(outcomes) == [0]
    assert end(broker, number=4) == 0
    assert P in log_of(broker).producers.transactions.ongoing


def test_an_answer_of_another_leader_epoch_does_not_count(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    outcomes = send(broker, transactional(P))
    coordinators.turn()
    broker.lead("t", 3, leader_epoch=1)
    coordinators.answer()
    settle(broker)
    assert codes(outcomes) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert log_of(broker).log_end_offset == 0


def test_the_number_is_known_in_the_next_epoch_of_the_same_leader_only(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    begun(broker, coordinators)
    broker.lead("t", 3, leader_epoch=1)
    assert broker.replica_manager.partition("t", 0).transactions.in_epoch.number_of(P) == 5
    broker.lead("t", 3, leader_epoch=3)
    assert broker.replica_manager.partition("t", 0).transactions.in_epoch.number_of(P) == -1


def test_a_duplicate_of_an_ended_transaction_has_the_first_answer(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    begun(broker, coordinators)
    end(broker)
    again = send(broker, transactional(P))
    assert [(each.error_code, each.base_offset) for each in again] == [(0, 0)]
    assert coordinators.turn() == 0


def test_a_producer_in_a_transaction_sends_no_other_batches(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    begun(broker, coordinators)
    assert codes(send(broker, numbered_batch(P, 1))) == [ErrorCode.INVALID_TXN_STATE]


def test_a_transaction_with_a_lost_marker_is_aborted_before_the_next_one(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    begun(broker, coordinators)
    outcomes = send(broker, transactional(P, epoch=1))
    coordinators.turn()
    coordinators.answer(number=6)
    settle(broker)
    assert codes(outcomes) == [0]
    log = log_of(broker)
    assert sequences(log) == [0, -1, 0]
    assert log.producers.transactions.ongoing[P].first_offset == 2
    assert [each.last_offset for each in log.aborted_transactions(0, log.read(0, 1 << 20), 3)] == [
        1
    ]


def test_verification_can_be_disabled(broker: ApiBroker, coordinators: Coordinators) -> None:
    coordinators.is_enabled = False
    assert codes(send(broker, transactional(P), transactional(P))) == [0, 0]
    assert coordinators.turn() == 0


def test_a_transactional_batch_needs_the_id_and_the_topic_no_mirror(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    outcome = broker.produce(transactional(P))[0]
    assert outcome.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    broker.topic_configs["t"] = replace(
        broker.config.log_defaults, kbroker_mirror_source_cluster_id="source"
    )
    broker.replica_manager.reconfigure(["t"])
    refused = [ErrorCode.POLICY_VIOLATION] * 2
    assert codes(send(broker, transactional(P), transactional(P))) == refused
    assert coordinators.turn() == 0


def test_a_batch_that_is_replicated_while_the_request_asks_about_another_is_acknowledged(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    """No event of its replicas is to come when the request begins to wait."""
    states = [
        LeaderAndIsrPartitionState(n, 1, 1, 0, isr, 0, isr) for n, isr in enumerate(([1, 2], [1]))
    ]
    broker.become_leader_or_follower(
        LeaderAndIsrRequest(
            controller_epoch=1, topic_states=[LeaderAndIsrTopicState("r", None, states)]
        )
    )
    outcomes = send(broker, numbered_batch(8, 0), transactional(P), topic="r")
    coordinators.turn()
    partition = broker.replica_manager.partition("r", 0)
    partition.read_as_follower(2, 1, 100, min_one_batch=True, current_leader_epoch=0)
    settle(broker)
    coordinators.answer()
    settle(broker)
    assert codes(outcomes) == [0, 0]


def test_a_promoted_mirror_aborts_what_was_copied_and_not_its_own(
    broker: ApiBroker, coordinators: Coordinators
) -> None:
    broker.topic_configs["t"] = replace(
        broker.config.log_defaults, kbroker_mirror_source_topic_id="s"
    )
    broker.replica_manager.reconfigure(["t"])
    begun(broker, coordinators)
    broker.replica_manager.reconfigure(["t"])
    broker.lead("t", 3, leader_epoch=5)
    assert P in log_of(broker).producers.transactions.ongoing
