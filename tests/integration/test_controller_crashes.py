"""S19: the controller dies before or after each of its writes and requests; the next one finishes the work."""

from __future__ import annotations

from uuid import uuid4

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.task import deferLater

from kbroker.zk import znodes
from kbroker.zk.errors import NodeExists
from tests.kit.crashing_controller import controller_failover, crash_at_every_step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def put_topic(zk, name, *replicas):
    content = znodes.TopicAssignment(
        uuid4(), {p: znodes.ReplicaAssignment(r) for p, r in enumerate(replicas)}
    )
    try:
        await zk.create(znodes.topic_path(name), znodes.encode_topic(content))
    except NodeExists:
        node = await zk.get(znodes.topic_path(name))
        known = znodes.decode_topic(name, node.data)
        grown = znodes.TopicAssignment(known.topic_id, content.partitions)
        await zk.set(znodes.topic_path(name), znodes.encode_topic(grown), -1)


async def tree(zk, path):
    found = [path]
    for child in (await zk.children(path)).names:
        found += await tree(zk, f"{path}/{child}")
    return found


async def settled(zk, cluster):
    """Return what differs from the expected end; '' if nothing."""
    if await zk.exists(znodes.topic_path("a")) is not None:
        return "a is not deleted"
    if (await zk.children(znodes.DELETE_TOPICS)).names:
        return "a deletion request is left"
    if await zk.exists("/config/topics/a") is not None:
        return "the settings of a are left"
    wanted = {("b", 0): 1, ("b", 1): 2, ("c", 0): 2}
    for (topic, partition), leader in wanted.items():
        path = znodes.partition_state_path(topic, partition)
        if await zk.exists(path) is None:
            return f"{path} does not exist"
        node = await zk.get(path)
        state = znodes.decode_partition_state(topic, partition, node.data, node.stat)
        if state.leader not in (1, 2) or state.leader not in state.isr or 3 in state.isr:
            return f"{topic}-{partition} is {state}"
        if topic == "c" and state.leader != leader:
            return f"c is led by {state.leader}"
        for broker in (1, 2):
            known = cluster[broker].cache.partition(topic, partition)
            if known is None or known.leader != state.leader:
                return f"broker {broker} has {known} in its metadata"
        if cluster[state.leader].leads.get((topic, partition)) != state.leader_epoch:
            return f"{state.leader} does not know that it leads {topic}-{partition}"
    if cluster[1].cache.topics.keys() != {"b", "c"}:
        return f"the cache holds {cluster[1].cache.topics.keys()}"
    extra = {p for p in await tree(zk, znodes.TOPICS) if p.startswith(znodes.topic_path("a"))}
    return f"orphans {extra}" if extra else ""


async def _is_gone(zk, topic):
    return "" if await zk.exists(znodes.topic_path(topic)) is None else f"{topic} is not deleted"


async def run_scenario(connect, crash_point):
    """Crash the controller of broker 1 at *crash_point* while it has work; then check the outcome."""
    async with controller_failover(connect, crash_point, (2, 3)) as scene:
        other, cluster = scene.zookeeper, scene.cluster
        await other.create("/config/topics/a", znodes.encode_config({}))
        await put_topic(other, "a", (1, 2), (3,))
        await scene.begin()
        work = [
            lambda: put_topic(other, "b", (1, 2)),
            lambda: put_topic(other, "c", (3, 2)),
            lambda: put_topic(other, "b", (1, 2), (3, 2)),
            lambda: other.create(znodes.delete_topic_path("a")),
        ]
        for step in work:
            await step()
            await deferLater(reactor, 0.03)
        # Broker 3 stays up until it has deleted its replica: a deletion waits for brokers that are down.
        await scene.until_solved(lambda: _is_gone(other, "a"), 15)
        await other.delete(znodes.broker_path(3))
        await scene.until_solved(lambda: settled(other, cluster), 15)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest_twisted.ensureDeferred
async def test_the_next_controller_finishes_whatever_the_last_one_began(
    zookeeper_connect: str, after: bool
) -> None:
    steps = await crash_at_every_step(zookeeper_connect, run_scenario, after=after)
    assert steps + 1 > 25
