"""The cluster under test: ZooKeeper, brokers, and every connection through a switchboard or between network namespaces.

Names on the switchboard: ``zk``, ``broker-N``, ``client``. Brokers reach ZooKeeper and each other through it (they have
a listener of their own for that), and clients reach the brokers through it. With *namespaces* each broker and each
ZooKeeper server is a host of its own (`namespaces.py`), and the same names stand for hosts.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from kbroker.testing.switchboard.remote import RemoteSwitchboard
from tests.audits.problem import Problem
from tests.audits.zookeeper_journal import keep_files
from tests.chaos.client import split_key
from tests.chaos.namespaced_brokers import NamespacedBrokers
from tests.chaos.namespaces import Namespaces
from tests.chaos.reconnecting_client import reconnecting_client
from tests.chaos.recorder import Recorder
from tests.chaos.routed_brokers import SESSION_TIMEOUT, RoutedBrokers
from tests.chaos.small_disks import SmallDisks
from tests.kit.zookeeper import Ensemble

REPLICAS = 3
PATIENCE = 60.0
"""Seconds that anything may take on a slow machine before the run gives up."""

ZOOKEEPER_ERRORS = (KazooException, KazooTimeoutError)


class ChaosCluster:
    """The brokers, ZooKeeper and connections of a run: faults act on them, and checks read their state."""

    chroot = "/chaos"

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        *,
        brokers: int = 3,
        zookeepers: int = 1,
        small_disks: bool = False,
        namespaces: bool = False,
    ) -> None:
        self.directory = directory
        self.recorder = recorder
        self.board: RemoteSwitchboard | Namespaces
        self.brokers: RoutedBrokers | NamespacedBrokers
        if namespaces:
            self.board = network = Namespaces()
            self.ensemble = Ensemble(
                directory / "ensemble", zookeepers, hosts=lambda n: network.host(f"zk-{n}")
            )
            self.brokers = NamespacedBrokers(
                directory / "brokers", network, self.ensemble, self.chroot, brokers
            )
        else:
            self.board = RemoteSwitchboard()
            self.ensemble = Ensemble(directory / "ensemble", zookeepers)
            self.brokers = RoutedBrokers(
                directory / "brokers", self.board, self.ensemble, self.chroot, brokers
            )
        places = {n: self.brokers[n].data for n in self.ids}
        self.disks = SmallDisks(places) if small_disks else None
        self.dead: set[int] = set()
        self.paused: set[int] = set()
        self.dead_servers: set[int] = set()
        self.paused_servers: set[int] = set()
        self.keys: list[str] = []
        self.replicas: dict[str, list[int]] = {}
        """Per key where it is to be."""
        self.unclean_election = False
        self.allowed_log_lines: list[str] = []
        self.problems: list[Problem] = []
        """What a script saw that should not have been."""
        self._states: dict[str, dict[str, Any]] = {}
        self._observer: KazooClient | None = None

    # -- start and stop ----------------------------------------------------------------------------------

    @property
    def switchboard(self) -> RemoteSwitchboard:
        """The switchboard that all connections pass: packets of namespaces can only be dropped."""
        assert isinstance(self.board, RemoteSwitchboard)
        return self.board

    @property
    def ids(self) -> list[int]:
        """All brokers."""
        return list(self.brokers.brokers)

    @property
    def alive(self) -> list[int]:
        """Those that run, and are not paused."""
        return [n for n in self.ids if n not in self.dead | self.paused]

    @property
    def entrances(self) -> list[tuple[str, int]]:
        """Where clients begin."""
        return list(self.brokers.entrances.values())

    @property
    def bootstrap(self) -> str:
        """The same, as in bootstrap.servers."""
        return ",".join(f"{host}:{port}" for host, port in self.entrances)

    def begin(self) -> None:
        """Start everything; raise Skipped where the machine does not allow it."""
        if self.disks is not None:
            self.disks.mount()
        self.ensemble.start()
        with self.observer() as zookeeper:
            zookeeper.ensure_path(self.chroot)
        self.brokers.start(wait=False)
        self.brokers.wait_ready(timeout=PATIENCE)

    def end(self) -> None:
        """End everything, however it stands."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.close()
            self._observer = None
        self.brokers.stop_all()
        if self.disks is not None:
            self.disks.unmount()
        self.ensemble.kill()
        self.board.close()

    def heal(self) -> None:
        """Undo every fault that may still be on: network, ZooKeeper, brokers, in this order."""
        self.board.heal()
        self.resume_zookeeper(*self.paused_servers)
        self.start_zookeeper(*self.dead_servers)
        for n in list(self.paused):
            self.resume(n)
        dead = list(self.dead)
        for n in dead:
            self.start(n, wait=False)
        self.wait_ready(*dead)

    # -- brokers -------------------------------------------------------------------------------

    def kill(self, *numbers: int) -> None:
        """kill -9, all at the same moment."""
        for n in numbers:
            process = self.brokers[n].process
            if process is not None:
                process.kill()
        for n in numbers:
            self.recorder.nemesis(kill=n)
            self.brokers.kill(n)
            self.dead.add(n)
            self.paused.discard(n)

    def start(self, *numbers: int, wait: bool = True) -> None:
        """Start dead brokers."""
        started = [n for n in numbers if n in self.dead]
        for n in started:
            self.recorder.nemesis(start=n)
            self.brokers.start(n, wait=False)
            self.dead.discard(n)
        if wait:
            self.wait_ready(*started)

    def wait_ready(self, *numbers: int) -> None:
        """Wait for their ready lines."""
        for n in numbers:
            self.brokers.wait_ready(n, timeout=PATIENCE)
            self.recorder.nemesis(ready=n)

    def pids(self) -> dict[str, int]:
        """Return the process ids of the brokers that run, paused or not."""
        processes = {n: self.brokers[n].process for n in self.ids}
        return {f"broker-{n}": one.pid for n, one in processes.items() if one is not None}

    def note_ended(self) -> dict[int, int]:
        """Take note of brokers that have ended by themselves; return their exit codes."""
        ended: dict[int, int] = {}
        for n in self.alive:
            process = self.brokers[n].process
            code = None if process is None else process.poll()
            if code is not None:
                ended[n] = code
                self.recorder.nemesis(ended=n, code=code)
                self.brokers.kill(n)  # only its pipe is left
                self.dead.add(n)
        return ended

    def stop(self, *numbers: int) -> None:
        """SIGTERM, and wait for the end."""
        for n in numbers:
            self.recorder.nemesis(terminate=n)
            self.brokers.terminate(n, timeout=PATIENCE)
            self.dead.add(n)

    def pause(self, n: int) -> None:
        """SIGSTOP."""
        self.recorder.nemesis(pause=n)
        self.brokers.pause(n)
        self.paused.add(n)

    def resume(self, n: int) -> None:
        """SIGCONT."""
        self.brokers.resume(n)
        self.paused.discard(n)
        self.recorder.nemesis(resume=n)

    def wipe(self, n: int) -> None:
        """Remove a dead broker's log directory, its identity and all."""
        self.recorder.nemesis(wipe=n)
        shutil.rmtree(self.brokers[n].data)

    def segments(self, n: int, key: str) -> list[Path]:
        """The segment files of a broker's replica, oldest first."""
        return sorted((self.brokers[n].data / key).glob("*.log"))

    # -- ZooKeeper -----------------------------------------------------------------------------

    def shelve_journals(self) -> list[Path]:
        """Put the journals where no purge takes them; return where."""
        shelves = []
        for server in self.ensemble.servers:
            shelves.append(self.directory / f"journal-{server.number}")
            home = self.ensemble.directory / f"zookeeper-{server.number}"
            keep_files(home / "data", shelves[-1])
        return shelves

    def kill_zookeeper(self, *numbers: int) -> None:
        """kill -9 servers."""
        self.recorder.nemesis(kill_zookeeper=list(numbers))
        self.ensemble.kill(*numbers)
        self.dead_servers |= set(numbers)

    def start_zookeeper(self, *numbers: int) -> None:
        """Start dead servers, and wait until they serve."""
        chosen = [n for n in numbers if n in self.dead_servers]
        if chosen:
            self.shelve_journals()
            self.ensemble.start(*chosen, wait=False)
            self.dead_servers -= set(chosen)
            self.ensemble.wait_until_serving(*chosen, timeout=PATIENCE)
            self.recorder.nemesis(start_zookeeper=chosen)

    def pause_zookeeper(self, *numbers: int) -> None:
        """SIGSTOP servers."""
        self.recorder.nemesis(pause_zookeeper=list(numbers))
        self.ensemble.pause(*numbers)
        self.paused_servers |= set(numbers)

    def resume_zookeeper(self, *numbers: int) -> None:
        """SIGCONT servers."""
        chosen = [n for n in numbers if n in self.paused_servers]
        if chosen:
            self.ensemble.resume(*chosen)
            self.paused_servers -= set(chosen)
            self.recorder.nemesis(resume_zookeeper=chosen)

    def end_session(self, n: int) -> bool:
        """End a broker's session with its own id and password."""
        try:
            text = (self.brokers[n].data / "zookeeper-session").read_text()
            value = json.loads(text)
        except (OSError, ValueError):
            return False
        self.recorder.nemesis(end_session=n)
        client = KazooClient(
            self.ensemble.connect,
            client_id=(int(value["id"]), bytes.fromhex(value["password"])),
            timeout=SESSION_TIMEOUT,
        )
        with suppress(*ZOOKEEPER_ERRORS):
            client.start(5)
            client.stop()
        client.close()
        return True

    @contextmanager
    def observer(self) -> Iterator[KazooClient]:
        """Lend a client of ZooKeeper that lasts, and does not go through the switchboard."""
        if self._observer is None:
            self._observer = reconnecting_client(self.ensemble.connect)
            self._observer.start(10)
        if not self._observer.connected:
            raise KazooTimeoutError("not connected")
        yield self._observer

    # -- requests -----------------------------------------------------------------------------

    def state(self, key: str) -> dict[str, Any]:
        """Return a partition's state as ZooKeeper has it; what was known last if it does not answer."""
        topic, partition = split_key(key)
        path = f"{self.chroot}/brokers/topics/{topic}/partitions/{partition}/state"
        with suppress(*ZOOKEEPER_ERRORS), self.observer() as zookeeper:
            self._states[key] = json.loads(zookeeper.get(path)[0])
        return self._states.get(key, {"leader": -1, "leader_epoch": -1, "isr": []})

    def leader(self, key: str) -> int:
        """Return the leader; -1: none."""
        return int(self.state(key)["leader"])

    def sessions(self) -> dict[int, tuple[int, int]]:
        """Return per registered broker the session that it is bound to, and its epoch."""
        found = {}
        with self.observer() as zookeeper:
            for name in zookeeper.get_children(self.chroot + "/brokers/ids"):
                _, stat = zookeeper.get(f"{self.chroot}/brokers/ids/{name}")
                found[int(name)] = (stat.ephemeralOwner, stat.czxid)
        return found

    def any_leader(self, chance: random.Random) -> int:
        """Return a living broker that leads something."""
        leaders = {self.leader(key) for key in self.keys} & set(self.alive)
        return chance.choice(sorted(leaders or self.alive or self.ids))

    def controller(self, chance: random.Random) -> int:
        """Return the controller; any living broker if there is none."""
        with suppress(*ZOOKEEPER_ERRORS), self.observer() as zookeeper:
            found = int(json.loads(zookeeper.get(self.chroot + "/controller")[0])["brokerid"])
            if found in self.alive:
                return found
        return chance.choice(self.alive or self.ids)

    def not_in_sync(self) -> list[str]:
        """Return the keys that have no full ISR, or no leader."""
        return [
            key
            for key in self.keys
            if set(self.state(key)["isr"]) != set(self.replicas[key]) or self.leader(key) < 0
        ]

    def wait_in_sync(self, timeout: float = PATIENCE) -> list[str]:
        """Wait until every ISR is full; return the keys that are not."""
        deadline = time.monotonic() + timeout
        while (missing := self.not_in_sync()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return missing

    # -- topics --------------------------------------------------------------------------------

    def admin(self) -> AdminClient:
        """Give an admin client."""
        return AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 5000}
        )

    def create_topic(
        self, name: str, partitions: int, settings: Mapping[str, str] | None = None
    ) -> list[str]:
        """Create a topic of three replicas, leaders spread; return its keys."""
        ids, first = self.ids, len(self.replicas)
        turns = [(first + n) % len(ids) for n in range(partitions)]
        assignment = [(ids[turn:] + ids[:turn])[:REPLICAS] for turn in turns]
        new = NewTopic(name, partitions, replica_assignment=assignment, config=dict(settings or {}))
        admin = self.admin()
        for future in admin.create_topics([new], operation_timeout=30).values():
            future.result(40)
        self.recorder.nemesis(create_topic=name)
        keys = [f"{name}-{n}" for n in range(partitions)]
        self.replicas.update(zip(keys, assignment, strict=True))
        return keys

    def reassign(self, replicas: Mapping[str, list[int]]) -> None:
        """Move partitions as the classic tool does: by a znode, if there is none."""
        rows = [
            {"topic": topic, "partition": partition, "replicas": replicas[key]}
            for key in replicas
            for topic, partition in [split_key(key)]
        ]
        value = json.dumps({"version": 1, "partitions": rows}).encode()
        with self.observer() as zookeeper:
            zookeeper.create(self.chroot + "/admin/reassign_partitions", value)
        self.recorder.nemesis(reassign=dict(replicas))
        self.replicas.update(replicas)

    def reassigning(self) -> bool:
        """Whether a move is under way."""
        with self.observer() as zookeeper:
            return zookeeper.exists(self.chroot + "/admin/reassign_partitions") is not None

    def assigned(self, key: str) -> list[int]:
        """Return where a partition is, as ZooKeeper has it."""
        topic, partition = split_key(key)
        with self.observer() as zookeeper:
            value = json.loads(zookeeper.get(f"{self.chroot}/brokers/topics/{topic}")[0])
        return [int(n) for n in value["partitions"][str(partition)]]

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        admin = self.admin()
        for future in admin.delete_topics([name], operation_timeout=10).values():
            future.result(20)
        self.recorder.nemesis(delete_topic=name)

    def configure_topic(self, name: str, **settings: str) -> None:
        """Set settings, with underscores for dots."""
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        admin = self.admin()
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(20)
        self.recorder.nemesis(configure=name, settings=settings)
