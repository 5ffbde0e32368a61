"""Our ZooKeeper session against a real server: operations, sessions, watches, breaks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import DeferredList

from kbroker.zk import errors
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.interface import (
    Check,
    Children,
    Connected,
    Create,
    Delete,
    Expired,
    Lapsed,
    Node,
    SessionEvent,
    SetData,
    Stat,
    Suspended,
)
from kbroker.zk.requests import ReadMany
from tests.kit.waiting import until
from tests.kit.zookeeper import Ensemble, zookeeper_at

pytestmark = pytest.mark.slow
Open = Callable[..., Awaitable[ZooKeeperClient]]


@pytest_twisted.async_yield_fixture
async def open_session(zookeeper_connect: str) -> AsyncIterator[Open]:
    sessions = []

    async def open_one(connect: str = zookeeper_connect, timeout: float = 4.0) -> ZooKeeperClient:
        session = ZooKeeperClient(reactor, connect, session_timeout=timeout)
        sessions.append(session)
        await session.start(10)
        return session

    yield open_one
    for session in sessions:
        await session.stop(2)


def events_of(session: ZooKeeperClient) -> list[SessionEvent]:
    events: list[SessionEvent] = []
    session.on_session(events.append)
    return events


def has(events: list[SessionEvent], kind: type) -> Callable[[], bool]:
    return lambda: any(isinstance(event, kind) for event in events)


@pytest_twisted.ensureDeferred
async def test_every_operation_answers_in_our_own_types(open_session: Open) -> None:
    zk = await open_session()
    assert await zk.create("/a", b"1") == "/a"
    node = await zk.get("/a")
    assert node.data == b"1"
    assert node.stat.version == 0
    assert (await zk.set("/a", b"2", 0)).version == 1
    assert isinstance(await zk.exists("/a"), Stat)
    assert await zk.exists("/b") is None
    assert await zk.create("/x/y/z", make_parents=True) == "/x/y/z"
    assert (await zk.children("/")).names == ["a", "x"]
    numbered = await zk.create("/x/n_", sequential=True)
    assert numbered == "/x/n_0000000001"
    await zk.sync("/")
    assert await zk.delete("/a") is None


@pytest_twisted.ensureDeferred
async def test_every_refusal_is_our_own_error_with_its_path(open_session: Open) -> None:
    zk = await open_session()
    await zk.create("/a/b", make_parents=True)
    await zk.create("/e", ephemeral=True)
    for call, kind, path in (
        (lambda: zk.get("/none"), errors.NoNode, "/none"),
        (lambda: zk.create("/a"), errors.NodeExists, "/a"),
        (lambda: zk.create("/c/d"), errors.NoNode, "/c/d"),
        (lambda: zk.set("/a", b"", 7), errors.BadVersion, "/a"),
        (lambda: zk.delete("/a"), errors.NotEmpty, "/a"),
        (lambda: zk.create("/e/child"), errors.NoChildrenForEphemerals, "/e/child"),
        (lambda: zk.create("/big", b"x" * 1_000_000), errors.ZnodeTooLarge, "/big"),
    ):
        with pytest.raises(kind) as caught:
            await call()
        assert caught.value.path == path


@pytest_twisted.ensureDeferred
async def test_a_multi_is_done_whole_or_not_at_all(open_session: Open) -> None:
    zk = await open_session()
    await zk.create("/epoch", b"1")
    done = await zk.multi(
        [Check("/epoch", 0), Create("/p", b"x"), SetData("/p", b"y"), Delete("/p"), Create("/q")]
    )
    assert [type(result) for result in done] == [type(None), str, Stat, type(None), str]
    with pytest.raises(errors.BadVersion) as caught:
        await zk.multi([Create("/r"), Check("/epoch", 5), Create("/s")])
    assert (caught.value.path, caught.value.index) == ("/epoch", 1)
    assert await zk.exists("/r") is None


@pytest_twisted.ensureDeferred
async def test_the_chroot_is_made_and_never_seen(
    open_session: Open, zookeeper_connect: str
) -> None:
    zk = await open_session(f"{zookeeper_connect}/deep/er")
    assert await zk.create("/a") == "/a"
    outside = await open_session()
    assert (await outside.children("/deep/er")).names == ["a"]
    assert await zk.multi([Create("/b")]) == ["/b"]


@pytest_twisted.ensureDeferred
async def test_no_answer_is_an_error_in_bounded_time() -> None:
    zk = ZooKeeperClient(reactor, "127.0.0.1:1,127.0.0.1:2")
    before = time.monotonic()
    with pytest.raises(errors.CannotConnect, match=r"127\.0\.0\.1:1,127\.0\.0\.1:2.*within 0\.5 s"):
        await zk.start(0.5)
    assert time.monotonic() - before < 3


@pytest_twisted.ensureDeferred
async def test_watches_report_every_state_they_have_not_reported(open_session: Open) -> None:
    zk = await open_session()
    other = await open_session()
    data: list[Node | None] = []
    children: list[Children | None] = []
    zk.watch_data("/t", data.append)
    zk.watch_children("/t", children.append)
    await until(lambda: data and children)
    assert (data, children) == ([None], [None])
    await other.create("/t", b"1")
    await until(lambda: data[-1] is not None and children[-1] is not None)
    await other.set("/t", b"2", -1)
    await other.create("/t/x")
    await until(lambda: data[-1].data == b"2" and children[-1].names == ["x"])
    await other.delete("/t/x")
    await other.delete("/t")
    await until(lambda: data[-1] is None and children[-1] is None)


@pytest_twisted.ensureDeferred
async def test_a_child_made_again_is_a_change(open_session: Open) -> None:
    zk = await open_session()
    other = await open_session()
    await other.create("/ids/1", make_parents=True)
    seen: list[Children | None] = []
    zk.watch_children("/ids", seen.append)
    await until(lambda: seen)
    other.delete("/ids/1")
    other.create("/ids/1")
    await until(lambda: len(seen) >= 2 and seen[-1].names == ["1"])


@pytest_twisted.ensureDeferred
async def test_a_cancelled_watch_is_silent(open_session: Open) -> None:
    zk = await open_session()
    await zk.create("/t")
    seen: list[Node | None] = []
    watch = zk.watch_data("/t", seen.append)
    later: list[Node | None] = []
    await until(lambda: seen)
    watch.cancel()
    zk.watch_data("/t", later.append)
    await zk.set("/t", b"x", -1)
    await until(lambda: later and later[-1].data == b"x")
    assert len(seen) == 1


@pytest_twisted.ensureDeferred
async def test_changes_during_a_break_are_noticed_after_it(
    own_ensemble: Ensemble, open_session: Open
) -> None:
    zk = await open_session(own_ensemble.connect, timeout=20)
    other = await open_session(own_ensemble.connect, timeout=20)
    await zk.create("/t", b"1")
    seen: list[Node | None] = []
    zk.watch_data("/t", seen.append)
    await until(lambda: seen)
    events = events_of(zk)
    # Cut only this client off: nothing listens at its next address.
    zk._connection.client.set_hosts("127.0.0.1:1")
    zk._connection._socket.shutdown(2)
    await until(has(events, Suspended))
    await other.set("/t", b"2", -1)
    assert len(seen) == 1
    zk._connection.client.set_hosts(own_ensemble.connect)
    await until(has(events, Connected))
    assert events[-1].is_new is False
    await until(lambda: seen[-1].data == b"2", timeout=2)


@pytest_twisted.ensureDeferred
async def test_nothing_waits_while_there_is_no_connection(
    own_ensemble: Ensemble, open_session: Open
) -> None:
    zk = await open_session(own_ensemble.connect, timeout=4)
    events = events_of(zk)
    own_ensemble.pause()
    waiting = zk.create("/unknown")
    with pytest.raises(errors.ConnectionLoss) as caught:
        await waiting
    assert type(caught.value) is errors.ConnectionLoss, "it was sent: the outcome is unknown"
    await until(has(events, Suspended))
    with pytest.raises(errors.Disconnected):
        await zk.create("/refused")
    await until(has(events, Lapsed))
    assert zk.session is None
    own_ensemble.resume()
    await until(has(events, Connected))


@pytest_twisted.ensureDeferred
async def test_many_znodes_are_read_by_one_request(open_session: Open) -> None:
    zk = await open_session()
    await zk.create("/some", b"some")
    await zk.create("/others/empty", make_parents=True)
    await zk.set("/some", b"any", 0)
    paths = ["/some", "/none", "/others/empty"]
    found = await zk.get_all(paths)
    assert [node.data if node else None for node in found] == [b"any", None, b""]
    assert found[0] == await zk.get("/some")
    assert zk.reads_one_by_one is False
    assert await zk.get_all([]) == []


@pytest_twisted.ensureDeferred
async def test_many_znodes_are_read_one_by_one_where_the_server_knows_no_better(
    open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk = await open_session()
    await zk.create("/some", b"some")
    events = events_of(zk)
    monkeypatch.setattr(ReadMany, "type", 99)  # as multiRead is for a server before 3.6
    with pytest.raises(errors.ConnectionLoss):
        await zk.get_all(["/none", "/some"])
    await until(has(events, Connected))
    assert await zk.get_all(["/none", "/some"]) == [None, await zk.get("/some")]


@pytest_twisted.ensureDeferred
async def test_the_lapse_comes_before_the_server_would_expire_us(
    own_ensemble: Ensemble, open_session: Open
) -> None:
    zk = await open_session(own_ensemble.connect, timeout=4)
    lapsed: list[float] = []
    zk.on_session(lambda e: lapsed.append(time.monotonic()) if isinstance(e, Lapsed) else None)
    await zk.sync("/")
    received = time.monotonic()
    own_ensemble.pause()
    await until(lambda: lapsed)
    own_ensemble.resume()
    assert lapsed[0] - received < 4.0


@pytest_twisted.ensureDeferred
async def test_a_write_of_an_expired_session_is_never_done_in_the_next(open_session: Open) -> None:
    zk = await open_session()
    other = await open_session()
    old = zk.session
    assert old is not None
    bound = zk.in_session(old)
    events = events_of(zk)
    await zk.create("/mine", ephemeral=True)
    # Another client takes our session over and closes it, as an operator's tool would.
    thief = ZooKeeperClient(reactor, f"{zk.hosts}{zk.chroot}")
    thief._open((old.id, zk._password))
    await until(lambda: thief.connected)
    await thief.stop()
    await until(has(events, Expired))
    await until(has(events, Connected))
    assert events[-1].is_new is True
    assert zk.session != old
    with pytest.raises(errors.SessionExpired):
        await bound.create("/from-the-past")
    assert await other.exists("/from-the-past") is None
    assert await other.exists("/mine") is None


@pytest_twisted.ensureDeferred
async def test_a_request_still_queued_when_the_session_changed_is_refused(
    open_session: Open,
) -> None:
    """The check that counts is made by the thread that writes to the socket."""
    zk = await open_session()
    assert zk.session is not None
    connection = zk._connection
    connection._identity = (
        zk.session.id + 1,
        b"",
    )  # as after an expiry that the client does not know of
    with pytest.raises(errors.SessionExpired):
        await zk.create("/from-the-past")
    connection._identity = (zk.session.id, zk._password)
    assert await zk.exists("/from-the-past") is None


@pytest_twisted.ensureDeferred
async def test_a_broken_connection_thread_is_replaced_in_the_same_session(
    open_session: Open,
) -> None:
    zk = await open_session()
    events = events_of(zk)
    before = zk.session
    broken = zk._connection
    broken._read_socket = lambda _timeout: (
        1 / 0
    )  # an exception that kazoo does not expect ends its thread
    lost = zk.get("/")
    with pytest.raises(errors.ConnectionLoss):
        await lost
    await until(has(events, Connected))
    assert zk._connection is not broken
    assert zk.session == before
    await zk.create("/works")


@pytest_twisted.ensureDeferred
async def test_the_session_of_a_stalled_reactor_ends(open_session: Open) -> None:
    zk = await open_session(timeout=2.0)
    await zk.create("/e", ephemeral=True)
    events = events_of(zk)
    with zookeeper_at(f"{zk.hosts}{zk.chroot}") as witness:
        deadline = time.monotonic() + 15
        while witness.exists("/e") is not None:  # blocks the reactor, and never lets it run
            assert time.monotonic() < deadline, "the thread kept the session alive"
            time.sleep(0.05)
    await until(has(events, Expired))
    await until(has(events, Connected))
    await zk.create("/e", ephemeral=True)


@pytest_twisted.ensureDeferred
async def test_ephemerals_go_at_once_when_the_session_is_stopped(open_session: Open) -> None:
    zk = await open_session()
    other = await open_session()
    await zk.create("/e", ephemeral=True)
    await zk.stop()
    assert await other.exists("/e") is None
    with pytest.raises(errors.Disconnected):
        await zk.get("/e")


@pytest_twisted.ensureDeferred
async def test_thousands_of_pipelined_requests_keep_their_order(open_session: Open) -> None:
    zk = await open_session()
    await zk.create("/n")
    sets = [zk.set("/n", b"%d" % i, i) for i in range(3000)]
    results = await DeferredList(sets, fireOnOneErrback=True, consumeErrors=True)
    assert [stat.version for _, stat in results] == list(range(1, 3001))


@pytest_twisted.ensureDeferred
async def test_a_listener_that_fails_does_not_affect_others(
    open_session: Open, zookeeper_connect: str
) -> None:
    zk = ZooKeeperClient(reactor, zookeeper_connect)
    zk.on_session(lambda _event: 1 / 0)
    events = events_of(zk)
    await zk.start(5)
    assert has(events, Connected)()
    await zk.stop()
