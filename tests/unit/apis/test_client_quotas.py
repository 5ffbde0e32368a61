"""Client quotas in the request pipeline: what is counted, and how long clients are throttled."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.network.service import Peer
from kbroker.quota.core.entities import DEFAULT, QuotaEntity, QuotaKind
from kclient.wire import fetch, messages, produce
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.messages import RequestHeader
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.schema.heartbeat import HeartbeatRequest
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.versions import ApiKey
from tests.kit.logs import batch_of
from tests.unit.apis.kit import ApiBroker, joined

ANYONE = QuotaEntity(None, DEFAULT)


def limit(broker: ApiBroker, kind: QuotaKind, value: float, entity: QuotaEntity = ANYONE) -> None:
    broker.quotas.replace({kind: {entity: value}})


def client() -> Peer:
    return Peer("10.0.0.1", 1234, "PLAINTEXT")


def produced(broker: ApiBroker, peer: Peer, *, acks: int = 1, client_id: str = "c") -> int:
    """Produce one batch; return throttle_time_ms (acks 0: of the connection)."""
    request = ProduceRequest(acks, 1000, [ProduceTopic("t", [ProducePartition(0, batch_of(1000))])])
    answer = broker.ask_raw(b"".join(produce.encode_request(request, 9, 7, client_id)), peer)
    if acks == 0:
        assert answer is None
        return round(peer.throttle_seconds * 1000)
    response = produce.decode_response(joined(answer), 9)[1]
    assert response.topics[0].partitions[0].error_code == 0
    return response.throttle_time_ms


def fetched(broker: ApiBroker, peer: Peer, offset: int = 0, **fields: Any) -> Any:
    request = FetchRequest(
        **{
            "max_wait_ms": 0,
            "min_bytes": 1,
            "topics": [FetchTopic("t", [FetchPartition(0, offset, 1 << 20, 0)])],
            **fields,
        }
    )
    answer = broker.ask_raw(fetch.encode_request(request, 12, 7, "c"), peer)
    return fetch.decode_response(joined(answer), 12)[1]


def size_of(response: Any) -> int:
    return sum(each.records_size for topic in response.topics for each in topic.partitions)


@pytest.mark.parametrize("acks", [0, 1])
def test_a_producer_above_its_rate_is_throttled_after_the_append(
    broker: ApiBroker, acks: int
) -> None:
    broker.fill(0)
    limit(broker, QuotaKind.PRODUCE, 2)
    peer = client()
    throttle_ms = produced(broker, peer, acks=acks)
    size = broker.quotas.produce.of("ANONYMOUS", "c", 0.0).meter.total(broker.clock.seconds())  # type: ignore[union-attr]
    assert throttle_ms == pytest.approx((size / 2 - 10) * 1000, abs=1)
    assert throttle_ms > 0
    assert peer.throttle_seconds == throttle_ms / 1000
    assert broker.replica_manager.partition("t", 0).log.log_end_offset == 1  # type: ignore[union-attr]


def test_only_the_clients_of_the_entity_are_throttled(broker: ApiBroker) -> None:
    broker.fill(0)
    limit(broker, QuotaKind.PRODUCE, 1, QuotaEntity(None, "slow"))
    assert produced(broker, client(), client_id="slow") > 0
    other = client()
    assert produced(broker, other, client_id="other") == 0
    assert other.throttle_seconds == 0
    broker.quotas.replace({})
    assert not broker.quotas.is_enabled
    assert produced(broker, client(), client_id="slow") == 0


def test_requests_of_clients_without_a_quota_are_not_measured(broker: ApiBroker) -> None:
    limit(broker, QuotaKind.CONTROLLER_MUTATION, 1, QuotaEntity(None, "slow"))
    assert broker.quotas.begin(client(), "slow", 100) is not None
    assert broker.quotas.begin(client(), "other", 100) is None


def test_a_user_is_the_name_of_the_principal(broker: ApiBroker) -> None:
    broker.fill(0)
    limit(broker, QuotaKind.PRODUCE, 1, QuotaEntity("ANONYMOUS"))
    assert produced(broker, client()) > 0
    limit(broker, QuotaKind.PRODUCE, 1, QuotaEntity("alice"))
    assert produced(broker, client()) == 0
    assert produced(broker, Peer("h", 1, "PLAINTEXT", "User:alice")) > 0


def test_brokers_are_exempt(broker: ApiBroker) -> None:
    broker.fill(3)
    limit(broker, QuotaKind.FETCH, 1)
    other = Peer("10.0.0.1", 1, "PLAINTEXT", broker_id=2)
    for _ in range(3):
        assert size_of(fetched(broker, other)) > 0
    assert other.throttle_seconds == 0


def test_a_consumer_above_its_rate_receives_nothing_until_the_rate_is_right(
    broker: ApiBroker,
) -> None:
    broker.fill(20)
    one = size_of(fetched(broker, client())) // 20
    limit(broker, QuotaKind.FETCH, one)
    peer = client()
    first = fetched(broker, peer)  # ten seconds' worth
    assert size_of(first) == 10 * one
    assert first.throttle_time_ms == 0
    second = fetched(broker, peer, 10)
    assert (second.topics, second.error_code) == ([], 0)
    assert second.throttle_time_ms == 10_000
    assert peer.throttle_seconds == 10
    broker.clock.advance(11)
    assert size_of(fetched(broker, peer, 10)) == 10 * one


def test_a_batch_above_the_quota_of_a_window_is_sent_and_then_waited_for(broker: ApiBroker) -> None:
    broker.fill(2)
    limit(broker, QuotaKind.FETCH, 1)
    peer = client()
    first = fetched(broker, peer)
    size = size_of(first)
    assert size > 11
    assert first.throttle_time_ms == (size - 10) * 1000
    assert fetched(broker, peer, 1).topics == []
    broker.clock.advance(size)
    assert size_of(fetched(broker, peer, 1)) == size


def test_a_throttled_session_loses_no_partition(broker: ApiBroker) -> None:
    broker.fill(3)
    opened = fetched(broker, client(), session_epoch=0, max_bytes=1)
    assert opened.session_id
    limit(broker, QuotaKind.FETCH, 1)
    session = {"session_id": opened.session_id, "topics": []}
    peer = client()
    sent = fetched(broker, peer, session_epoch=1, **session)
    assert size_of(sent) > 0
    held = fetched(broker, peer, session_epoch=2, **session)
    assert (held.topics, held.session_id) == ([], opened.session_id)
    assert held.throttle_time_ms > 0
    broker.quotas.replace({})
    assert size_of(fetched(broker, peer, session_epoch=3, **session)) == 3 * size_of(sent)


def test_a_throttled_full_fetch_opens_no_session(broker: ApiBroker) -> None:
    broker.fill(3)
    limit(broker, QuotaKind.FETCH, 1)
    assert fetched(broker, client()).throttle_time_ms > 0
    held = fetched(broker, client(), session_epoch=0)
    assert (held.topics, held.session_id) == ([], 0)


class Work:
    """A clock of work: every look at it takes *seconds*."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now = seconds, 0.0

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


