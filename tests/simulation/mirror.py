"""Two clusters and a mirror between them, in one process, played from a seed.

`mirrormaker.mirror.Mirror` itself runs, in processes of its own: plan, link machines, fetches, conditional appends,
over simulated connections. The source is the cluster of `simulation.py` with its clients. The target has two brokers
and min.insync.replicas 1, so that its leader may change and go on alone. A second mirror may run beside the first one.

What must hold:
1. Prefix: after every step each log of each replica of the target is a prefix of what is committed at the source: the
   same batches at the same offsets, by their CRCs. Nothing is invented, doubled, left out or in another order.
2. NotStopped: no link stops and no offsets are left out. No script here has a reason for either.
3. Spliced: behind a record that another client wrote to the target the mirror appends nothing.
4. All predicates of `predicates.py` hold for both clusters.
5. At the end, when everything was healed, both logs are equal byte for byte, but for the leader epochs.
6. Shared: with workers (`Script.mirror` 2) each partition is copied by exactly one running worker at the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kbroker.log.unified_log import UnifiedLog
from kbroker.replica import conditional_append
from kbroker.replica.partition import Partition
from kbroker.zk import znodes
from kbroker.zk.client import ZooKeeperClient
from kclient.config import CommonConfig
from kclient.errors import Address
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.handshake import fetch_api_versions
from kclient.wire.batches import iterate, parse
from kclient.wire.errors import KafkaError
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.records import Record, encode_batch
from kclient.wire.versions import ApiKey
from mirrormaker.config import FlowConfig, MirrorConfig
from mirrormaker.mirror import Mirror
from mirrormaker.workers import WorkerSettings
from tests.simulation.clients import Clients
from tests.simulation.clock import Process, Scheduler
from tests.simulation.copies import GONE, Broken, Copy
from tests.simulation.mirror_script import MIRRORS, TARGETS
from tests.simulation.network import Network
from tests.simulation.node import PORT, Node
from tests.simulation.predicates import Observer
from tests.simulation.script import Script
from tests.simulation.simulation import Simulation
from tests.simulation.zk_connection import ZkConnection, client_of
from tests.simulation.zookeeper import Ensemble

CLUSTER_ID = "theTargetOfTheMirrorTo"
BOOT_SECONDS = 0.1
SESSION_SECONDS = 4.0
"""The session timeout of workers."""
TARGET_SETTINGS = (("min.insync.replicas", "1"), ("default.replication.factor", "2"))


def flow_config(sources: list[int]) -> FlowConfig:
    """Return the mirror's configuration: all topics, from the brokers *sources*."""
    servers = [",".join(f"node{n}:{PORT}" for n in each) for each in (sources, TARGETS)]
    values = {"clusters": "east, west", "east->west.enabled": "true"}
    for alias, bootstrap in zip(("east", "west"), servers, strict=True):
        values |= {
            f"{alias}.bootstrap.servers": bootstrap,
            f"{alias}.request.timeout.ms": "4000",
            f"{alias}.socket.connection.setup.timeout.ms": "3000",
            f"{alias}.default.api.timeout.ms": "5000",
        }
    values |= {
        "east->west.replication.factor": "2",
        "east->west.request.timeout.ms": "3000",
        "east->west.refresh.topics.interval.seconds": "3",
        "east->west.fetch.max.bytes": "400",
        "east->west.max.partition.fetch.bytes": "400",
    }
    return MirrorConfig.of(values).flows[0]


