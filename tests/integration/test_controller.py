"""The controller on a real ZooKeeper: elections, topics, broker failures, and former controllers that cannot write."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_twisted
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.controller.core.effects import StateWrite
from kbroker.controller.zk_client import ControllerMovedError, ControllerZkClient
from kbroker.metadata.broker_registration import ensure_paths
from kbroker.metadata.topic_placement import NewTopic
from kbroker.zk import znodes
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.errors import NoNode
from kbroker.zk.previous_session import PreviousSession
from kclient.types import TopicPartition
from kclient.wire.errors import (
    BrokerNotAvailable,
    ErrorCode,
    NotController,
    StaleBrokerEpoch,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from kclient.wire.interbroker import LeaderAndIsrResponse, UpdateMetadataResponse
from kclient.wire.messages import response_class
from kclient.wire.versions import ApiKey
from tests.kit.controllers import ControlPlane, FakeBrokers, register
from tests.kit.waiting import until
from tests.kit.zookeeper import zookeeper_at

pytestmark = pytest.mark.slow
Join = Callable[..., Awaitable[ControlPlane]]


@pytest_twisted.async_yield_fixture
async def join(zookeeper_connect: str) -> AsyncIterator[Join]:
    """Make brokers: ``await join(cluster, 1)``; each with a session of its own."""
    sessions: list[ZooKeeperClient] = []
    members: list[ControlPlane] = []

    async def join_one(
        cluster: FakeBrokers, broker_id: int, *, stand: bool = True, **options: bool
    ) -> ControlPlane:
        # No test waits for a session to time out; on a busy machine one of 4 s does, and the controller changes.
        session = ZooKeeperClient(reactor, zookeeper_connect, session_timeout=20.0)
        sessions.append(session)
        await session.start(10)
        await ensure_paths(session)
        await register(session, broker_id)
        member = ControlPlane(session, cluster, broker_id, **options)
        members.append(member)
        if stand:
            member.controller.start()
        return member

    yield join_one
    for member in members:
        member.controller.stop()
        member.dynamic.stop()
    for session in sessions:
        await session.stop(2)


async def state(zk: ZooKeeperClient, topic: str, partition: int = 0) -> LeaderAndIsr:
    node = await zk.get(znodes.partition_state_path(topic, partition))
    return znodes.decode_partition_state(topic, partition, node.data, node.stat)


async def create_znode(zk: ZooKeeperClient, name: str, assignment: dict[int, list[int]]) -> None:
    """Create a topic as Kafka's own tools do, without a topic id."""
    content = znodes.TopicAssignment(
        None, {p: znodes.ReplicaAssignment(tuple(r)) for p, r in assignment.items()}
    )
    await zk.create(znodes.topic_path(name), znodes.encode_topic(content))


async def expire(zk: ZooKeeperClient, tmp_path: Path) -> None:
    """End the session of *zk* from outside, as the server would."""
    previous = PreviousSession(tmp_path)
    previous.remember(zk)
    await previous.expire(reactor, zk.hosts, 5)


@pytest_twisted.ensureDeferred
async def test_one_of_two_racing_brokers_is_elected_and_both_know(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1, stand=False)
    two = await join(cluster, 2, stand=False)
    one.controller.start()
    two.controller.start()
    await until(lambda: one.controller.is_active or two.controller.is_active)
    winner = one if one.controller.is_active else two
    loser = two if winner is one else one
    await until(lambda: loser.controller.controller_id == winner.broker_id)
    assert not loser.controller.is_active
    assert (await one.zk.get("/controller_epoch")).data == b"1"
    await until(lambda: set(one.cache.brokers) == set(two.cache.brokers) == {1, 2})
    assert one.cache.live_controller_id == winner.broker_id


