"""A cluster under test: brokers of its own on the ZooKeeper server of the session, and the faults that a test needs.

Faults and what they are to clients and other brokers:

    kill        SIGKILL: connections end, the process is gone, its ZooKeeper session expires later (3 s)
    pause       SIGSTOP: connections stay open without an answer; after 3 s the ZooKeeper session expires
    terminate   SIGTERM: a controlled shutdown, leaders move before it
    partition   no byte passes between brokers, or between brokers and ZooKeeper; connections stay open
    delay       what passes there arrives so much later
    reset       the connections there end, and what was on its way is lost
    restart     SIGKILL, and a start on the same ports with the same data
    fail_requests, delay_requests, lose_requests, lose_responses
                errors, delays and lost connections for the requests of an API (`request_faults`)

Every connection from a broker to another broker or to ZooKeeper passes through a proxy (`switchboard/board.py`), a
process beside the brokers: no root, no firewall. Brokers have a second listener for that, PEERS, with the proxy's port
as its advertised address. What it cuts: requests and responses between brokers (replication, the controller's requests,
transaction markers) and between brokers and ZooKeeper. What it does not cut: connections of clients, which go to the
brokers directly. A cut holds bytes back, as lost packets do, and they arrive when the partition heals. New connections
are accepted by the proxy and get no answer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

from kbroker.local.zookeeper import Server, free_ports
from kbroker.testing import pytest_run
from kbroker.testing.brokers import FORK_SERVER, Brokers
from kbroker.testing.fault import Fault
from kbroker.testing.request_faults.client_requests import ClientRequests, RequestFaults
from kbroker.testing.switchboard.remote import RemoteSwitchboard
from kbroker.testing.zookeeper import SessionZooKeeper
from kbroker.zk.errors import NoNode, ZooKeeperError
from kclient.errors import KafkaTimeoutError
from kclient.net.metadata import NO_LEADER, PartitionMetadata
from kclient.testing.observer import Observer, wait_for_leaders
from kclient.wire.errors import UnknownTopicOrPartition

if TYPE_CHECKING:
    from kbroker.zk.cluster_state import ClusterState

ZOOKEEPER: Final = "zookeeper"
"""The ZooKeeper server as a side of a partition."""

Member = int | Literal["zookeeper"]

DEFAULTS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "4000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "transaction.state.log.min.isr": "1",
    "log.segment.delete.delay.ms": "1000",
}
"""Where the brokers differ from Kafka's defaults: a test waits for seconds, not for half a minute."""

_REPLICAS = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)
"""Three, or as many as there are brokers."""

_OURS = (
    "broker.id",
    "listeners",
    "advertised.listeners",
    "zookeeper.connect",
    "log.dirs",
    "log.dir",
)

_IMPORTED_MEANWHILE = ("kclient.blocking", "kbroker.zk.cluster_state")
"""They take 0.4 s of processor time with Twisted and kazoo, so they are imported while ZooKeeper starts."""

_session: SessionZooKeeper | None = None
_session_pid = 0


def session_zookeeper() -> SessionZooKeeper:
    """Return the ZooKeeper server of the pytest run, or of this process if it is none."""
    global _session, _session_pid
    if (of_pytest := pytest_run.session) is not None:
        pid, directory = of_pytest
        return SessionZooKeeper(pid, Path(directory))
    if _session is None or _session_pid != os.getpid():
        _session, _session_pid = SessionZooKeeper.of_this_process(), os.getpid()
    return _session


class _NetworkFault(Fault):
    """A fault of the network that has begun."""

    def __init__(self, cluster: KafkaCluster, directions: frozenset[tuple[str, str]]) -> None:
        self._cluster = cluster
        self.directions = directions
        """The pairs (from, to) of members that it is between."""

    def heal(self) -> None:
        """Let everything flow that no other fault holds."""
        self._cluster._heal(self)


class Partition(_NetworkFault):
    """A network partition: nothing arrives."""


class Delay(_NetworkFault):
    """What is sent arrives *seconds* later."""

    def __init__(
        self, cluster: KafkaCluster, directions: frozenset[tuple[str, str]], seconds: float
    ) -> None:
        super().__init__(cluster, directions)
        self.seconds = seconds