class MirrorHost:
    """A machine with a mirror process, or without one for now."""

    def __init__(
        self,
        number: int,
        scheduler: Scheduler,
        network: Network,
        rng: Random,
        config: FlowConfig,
        *,
        trace: Callable[[str], None],
        failed: Callable[[str], None],
        ensemble: Ensemble,
    ) -> None:
        self.number = number
        self.mirror: Mirror | None = None
        self._ensemble = ensemble
        self._zookeepers: list[ZkConnection] = []
        self.process: Process | None = None
        self._scheduler = scheduler
        self._network = network
        self._rng = rng
        self._config = config
        self._trace = trace
        self._failed = failed

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Start the mirror, unless it runs."""
        if self.running:
            return
        process = Process(
            self._scheduler, f"mirror {self.number}", Random(self._rng.getrandbits(64))
        )
        self.process = process
        process.callLater(BOOT_SECONDS, self._boot, process)

    def _boot(self, process: Process) -> None:
        dial = self._dialler(process)

        def cluster(reactor: Any, config: CommonConfig) -> Cluster:
            return Cluster(reactor, config, dial=dial, rng=Random(self._rng.getrandbits(64)))

        shares = self._config.workers is not None
        self._zookeepers = []
        self.mirror = Mirror(
            process,
            self._config,
            once=False,
            report=self._report,
            cluster=cluster,
            is_worker=True,
            zookeeper=self._zookeeper_client,
            worker_id=f"{self._rng.getrandbits(64):016x}" if shares else None,
        )
        self.mirror.run().addErrback(self._ended)

    def _zookeeper_client(
        self, process: Process, connect: str, *, session_timeout: float
    ) -> ZooKeeperClient:
        return client_of(
            self._ensemble, process, self.number, self._zookeepers, connect, session_timeout
        )

    def zookeeper(self) -> ZkConnection | None:
        return self._zookeepers[-1] if self._zookeepers and self.running else None

    def _dialler(self, process: Process) -> Callable[..., Awaitable[Connection]]:
        plain = self._network.dialler(process, self.number)

        async def dial(
            reactor: Any, address: Address, *, connect_timeout: float, **named: Any
        ) -> Connection:
            give_up_at = process.seconds() + connect_timeout
            connection: Connection = await plain(
                reactor, address, connect_timeout=connect_timeout, **named
            )
            await fetch_api_versions(connection, max(0.1, give_up_at - process.seconds()))
            return connection

        return dial

    def _report(self, about: str, what: str) -> None:
        self._trace(f"mirror {self.number}: {about}: {what}")
        if about.startswith(("STOPPED", "GAP")):
            self._failed(f"NotStopped: mirror {self.number}: {about}: {what}")

    def _ended(self, failure: Failure) -> None:
        self._failed(f"NoErrors: mirror {self.number} ended: {failure.getTraceback()}")

    def kill(self) -> None:
        """End the process (kill -9)."""
        if self.process is not None and self.process.alive:
            self.process.kill()
            self._network.process_ended(self.process)
            for connection in self._zookeepers:
                connection.process_died()

    def pause(self) -> None:
        if self.process is not None and self.process.alive:
            self.process.pause()
            for connection in self._zookeepers:
                connection.process_paused()

    def resume(self) -> None:
        if self.process is not None and self.process.alive:
            self.process.resume()
            for connection in self._zookeepers:
                connection.process_resumed()


class TargetObserver(Observer):
    """Looks at the target, and compares it with what is committed at the *source*."""

    def __init__(
        self, nodes: dict[int, Node], trace: Any, scheduler: Scheduler, source: Observer
    ) -> None:
        super().__init__(nodes, trace, scheduler, min_insync_replicas=1)
        self._source = source
        self._compared: dict[int, tuple[Any, int, int]] = {}
        """By copy: its log, the number of truncations, and how far it was compared."""
        self.foreign: set[int] = set()
        """CRCs of batches that another client wrote."""

    def _look(self, node: Node, partition: Partition, copy: Copy, seen: tuple[Any, ...]) -> None:
        super()._look(node, partition, copy, seen)
        log, truncations, at = self._compared.get(id(copy), (None, -1, 0))
        if log is not copy.log or truncations != copy.truncations:
            at = 0
        end = len(copy.records)
        if at < end:
            topic, number = partition.key
            ledger = self._source.ledgers.get((self._source.topics[topic], number), [])
            self._compare(f"{partition} on {node.number}", copy, ledger, at)
        self._compared[id(copy)] = (copy.log, copy.truncations, end)

    def _compare(self, name: str, copy: Copy, ledger: list[tuple[int, int]], at: int) -> None:
        for offset in range(at, len(copy.records)):
            record = copy.records[offset]
            if record is GONE or record[1] in self.foreign:
                continue
            there = ledger[offset][1] if offset < len(ledger) else None
            if there != record[1]:
                shown = "nothing" if there is None else f"{there:08x}"
                raise Broken(
                    f"Prefix: {name} has {record[1]:08x} at {offset}, the source has {shown}"
                )
            if offset and copy.records[offset - 1][1] in self.foreign:
                raise Broken(
                    f"Spliced: {name}: the mirror appended at {offset} behind a foreign record"
                )

    def differs(self) -> str | None:
        """Return where the target is not equal to the source; None if it is nowhere, or cannot be."""
        if self.foreign:
            return None
        for name, topic_id in self._source.topics.items():
            for (source_id, number), ledger in self._source.ledgers.items():
                if source_id != topic_id or name not in self.topics:
                    continue
                copied = self.ledgers.get((self.topics[name], number), [])
                if [crc for _, crc in copied] != [crc for _, crc in ledger]:
                    return (
                        f"the target has {len(copied)} of {len(ledger)} records of {name}-{number}"
                    )
        return None


class MirrorSimulation(Simulation):
    """A cluster, its mirror, and the cluster that is mirrored to."""

    def __init__(self, script: Script, **options: Any) -> None:
        super().__init__(script, **options)
        self.target_ensemble = Ensemble(self.scheduler, self._fork(), self.network)
        self.targets = {
            number: Node(
                number,
                self.scheduler,
                self.network,
                self.target_ensemble,
                self._fork(),
                trace=self.trace,
                settings=TARGET_SETTINGS,
            )
            for number in TARGETS
        }
        self.target = TargetObserver(self.targets, self.trace, self.scheduler, self.observer)
        self.target_ensemble.on_commit.append(self.target.committed)
        config = flow_config(list(self.nodes))
        self._is_shared = script.mirror > 1
        self.shares: set[int] = set()
        """Workers that copied a part of the partitions while another one copied the rest."""
        if self._is_shared:
            config = replace(config, workers=WorkerSettings("zookeeper:2181", SESSION_SECONDS))
        self.mirrors = {
            number: MirrorHost(
                number,
                self.scheduler,
                self.network,
                self._fork(),
                config,
                trace=self.trace,
                failed=self._mirror_failed,
                ensemble=self.target_ensemble,
            )
            for number in MIRRORS
        }
        self._hosts = {**self.nodes, **self.targets}
        operator = Process(self.scheduler, "operator", self._fork())
        self.operator = Clients(operator, self.network, self.targets, self.target, self.trace)
        """Accepts a loss at the target where nothing else brings a leader back."""
        self._after = self._look_at

    def _look_at(self, node: Node) -> None:
        (self.target if node.number in self.targets else self.observer).after(node)

    def _mirror_failed(self, what: str) -> None:
        if self.target.foreign and what.startswith("NotStopped"):
            return  # the target is no copy any more
        self.clients.failure = self.clients.failure or Failure(Broken(what))

    # -- running

    def _begin(self) -> None:
        super()._begin()
        self.target_ensemble.put(znodes.CLUSTER_ID, znodes.encode_cluster_id(CLUSTER_ID))
        for node in self.targets.values():
            node.start()

    def _heal(self) -> None:
        super()._heal()
        self.target_ensemble.start()
        self.target_ensemble.trail(0.0)
        for number, node in self.targets.items():
            self._zkheal(str(number))
            connection = node.zookeeper()
            if connection is not None:
                connection.lose_next_reply = False
            node.resume()
            self._start(str(number))
        for mirror in self.mirrors.values():
            connection = mirror.zookeeper()
            if connection is not None:
                connection.lose_next_reply = False
                self._zkheal(str(mirror.number))
            mirror.resume()
        self.mirrors[MIRRORS[0]].start()

    def _decide(self) -> None:
        super()._decide()
        for key in self.target.leaderless():
            if key not in self.target.losses.accepted_by_operator:
                self.target.losses.accepted_by_operator.add(key)
                self.operator.accept_loss(*key)

    def _missing(self) -> str | None:
        if self.operator.failure is not None:
            self.operator.failure.raiseException()
        missing = super()._missing()
        if missing is not None:
            return missing
        for node in self.targets.values():
            if not node.listens:
                return f"broker {node.number} does not run yet"
        missing = self.target.not_whole(self.target_ensemble.tree, self.clients.topics)
        missing = missing or self.target.differs() or self._unshared()
        if missing is None and not self.target.foreign:
            self._check_bytes()
        return missing

    def _unshared(self) -> str | None:
        """Return which partition is not copied by exactly one worker."""
        if not self._is_shared:
            return None
        links = {
            host.number: set(host.mirror.flow.links)
            for host in self.mirrors.values()
            if host.running and host.mirror is not None
        }
        for topic, partition in self.observer.states:
            owners = [number for number, tps in links.items() if (topic, partition) in tps]
            if len(owners) != 1:
                return f"Shared: {topic}-{partition} is copied by workers {owners}"
        if len(links) > 1:
            self.shares |= {number for number, tps in links.items() if tps}
        return None

    def _check_bytes(self) -> None:
        for topic, partition in self.observer.states:
            logs = []
            for observer, nodes in ((self.observer, self.nodes), (self.target, self.targets)):
                leader = nodes[observer.states[topic, partition].leader]
                logs.append(_batches(leader.partitions[topic, partition].log))
            if logs[0] != logs[1]:
                raise Broken(f"Prefix: the bytes of {topic}-{partition} differ at the end")

    # -- verbs of scripts

    def _node(self, word: str) -> Node:
        return self._hosts[int(word)]

    def _zookeeper_of(self, host: str) -> ZkConnection | None:
        mirror = self.mirrors.get(int(host))
        return super()._zookeeper_of(host) if mirror is None else mirror.zookeeper()

    def _targetdown(self) -> None:
        """Lose the quorum of the target's ZooKeeper."""
        self.target_ensemble.stop()

    def _targetup(self) -> None:
        self.target_ensemble.start()

    def _targettrail(self, seconds: str) -> None:
        self.target_ensemble.trail(float(seconds))

    def _copied(self) -> None:
        """Check that the target has every committed record of the source now."""
        differs = self.target.differs()
        if differs is not None:
            raise Broken(f"Copied: {differs}")

    def _start(self, broker: str) -> None:
        if int(broker) in self.mirrors:
            self.mirrors[int(broker)].start()
        else:
            super()._start(broker)

    def _kill(self, broker: str) -> None:
        if broker.isdigit() and int(broker) in self.mirrors:
            self.mirrors[int(broker)].kill()
        else:
            super()._kill(broker)

    def _pause(self, broker: str) -> None:
        if int(broker) in self.mirrors:
            self.mirrors[int(broker)].pause()
        else:
            super()._pause(broker)

    def _resume(self, broker: str) -> None:
        if int(broker) in self.mirrors:
            self.mirrors[int(broker)].resume()
        else:
            super()._resume(broker)

    def _power(self, *brokers: str) -> None:
        """Take the power of brokers of the target."""
        for broker in brokers:
            node = self.targets[int(broker)]
            self.target.min_isr.keep_logs_of(node.number)
            if node.lose_power():
                self.target.lost_power(node.number, self.target_ensemble.zxid)

    def _foreign(self, topic: str, partition: str) -> None:
        """Have the mirror of another source write a record to the target, where ordinary producers may not."""
        value = b"another client's %d" % len(self.target.foreign)
        written = encode_batch([Record(0, 0, None, value, ())])
        self.target.foreign.add(parse(written).crc)
        for number, node in self.targets.items():
            held = node.partitions.get((topic, int(partition))) if node.running else None
            if held is not None and held.leader_state is not None and held.log is not None:
                end, crc = end_of(held, held.log)
                batch = end.to_bytes(8, "big") + written[8:]
                append = ProducePartition(int(partition), batch, end, crc)
                writing = Deferred.fromCoroutine(self._write(number, ProduceTopic(topic, [append])))
                writing.addErrback(self.clients.failed)
                return

    async def _write(self, broker: int, topic: ProduceTopic) -> None:
        try:
            connection = await self.clients.connection(broker, "foreign")
            await connection.request(ApiKey.PRODUCE, 9, ProduceRequest(1, 3000, [topic]))
        except KafkaError as error:
            self.trace(f"the other client's record is refused: {error}")

    def _stall(self, broker: str, listener: str = "") -> None:
        """Let what a host sends by its open connections, to one or to all others, arrive later."""
        for other in (int(listener),) if listener else (*self._hosts, *self.mirrors):
            if other != int(broker):
                self.network.stall(int(broker), other)


def end_of(partition: Partition, log: UnifiedLog) -> tuple[int, int]:
    """Return where *log* ends, and the CRC of the batch that ends there."""
    is_empty = log.log_start_offset == log.log_end_offset
    return log.log_end_offset, 0 if is_empty else conditional_append._last_crc(partition, log)


def _batches(log: UnifiedLog | None) -> list[tuple[int, bytes]]:
    """Return the base offset and the bytes of every batch, without its leader epoch."""
    assert log is not None
    found, at = [], log.log_start_offset
    while at < log.log_end_offset:
        slices = log.read(at, 1 << 20).slices
        data = b"".join(part.read() for part in slices)
        for part in slices:
            part.release()
        for info in iterate(data):
            end = info.position + info.length + 12
            kept = data[info.position : info.position + 12] + data[info.position + 16 : end]
            found.append((info.base_offset, kept))
            at = info.next_offset
    return found