@pytest_twisted.ensureDeferred
async def test_a_created_topic_is_led_and_known_everywhere(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    await join(cluster, 2)
    await until(lambda: len(one.cache.brokers) == 2)
    created = await one.topics.create(NewTopic("t", 4, configs={"retention.ms": "1000"}))
    assert await one.topics.until_led("t", range(4), 5)
    assert created.assignment == {0: (1,), 1: (2,), 2: (1,), 3: (2,)}
    await until(lambda: cluster[2].cache.is_led("t", range(4)))
    assert cluster[1].leads == {("t", 0): 0, ("t", 2): 0}
    assert cluster[2].leads == {("t", 1): 0, ("t", 3): 0}
    assert cluster[2].cache.topic("t").topic_id == created.topic_id
    stored = await state(one.zk, "t", 1)
    assert (stored.leader, stored.isr, stored.leader_epoch) == (2, (2,), 0)
    with pytest.raises(TopicAlreadyExists):
        await one.topics.create(NewTopic("t"))


@pytest_twisted.ensureDeferred
async def test_a_topic_made_by_an_old_tool_is_given_an_id(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    await create_znode(one.zk, "old", {0: [1]})
    await until(lambda: one.cache.is_led("old", [0]))
    node = await one.zk.get(znodes.topic_path("old"))
    assert znodes.decode_topic("old", node.data).topic_id == one.cache.topic("old").topic_id


@pytest_twisted.ensureDeferred
async def test_three_thousand_partitions_are_led_within_seconds(join: Join) -> None:
    cluster = FakeBrokers()
    members = [await join(cluster, n) for n in (1, 2, 3)]
    await until(lambda: len(members[0].cache.brokers) == 3)
    began = time.monotonic()
    await members[0].topics.create(NewTopic("big", 3000))
    assert await members[2].topics.until_led("big", range(3000), 30)
    assert sum(len(cluster[n].leads) for n in (1, 2, 3)) == 3000
    took = time.monotonic() - began
    print(f"3000 partitions led after {took:.2f} s")  # noqa: T201
    assert took < 20


@pytest_twisted.ensureDeferred
async def test_leadership_moves_to_the_isr_when_a_broker_dies_and_back_when_no_other_replica_is_left(
    join: Join,
) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    two = await join(cluster, 2)
    await until(lambda: len(one.cache.brokers) == 2)
    await create_znode(one.zk, "t", {0: [2, 1], 1: [2]})
    await until(lambda: one.cache.is_led("t", [0, 1]))
    await two.zk.delete(znodes.broker_path(2))
    await until(lambda: 2 not in one.cache.brokers)
    await until(lambda: one.cache.partition("t", 0).leader == 1)
    moved = await state(one.zk, "t", 0)
    assert (moved.leader, moved.isr, moved.leader_epoch) == (1, (1,), 1)
    orphan = await state(one.zk, "t", 1)
    assert (orphan.leader, orphan.isr, orphan.leader_epoch) == (-1, (2,), 1)
    assert one.cache.partition("t", 1).leader == -1
    await register(two.zk, 2)
    await until(lambda: one.cache.is_led("t", [0, 1]))
    again = await state(one.zk, "t", 1)
    assert (again.leader, again.isr, again.leader_epoch) == (2, (2,), 2)
    assert cluster[2].leads == {("t", 1): 2}


@pytest_twisted.ensureDeferred
async def test_a_new_controller_takes_over_when_the_session_of_the_old_one_ends(
    join: Join, tmp_path: Path
) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    await until(lambda: one.controller.is_active)
    two = await join(cluster, 2)
    await until(lambda: len(one.cache.brokers) == 2)
    await one.topics.create(NewTopic("t", 2))
    assert await one.topics.until_led("t", range(2), 5)
    await expire(one.zk, tmp_path)
    await until(lambda: not one.controller.is_active)
    await until(lambda: two.controller.is_active or one.controller.is_active)
    await until(lambda: (two.cache.controller_epoch == 2) and 1 not in two.cache.brokers)
    with pytest.raises(NotController):
        _ = (one if two.controller.is_active else two).controller.context
    await until(lambda: two.cache.partition("t", 0).leader == -1)
    await until(lambda: one.zk.connected)
    await register(one.zk, 1)
    await until(lambda: two.cache.is_led("t", range(2)))


@pytest_twisted.ensureDeferred
async def test_a_zombie_with_an_old_controller_epoch_cannot_write(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    await until(lambda: one.controller.is_active)
    created = await one.topics.create(NewTopic("t"))
    assert await one.topics.until_led("t", [0], 5)
    epoch = one.controller.epoch
    zombie = ControllerZkClient(one.zk, one.reconnect, epoch, reactor, new_topic_id=lambda: None)
    await one.controller.resign()
    await until(lambda: one.controller.is_active and one.controller.epoch != epoch)
    before = await state(one.zk, "t")
    with pytest.raises(ControllerMovedError):
        await zombie.write_states(
            [StateWrite(("t", 0), LeaderAndIsr(7, 9, (7,), 1), before.zk_version)]
        )
    with pytest.raises(ControllerMovedError):
        await zombie.write_states([StateWrite(("t", 5), LeaderAndIsr(7, 9, (7,), 1), None)])
    with pytest.raises(ControllerMovedError):
        await zombie.delete_topic("t", created.topic_id)
    with pytest.raises(ControllerMovedError):
        await zombie.delete_paths([znodes.topic_path("t")])
    assert await state(one.zk, "t") == before


@pytest_twisted.ensureDeferred
async def test_a_controller_resigns_when_a_broker_has_accepted_a_newer_one(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    await until(lambda: one.cache.controller_epoch == 1)
    cluster[1].controller_epoch = 5
    await register_another(one, cluster)
    await until(lambda: (one.controller.epoch is not None) and one.controller.is_active)
    # It won elections until brokers accepted its epoch.
    await until(lambda: one.cache.controller_epoch >= 5, timeout=15)


async def register_another(member: ControlPlane, cluster: FakeBrokers) -> None:
    """Make the controller send requests."""
    await register(member.zk, 9)
    await until(lambda: cluster[9].cache.brokers.keys() == {1, 9} or 9 in cluster.brokers)


@pytest_twisted.ensureDeferred
async def test_requests_are_sent_again_until_a_broker_answers(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    two = await join(cluster, 2)
    await until(lambda: len(cluster[2].cache.brokers) == 2)
    cluster[2].reachable = False
    await one.topics.create(NewTopic("t", 2))
    await until(lambda: ("t", 0) in cluster[1].leads)
    assert ("t", 1) not in cluster[2].leads
    await one.topics.create(NewTopic("u", 2))
    await until(lambda: ("u", 0) in cluster[1].leads)
    cluster[2].reachable = True
    await until(lambda: set(cluster[2].leads) == {("t", 1), ("u", 1)})
    await until(lambda: two.cache.is_led("u", range(2)))


@pytest_twisted.ensureDeferred
async def test_a_deletion_that_zookeeper_refuses_is_reported_once_and_tried_again_at_intervals(
    join: Join, zookeeper_connect: str
) -> None:
    one = await join(FakeBrokers(), 1)
    await until(lambda: one.cache.brokers)
    await one.topics.create(NewTopic("t", 2))
    assert await one.topics.until_led("t", range(2), 5)
    path = znodes.topic_path("t")
    with zookeeper_at(zookeeper_connect) as client, capturedLogs() as logged:
        client.set_acls(path, [make_acl("world", "anyone", read=True, admin=True)])
        await one.topics.delete("t")
        await until(lambda: any("AccessDenied" in formatEvent(each) for each in logged))
        client.set_acls(path, OPEN_ACL_UNSAFE)
        await gone(one.zk, path)
    lines = [formatEvent(each) for each in logged]
    assert len([line for line in lines if "cannot be deleted: AccessDenied" in line]) == 1
    assert not [line for line in lines if "deleting t again" in line]


@pytest_twisted.ensureDeferred
async def test_a_deleted_topic_is_gone_and_its_namesake_is_another(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    await until(lambda: one.cache.brokers)
    first = await one.topics.create(NewTopic("t", 3, configs={"retention.ms": "7"}))
    assert await one.topics.until_led("t", range(3), 5)
    await one.topics.delete("t")
    assert await one.topics.until_gone("t", first.topic_id, 5)
    await until(lambda: cluster[1].deleted == {("t", 0), ("t", 1), ("t", 2)})
    for path in (znodes.delete_topic_path("t"), znodes.topic_path("t"), "/config/topics/t"):
        await gone(one.zk, path)
    second = await one.topics.create(NewTopic("t", 1))
    assert second.topic_id != first.topic_id
    assert await one.topics.until_led("t", [0], 5)
    assert one.cache.topic("t").topic_id == second.topic_id
    assert list(one.cache.topic("t").partitions) == [0]
    with pytest.raises(UnknownTopicOrPartition):
        await one.topics.delete("nothing")


async def gone(zk: ZooKeeperClient, path: str) -> None:
    """Wait until the znode does not exist."""
    deadline = time.monotonic() + 5
    while await zk.exists(path) is not None:
        assert time.monotonic() < deadline, f"{path} is still there"


@pytest_twisted.ensureDeferred
async def test_a_deletion_waits_for_the_broker_that_is_down(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    two = await join(cluster, 2)
    await until(lambda: len(one.cache.brokers) == 2)
    created = await one.topics.create(NewTopic("t", 2))
    assert await one.topics.until_led("t", range(2), 5)
    await two.zk.delete(znodes.broker_path(2))
    await until(lambda: 2 not in one.cache.brokers)
    await one.topics.delete("t")
    assert await one.topics.until_gone("t", created.topic_id, 5)
    await until(lambda: cluster[1].deleted)
    with pytest.raises(TopicAlreadyExists, match="marked for deletion"):
        await one.topics.create(NewTopic("t"))
    assert not cluster[2].deleted
    await register(two.zk, 2)
    await until(lambda: cluster[2].deleted == {("t", 1)})
    await gone(one.zk, znodes.topic_path("t"))
    await one.topics.create(NewTopic("t"))


@pytest_twisted.ensureDeferred
async def test_a_new_controller_finishes_the_deletion_of_the_old_one(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    await until(lambda: one.cache.brokers)
    await one.topics.create(NewTopic("t", 2))
    assert await one.topics.until_led("t", range(2), 5)
    cluster[1].reachable = False
    await one.topics.delete("t")
    await one.controller.resign()
    await until(lambda: one.controller.is_active)
    cluster[1].reachable = True
    await gone(one.zk, znodes.topic_path("t"))
    await gone(one.zk, znodes.delete_topic_path("t"))


@pytest_twisted.ensureDeferred
async def test_deletion_requests_that_make_no_sense_are_dropped(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1, delete_topic_enable=False)
    await until(lambda: one.cache.brokers)
    await one.topics.create(NewTopic("t"))
    await one.zk.create("/admin/delete_topics/nothing")
    await one.zk.create("/admin/delete_topics/t")
    await gone(one.zk, "/admin/delete_topics/nothing")
    await gone(one.zk, "/admin/delete_topics/t")
    assert await one.zk.exists(znodes.topic_path("t")) is not None


@pytest_twisted.ensureDeferred
async def test_partitions_added_to_a_topic_are_led(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    await join(cluster, 2)
    await until(lambda: len(one.cache.brokers) == 2)
    await one.topics.create(NewTopic("t", 1))
    assert await one.topics.until_led("t", [0], 5)
    assert await one.topics.add_partitions("t", 4) == range(1, 4)
    assert await one.topics.until_led("t", range(4), 5)
    assert [one.cache.partition("t", p).replicas for p in range(4)] == [(1,), (2,), (1,), (2,)]
    await one.topics.add_partitions("t", 5, [[2]])
    assert await one.topics.until_led("t", [4], 5)
    assert one.cache.partition("t", 4).replicas == (2,)


POISON = [
    b"",
    b"{",
    b"[]",
    b'{"version":3}',
    b'{"version":3,"partitions":{"x":[1]}}',
    b'{"version":3,"partitions":{"0":[]}}',
    b'{"version":3,"partitions":{"0":"1"}}',
    b'{"version":3,"topic_id":"short","partitions":{"0":[1]}}',
    b"x" * 900_000,
]


@pytest_twisted.ensureDeferred
async def test_poison_znodes_do_not_stop_the_controller(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1, stand=False)
    for number, content in enumerate(POISON):
        await one.zk.create(f"/brokers/topics/before-{number}", content)
    await one.zk.create("/brokers/topics/bad name", b"{}")
    await create_znode(one.zk, "without-a-leader", {0: [77]})
    await create_znode(one.zk, "bad-state", {0: [1], 1: [1]})
    await one.zk.create("/brokers/topics/bad-state/partitions/0/state", b"{", make_parents=True)
    await one.zk.create("/brokers/ids/not-a-number", b"{}")
    await one.zk.create("/brokers/ids/5", b"poison")
    await one.zk.create("/isr_change_notification/isr_change_", b"poison", sequential=True)
    one.controller.start()
    await until(lambda: one.controller.is_active)
    for number, content in enumerate(POISON):
        await one.zk.create(f"/brokers/topics/after-{number}", content)
    await until(lambda: one.cache.brokers)
    await one.topics.create(NewTopic("good", 2))
    assert await one.topics.until_led("good", range(2), 5)
    await until(lambda: one.cache.is_led("bad-state", [1]))
    assert one.cache.partition("bad-state", 0) is None
    assert set(one.cache.brokers) == {1}
    assert one.controller.epoch.number == 1


@pytest_twisted.ensureDeferred
async def test_controlled_shutdown_moves_what_can_move(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    two = await join(cluster, 2)
    await until(lambda: len(one.cache.brokers) == 2)
    await create_znode(one.zk, "alone", {0: [2]})
    await create_znode(one.zk, "both", {0: [2, 1], 1: [1, 2]})
    await until(lambda: one.cache.is_led("alone", [0]) and one.cache.is_led("both", [0, 1]))
    epoch = (await two.zk.exists(znodes.broker_path(2))).czxid
    with pytest.raises(StaleBrokerEpoch):
        await one.controller.controlled_shutdown(2, epoch - 1)
    with pytest.raises(BrokerNotAvailable):
        await one.controller.controlled_shutdown(3, 1)
    with pytest.raises(NotController):
        await two.controller.controlled_shutdown(2, epoch)
    assert await one.controller.controlled_shutdown(2, epoch) == ()
    assert (await state(one.zk, "both", 0)).leader == 1
    assert (await state(one.zk, "both", 0)).isr == (1,)
    # Nor does it stay in an ISR that it would only hold up.
    assert (await state(one.zk, "both", 1)).isr == (1,)
    assert (await state(one.zk, "alone", 0)).leader == 2


@pytest_twisted.ensureDeferred
async def test_a_broker_stops_when_its_successors_have_acknowledged_that_they_lead(
    join: Join,
) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    two = await join(cluster, 2)
    await until(lambda: len(one.cache.brokers) == 2)
    await create_znode(one.zk, "t", {0: [2, 1]})
    await until(lambda: one.cache.is_led("t", [0]))
    received: Deferred[LeaderAndIsrResponse] = Deferred()
    asked: list[ApiKey] = []

    def answer(api: ApiKey, _request: object) -> object:
        asked.append(api)
        return received if api is ApiKey.LEADER_AND_ISR else None

    cluster[1].answer = answer
    epoch = (await two.zk.exists(znodes.broker_path(2))).czxid
    leaving = one.controller.controlled_shutdown(2, epoch)
    await until(lambda: ApiKey.LEADER_AND_ISR in asked)
    await until(lambda: ("t", 0) not in cluster[2].leads)
    assert not leaving.called
    received.callback(LeaderAndIsrResponse(0))
    assert await leaving == ()


@pytest_twisted.ensureDeferred
async def test_isr_changes_of_leaders_reach_every_broker(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    await join(cluster, 2)
    await until(lambda: len(one.cache.brokers) == 2)
    await create_znode(one.zk, "t", {0: [1, 2]})
    await until(lambda: one.cache.is_led("t", [0]))
    await until(lambda: one.cache.partition("t", 0).isr == (1, 2))
    found = await state(one.zk, "t")
    shrunk = LeaderAndIsr(1, found.leader_epoch, (1,), found.controller_epoch)
    path = znodes.partition_state_path("t", 0)
    await one.zk.set(path, znodes.encode_partition_state(shrunk), found.zk_version)
    await one.zk.create(
        znodes.ISR_CHANGE_PREFIX,
        znodes.encode_partitions([TopicPartition("t", 0)]),
        sequential=True,
    )
    await until(lambda: one.cache.partition("t", 0).isr == (1,))
    deadline = time.monotonic() + 5
    while (await one.zk.children(znodes.ISR_CHANGES)).names:
        assert time.monotonic() < deadline


@pytest_twisted.ensureDeferred
async def test_a_broker_that_joins_receives_the_full_state(join: Join) -> None:
    cluster = FakeBrokers()
    one = await join(cluster, 1)
    await until(lambda: one.cache.brokers)
    await one.topics.create(NewTopic("t", 3))
    assert await one.topics.until_led("t", range(3), 5)
    await join(cluster, 2)
    await until(lambda: cluster[2].cache.is_led("t", range(3)))
    first = next(r for api, r in cluster[2].received if api is ApiKey.UPDATE_METADATA)
    assert first.type == 2


@pytest_twisted.ensureDeferred
async def test_a_stale_broker_epoch_is_no_reason_to_resign(join: Join) -> None:
    cluster = FakeBrokers()
    cluster[1].answer = lambda api, request: (
        UpdateMetadataResponse(77) if api is ApiKey.UPDATE_METADATA else None
    )
    one = await join(cluster, 1)
    await until(lambda: one.controller.is_active)
    cluster[1].answer = None
    await register(one.zk, 2)
    await until(lambda: set(one.cache.brokers) == {1, 2})
    assert one.controller.epoch.number == 1
    with pytest.raises(NoNode):
        await one.zk.get(znodes.topic_path("t"))


@pytest_twisted.ensureDeferred
async def test_a_request_that_a_broker_did_not_authorize_is_sent_again(join: Join) -> None:
    """The broker may not know our secret or our epoch yet: nothing was done, so it is no answer."""
    cluster = FakeBrokers()
    refused: list[ApiKey] = []

    def answer(api: ApiKey, _request: object) -> object:
        if refused.count(api) == 3:
            return None
        refused.append(api)
        return response_class(api)(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    cluster[1].answer = answer
    one = await join(cluster, 1)
    await create_znode(one.zk, "t", {0: [1]})
    await until(lambda: one.cache.is_led("t", [0]))
    assert refused.count(ApiKey.UPDATE_METADATA) == refused.count(ApiKey.LEADER_AND_ISR) == 3
    assert one.controller.epoch.number == 1
