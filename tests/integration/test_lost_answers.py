"""S5 for the control plane: a write without an answer may have been applied, or not; the outcome must be the same."""

from __future__ import annotations

import pytest
import pytest_twisted
from twisted.internet import reactor

from kbroker.metadata.broker_registration import ensure_paths
from kbroker.metadata.core.config_entries import Change
from kbroker.metadata.topic_placement import NewTopic
from kbroker.zk import znodes
from kbroker.zk.client import ZooKeeperClient
from tests.kit.controllers import ControlPlane, FakeBrokers, register
from tests.kit.crash_points import CrashPoint, LossyZooKeeper
from tests.kit.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def run_scenario(connect, crash_point, applied):
    session = ZooKeeperClient(reactor, connect, session_timeout=4.0)
    await session.start(10)
    await ensure_paths(session)
    cluster = FakeBrokers()
    await register(session, 1)
    await register(session, 2)
    member = ControlPlane(LossyZooKeeper(session, crash_point, applied=applied), cluster, 1)
    try:
        member.controller.start()
        await until(lambda: set(member.cache.brokers) == {1, 2})
        created = await member.topics.create(NewTopic("t", 3, configs={"retention.ms": "5"}))
        assert await member.topics.until_led("t", range(3), 10)
        assert member.cache.topic("t").topic_id == created.topic_id
        assert await member.topics.add_partitions("t", 5) == range(3, 5)
        assert await member.topics.until_led("t", range(5), 10)
        await member.config_changes.alter_topic("t", [Change("segment.ms", 0, "7")])
        wanted = {"retention.ms": "5", "segment.ms": "7"}
        assert await member.dynamic.read("topics", "t") == wanted
        await session.delete(znodes.broker_path(2))
        await until(lambda: member.cache.partition("t", 1).leader == -1)
        await register(session, 2)
        await until(lambda: member.cache.is_led("t", range(5)))
        await member.topics.delete("t")
        assert await member.topics.until_gone("t", created.topic_id, 10)
        for path in (znodes.topic_path("t"), "/config/topics/t", znodes.delete_topic_path("t")):
            while await session.exists(path) is not None:
                pass
        again = await member.topics.create(NewTopic("t", 1))
        assert await member.topics.until_led("t", [0], 10)
        assert member.cache.topic("t").topic_id == again.topic_id
    except BaseException:
        print(f"lost: {crash_point.steps_taken[crash_point.at - 1 : crash_point.at]}")  # noqa: T201
        raise
    finally:
        member.controller.stop()
        await session.stop(2)


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "refused"])
@pytest_twisted.ensureDeferred
async def test_no_lost_answer_does_any_harm(zookeeper_connect: str, applied: bool) -> None:
    at = 0
    while True:
        at += 1
        crash_point = CrashPoint(at, after=applied)
        await run_scenario(f"{zookeeper_connect}/run-{at}", crash_point, applied)
        if crash_point.steps < at:
            break
    print(f"{at - 1} writes")  # noqa: T201
    assert at > 10
