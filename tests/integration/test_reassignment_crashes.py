"""S19, S26: the controller dies before or after each write and request of a reassignment; the next one finishes it.

A partition on brokers 2 and 3 is to move to 4 and 2; meanwhile the target changes to 3 and 4. Both are written
as a classic tool does, so that they outlive the controller. A fake leader adds the replicas of its LeaderAndIsr
request to the ISR.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import uuid4

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.task import deferLater

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.metadata.metadata_cache import FULL
from kbroker.zk import znodes
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.errors import BadVersion, NoNode
from kclient.types import TopicPartition
from kclient.wire.versions import ApiKey
from tests.kit.controllers import FakeBrokers
from tests.kit.crash_points import CrashPoint
from tests.kit.crashing_controller import controller_failover, crash_at_every_step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

T = TopicPartition("t", 0)
STATE = znodes.partition_state_path(*T)


async def request_reassignment(zk: ZooKeeperClient, *replicas: int) -> None:
    """Write /admin/reassign_partitions, over what it asks for already."""
    data = znodes.encode_reassignment({T: replicas})
    if await zk.exists(znodes.REASSIGN_PARTITIONS) is None:
        await zk.create(znodes.REASSIGN_PARTITIONS, data)
    else:
        await zk.set(znodes.REASSIGN_PARTITIONS, data, -1)


def replicas_sent_to(cluster: FakeBrokers, leader: int, leader_epoch: int) -> list[int] | None:
    """Return the replicas of the LeaderAndIsr request to *leader* in its epoch; None if it received none."""
    for api, request in reversed(cluster[leader].received):
        if api is ApiKey.LEADER_AND_ISR:
            for topic in request.topic_states:
                for state in topic.partition_states:
                    if topic.topic_name == T.topic and state.leader_epoch == leader_epoch:
                        return list(state.replicas)
    return None


async def catch_up(zk: ZooKeeperClient, cluster: FakeBrokers) -> None:
    """Have the leader take all its followers into the ISR, and announce it."""
    with suppress(NoNode, BadVersion):
        node = await zk.get(STATE)
        state = znodes.decode_partition_state(*T, node.data, node.stat)
        replicas = replicas_sent_to(cluster, state.leader, state.leader_epoch)
        if replicas is not None and set(replicas) != set(state.isr):
            isr = LeaderAndIsr(
                state.leader, state.leader_epoch, tuple(replicas), state.controller_epoch
            )
            await zk.set(STATE, znodes.encode_partition_state(isr), node.stat.version)
            await zk.create(
                znodes.ISR_CHANGE_PREFIX, znodes.encode_partitions([T]), sequential=True
            )


async def unsettled(zk: ZooKeeperClient, cluster: FakeBrokers) -> str:
    """Return what differs from the expected end; "" if nothing."""
    await catch_up(zk, cluster)
    if await zk.exists(znodes.REASSIGN_PARTITIONS) is not None:
        return "the znode of the reassignment still exists"
    topic = znodes.decode_topic(T.topic, (await zk.get(znodes.topic_path(T.topic))).data)
    if topic.partitions[0] != znodes.ReplicaAssignment((3, 4)):
        return f"the assignment is {topic.partitions[0]}"
    node = await zk.get(STATE)
    state = znodes.decode_partition_state(*T, node.data, node.stat)
    if set(state.isr) != {3, 4} or state.leader not in state.isr:
        return f"the state is {state}"
    for broker_id in (1, 2, 3, 4):
        known = cluster[broker_id].cache.partition(*T)
        if known is None or (known.leader, set(known.replicas)) != (state.leader, {3, 4}):
            return f"broker {broker_id} has {known} in its metadata"
    if replicas_sent_to(cluster, state.leader, state.leader_epoch) != [3, 4]:
        return f"{state.leader} does not know that it leads"
    return "" if _knows_it_has_nothing(cluster) else "broker 2 keeps its replica"


def _knows_it_has_nothing(cluster: FakeBrokers) -> bool:
    """Return whether broker 2 received StopReplica, or a full UpdateMetadata without its replica."""
    if (T.topic, T.partition) in cluster[2].deleted:
        return True
    return any(
        api is ApiKey.UPDATE_METADATA
        and request.type == FULL
        and any(2 not in s.replicas for t in request.topic_states for s in t.partition_states)
        for api, request in cluster[2].received
    )


async def run_scenario(connect: str, crash_point: CrashPoint) -> None:
    """Run the controller of broker 1 until it crashes at *crash_point* during the reassignments; then check the end."""
    async with controller_failover(connect, crash_point, (2, 3, 4)) as scene:
        other, cluster = scene.zookeeper, scene.cluster
        content = znodes.TopicAssignment(uuid4(), {0: znodes.ReplicaAssignment((2, 3))})
        await other.create(znodes.topic_path(T.topic), znodes.encode_topic(content))
        await scene.begin()
        await request_reassignment(other, 4, 2)
        await deferLater(reactor, 0.03)
        await request_reassignment(other, 3, 4)
        await scene.until_solved(lambda: unsettled(other, cluster), 20)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest_twisted.ensureDeferred
async def test_the_next_controller_finishes_the_reassignment(
    zookeeper_connect: str, after: bool
) -> None:
    steps = await crash_at_every_step(zookeeper_connect, run_scenario, after=after)
    assert steps + 1 > 15
