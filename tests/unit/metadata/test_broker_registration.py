"""A broker that comes enters its cluster however often the connection to ZooKeeper breaks meanwhile."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.common.endpoint import Endpoint
from kbroker.common.log_dir_integrity import LogDirIntegrity, broker_epochs
from kbroker.log.log_dir_histories import LogDirHistories
from kbroker.log.log_dir_history import LogDirHistory, assess
from kbroker.metadata.broker_registration import (
    BrokerRegistration,
    DuplicateBrokerError,
    History,
    enter_cluster,
)
from kbroker.zk import znodes
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.reconnect import Reconnect
from tests.kit.log_dir_histories import NoHistory
from tests.simulation.clock import Process, Scheduler
from tests.simulation.network import Network
from tests.simulation.zk_connection import ZkConnection
from tests.simulation.zookeeper import Ensemble


class Breaking(ZkConnection):
    """A connection that breaks behind each of some requests; their answers are lost."""

    breaks: set[int]
    asked = 0

    def enqueue(self, message: Any, request: Any) -> None:
        super().enqueue(message, request)
        self.asked += 1
        if self.asked in self.breaks:
            self.process.callLater(0, self.broken)


class Bounds(NoHistory):
    """Log directories that record the lower bound of each attempt, and the broker epoch."""

    def __init__(self) -> None:
        self.afters: list[int] = []
        self.broker_epochs: list[int] = []

    def registering(self, after: int) -> LogDirIntegrity:
        self.afters.append(after)
        return super().registering(after)

    def registered(self, broker_epoch: int) -> None:
        self.broker_epochs.append(broker_epoch)


def enter(
    breaks: set[int],
    advertised: Endpoint | None = None,
    *,
    meanwhile: float | None = None,
    history: History | None = None,
    twin: Endpoint | None = None,
) -> tuple[int, str, list[Exception]]:
    """Enter a cluster; return how many requests that took, the cluster's id, and what was fatal.

    With *twin* another broker with its id is there, at that endpoint. With *advertised* the broker alters its endpoints
    to that one, and the znode gets it: after the registration, or so many seconds after its begin.
    """
    scheduler, rng = Scheduler(), Random(1)
    ensemble = Ensemble(scheduler, rng, Network(scheduler, rng))
    process = Process(scheduler, "broker", Random(2))
    made: list[Breaking] = []

    def connection(_hosts: str, **given: Any) -> ZkConnection:
        made.append(Breaking(ensemble, process, 1, **given))
        made[-1].process, made[-1].breaks = process, breaks
        return made[-1]

    def unbroken(_hosts: str, **given: Any) -> ZkConnection:
        return ZkConnection(ensemble, process, 1, **given)

    zk = ZooKeeperClient(
        process, "zk:1", session_timeout=6.0, connection=connection, now=process.seconds
    )
    fatal: list[Exception] = []

    async def work() -> str:
        await zk.start(10)
        reconnect = Reconnect(zk, process)
        cluster_id = await enter_cluster(zk, reconnect)
        endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)
        registration = znodes.BrokerInfo(1, (endpoint,), timestamp=1)
        member = BrokerRegistration(
            process, zk, registration, cluster_id=cluster_id, reconnect=reconnect,
            on_event=lambda _event: None, on_fatal=fatal.append, history=history or NoHistory(), is_extended=True,
        )  # fmt: skip
        if twin is not None:
            other = ZooKeeperClient(
                process, "zk:1", session_timeout=6.0, connection=unbroken, now=process.seconds
            )
            await other.start(10)
            theirs = replace(registration, endpoints=(twin,))
            await other.create(znodes.broker_path(1), znodes.encode_broker(theirs), ephemeral=True)
            with pytest.raises(DuplicateBrokerError):
                await member.register()
            return cluster_id
        if advertised is not None and meanwhile is not None:
            process.callLater(meanwhile, member.advertise, (advertised,))
        await member.register()
        if advertised is not None and meanwhile is None:
            member.advertise((advertised,))
        return cluster_id

    outcome: list[Any] = []
    Deferred.fromCoroutine(work()).addBoth(outcome.append)
    until = scheduler.now + 60
    while not outcome and scheduler.now < until:
        if scheduler.step(until) is False:
            break
    (cluster_id,) = outcome
    assert isinstance(cluster_id, str), cluster_id
    assert ensemble.tree[znodes.broker_path(1)].owner

    def registered() -> tuple[Endpoint, ...]:
        return znodes.decode_broker(1, ensemble.tree[znodes.broker_path(1)].data).endpoints

    while advertised is not None and registered() != (advertised,):
        assert scheduler.now < until
        scheduler.step(until)
    return sum(each.asked for each in made), cluster_id, fatal


def test_a_break_behind_any_request_does_not_prevent_the_registration() -> None:
    asked, _, _ = enter(set())
    again = 0
    for at in range(1, asked + 1):
        needed, _, fatal = enter({at})
        again += needed > asked
        assert not fatal
    assert again > asked // 2  # else next to none of the answers was lost


def test_the_log_directories_get_a_lower_bound_of_the_broker_epoch_before_it_exists() -> None:
    asked, _, _ = enter(set())
    for at in range(1, asked + 1):
        bounds = Bounds()
        enter({at}, history=bounds)
        assert -1 < bounds.afters[0] < bounds.broker_epochs[0]


class Directory:
    """One log directory with broker epoch 1, as the broker's log directories."""

    def __init__(self) -> None:
        self.histories = LogDirHistories("boot")
        history = LogDirHistory("boot", broker_epochs(1), ("A",))
        self.histories.add("a", "A", assess(history, None, "boot", is_new=False), history)
        self.histories.conclude([], 0)
        self.registered, self.refused = self.histories.registered, self.histories.refused

    def registering(self, after: int) -> LogDirIntegrity:
        self.histories.registering(after)
        return self.histories.registration()


def test_a_broker_with_the_id_of_another_has_no_open_end_unless_the_answer_to_its_create_was_lost() -> (
    None
):
    asked, _, _ = enter(set())
    twin = Endpoint("PLAINTEXT", "PLAINTEXT", "other.example", 9092)
    known: list[bool] = []
    for at in range(1, asked + 1):
        directory = Directory()
        enter({at}, history=directory, twin=twin)
        known.append(directory.histories.history_of("a", ()).intact == broker_epochs(1))
    assert known.count(False) == 1


def test_breaks_one_after_another_are_waited_out() -> None:
    asked, _, _ = enter(set())
    assert enter(set(range(1, 2 * asked, 7)))[2] == []


def test_altered_endpoints_reach_the_znode_whatever_breaks() -> None:
    new = Endpoint("PLAINTEXT", "PLAINTEXT", "broker.example", 9093)
    asked, _, _ = enter(set())
    total, _, _ = enter(set(), new)
    assert total == asked + 2  # the znode is read and written
    for at in range(asked - 1, total + 1):
        assert enter({at, at + 1}, new)[2] == []


def test_endpoints_that_are_altered_during_the_registration_reach_the_znode() -> None:
    new = Endpoint("PLAINTEXT", "PLAINTEXT", "broker.example", 9093)
    for milliseconds in range(40):
        assert enter(set(), new, meanwhile=milliseconds / 1000)[2] == []