@pytest.mark.parametrize("names", [None, ["t"]])
def test_request_time_is_limited_for_every_api(broker: ApiBroker, names: list[str] | None) -> None:
    broker.fill(1)
    broker.work_clock = Work(0.5)
    limit(broker, QuotaKind.REQUEST, 4)
    peer = client()
    topics = None if names is None else [MetadataRequestTopic(None, name) for name in names]
    response = broker.ask(ApiKey.METADATA, 9, MetadataRequest(topics), peer=peer)
    # 50 % of a second, at 4 % a second: 2.5 s more than the ten of the window, but one sample at most.
    assert response.throttle_time_ms == 1000
    assert peer.throttle_seconds == 1
    assert response.topics[0].name == "t"


def test_the_time_in_which_a_request_waits_does_not_count(broker: ApiBroker) -> None:
    broker.fill(0)
    broker.work_clock = Work(0.001)
    limit(broker, QuotaKind.REQUEST, 1)
    peer = client()
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, topics=[FetchTopic("t", [FetchPartition(0, 0, 100, 0)])]
    )
    answer = broker.ask_raw(fetch.encode_request(request, 12, 7, "c"), peer)
    broker.work_clock = Work(1000.0)
    broker.clock.advance(0.5)
    assert fetch.decode_response(joined(answer), 12)[1].throttle_time_ms == 0


def test_a_refused_request_counts_its_time(broker: ApiBroker) -> None:
    class Fails:
        async def __call__(self, _context: object, _request: object) -> None:
            raise RuntimeError("as if")

    broker.serve(ApiKey.HEARTBEAT, Fails)
    broker.work_clock = Work(1.0)
    limit(broker, QuotaKind.REQUEST, 1)
    response = broker.ask(ApiKey.HEARTBEAT, 3, HeartbeatRequest(), peer=client())
    assert response.error_code == -1
    assert response.throttle_time_ms == 1000


def test_old_versions_are_muted_though_their_responses_have_no_field(broker: ApiBroker) -> None:
    broker.fill(1)
    broker.work_clock = Work(1.0)
    limit(broker, QuotaKind.REQUEST, 1)
    peer = client()
    header = RequestHeader(ApiKey.METADATA, 1, 7, "c")
    answer = broker.ask_raw(messages.encode_request(header, MetadataRequest(None)), peer)
    messages.decode_response(ApiKey.METADATA, 1, joined(answer))
    assert peer.throttle_seconds == 1
