"""AddPartitionsToTxnManager: which requests leave together, and what their answers are."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kbroker.common.internal_topics import TRANSACTIONS_TOPIC
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.replica.add_partitions_to_txn_manager import (
    MOST_PARTITIONS,
    AddPartitionsToTxnManager,
    Coordinator,
    Verified,
    coordinator_lookup,
)
from kclient.errors import ConnectionClosed
from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from kclient.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kclient.wire.versions import ApiKey


class Coordinators:
    """Coordinators that answer when a test decides."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.sent: list[tuple[int, AddPartitionsToTxnRequest, Deferred[Any]]] = []
        self.of: dict[str, int] = {}
        """The coordinator of each transactional id; broker 1 for others, 0 is none."""
        self.verifier = AddPartitionsToTxnManager(
            self.clock, self._send, self._coordinator_of, is_enabled=lambda: True
        )

    def _coordinator_of(self, transactional_id: str) -> Coordinator | None:
        broker_id = self.of.get(transactional_id, 1)
        return Coordinator(broker_id, f"broker-{broker_id}", 9092) if broker_id else None

    def _send(
        self, broker_id: int, host: str, port: int, api: ApiKey, version: int, request: Any
    ) -> Any:
        assert (host, port) == (f"broker-{broker_id}", 9092)
        assert (api, version) == (ApiKey.ADD_PARTITIONS_TO_TXN, 5)
        self.sent.append((broker_id, request, Deferred()))
        return self.sent[-1][2]

    def ask(
        self, name: str = "x", index: int = 0, *, pid: int = 7, epoch: int = 0
    ) -> list[Verified]:
        """Ask about partition *index* of topic t; return the list that will have the answer."""
        answers: list[Verified] = []
        self.verifier.verify(name, pid, epoch, ("t", index)).addCallback(answers.append)
        return answers

    def turn(self) -> None:
        self.clock.advance(0)

    def asked(self, at: int = -1) -> list[tuple[str, int, int, list[tuple[str, list[int]]]]]:
        """The transactions of a request."""
        request = self.sent[at][1]
        assert all(each.verify_only for each in request.transactions)
        return [
            (
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                [(topic.name, topic.partitions) for topic in each.topics],
            )
            for each in request.transactions
        ]

    def answer(self, at: int = -1, *, number: int = 5, **codes: int) -> None:
        """Answer a request; *codes* are the errors of all partitions by transactional id."""
        _, request, answer = self.sent[at]
        results = [
            AddPartitionsToTxnResult(
                each.transactional_id,
                [
                    AddPartitionsToTxnTopicResult(
                        topic.name,
                        [
                            AddPartitionsToTxnPartitionResult(
                                n, codes.get(each.transactional_id, 0)
                            )
                            for n in topic.partitions
                        ],
                    )
                    for topic in each.topics
                ],
                number,
            )
            for each in request.transactions
        ]
        answer.callback(AddPartitionsToTxnResponse(results_by_transaction=results))


@pytest.fixture
def coordinators() -> Coordinators:
    return Coordinators()


def test_the_verifications_of_a_turn_leave_in_one_request_to_each_coordinator(
    coordinators: Coordinators,
) -> None:
    coordinators.of["z"] = 2
    first, again = coordinators.ask("x", 0), coordinators.ask("x", 0)
    second, third = coordinators.ask("x", 1), coordinators.ask("y", 0, pid=8, epoch=3)
    elsewhere = coordinators.ask("z", 0, pid=9)
    coordinators.turn()
    assert [sent[0] for sent in coordinators.sent] == [1, 2]
    assert coordinators.asked(0) == [("x", 7, 0, [("t", [0, 1])]), ("y", 8, 3, [("t", [0])])]
    coordinators.answer(0, y=ErrorCode.TRANSACTION_ABORTABLE)
    assert first == again == second == [Verified(ErrorCode.NONE, 5)]
    assert third[0].error is ErrorCode.TRANSACTION_ABORTABLE
    assert elsewhere == []


