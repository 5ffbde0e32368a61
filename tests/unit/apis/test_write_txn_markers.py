"""WriteTxnMarkers: what a leader appends, when it acknowledges, and which senders it accepts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.apis.api27_write_txn_markers import WriteTxnMarkers
from kbroker.apis.budgets import RequestBudget
from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.apis.request import RequestContext
from kbroker.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.common.turns import WithoutTurns
from kbroker.log.unified_log import UnifiedLog
from kbroker.network.service import Peer, RequestRefusedError
from kbroker.replica.conditional_append import append_copied
from kclient.wire.batches import iterate
from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from kclient.wire.messages import RequestHeader
from kclient.wire.records import ABORT, COMMIT, decode_batch, transaction_marker
from kclient.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kclient.wire.versions import ApiKey
from tests.kit.inter_broker import proofs_of
from tests.kit.producer_batches import numbered_batch
from tests.kit.transactional_logs import marker, transactional
from tests.unit.apis.kit import ApiBroker, broker_in

BROKER = Peer("10.0.0.2", 1, "PLAINTEXT", broker_id=2)
CLIENT = Peer("10.0.0.3", 1, "PLAINTEXT")
P = 7


class Groups:
    """A group coordinator that is asked to end transactions."""

    def __init__(self) -> None:
        self.ended: list[tuple[Any, ...]] = []
        self.by_clients: list[bool] = []
        self.answers: list[Deferred[ErrorCode]] = []

    def end(self, *named: Any, is_commit: bool, sent_by_client: bool) -> Deferred[ErrorCode]:
        self.ended.append((*named, is_commit))
        self.by_clients.append(sent_by_client)
        self.answers.append(Deferred())
        return self.answers[-1]


class Markers:
    """The handler at a broker."""

    def __init__(self, broker: ApiBroker) -> None:
        self.broker = broker
        self.groups = Groups()
        self.altering = True
        self.handler = WriteTxnMarkers(
            broker.replica_manager,
            broker.authorizer,
            may_alter_cluster=lambda _principal: self.altering,
            end_group_transaction=self.groups.end,
            request_timeout=30.0,
        )

    def send(self, *sent: WritableTxnMarker, peer: Peer = BROKER) -> list[Any]:
        """Send markers; return the list that will have the response."""
        header = RequestHeader(ApiKey.WRITE_TXN_MARKERS, 1, 7, "c")
        context = RequestContext(header, peer, RequestBudget(1 << 20, 1000), WithoutTurns())
        responses: list[Any] = []
        answer = Deferred.fromCoroutine(self.handler(context, WriteTxnMarkersRequest(list(sent))))
        answer.addBoth(responses.append)
        return responses

    def end(self, *indexes: int, topic: str = "t", peer: Peer = BROKER, **named: Any) -> list[int]:
        """Send one marker to partitions of *topic*; return their error codes."""
        (response,) = self.send(marked(*indexes, topic=topic, **named), peer=peer)
        return codes(response)


def marked(
    *indexes: int,
    topic: str = "t",
    epoch: int = 0,
    commit: bool = True,
    coordinator_epoch: int = 3,
    number: int = -1,
    producer_id: int = P,
) -> WritableTxnMarker:
    topics = [WritableTxnMarkerTopic(topic, list(indexes or (0,)))]
    return WritableTxnMarker(producer_id, epoch, commit, topics, coordinator_epoch, number)


def codes(response: Any) -> list[int]:
    return [
        each.error_code
        for answer in response.markers
        for topic in answer.topics
        for each in topic.partitions
    ]


@pytest.fixture
def markers(tmp_path: Path) -> Iterator[Markers]:
    with broker_in(tmp_path / "log") as broker:
        broker.lead("t", 2)
        yield Markers(broker)


def log_of(broker: ApiBroker, index: int = 0, topic: str = "t") -> UnifiedLog:
    log = broker.replica_manager.partition(topic, index).log
    assert log is not None
    return log


def write(markers: Markers, *, index: int = 0, **named: Any) -> None:
    """Append a transactional batch, as after the coordinator's answer."""
    log = log_of(markers.broker, index)
    batch = transactional(P, **named)
    (info,) = iterate(batch)
    log.append_as_leader(batch, info, 0, 0)


