"""The state of partitions and the controller, read from ZooKeeper in blocking calls: for tests, which have no reactor.

ZooKeeper has the state itself. Brokers have copies, and one that is cut from the controller has an old one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.zk.errors import CannotConnect, NoNode
from kbroker.zk.interface import Stat
from kbroker.zk.session_state import quiet_logger
from kbroker.zk.znodes import brokers, topics
from kbroker.zk.znodes.names import BROKER_IDS, CONTROLLER


class Partition(NamedTuple):
    """One partition: its replicas, and its state, None before the controller has written one."""

    replicas: tuple[int, ...]
    state: LeaderAndIsr | None


class ClusterState:
    """A reader of the cluster at *hosts*, a zookeeper.connect with its chroot. Owner: any thread."""

    def __init__(self, hosts: str, *, timeout: float = 10.0) -> None:
        self._client = KazooClient(hosts=hosts, timeout=timeout, logger=quiet_logger())
        try:
            self._client.start(timeout)
        except KazooTimeoutError:
            reason = f"ZooKeeper at {hosts} did not answer in {timeout:g} s"
            raise CannotConnect(reason=reason) from None

    def close(self) -> None:
        """End the session."""
        self._client.stop()
        self._client.close()

    def partitions(self, topic: str) -> dict[int, Partition]:
        """Return the partitions of *topic*; raise NoNode if there is no such topic."""
        data, _ = self._read(topics.topic_path(topic))
        found = {}
        for number, assignment in sorted(topics.decode_topic(topic, data).partitions.items()):
            state = None
            with suppress(NoNode):
                data, stat = self._read(topics.partition_state_path(topic, number))
                state = topics.decode_partition_state(topic, number, data, stat)
            found[number] = Partition(assignment.replicas, state)
        return found

    def controller(self) -> int:
        """Return the broker id of the controller, -1 if there is none."""
        with suppress(NoNode):
            data, _ = self._read(CONTROLLER)
            return brokers.decode_controller(data).broker_id
        return -1

    def live_brokers(self) -> set[int]:
        """Return the ids of the registered brokers."""
        try:
            return {int(name) for name in self._client.get_children(BROKER_IDS)}
        except NoNodeError:
            return set()
        except (KazooException, KazooTimeoutError) as problem:
            raise _no_answer(BROKER_IDS, problem) from problem

    def _read(self, path: str) -> tuple[bytes, Stat]:
        try:
            data, stat = self._client.get(path)
        except NoNodeError:
            raise NoNode(path) from None
        except (KazooException, KazooTimeoutError) as problem:
            raise _no_answer(path, problem) from problem
        return data, Stat(*stat)


def _no_answer(path: str, problem: Exception) -> CannotConnect:
    return CannotConnect(path, f"ZooKeeper did not answer: {problem!r}")