def test_one_request_is_in_flight_and_the_next_one_has_what_came_meanwhile(
    coordinators: Coordinators,
) -> None:
    coordinators.ask("x", 0)
    coordinators.turn()
    late = [coordinators.ask("x", n) for n in (1, 2)]
    coordinators.turn()
    assert len(coordinators.sent) == 1
    coordinators.answer()
    assert coordinators.asked() == [("x", 7, 0, [("t", [1, 2])])]
    coordinators.answer(number=6)
    assert late == [[Verified(ErrorCode.NONE, 6)]] * 2
    assert coordinators.verifier._busy == set()


def test_two_producers_of_a_transactional_id_are_not_in_one_request(
    coordinators: Coordinators,
) -> None:
    old, new = coordinators.ask(epoch=0), coordinators.ask(epoch=1)
    coordinators.turn()
    assert coordinators.asked() == [("x", 7, 0, [("t", [0])])]
    coordinators.answer(x=ErrorCode.PRODUCER_FENCED)
    assert coordinators.asked() == [("x", 7, 1, [("t", [0])])]
    coordinators.answer()
    assert old[0].error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert new == [Verified(ErrorCode.NONE, 5)]


def test_a_request_is_bounded(coordinators: Coordinators) -> None:
    answers = [coordinators.ask("x", n) for n in range(MOST_PARTITIONS + 1)]
    coordinators.turn()
    coordinators.answer()
    assert [len(coordinators.asked(at)[0][3][0][1]) for at in (0, 1)] == [MOST_PARTITIONS, 1]
    coordinators.answer()
    assert all(len(each) == 1 for each in answers)


def test_without_a_coordinator_the_answer_is_there_at_once(coordinators: Coordinators) -> None:
    coordinators.of["x"] = 0
    assert coordinators.ask() == [Verified(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    assert not coordinators.clock.getDelayedCalls()


def test_a_coordinator_that_moves_meanwhile_is_not_asked(coordinators: Coordinators) -> None:
    answers = coordinators.ask()
    coordinators.of["x"] = 2
    coordinators.turn()
    assert answers == [Verified(ErrorCode.NOT_COORDINATOR)]
    coordinators.turn()
    coordinators.of["x"] = 1
    again = coordinators.ask()
    coordinators.turn()
    coordinators.answer()
    assert again == [Verified(ErrorCode.NONE, 5)]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (9999, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_error_of_the_request_is_that_of_all_verifications(
    coordinators: Coordinators, code: int, error: ErrorCode
) -> None:
    answers = [coordinators.ask(name, pid=pid) for name, pid in (("x", 7), ("y", 8))]
    coordinators.turn()
    coordinators.sent[0][2].callback(AddPartitionsToTxnResponse(error_code=code))
    assert answers == [[Verified(error)]] * 2


def test_a_lost_connection_and_a_missing_answer_are_network_errors(
    coordinators: Coordinators,
) -> None:
    lost = coordinators.ask()
    coordinators.turn()
    missing = coordinators.ask()
    coordinators.sent[0][2].errback(ConnectionClosed("gone"))
    coordinators.sent[1][2].callback(AddPartitionsToTxnResponse())
    assert lost == missing == [Verified(ErrorCode.NETWORK_EXCEPTION)]
    assert coordinators.verifier._busy == set()


def test_the_coordinator_is_the_live_leader_of_the_partition_of_the_id() -> None:
    metadata = MetadataCache("cluster")
    find = coordinator_lookup(metadata, "PLAINTEXT", lambda name, count: len(name) % count)
    assert find("x") is None
    states = [UpdateMetadataPartitionState(n, 1, n + 1, 0, [n + 1], 0, [n + 1]) for n in range(3)]
    endpoint = UpdateMetadataEndpoint(9093, "there", "PLAINTEXT", 0)
    metadata.update(
        UpdateMetadataRequest(
            controller_epoch=1,
            topic_states=[UpdateMetadataTopicState(TRANSACTIONS_TOPIC, None, states)],
            live_brokers=[UpdateMetadataBroker(2, [endpoint])],
        )
    )
    assert find("x") == Coordinator(2, "there", 9093)
    assert find("xx") is None  # its leader is not alive