class KafkaCluster(Brokers, ClientRequests, Observer):
    """A real cluster on this machine, for the time of a `with`: ``with KafkaCluster(brokers=3) as cluster``.

    *settings* are those of all brokers, with Kafka's names (``server.properties``); *racks* names the rack of each
    broker. Clients of any library connect to `bootstrap`. Its data is gone at the end.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        if not isinstance(brokers, int) or not 1 <= brokers <= 20:
            raise ValueError(f"brokers={brokers!r}: a cluster for tests has 1 to 20")
        given = {key: _text(value) for key, value in (settings or {}).items()}
        if taken := sorted(set(_OURS).intersection(given)):
            raise ValueError(f"settings[{taken[0]!r}]: KafkaCluster sets it for each broker")
        if unknown := sorted(set(racks or {}) - set(range(1, brokers + 1))):
            raise ValueError(f"racks[{unknown[0]!r}]: the brokers are 1 to {brokers}")
        self._session = session_zookeeper()
        self.directory = self._session.directory / f"cluster-{os.urandom(4).hex()}"
        """Where the brokers have their data and logs, once the cluster starts."""
        self._closed = False
        replicas = dict.fromkeys(_REPLICAS, str(min(3, brokers)))
        Brokers.__init__(
            self, self.directory, "", brokers, settings={**DEFAULTS, **replicas, **given}
        )
        ClientRequests.__init__(self, self.directory / "request-faults")
        Observer.__init__(self, self.bootstrap)
        for broker_id, rack in (racks or {}).items():
            self[broker_id].settings["broker.rack"] = rack
        self._board: RemoteSwitchboard | None = None
        self._begun = False
        self._partitions: list[Partition] = []
        self._delays: list[Delay] = []
        self._state: ClusterState | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        try:
            if not self._begun or self._closed:
                self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __repr__(self) -> str:
        return f"<KafkaCluster of {len(self.brokers)} at {self.bootstrap}>"

    # --- life ---

    def start(self, *broker_ids: int, wait: bool = True, **overrides: str) -> None:
        """Start the brokers with these ids, or all that do not run, and wait until they are ready.

        Keyword *overrides* are settings for this start, with underscores for the dots of Kafka's names.
        """
        if self._closed:
            raise RuntimeError("the cluster is closed: make another one")
        if not self._begun:
            # All three at the same time: ZooKeeper starts, the fork server imports the broker, and this process the
            # client.
            server = self._session.begin()
            FORK_SERVER.prepare("kbroker")
            for name in _IMPORTED_MEANWHILE:
                importlib.import_module(name)
            if self._board is None:
                self._route(server)
            self._session.wait(server)
            self._begun = True
        chosen = broker_ids or tuple(self.down)
        if chosen:
            super().start(*chosen, wait=wait, **overrides)

    def _route(self, zookeeper: Server) -> None:
        """Have brokers reach each other and ZooKeeper through a switchboard."""
        board = self._board = RemoteSwitchboard(FORK_SERVER.popen)
        chroot = f"/{self.directory.name}"
        self.zookeeper_connect = f"{zookeeper.address}{chroot}"
        program = self.open_plan()
        for (number, broker), port in zip(
            self.brokers.items(), free_ports(len(self.brokers)), strict=True
        ):
            name = _name(number)
            peers, server = (
                board.route(None, name, port),
                board.route(name, ZOOKEEPER, zookeeper.client_port),
            )
            broker.program = program
            broker.settings |= {
                "listeners": f"PLAINTEXT://{broker.address},PEERS://127.0.0.1:{port}",
                "advertised.listeners": f"PLAINTEXT://{broker.address},PEERS://127.0.0.1:{peers}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT",
                "inter.broker.listener.name": "PEERS",
                "zookeeper.connect": f"127.0.0.1:{server}{chroot}",
            }

    def close(self) -> None:
        """End the brokers, and remove their data."""
        if self._owner != os.getpid():
            return  # after a fork: the brokers belong to the other process
        self._closed = True
        with contextlib.suppress(Exception):  # its brokers may be gone
            Observer.close(self)
        state, self._state = self._state, None
        if state is not None:
            state.close()
        self.stop_all()
        board, self._board = self._board, None
        if board is not None:
            board.close()
        self.close_plan()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- the network ---

    def partition(self, *sides: Iterable[Member] | Member) -> Partition:
        """Cut the members of each side from those of the other sides: ``partition([1], [2, 3, ZOOKEEPER])``.

        Members are broker ids and `ZOOKEEPER`. What is between members of one side, and members that no side names,
        stays connected. More partitions add up. See the module about what is cut and what is not.
        """
        begun = Partition(self, self._between(sides))
        self._partitions.append(begun)
        self._hold()
        return begun

    def delay(self, *sides: Iterable[Member] | Member, seconds: float) -> Delay:
        """Have what passes between the sides arrive so many seconds later, in both directions.

        The sides are as in `partition`: ``delay([1], [2, 3], seconds=0.2)``. Of more delays between two members the
        longest counts. A session of ZooKeeper, 3 s here, ends by a delay that is long enough.
        """
        if not 0 < seconds < float("inf"):
            raise ValueError(
                f"seconds={seconds!r}: a delay is longer than 0; see partition for ever"
            )
        begun = Delay(self, self._between(sides), seconds)
        self._delays.append(begun)
        self._hold()
        return begun

    def reset(self, *sides: Iterable[Member] | Member) -> None:
        """End the connections between the sides, which are as in `partition`. Members connect again by themselves.

        What was on its way is lost: a request may have been handled without its response.
        """
        directions = self._between(sides)
        if self._board is not None:
            for one, other in sorted(directions):
                if one < other:
                    self._board.reset(one, other)
            self._board.settle()

    def _between(self, sides: Iterable[Iterable[Member] | Member]) -> frozenset[tuple[str, str]]:
        """Return the pairs (from, to) of members of different sides."""
        groups = [[self._member(member) for member in side] for side in map(_iterable, sides)]
        if len(groups) < 2 or not all(groups):
            raise ValueError(
                "a fault is between two sides or more, each with a member: [1], [2, 3]"
            )
        members = [member for group in groups for member in group]
        if repeated := {member for member in members if members.count(member) > 1}:
            raise ValueError(f"{min(repeated)} is on two sides")
        return frozenset(
            (one, other)
            for group in groups
            for one in group
            for other in members
            if other not in group
        )

    def isolate(self, broker_id: int) -> Partition:
        """Cut a broker from all other brokers and from ZooKeeper. Its clients still reach it."""
        others = [n for n in self.brokers if n != broker_id]
        return self.partition([broker_id], [*others, ZOOKEEPER])

    def heal(self) -> None:
        """End all partitions, delays and faults of requests."""
        self._partitions.clear()
        self._delays.clear()
        self._hold()
        self.heal_requests()

    def _heal(self, fault: _NetworkFault) -> None:
        for begun in (self._partitions, self._delays):
            if fault in begun:
                begun.remove(fault)  # type: ignore[arg-type]
                self._hold()

    def _hold(self) -> None:
        if self._board is not None:
            slow: dict[tuple[str, str], float] = {}
            for delay in self._delays:
                for pair in delay.directions:
                    slow[pair] = max(delay.seconds, slow.get(pair, 0.0))
            self._board.delay_only(*((*pair, seconds) for pair, seconds in slow.items()))
            self._board.hold_only(*frozenset().union(*(p.directions for p in self._partitions)))
            self._board.settle()

    def _member(self, member: Member) -> str:
        if member == ZOOKEEPER:
            return ZOOKEEPER
        if not isinstance(member, int):
            raise ValueError(f"no member {member!r}: members are broker ids and {ZOOKEEPER!r}")
        return _name(self[member].broker_id)

    # --- what a test sees ---

    def partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        """Return the leader, replicas and ISR of each partition as ZooKeeper has them.

        Metadata of a broker may be old: of one that is cut from the controller it is.
        """
        try:
            found = self._zookeeper().partitions(topic)
        except NoNode:
            raise UnknownTopicOrPartition(f"there is no topic {topic}") from None
        except ZooKeeperError as problem:
            raise KafkaTimeoutError(str(problem)) from problem
        return {
            number: PartitionMetadata(topic, number, NO_LEADER, -1, replicas, ())
            if state is None
            else PartitionMetadata(
                topic, number, max(state.leader, NO_LEADER), state.leader_epoch, replicas, state.isr
            )
            for number, (replicas, state) in found.items()
        }

    def controller(self) -> int:
        """Return the broker id of the controller, -1 if there is none, as ZooKeeper has it."""
        return self._zookeeper().controller()

    def _known_dead(self) -> set[int]:
        """Return the brokers that are down, paused or cut from ZooKeeper: they lead until their sessions expire."""
        cut = {one for p in self._partitions for one, other in p.directions if other == ZOOKEEPER}
        return {
            n
            for n, broker in self.brokers.items()
            if n in self.down or broker.paused or _name(n) in cut
        }

    def live_brokers(self) -> set[int]:
        """Return the ids of the brokers with a ZooKeeper session."""
        return self._zookeeper().live_brokers()

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        assignment: Mapping[int, list[int]] | None = None,
    ) -> str:
        """Create a topic and return its name, as `Observer.create_topic`.

        Wait until each broker that can know of it knows its leaders: no client gets UNKNOWN_TOPIC_OR_PARTITION.
        """
        super().create_topic(name, partitions, replication_factor, config, assignment=assignment)
        cut = {member for p in self._partitions for pair in p.directions for member in pair}
        for number, broker in self.brokers.items():
            if number not in self.down and not broker.paused and _name(number) not in cut:
                wait_for_leaders(broker.host.address, broker.port, name)
        return name

    def _zookeeper(self) -> ClusterState:
        if self._state is None:
            if not self.zookeeper_connect:
                raise RuntimeError("the cluster does not run: start it first")
            from kbroker.zk.cluster_state import ClusterState

            self._state = ClusterState(self.zookeeper_connect)
        return self._state

    # --- what brokers wrote ---

    def logs(self, lines: int = 20) -> str:
        """Return the last *lines* of each broker's log."""
        return "\n".join(
            f"--- broker {n} ({'down' if n in self.down else 'running'}): {broker.home / 'broker.log'}\n"
            + "\n".join(broker.log.splitlines()[-lines:])
            for n, broker in self.brokers.items()
        )


def _name(broker_id: int) -> str:
    """Return the name of a broker on the switchboard: how its client ids begin."""
    return f"broker-{broker_id}"


def _iterable(side: Iterable[Member] | Member) -> Iterable[Member]:
    return [side] if isinstance(side, int | str) else side


def _text(value: object) -> str:
    """Return a setting as server.properties has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


__all__ = ["DEFAULTS", "ZOOKEEPER", "Delay", "KafkaCluster", "Partition", "RequestFaults"]
