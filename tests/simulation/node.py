"""One machine with a broker: a disk that survives the process, and the process.

The broker is `kbroker.app.broker.Broker` itself, composed by its own code; only the world around it is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kbroker.app.bootstrapped import BootstrappedBroker
from kbroker.app.broker import Broker, CannotStartError
from kbroker.app.running import RunningBroker
from kbroker.app.world import World
from kbroker.common.topic_partition import TopicPartition
from kbroker.config import KafkaConfig
from kbroker.log.clean_shutdown_file import CLEAN_SHUTDOWN
from kbroker.log.core.directory_names import parse_directory
from kbroker.log.core.partition_metadata_file import PARTITION_METADATA, decode_partition_metadata
from kbroker.log.disk import read_file
from kbroker.log.log_flusher import LogFlusher
from kbroker.replica.partition import Partition
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.previous_session import PreviousSession
from tests.kit.inline_cleaner import InlineCleaner
from tests.kit.simulated_disk import SimulatedDisk
from tests.simulation.clock import EPOCH, DiskPool, Process, Scheduler
from tests.simulation.disk_checks import wrong_at_the_end
from tests.simulation.network import Network
from tests.simulation.script import DIRECTORIES
from tests.simulation.zk_connection import ZkConnection, client_of
from tests.simulation.zookeeper import ZOOKEEPER, Ensemble

PORT = 9092
BOOT_SECONDS = 0.3
AGAIN_SECONDS = 2.0
"""Before a broker that could not start, or gave up, is started again."""

SETTINGS = {
    "zookeeper.connect": "zookeeper:2181",
    "zookeeper.session.timeout.ms": "4000",
    "zookeeper.connection.timeout.ms": "20000",
    "replica.lag.time.max.ms": "4000",
    "replica.fetch.wait.max.ms": "1500",
    "replica.fetch.backoff.ms": "500",
    "replica.socket.timeout.ms": "5000",
    "controller.socket.timeout.ms": "3000",
    "replica.high.watermark.checkpoint.interval.ms": "3000",
    "log.flush.offset.checkpoint.interval.ms": "3000",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "1000",
    "num.recovery.threads.per.data.dir": "1",
    "log.segment.bytes": "4096",
    "log.index.interval.bytes": "512",
    "log.retention.check.interval.ms": "4000",
    "log.segment.delete.delay.ms": "2000",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "1048576",
    "leader.imbalance.check.interval.seconds": "20",
    "controlled.shutdown.retry.backoff.ms": "500",
    "auto.create.topics.enable": "false",
    "unclean.leader.election.enable": "false",
}


@lru_cache(maxsize=16)
def config_of(node: int, disks: int = 1, settings: tuple[tuple[str, str], ...] = ()) -> KafkaConfig:
    """Return the configuration of broker *node*, with that many log directories and other *settings*."""
    given = {
        **SETTINGS,
        **dict(settings),
        "log.dirs": ",".join(DIRECTORIES[:disks]),
        "broker.id": str(node),
        "listeners": f"PLAINTEXT://node{node}:{PORT}",
    }
    return KafkaConfig.of(given)


class BrokerProcess(Process):
    """One run of the process of a broker."""

    def __init__(self, node: Node, scheduler: Scheduler, rng: Random) -> None:
        super().__init__(scheduler, f"broker {node.number}", rng)
        self.node = node


class Node:
    """A machine, and the broker on it if it runs."""

    def __init__(
        self,
        number: int,
        scheduler: Scheduler,
        network: Network,
        ensemble: Ensemble,
        rng: Random,
        *,
        trace: Callable[[str], None],
        disks: int = 1,
        settings: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.number = number
        self._settings = settings
        self.disk = SimulatedDisk()
        self.process: BrokerProcess | None = None
        self.broker: Broker | None = None
        self.wanted = False
        """Whether it is to run: one that gives up is started again."""
        self.has_namesakes = False
        """Whether it does not start because two of its disks hold logs of one name."""
        self._boots = 1
        self.stopping = False
        self.syncs_identities = True
        """Whether the disk syncs partition.metadata before a log is synced as a whole."""
        self.starts = 0
        self.fatal: list[str] = []
        self.wrong: str | None = None
        """What was found wrong on its disks when its process ended."""
        self._disks = disks
        self._scheduler = scheduler
        self._network = network
        self._ensemble = ensemble
        self._rng = rng
        self._trace = trace
        self._zookeepers: list[ZkConnection] = []
        self._credentials: tuple[int, bytes] | None = None
        """What the file zookeeper-session holds."""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def paused(self) -> bool:
        return self.process is not None and self.process.alive and self.process.paused

    @property
    def parts(self) -> BootstrappedBroker | None:
        """The parts of the broker that was started last, once it has loaded its logs."""
        return self.broker.bootstrapped if self.broker is not None else None

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """The partitions that the broker hosts; none before it has loaded its logs."""
        parts = None if self.broker is None else self.broker.bootstrapped
        return {} if parts is None else parts.replica_manager.registry.partitions

    @property
    def listens(self) -> bool:
        """Whether the broker runs and has bound its listeners."""
        return (
            self.running
            and self.broker is not None
            and isinstance(self.broker.stage, RunningBroker)
        )

    @property
    def has_failed_disk(self) -> bool:
        """Whether the broker gave up one of its log directories, or loads its logs from disks of which one fails."""
        if not self.running:
            return False
        return bool(self.disk.faults if self.parts is None else self.parts.log_manager.offline)

    @property
    def failed_logs(self) -> list[TopicPartition]:
        """The partitions with logs that the broker could not open, in directories that work."""
        if not self.running or self.parts is None:
            return []
        logs = self.parts.log_manager
        return [] if logs.offline else sorted(logs.failed)

    def zookeeper(self) -> ZkConnection | None:
        return self._zookeepers[-1] if self._zookeepers and self.running else None

    # -- starting

    def start(self) -> None:
        """Start the broker, now and whenever it gives up."""
        self.wanted = True
        if self.running:
            return
        rng = Random(self._rng.getrandbits(64))
        process = self.process = BrokerProcess(self, self._scheduler, rng)
        self.starts += 1
        self.stopping = False
        self._zookeepers = []
        host = self._network.host(self.number)
        host.process = process
        host.listeners = {}
        self._network.machine_returned(self.number)
        world = World(
            disk=self.disk,
            disk_pool=lambda _threads: DiskPool(process, rng, self._is_late),
            new_cleaner_worker=partial(InlineCleaner, disk=self.disk),
            wall_clock=lambda: EPOCH + self._scheduler.now,
            new_uuid=lambda: UUID(int=rng.getrandbits(128), version=4),
            random_below=rng.randrange,
            random_bytes=rng.randbytes,
            boot_id=lambda: f"boot {self._boots}",
            dial=self._network.dialler(process, self.number),
            socket_server=self._network.socket_server(host),
            zookeeper=self._zookeeper_session,
            previous_session=lambda directory: _Remembered(self, process, directory),
        )
        config = config_of(self.number, self._disks, self._settings)
        broker = self.broker = Broker(
            process, config, on_fatal=self._gives_up(process), world=world
        )
        process.callLater(BOOT_SECONDS, self._boot, process, broker)

    def _is_late(self, work: object) -> bool:
        return not self.syncs_identities and getattr(work, "__qualname__", "").startswith(
            LogFlusher._find_identities.__qualname__
        )

    def _boot(self, process: Process, broker: Broker) -> None:
        def failed(failure: Failure) -> None:
            if not process.alive:
                return
            if not failure.check(CannotStartError):
                self.fatal.append(f"broker {self.number} could not start: {failure.getTraceback()}")
            self._trace(f"broker {self.number} could not start: {failure.value}")
            self.has_namesakes = "move the other out" in str(failure.value)
            self._exit(process)

        Deferred.fromCoroutine(broker.start()).addErrback(failed)

    def _gives_up(self, process: Process) -> Callable[[BaseException], None]:
        def gives_up(error: BaseException) -> None:
            if process.alive:
                self._trace(f"broker {self.number} gives up: {error}")
                process.callLater(0, self._exit, process)

        return gives_up

    def _zookeeper_session(
        self, process: Process, connect: str, session_timeout: float
    ) -> ZooKeeperClient:
        return client_of(
            self._ensemble, process, self.number, self._zookeepers, connect, session_timeout
        )

    # -- ending

    def _exit(self, process: Process) -> None:
        if process is self.process and process.alive:
            self._check_disks(is_clean=True)
            self._end(process)
            self.disk.kill()
            self._network.process_ended(process)
            if self.wanted:
                self._scheduler.after(AGAIN_SECONDS, self._start_again, process)

    def _start_again(self, former: Process) -> None:
        if self.wanted and self.process is former:
            self.start()

    def _end(self, process: Process) -> None:
        process.kill()
        host = self._network.host(self.number)
        host.listeners = {}
        host.process = None
        for connection in self._zookeepers:
            connection.process_died()

    def kill(self) -> None:
        """End the process (kill -9): the page cache stays."""
        self.wanted = False
        if self.running:
            assert self.process is not None
            self._check_disks(is_clean=self.stopping)
            self._end(self.process)
            self.disk.kill()
            self._network.process_ended(self.process)

    def lose_power(self) -> bool:
        """Cut the power: what was not synced may be lost; no peer is notified. Return whether anything may be lost."""
        self.wanted = False
        self._boots += 1
        is_clean = not self.running and all(map(self._is_clean, DIRECTORIES[: self._disks]))
        if self.running:
            assert self.process is not None
            self._check_disks(is_clean=self.stopping)
            self._end(self.process)
            self._network.machine_vanished(self.process)
        self.disk.lose_power(Random(self._rng.getrandbits(64)))
        if self._rng.random() < 0.5:
            self._credentials = None
        return not is_clean

    def _check_disks(self, *, is_clean: bool) -> None:
        if self.parts is not None:
            offline = self.parts.log_manager.offline
            directories = [each for each in DIRECTORIES[: self._disks] if each not in offline]
            self.wrong = self.wrong or wrong_at_the_end(self.disk, directories, is_clean=is_clean)

    def _is_clean(self, directory: str) -> bool:
        """Return whether a log directory has the marker of a clean shutdown: then everything is synced."""
        try:
            return self.disk.size(f"{directory}/{CLEAN_SHUTDOWN}") >= 0
        except FileNotFoundError:
            return False

    def wipe(self, directory: str) -> list[tuple[str, int]]:
        """Put an empty disk in the place of one log directory; return the partitions that were there."""
        found = map(
            parse_directory, self.disk.listdir(directory) if self.disk.is_dir(directory) else ()
        )
        self.disk.wipe(directory)
        if directory == DIRECTORIES[0]:
            self._credentials = None
        return [key for key in found if key is not None]

    def keep(self, topics: dict[str, UUID]) -> None:
        """Have the operator remove one of two logs of one name: the one on a disk that was unreadable before.

        It is of another topic, or of a replica that was moved away meanwhile: the shorter one.
        """
        self.has_namesakes = False
        found: dict[tuple[str, int], list[tuple[bool, int, str]]] = {}
        for directory in DIRECTORIES[: self._disks]:
            for name in self.disk.listdir(directory):
                key = parse_directory(name)
                if key is not None:
                    path = f"{directory}/{name}"
                    is_right = self._topic_id(path) == topics.get(key[0])
                    files = [each for each in self.disk.listdir(path) if each.endswith(".log")]
                    size = sum(self.disk.size(f"{path}/{each}") for each in files)
                    found.setdefault(key, []).append((is_right, size, path))
        for logs in found.values():
            for _, _, path in sorted(logs)[:-1]:
                self.disk.rename(path, f"{path}.kept")

    def put_aside(self, keys: Iterable[TopicPartition]) -> None:
        """Have the operator take the logs of some partitions away."""
        for topic, number in keys:
            for directory in DIRECTORIES[: self._disks]:
                path = f"{directory}/{topic}-{number}"
                if self.disk.is_dir(path):
                    self.disk.rename(path, f"{path}.kept")

    def _topic_id(self, path: str) -> UUID | None:
        try:
            return decode_partition_metadata(
                read_file(self.disk, f"{path}/{PARTITION_METADATA}")
            ).topic_id
        except FileNotFoundError:
            return None

    def wipe_all(self) -> None:
        """Put an empty disk in the place of all: as after an installation, or on another machine."""
        for directory in DIRECTORIES:
            self.disk.wipe(directory)
        self._boots += 1
        self._credentials = None

    def stop(self) -> None:
        """Shut it down in order (SIGTERM)."""
        self.wanted = False
        process, broker = self.process, self.broker
        if process is None or broker is None or not process.alive or self.stopping:
            return
        self.stopping = True

        def stopped(_result: object) -> None:
            self._trace(f"broker {self.number} has stopped")
            self._exit(process)

        def begin() -> None:
            stopping = Deferred.fromCoroutine(broker.stop())
            stopping.addErrback(lambda f: self.fatal.append(f"stop failed: {f.getTraceback()}"))
            stopping.addBoth(stopped)

        process.callLater(0, begin)

    def pause(self) -> None:
        if self.running and not self.paused:
            assert self.process is not None
            self.process.pause()
            for connection in self._zookeepers:
                connection.process_paused()

    def resume(self) -> None:
        if self.paused:
            assert self.process is not None
            self.process.resume()
            for connection in self._zookeepers:
                connection.process_resumed()


class _Remembered(PreviousSession):
    """The file with the session's password, and the expiry of that session."""

    def __init__(self, node: Node, process: Process, directory: Path) -> None:
        super().__init__(directory)
        self._node = node
        self._process = process

    def remember(self, client: ZooKeeperClient) -> None:
        self._node._credentials = client.credentials

    def forget(self) -> None:
        self._node._credentials = None

    def expire(self, reactor: Any, hosts: str, timeout: float) -> Deferred[None]:
        ended: Deferred[None] = Deferred()
        node = self._node
        give_up_at = self._process.seconds() + timeout
        network, ensemble = node._network, node._ensemble
        credentials = node._credentials

        def attempt() -> None:
            session = ensemble.sessions.get(credentials[0]) if credentials else None
            if session is None:
                ended.callback(None)
            elif not ensemble.up or network.blocked(node.number, ZOOKEEPER):
                if self._process.seconds() >= give_up_at:
                    ended.callback(None)
                else:
                    self._process.callLater(0.2, attempt)
            else:
                ensemble.end(session)
                ended.callback(None)

        self._process.callLater(0.02, attempt)
        return ended