def held(log: UnifiedLog) -> list[tuple[int, int, int]]:
    """Kind, producer epoch and coordinator epoch of each marker in *log*."""
    found = []
    data = b"".join(each.file.pread(each.size, 0) for each in log.segments)
    for info in iterate(data):
        end = transaction_marker(data, info) if info.is_control else None
        if end is not None:
            kind = ABORT if end.is_aborted else COMMIT
            found.append((kind, info.producer_epoch, end.coordinator_epoch))
    return found


def send(markers: Markers, sequence: int, epoch: int) -> int:
    """Produce a batch of the producer, without a transaction; return the error code."""
    code: int = markers.broker.produce(numbered_batch(P, sequence, epoch=epoch))[0].error_code
    return code


@pytest.mark.parametrize(("commit", "kind"), [(True, COMMIT), (False, ABORT)])
def test_a_marker_ends_the_open_transaction(markers: Markers, commit: bool, kind: int) -> None:
    write(markers)
    write(markers, index=1)
    assert markers.end(0, 1, commit=commit) == [0, 0]
    for index in (0, 1):
        log = log_of(markers.broker, index)
        assert held(log) == [(kind, 0, 3)]
        assert not log.producers.transactions.ongoing
        assert log.last_stable_offset(2) == 2


def test_the_batch_has_kafkas_format(markers: Markers) -> None:
    write(markers, epoch=5)
    markers.broker.wall_clock = lambda: 12.0
    markers.end(epoch=5)
    data = b"".join(part.read() for part in log_of(markers.broker).read(1, 1 << 20).slices)
    (info,) = iterate(data)
    assert (info.base_offset, info.producer_id, info.producer_epoch) == (1, P, 5)
    assert (info.is_control, info.is_transactional, info.base_sequence) == (True, True, -1)
    (record,) = decode_batch(data, info)
    assert record.key == b"\0\0\0\1"  # version 0, COMMIT
    assert record.value == b"\0\0\0\0\0\3"  # version 0, coordinator epoch
    assert record.timestamp == 12_000


def test_a_second_marker_ends_nothing(markers: Markers) -> None:
    write(markers)
    assert markers.end(commit=False) == markers.end(commit=False) == [0]
    log = log_of(markers.broker)
    found = log.aborted_transactions(0, log.read(0, 1 << 20), 3)
    assert [each.last_offset for each in found] == [1]
    assert log.last_stable_offset(3) == 3


def test_a_marker_without_a_transaction_fences_the_epoch_before(markers: Markers) -> None:
    assert send(markers, 0, 4) == 0
    assert markers.end(epoch=5, commit=False) == [0]
    assert send(markers, 1, 4) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert held(log_of(markers.broker)) == [(ABORT, 5, 3)]


