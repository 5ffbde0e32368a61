"""A broker's registration: new sessions, the session of its previous process, duplicate ids, and the wrong cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_twisted
from twisted.internet import reactor

from kbroker.common.endpoint import Endpoint
from kbroker.metadata import broker_registration
from kbroker.metadata.broker_registration import (
    BrokerRegistration,
    History,
    Registered,
    RegistrationEvent,
    Unregistered,
)
from kbroker.zk import znodes
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.previous_session import PreviousSession
from kbroker.zk.reconnect import Reconnect
from tests.kit.log_dir_histories import NoHistory
from tests.kit.waiting import until

pytestmark = pytest.mark.slow
Open = Callable[..., Awaitable[ZooKeeperClient]]
Join = Callable[..., Awaitable[tuple[BrokerRegistration, list[RegistrationEvent]]]]


@pytest_twisted.async_yield_fixture
async def open_session(zookeeper_connect: str) -> AsyncIterator[Open]:
    sessions = []

    async def open_one(timeout: float = 4.0) -> ZooKeeperClient:
        session = ZooKeeperClient(reactor, zookeeper_connect, session_timeout=timeout)
        sessions.append(session)
        await session.start(10)
        await broker_registration.ensure_paths(session)
        return session

    yield open_one
    for session in sessions:
        await session.stop(2)


def registration(port: int = 9092) -> znodes.BrokerInfo:
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port)
    return znodes.BrokerInfo(1, (endpoint,), timestamp=1_700_000_000_000)


class Refusals(NoHistory):
    """Log directories that count the attempts to register without a broker epoch."""

    refusals = 0

    def refused(self) -> None:
        self.refusals += 1


async def join(
    zk: ZooKeeperClient, port: int = 9092, history: History | None = None
) -> tuple[BrokerRegistration, list[RegistrationEvent], list[Exception]]:
    events: list[RegistrationEvent] = []
    fatal: list[Exception] = []
    cluster_id = await broker_registration.obtain_cluster_id(zk)
    member = BrokerRegistration(
        reactor,
        zk,
        registration(port),
        cluster_id=cluster_id,
        reconnect=Reconnect(zk, reactor),
        on_event=events.append,
        on_fatal=fatal.append,
        history=history or NoHistory(),
        is_extended=True,
    )
    await member.register()
    return member, events, fatal


async def expire(zk: ZooKeeperClient, tmp_path: Path) -> None:
    """End the session of *zk* from outside, as the server would."""
    previous = PreviousSession(tmp_path)
    previous.remember(zk)
    await previous.expire(reactor, zk.hosts, 5)


@pytest_twisted.ensureDeferred
async def test_the_broker_epoch_is_the_czxid_of_our_znode(open_session: Open) -> None:
    zk = await open_session()
    member, events, _ = await join(zk)
    node = await zk.get("/brokers/ids/1")
    assert member.broker_epoch == node.stat.czxid
    assert node.stat.ephemeral_owner == zk.session.id
    assert znodes.decode_broker(1, node.data) == registration()
    assert events == [Registered(node.stat.czxid, zk.session)]


@pytest_twisted.ensureDeferred
async def test_an_expired_session_registers_again_with_a_higher_epoch(
    open_session: Open, tmp_path: Path
) -> None:
    zk = await open_session()
    member, events, fatal = await join(zk)
    first = member.broker_epoch
    await expire(zk, tmp_path)
    await until(lambda: len(events) == 3)
    assert [type(event) for event in events] == [Registered, Unregistered, Registered]
    assert member.broker_epoch > first
    node = await zk.get("/brokers/ids/1")
    assert node.stat.ephemeral_owner == zk.session.id
    assert not fatal


@pytest_twisted.ensureDeferred
async def test_ten_expiries_in_a_row_leave_one_registration(
    open_session: Open, tmp_path: Path
) -> None:
    zk = await open_session()
    member, _events, fatal = await join(zk)
    for _ in range(10):
        before = zk.session
        await expire(zk, tmp_path)
        await until(lambda before=before: zk.session not in (None, before))
    await until(lambda: member.broker_epoch is not None)
    node = await zk.get("/brokers/ids/1")
    assert (node.stat.ephemeral_owner, node.stat.czxid) == (zk.session.id, member.broker_epoch)
    assert not fatal


@pytest_twisted.ensureDeferred
async def test_a_znode_deleted_by_hand_is_made_again(open_session: Open) -> None:
    zk = await open_session()
    member, events, _ = await join(zk)
    other = await open_session()
    await other.delete("/brokers/ids/1")
    await until(lambda: len(events) == 3)
    assert (await other.get("/brokers/ids/1")).stat.czxid == member.broker_epoch


@pytest_twisted.ensureDeferred
async def test_another_broker_with_our_id_is_named_in_the_refusal(open_session: Open) -> None:
    await join(await open_session(), port=9092)
    with pytest.raises(
        broker_registration.DuplicateBrokerError,
        match=r"broker\.id=1 .*PLAINTEXT://127\.0\.0\.1:9092",
    ):
        await join(await open_session(), port=9093, history=(refused := Refusals()))
    assert refused.refusals == 1


@pytest_twisted.ensureDeferred
async def test_the_session_of_the_previous_process_is_waited_for(open_session: Open) -> None:
    former = await open_session()
    await join(former)
    reactor.callLater(0.3, former.stop)
    member, events, _ = await join(await open_session())
    assert member.broker_epoch is not None
    assert len(events) == 1


@pytest_twisted.ensureDeferred
async def test_the_stored_session_of_a_previous_run_is_expired_at_once(
    open_session: Open, tmp_path: Path
) -> None:
    former = await open_session(timeout=20.0)
    _, _events, _ = await join(former)
    PreviousSession(tmp_path).remember(former)
    ours = await open_session(timeout=20.0)
    before = reactor.seconds()
    await PreviousSession(tmp_path).expire(reactor, ours.hosts, 5)
    assert await ours.exists("/brokers/ids/1") is None
    assert reactor.seconds() - before < 2
    assert (tmp_path / "zookeeper-session").stat().st_mode & 0o077 == 0


@pytest_twisted.ensureDeferred
async def test_garbage_in_the_file_of_the_previous_session_is_ignored(tmp_path: Path) -> None:
    for content in ("", "{}", "[]", '{"id": "x", "password": "zz", "hosts": "a"}', '{"hosts": 1}'):
        (tmp_path / "zookeeper-session").write_text(content)
        await PreviousSession(tmp_path).expire(reactor, "127.0.0.1:1", 5)


@pytest_twisted.ensureDeferred
async def test_the_first_broker_makes_up_the_cluster_id_and_all_others_take_it(
    open_session: Open,
) -> None:
    one, two = await open_session(), await open_session()
    first = await broker_registration.obtain_cluster_id(one)
    assert len(first) == 22
    assert await broker_registration.obtain_cluster_id(two) == first


@pytest_twisted.ensureDeferred
async def test_a_broker_does_not_join_what_is_not_its_cluster_any_more(
    open_session: Open, tmp_path: Path
) -> None:
    zk = await open_session()
    member, _events, fatal = await join(zk)
    await zk.set("/cluster/id", znodes.encode_cluster_id("another"), -1)
    await expire(zk, tmp_path)
    await until(lambda: fatal)
    assert isinstance(fatal[0], broker_registration.WrongClusterError)
    assert "another" in str(fatal[0])
    assert member.broker_epoch is None
    assert await zk.exists("/brokers/ids/1") is None


@pytest_twisted.ensureDeferred
async def test_generated_broker_ids_start_above_the_reserved_ones(open_session: Open) -> None:
    zk = await open_session()
    assert await broker_registration.generate_broker_id(zk, 1000) == 1001
    assert await broker_registration.generate_broker_id(zk, 1000) == 1002
