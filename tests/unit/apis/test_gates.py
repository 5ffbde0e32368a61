"""The gates of the request pipeline: requests wait for the registration, or for the cluster's metadata."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from kbroker.apis.gates import METADATA_SECONDS, BrokerGates, ControllerEpochs
from kbroker.apis.pipeline import RequestPipeline
from kbroker.common.turns import WithoutTurns
from kbroker.metadata.epoch_fences import Registration
from kbroker.metadata.metadata_cache import FULL, MetadataCache
from kbroker.network.service import Peer
from kclient.wire import messages
from kclient.wire.interbroker import (
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataBroker,
    UpdateMetadataRequest,
)
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kclient.wire.versions import SERVED, ApiKey
from tests.kit.inter_broker import authorizer_of
from tests.kit.request_pipelines import NoQuotas
from tests.unit.apis.kit import joined

CONTROLLER = Peer("10.0.0.2", 1234, "PLAINTEXT", broker_id=2)


class AllEpochs:
    """Stands for `ControllerEpochs`: every epoch exists; *confirmed* has those that were checked."""

    def __init__(self) -> None:
        self.confirmed: list[int] = []

    def is_confirmed(self, claimed: int) -> bool:
        return claimed in self.confirmed

    def confirm(self, claimed: int) -> Deferred[None]:
        self.confirmed.append(claimed)
        return succeed(None)


class Receiver:
    """The pipeline of broker 1, behind its gates; its handlers answer without an error."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.registration = Registration()
        self.epochs = AllEpochs()
        self.metadata = MetadataCache("cluster")
        gates = BrokerGates(
            self.clock, 1, self.registration, cast(ControllerEpochs, self.epochs), self.metadata
        )
        self.pipeline = RequestPipeline(
            {
                ApiKey.STOP_REPLICA: lambda: lambda _context, _request: StopReplicaResponse(),
                ApiKey.DESCRIBE_CLUSTER: lambda: (
                    lambda _context, _request: DescribeClusterResponse()
                ),
            },
            authorizer=authorizer_of(1),
            gates=gates,
            quotas=NoQuotas(),
            turns=WithoutTurns(),
        )

    def ask(self, api: ApiKey, request: Any) -> Any:
        frame = messages.encode_request(RequestHeader(api, SERVED[api].max, 7, "c"), request)
        return self.pipeline(memoryview(frame), CONTROLLER)


def error_of(api: ApiKey, answer: Any) -> int:
    code: int = messages.decode_response(api, SERVED[api].max, joined(answer))[1].error_code
    return code


def test_a_request_of_the_controller_waits_for_the_registration() -> None:
    receiver = Receiver()
    request = StopReplicaRequest(controller_id=2, controller_epoch=5)
    answer = receiver.ask(ApiKey.STOP_REPLICA, request)
    assert not answer.called
    assert receiver.epochs.confirmed == []
    receiver.registration.registered(77)
    assert receiver.epochs.confirmed == [5]
    assert error_of(ApiKey.STOP_REPLICA, answer) == 0
    assert error_of(ApiKey.STOP_REPLICA, receiver.ask(ApiKey.STOP_REPLICA, request)) == 0
    assert receiver.epochs.confirmed == [5]  # it was read already: nothing to wait for


def test_a_later_controller_epoch_than_was_read_is_checked() -> None:
    receiver = Receiver()
    receiver.registration.registered(77)
    for epoch in (5, 6):
        answer = receiver.ask(
            ApiKey.STOP_REPLICA, StopReplicaRequest(controller_id=2, controller_epoch=epoch)
        )
        assert error_of(ApiKey.STOP_REPLICA, answer) == 0
    assert receiver.epochs.confirmed == [5, 6]


def test_a_request_about_the_cluster_waits_for_the_metadata() -> None:
    receiver = Receiver()
    answer = receiver.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
    assert not answer.called
    receiver.metadata.update(
        UpdateMetadataRequest(
            controller_epoch=1, type=FULL, live_brokers=[UpdateMetadataBroker(1, [])]
        )
    )
    assert error_of(ApiKey.DESCRIBE_CLUSTER, answer) == 0
    later = receiver.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
    assert isinstance(later, tuple)


def test_it_waits_no_longer_than_clients_do() -> None:
    receiver = Receiver()
    answer = receiver.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
    receiver.clock.advance(METADATA_SECONDS)
    assert error_of(ApiKey.DESCRIBE_CLUSTER, answer) == 0