def test_lower_epochs_are_refused(markers: Markers) -> None:
    write(markers, epoch=2)
    assert markers.end(epoch=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert markers.end(epoch=2) == [0]
    write(markers, epoch=2, sequence=1)
    fenced = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert markers.end(epoch=2, coordinator_epoch=2) == fenced
    assert log_of(markers.broker).producers.transactions.ongoing
    assert markers.end(epoch=2, coordinator_epoch=4) == [0]


def test_a_late_marker_of_an_earlier_transaction_has_no_effect(markers: Markers) -> None:
    write(markers)
    transactions = markers.broker.replica_manager.partition("t", 0).transactions
    transactions.in_epoch._numbers[P] = 8
    assert markers.end(number=7) == [0]
    assert held(log_of(markers.broker)) == []
    assert markers.end(number=8) == [0]
    assert held(log_of(markers.broker)) == [(COMMIT, 0, 3)]


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_epochs_are_known_after_a_restart(tmp_path: Path, is_clean: bool) -> None:
    with broker_in(tmp_path) as broker:
        broker.lead("t", 1)
        markers = Markers(broker)
        write(markers, epoch=2)
        markers.end(epoch=3, commit=False)
        if is_clean:
            assert broker.replica_manager.log_manager.close()
        log_of(broker).flush()
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    if not is_clean:
        for path in [each for each in tmp_path.rglob("*") if each.is_file()]:
            path.unlink()
        for path, content in files.items():
            path.write_bytes(content)
    with broker_in(tmp_path) as broker:
        broker.lead("t", 1, leader_epoch=1)
        markers = Markers(broker)
        assert markers.end(epoch=2) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert markers.end(epoch=3, coordinator_epoch=2) == [
            ErrorCode.TRANSACTION_COORDINATOR_FENCED
        ]
        assert held(log_of(broker)) == [(ABORT, 3, 3)]
        assert markers.end(epoch=3, commit=False) == [0]


# Replicas


def take(broker: ApiBroker, leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1, 2)) -> None:
    state = LeaderAndIsrPartitionState(0, 1, leader, epoch, list(isr), 0, [1, 2])
    broker.become_leader_or_follower(
        LeaderAndIsrRequest(
            controller_epoch=1, topic_states=[LeaderAndIsrTopicState("r", None, [state])]
        )
    )


def fetched(broker: ApiBroker, offset: int, epoch: int = 0) -> None:
    """The follower fetches from *offset*: it has everything below."""
    partition = broker.replica_manager.partition("r", 0)
    partition.read_as_follower(2, offset, 100, min_one_batch=True, current_leader_epoch=epoch)
    broker.clock.advance(0)


def test_a_marker_is_acknowledged_when_the_replicas_have_it(markers: Markers) -> None:
    broker = markers.broker
    take(broker)
    first = markers.send(marked(topic="r"))
    second = markers.send(marked(topic="r"))
    assert (first, second) == ([], [])
    fetched(broker, 1)
    assert [codes(response) for response in first + second] == [[0]]
    fetched(broker, 2)
    assert [codes(response) for response in first + second] == [[0], [0]]
    assert len(broker.replica_manager.purgatory) == 0


def test_the_wait_is_bounded(markers: Markers) -> None:
    take(markers.broker)
    responses = markers.send(marked(topic="r"), marked(0, 1))
    markers.broker.clock.advance(29)
    assert not responses
    markers.broker.clock.advance(1)
    assert codes(responses[0]) == [ErrorCode.REQUEST_TIMED_OUT, 0, 0]


def test_the_wait_ends_with_the_leadership(markers: Markers) -> None:
    take(markers.broker)
    responses = markers.send(marked(topic="r"))
    take(markers.broker, leader=2, epoch=1)
    markers.broker.clock.advance(0)
    assert codes(responses[0]) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert markers.end(topic="r") == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_min_insync_replicas_is_required(markers: Markers) -> None:
    broker = markers.broker
    broker.topic_configs["r"] = replace(broker.config.log_defaults, min_insync_replicas=2)
    take(broker, isr=(1,))
    assert markers.end(topic="r") == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert log_of(broker, topic="r").log_end_offset == 0


def test_the_follower_has_the_epochs(markers: Markers) -> None:
    """It becomes the leader: an old coordinator, and a late Produce in the old epoch, are refused."""
    broker = markers.broker
    take(broker, leader=2)
    data = transactional(P, epoch=2) + marker(P, ABORT, epoch=3, coordinator_epoch=4, base_offset=1)
    log_of(broker, topic="r").append_as_follower(data, 0)
    take(broker, epoch=1)
    assert markers.end(topic="r", epoch=2) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert markers.end(topic="r", epoch=3) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    late = broker.produce(numbered_batch(P, 1, epoch=2), topic="r")[0]
    assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_the_coordinator_epoch_is_known_after_a_truncation(markers: Markers) -> None:
    broker = markers.broker
    take(broker, leader=2)
    log = log_of(broker, topic="r")
    data = transactional(P, epoch=2) + marker(P, epoch=2, coordinator_epoch=4, base_offset=1)
    log.append_as_follower(data, 0)
    for n in range(10):
        log.append_as_follower(transactional(P, epoch=2, sequence=n + 1, base_offset=n + 2), 0)
    log.truncate_to(3)
    assert log.producers.states.entries[P].coordinator_epoch == 4


# Other partitions


def test_unknown_partitions_have_their_error(markers: Markers) -> None:
    (response,) = markers.send(marked(0, 5), marked(topic="nowhere"))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(response) == [0, unknown, unknown]
    assert [each.producer_id for each in response.markers] == [P, P]


def test_a_mirror_is_never_touched(markers: Markers) -> None:
    broker = markers.broker
    broker.topic_configs["m"] = replace(
        broker.config.log_defaults, kbroker_mirror_source_cluster_id="source"
    )
    broker.lead("m", 1)
    append_copied(broker.replica_manager.partition("m", 0), transactional(P), (0, 0), 1, 1)
    assert markers.end(topic="m") == [0]
    assert log_of(broker, topic="m").log_end_offset == 1


def test_groups_end_transactions_themselves(markers: Markers) -> None:
    broker = markers.broker
    responses = markers.send(
        marked(4, 5, topic=OFFSETS_TOPIC, epoch=2, number=9),
        marked(6, topic=OFFSETS_TOPIC, commit=False),
    )
    assert markers.groups.ended == [(4, P, 2, 9, True), (5, P, 2, 9, True), (6, P, 0, None, False)]
    first, second, third = markers.groups.answers
    first.callback(ErrorCode.NONE)
    second.callback(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert not responses
    broker.clock.advance(31)
    assert third.called
    assert codes(responses[0]) == [
        0, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT,
    ]  # fmt: skip


def test_no_marker_is_in_the_log_of_an_internal_topic(markers: Markers) -> None:
    markers.broker.lead(TRANSACTIONS_TOPIC, 1)
    assert markers.end(topic=TRANSACTIONS_TOPIC) == [0]
    assert log_of(markers.broker, topic=TRANSACTIONS_TOPIC).log_end_offset == 0


# Authorization


def test_only_brokers_and_an_admins_abort_are_authorized(markers: Markers) -> None:
    refused = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    write(markers)
    assert markers.end(peer=CLIENT) == refused
    markers.altering = False
    assert markers.end(peer=CLIENT, commit=False) == refused
    assert held(log_of(markers.broker)) == []
    markers.altering = True
    (response,) = markers.send(marked(commit=False), marked(), peer=CLIENT)
    assert codes(response) == refused * 2
    assert markers.end(peer=CLIENT, commit=False, coordinator_epoch=0) == [0]
    assert held(log_of(markers.broker)) == [(ABORT, 0, 0)]


# An ABORT of a client: it has no effect but the end of the open transaction


def test_an_abort_of_a_client_fences_no_coordinator(markers: Markers) -> None:
    """It has at most the coordinator epoch of the last marker."""
    write(markers)
    assert markers.end() == [0]
    for sequence, epoch in enumerate((3, 4, (1 << 31) - 1), start=1):
        write(markers, sequence=sequence)
        assert markers.end(peer=CLIENT, commit=False, coordinator_epoch=epoch) == [0]
    write(markers, sequence=4)
    assert markers.end(commit=False) == [0]
    assert held(log_of(markers.broker)) == [(COMMIT, 0, 3), *[(ABORT, 0, 3)] * 4]


@pytest.mark.parametrize("sent", [0, 1, (1 << 31) - 1])
def test_an_abort_of_a_client_before_the_first_marker_has_coordinator_epoch_0(
    markers: Markers, sent: int
) -> None:
    """Apache Kafka's tool sends 0 where DescribeProducers has -1."""
    write(markers)
    assert markers.end(peer=CLIENT, commit=False, coordinator_epoch=sent) == [0]
    write(markers, sequence=1)
    assert markers.end(coordinator_epoch=0) == [0]
    assert held(log_of(markers.broker)) == [(ABORT, 0, 0), (COMMIT, 0, 0)]


def test_an_abort_of_a_client_has_no_lower_coordinator_epoch_than_the_log(markers: Markers) -> None:
    write(markers)
    assert markers.end() == [0]
    write(markers, sequence=1)
    refused = markers.end(peer=CLIENT, commit=False, coordinator_epoch=2)
    assert refused == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]


@pytest.mark.parametrize("epoch", [0, 4, 6, (1 << 15) - 1])
def test_an_abort_of_a_client_fences_no_producer(markers: Markers, epoch: int) -> None:
    write(markers, epoch=5)
    refused = markers.end(peer=CLIENT, commit=False, epoch=epoch, coordinator_epoch=0)
    assert refused == [ErrorCode.INVALID_PRODUCER_EPOCH]
    write(markers, epoch=5, sequence=1)
    assert held(log_of(markers.broker)) == []
    assert markers.end(peer=CLIENT, commit=False, epoch=5, coordinator_epoch=0) == [0]
    assert send(markers, 2, 5) == 0


def test_a_transaction_that_a_later_epoch_joined_is_aborted_in_that_epoch(markers: Markers) -> None:
    """DescribeProducers shows the later epoch; without verification a batch of it may join the open transaction."""
    write(markers, epoch=5)
    write(markers, epoch=6)
    assert markers.end(peer=CLIENT, commit=False, epoch=5, coordinator_epoch=0) == [
        ErrorCode.INVALID_PRODUCER_EPOCH
    ]
    assert markers.end(peer=CLIENT, commit=False, epoch=6, coordinator_epoch=0) == [0]
    assert held(log_of(markers.broker)) == [(ABORT, 6, 0)]


def test_a_marker_with_a_number_is_of_a_coordinator(markers: Markers) -> None:
    """Of a client, it made the markers of later transactions, which have lower numbers, be without an effect."""
    write(markers)
    refused = markers.end(peer=CLIENT, commit=False, number=1 << 62, coordinator_epoch=0)
    assert refused == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    assert markers.end(number=9) == [0]
    assert held(log_of(markers.broker)) == [(COMMIT, 0, 3)]


def test_during_an_upgrade_a_coordinator_at_an_unknown_address_gets_no_response(
    markers: Markers,
) -> None:
    """It takes each response for the end of the marker. Its address may become known: it sends the marker again."""
    brokers: dict[str, set[int]] = {}
    markers.handler._authorizer = InterBrokerAuthorizer(
        proofs_of(1), None, lambda: 0.0, lambda host: brokers.get(host, set())
    )
    write(markers)
    (refused,) = markers.send(marked(commit=False, number=9, epoch=1), peer=CLIENT)
    assert refused.check(RequestRefusedError)
    brokers[CLIENT.host] = {2}
    assert markers.end(peer=CLIENT, commit=False, number=9, epoch=1) == [0]
    assert held(log_of(markers.broker)) == [(ABORT, 1, 3)]


def test_an_abort_of_a_client_without_an_open_transaction_is_not_appended(markers: Markers) -> None:
    assert markers.end(peer=CLIENT, commit=False, epoch=9, coordinator_epoch=9) == [0]
    write(markers)
    assert markers.end() == [0]
    assert markers.end(peer=CLIENT, commit=False, epoch=9, coordinator_epoch=9) == [0]
    assert held(log_of(markers.broker)) == [(COMMIT, 0, 3)]
    assert send(markers, 1, 0) == 0


def test_group_coordinators_receive_that_a_client_sent_the_marker(markers: Markers) -> None:
    markers.send(marked(4, topic=OFFSETS_TOPIC, commit=False, epoch=2), peer=CLIENT)
    markers.send(marked(4, topic=OFFSETS_TOPIC, commit=False, epoch=2))
    assert markers.groups.by_clients == [True, False]
