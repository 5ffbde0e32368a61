"""One schedule, from an empty cluster to a whole one: the same script gives the same trace, step by step."""

from __future__ import annotations

import errno
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import cast

from twisted.logger import (
    ILogObserver,
    LogEvent,
    LogLevel,
    formatEvent,
    globalLogPublisher,
)

from kbroker.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordinator.placement import partition_for
from kbroker.zk import znodes
from tests.kit.simulated_disk import SYNC_FAILS
from tests.simulation import disk_damage
from tests.simulation.clients import Clients
from tests.simulation.clock import Process, Scheduler
from tests.simulation.copies import Broken
from tests.simulation.group_events import (
    ASKS,
    CLIENTS,
    COORDINATOR,
    DELETED_TOPIC,
    ENDS,
    GROUP,
)
from tests.simulation.network import Network
from tests.simulation.node import BrokerProcess, Node
from tests.simulation.predicates import Observer
from tests.simulation.script import DIRECTORIES, Event, Script
from tests.simulation.transaction_events import IDS, TXN_COORDINATOR, TXN_LEADER
from tests.simulation.transaction_rules import GROUP as TRANSACTIONAL_GROUP
from tests.simulation.transaction_rules import TOPIC as TRANSACTIONAL_TOPIC
from tests.simulation.transactional_producers import Work
from tests.simulation.zk_connection import ZkConnection
from tests.simulation.zookeeper import ZOOKEEPER, Ensemble

PATIENCE = 60.0
"""Seconds after the last fault within which the cluster must be whole, with no restart."""

OPERATOR_SECONDS = 15.0
"""After the healing: a partition without a leader by then waits for the operator."""

LOOK_SECONDS = 0.5
TAIL_SECONDS = 1.0
"""Between the last event and the healing of everything."""

CLUSTER_ID = "simulatedSimulatedSimu"
BETWEEN = (
    "block",
    "cut",
    "fast",
    "oneway",
    "slow",
    "stall",
    "stallanswers",
    "stallcalls",
    "unblock",
)
"""Verbs that concern what one broker sends to another."""

SETTINGS_OF_TRANSACTIONS = (
    ("transaction.state.log.num.partitions", "2"),
    ("transaction.state.log.replication.factor", "3"),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "1000"),
    ("request.timeout.ms", "4000"),
)
"""Of brokers in scripts with transactions."""

SETTINGS_OF_DELETIONS = (("offsets.retention.check.interval.ms", "20000"),)
"""Of brokers in scripts that delete a topic with committed offsets: a sweep deletes what was left."""

MOST_STEPS = 400_000
"""The limit of steps: more of them mean an endless loop."""


@dataclass
class Result:
    """How a schedule ended."""

    script: Script
    failure: str | None
    """What was broken, or None."""
    steps: int
    seconds: float
    """Simulated."""
    digest: int
    """Of the whole trace: two runs of one script agree in it."""
    whole_after: float = 0.0
    """Seconds from the healing to a whole cluster."""
    acknowledged: int = 0
    consumed: int = 0
    committed: int = 0
    """Offset commits that were acknowledged."""
    fetched: int = 0
    """Answers with committed offsets."""
    trace: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The name of the predicate that was broken."""
        return (self.failure or "").partition(":")[0]


class Simulation:
    """A cluster, its clients, and the verbs of scripts."""

    def __init__(self, script: Script, *, keep_trace: bool = False, log: bool = False) -> None:
        self.script = script
        self.scheduler = Scheduler()
        self._rng = Random(script.seed ^ 0x5EED)
        self._trace: list[str] | None = [] if keep_trace else None
        self._log = log
        self._digest = 0
        self.network = Network(self.scheduler, self._fork())
        self.ensemble = Ensemble(self.scheduler, self._fork(), self.network)
        has_transactions = any(event.verb == "transactions" for event in script.events)
        settings = SETTINGS_OF_TRANSACTIONS if has_transactions else ()
        if any(event.words[:1] == (DELETED_TOPIC,) for event in script.events):
            settings = (*settings, *SETTINGS_OF_DELETIONS)
        self.nodes = {
            number: Node(
                number,
                self.scheduler,
                self.network,
                self.ensemble,
                self._fork(),
                trace=self.trace,
                disks=script.disks,
                settings=settings,
            )
            for number in range(1, script.brokers + 1)
        }
        self.observer = Observer(self.nodes, self.trace, self.scheduler)
        self.observer.expired_leaders.arrived = self.network.arrived
        self._after: Callable[[Node], None] = self.observer.after
        """Looks at a broker after each of its steps."""
        self.ensemble.on_commit.append(self.observer.committed)
        self.observer.groups.writer = lambda: self.ensemble.writer
        self.observer.transactions.writer = lambda: self.ensemble.writer
        process = Process(self.scheduler, "clients", self._fork())
        self.network.host(CLIENTS).process = process
        self.clients = Clients(process, self.network, self.nodes, self.observer, self.trace)
        self._errors: list[str] = []
        self._whole_after = 0.0
        self._decides_at = 0.0
        self._muted = 1
        self._meant = {COORDINATOR: 1, TXN_COORDINATOR: 1, TXN_LEADER: 1}
        """The broker that was last meant by each role."""

    def _fork(self) -> Random:
        return Random(self._rng.getrandbits(64))

    def trace(self, text: str) -> None:
        """Record something that happened."""
        line = f"{self.scheduler.now:10.4f} {text}"
        self._digest = zlib.crc32(line.encode(), self._digest)
        if self._trace is not None:
            self._trace.append(line)

    # -- running

    def run(self) -> Result:
        failure: str | None = None
        with self._errors_of_brokers():
            try:
                self._run()
            except Broken as broken:
                failure = str(broken)
            except Exception:
                failure = f"Crashed: {traceback.format_exc()}"
        if failure is not None:
            self.trace(failure)
        return Result(
            self.script,
            failure,
            self.scheduler.steps,
            self.scheduler.now,
            self._digest,
            self._whole_after,
            self.clients.acknowledged,
            self.clients.consumed,
            self.clients.groups.committed,
            self.clients.groups.fetched,
            self._trace or [],
        )

    def _run(self) -> None:
        self._begin()
        for event in self.script.events:
            self._advance(event.time)
            self.trace(f"--- {event.verb} {' '.join(event.words)}")
            self._do(event)
            for node in self.nodes.values():
                self.observer.check_disk(node)
        self._advance(self.scheduler.now + TAIL_SECONDS)
        self._heal()
        self._await_led()
        self._replace_disks()
        self._await_whole()

    def _begin(self) -> None:
        """Start the cluster."""
        self.ensemble.put(znodes.CLUSTER_ID, znodes.encode_cluster_id(CLUSTER_ID))
        for node in self.nodes.values():
            node.start()

    def _advance(self, until: float) -> None:
        scheduler, clients = self.scheduler, self.clients
        step, after = scheduler.step, self._after
        while True:
            process = step(until)
            if process is False:
                return
            if isinstance(process, BrokerProcess):
                after(process.node)
            if clients.failure is not None:
                clients.failure.raiseException()
            if self._errors:
                raise Broken(f"NoErrors: {self._errors[0]}")
            if scheduler.steps > MOST_STEPS:
                raise Broken("Liveness: it does not end")

    def _await_led(self) -> None:
        """Wait until no partition is led from a failed disk, before its broker is restarted."""
        healed_at = self.scheduler.now
        while (lost := self.observer.not_led()) is not None:
            if self.scheduler.now >= healed_at + PATIENCE:
                raise Broken(f"Led: {PATIENCE:g} s after all but the disks was healed: {lost}")
            self._advance(self.scheduler.now + LOOK_SECONDS)

    def _await_whole(self) -> None:
        healed_at = self.scheduler.now
        missing: str | None = ""
        while self.scheduler.now < healed_at + PATIENCE:
            self._advance(self.scheduler.now + LOOK_SECONDS)
            if self.scheduler.now - healed_at >= OPERATOR_SECONDS:
                self._decide()
            missing = self._missing()
            if missing is None:
                self._whole_after = self.scheduler.now - healed_at
                return
        raise Broken(f"Liveness: {PATIENCE:g} s after everything was healed: {missing}")

    def _decide(self) -> None:
        """Act as the operator: remove logs, accept a loss where no replica must have all records.

        Those are logs of one name, and logs that cannot be opened because they were exchanged: power took what the
        recovery point of the other one covers (S14).
        """
        for node in self.nodes.values():
            if node.has_namesakes and not node.running:
                node.keep(self.observer.topics)
                self._decides_at = self.scheduler.now + OPERATOR_SECONDS
            unreadable = self.observer.losses.damaged_on(node.number, node.failed_logs)
            if unreadable:
                node.kill()
                node.put_aside(unreadable)
                node.start()
                self._decides_at = self.scheduler.now + OPERATOR_SECONDS
        if self.scheduler.now < self._decides_at:
            return
        for key in self.observer.leaderless():
            if key not in self.observer.losses.accepted_by_operator:
                self.observer.losses.accepted_by_operator.add(key)
                self.clients.accept_loss(*key)

    def _missing(self) -> str | None:
        for node in self.nodes.values():
            if not node.listens:
                return f"broker {node.number} does not run yet"
        unfinished = self.clients.unfinished
        if unfinished is not None:
            return unfinished
        return self.observer.not_whole(self.ensemble.tree, self.clients.topics)

    @contextmanager
    def _errors_of_brokers(self) -> Iterator[None]:
        observer = cast(ILogObserver, self._logged)
        globalLogPublisher.addObserver(observer)
        try:
            yield
        finally:
            globalLogPublisher.removeObserver(observer)

    def _logged(self, event: LogEvent) -> None:
        level = event.get("log_level")
        if level is LogLevel.critical:
            failure = event.get("log_failure")
            text = formatEvent(event)
            self._errors.append(
                f"{text}\n{failure.getTraceback()}" if failure is not None else text
            )
        elif self._log and level is not LogLevel.debug:
            self.trace(f"      {event.get('log_namespace')}: {formatEvent(event)}")

    # -- verbs of scripts

    def _do(self, event: Event) -> None:
        verb: Callable[..., None] = getattr(self, f"_{event.verb}")
        for role in self._meant:
            if role in event.words and event.verb not in (*ENDS, *ASKS):
                found = self._broker_as(role)
                self._meant[role] = found if found is not None else self._meant[role]
        words = [str(self._meant.get(word, word)) for word in event.words]
        if event.verb in BETWEEN and words[0] == words[-1] and len(words) > 1:
            return  # the coordinator leads, too
        verb(*words)

    def _broker_as(self, role: str) -> int | None:
        """Return the broker in a role, by ZooKeeper."""
        if role == COORDINATOR:
            return self.observer.groups.coordinator(GROUP)
        transactions = self.observer.transactions
        return (
            transactions.coordinator(IDS[0]) if role == TXN_COORDINATOR else transactions.leader(0)
        )

    def _node(self, word: str) -> Node:
        return self.nodes[int(word)]

    def _create(self, topic: str, partitions: str, *kinds: str) -> None:
        """Create a topic; its kinds are "unclean", "short" and "flushed", see clients.SETTINGS_OF."""
        self.clients.create(topic, int(partitions), kinds)

    def _trim(self, topic: str, partition: str) -> None:
        self.clients.trim(topic, int(partition))

    def _delete(self, topic: str) -> None:
        self.clients.delete(topic)

    def _produce(self, topic: str, partition: str, kind: str, count: str) -> None:
        self.clients.produce(topic, int(partition), kind, int(count))

    def _misproduce(self, topic: str, partition: str, kind: str) -> None:
        """Have a producer send what must be rejected: behind a "gap" in its sequence, or of an "epoch" that is over."""
        self.clients.misproduce(topic, int(partition), kind)

    def _read(self, topic: str, partition: str, broker: str) -> None:
        self.clients.read(topic, int(partition), int(broker))

    def _move(self, topic: str, partition: str, replicas: str) -> None:
        if self.observer.has_members_with_lost_data:
            return  # taking replicas away while a disk's loss is being repaired may lose records
        self.clients.move(topic, int(partition), [int(each) for each in replicas.split(",")])

    def _groups(self) -> None:
        """Create the topic that groups need."""
        self.clients.coordinate()

    def _member(self, group: str, name: str, instance: str = "") -> None:
        """Start a member; static with an instance id."""
        self.clients.groups.member(group, name, instance or None)

    def _leave(self, group: str, name: str) -> None:
        self.clients.groups.leave(group, name)

    def _crash(self, group: str, name: str) -> None:
        self.clients.groups.crash(group, name)

    def _freeze(self, group: str, name: str) -> None:
        self.clients.groups.freeze(group, name)

    def _thaw(self, group: str, name: str) -> None:
        self.clients.groups.thaw(group, name)

    def _again(self, group: str, name: str, broker: str = "") -> None:
        """Let a member send JoinGroup once more, to a broker or to its coordinator."""
        self.clients.groups.rejoin(group, name, int(broker) if broker else None)

    def _resync(self, group: str, name: str, broker: str = "") -> None:
        """Let a member send SyncGroup once more, to a broker or to its coordinator."""
        self.clients.groups.resync(group, name, int(broker) if broker else None)

    def _commit(self, group: str, name: str, count: str) -> None:
        self.clients.groups.commit(group, name, int(count))

    def _solo(self, group: str, count: str) -> None:
        """Commit offsets without a member."""
        self.clients.groups.solo(group, int(count))

    def _offsets(self, group: str, broker: str = "") -> None:
        """Ask a broker, or one that acts as coordinator, for the committed offsets of a group."""
        self.clients.groups.fetch(group, int(broker) if broker else None)

    def _depute(self, group: str) -> None:
        """Have another broker coordinate a group, though its coordinator runs."""
        self.clients.depute(group)

    def _transactions(self) -> None:
        """Create the topics that transactions need."""
        self.clients.begin_transactions()

    def _txnbegin(self, id: str) -> None:
        """Start a producer under a transactional id; a former one is fenced."""
        self.clients.transactions.begin(id)

    def _transact(self, id: str, partitions: str, batches: str, offsets: str, ending: str) -> None:
        """Have a producer make a transaction: "commit", "abort", or commit "late", or "late=SECONDS"."""
        numbers = tuple(map(int, partitions.split(",")))
        work = Work(numbers, int(batches), offsets == "offsets", ending)
        self.clients.transactions.transact(id, work)

    def _txndie(self, id: str) -> None:
        self.clients.transactions.die(id)

    def _txnfreeze(self, id: str) -> None:
        self.clients.transactions.freeze(id)

    def _txnthaw(self, _id: str) -> None:
        self.clients.transactions.thaw()

    def _txnread(self, partition: str) -> None:
        """Read on with read_committed."""
        self.clients.transactions.read(int(partition))

    def _txnoffsets(self) -> None:
        """Fetch the offsets of the group, with require_stable."""
        self.clients.transactions.fetch_offsets()

    def _txndepute(self, role: str) -> None:
        """Have another broker coordinate the transactional "id" or the "group", or be the "leader"."""
        rules = self.observer.transactions
        if role == "leader":
            self.clients.depute_partition(TRANSACTIONAL_TOPIC, 0)
            return
        name, topic, partitions = (
            (IDS[0], TRANSACTIONS_TOPIC, rules.partitions)
            if role == "id"
            else (TRANSACTIONAL_GROUP, OFFSETS_TOPIC, rules.group_partitions)
        )
        if partitions:
            self.clients.depute_partition(topic, partition_for(name, partitions))

    def _start(self, broker: str) -> None:
        node = self._node(broker)
        if not node.running:
            node.start()
        node.wanted = True

    def _kill(self, broker: str) -> None:
        """End the process of a broker, or of the "controller"."""
        self._node(str(self.clients.controller() or 1) if broker == "controller" else broker).kill()

    def _power(self, *brokers: str) -> None:
        """Take the power of some machines, at once."""
        for broker in brokers:
            node = self._node(broker)
            self.observer.min_isr.keep_logs_of(node.number)
            if node.lose_power():
                self.observer.lost_power(node.number, self.ensemble.zxid)

    def _powerack(self, *brokers: str) -> None:
        """Take the power of some machines, at once, when the next batch is acknowledged."""
        self.clients.once_acknowledged = lambda: self.scheduler.after(0.0, self._power, *brokers)

    def _wipe(self, broker: str, directory: str = "") -> None:
        """End a broker; its machine, or one of its disks, is another one when it comes back."""
        node = self._node(broker)
        self.observer.min_isr.keep_logs_of(node.number)
        node.kill()
        if directory:
            for key in node.wipe(directory):
                self.observer.losses.replica_lost(node.number, key, self.ensemble.zxid)
            self.observer.losses.disk_lost(node.number, self.ensemble.zxid)
        else:
            node.wipe_all()
            self.observer.losses.disk_replaced(node.number, self.ensemble.zxid)

    def _exchange(self, broker: str) -> None:
        """End a broker, if it runs, and exchange two partitions' directories in its first log directory."""
        node = self._node(broker)
        self.observer.min_isr.keep_logs_of(node.number)
        node.kill()
        for key in disk_damage.exchange(node.disk, DIRECTORIES[0]):
            self.observer.losses.damaged(node.number, key)

    def _badline(self, broker: str, checkpoint: str, offset: str) -> None:
        """End a broker, if it runs, and have a checkpoint ("start", "recovery", "watermark") name another offset."""
        node = self._node(broker)
        node.kill()
        key = disk_damage.set_line(node.disk, DIRECTORIES[0], checkpoint, int(offset))
        if key is not None and checkpoint != "start":
            # It misses records that never were: it need not lead.
            self.observer.losses.damaged(node.number, key)
            self.observer.losses.disk_lost(node.number, self.ensemble.zxid)

    def _diskfail(self, broker: str, directory: str) -> None:
        self._node(broker).disk.faults[directory] = errno.EIO

    def _diskfull(self, broker: str, directory: str) -> None:
        self._node(broker).disk.faults[directory] = errno.ENOSPC

    def _syncfail(self, broker: str, directory: str) -> None:
        """Have syncs of segments fail, and nothing else."""
        self._node(broker).disk.faults[directory] = SYNC_FAILS

    def _lateids(self) -> None:
        """Have no disk sync partition.metadata in time: a power loss may take it, as right after it is written."""
        for node in self.nodes.values():
            node.syncs_identities = False

    def _diskworks(self, broker: str, directory: str) -> None:
        self._node(broker).disk.faults.pop(directory, None)

    def _stop(self, broker: str) -> None:
        node = self._node(broker)
        if not node.paused:
            node.stop()

    def _pause(self, broker: str) -> None:
        self._node(broker).pause()

    def _resume(self, broker: str) -> None:
        self._node(broker).resume()

    def _oneway(self, one: str, other: str) -> None:
        self.network.block(int(one), int(other))

    def _block(self, one: str, other: str) -> None:
        self.network.block(int(one), int(other))
        self.network.block(int(other), int(one))

    def _unblock(self, one: str, other: str) -> None:
        self.network.unblock(int(one), int(other))
        self.network.unblock(int(other), int(one))

    def _cut(self, one: str, other: str) -> None:
        self.network.cut(int(one), int(other))

    def _slow(self, one: str, other: str) -> None:
        self.network.slow(int(one), int(other))
        self.network.slow(int(other), int(one))

    def _fast(self, one: str, other: str) -> None:
        self.network.slow(int(one), int(other), slow=False)
        self.network.slow(int(other), int(one), slow=False)

    def _isolate(self, broker: str) -> None:
        for other in self.nodes:
            if other != int(broker):
                self._block(broker, str(other))
        self._zkcut(broker)

    def _rejoin(self, broker: str) -> None:
        for other in self.nodes:
            self._unblock(broker, str(other))
        self._zkheal(broker)

    def _mute(self, broker: str, listener: str = "") -> None:
        """Let what a broker, or "controller", sends to others, or to one, arrive later."""
        found = self.clients.controller() if broker == "controller" else int(broker)
        self._muted = found or 1
        for other in (int(listener),) if listener else self.nodes:
            if other != self._muted:
                self.network.block(self._muted, other)

    def _depose(self, knows: str = "") -> None:
        """Expire the session of the muted broker, too; it notices at once, or later."""
        (self._zkexpire if knows else self._zkcut)(str(self._muted))

    def _stall(self, broker: str, listener: str = "") -> None:
        """Let what a broker, or "controller", sends by its open connections, to all or to one, arrive later."""
        found = self.clients.controller() if broker == "controller" else int(broker)
        self._muted = found or 1
        for other in (int(listener),) if listener else self.nodes:
            if other != self._muted:
                self.network.stall(self._muted, other)

    def _stallcalls(self, broker: str, listener: str) -> None:
        """Let the requests of one broker to another arrive later, in its open connections."""
        self.network.stall(int(broker), int(listener), caller=int(broker))

    def _stallanswers(self, broker: str, listener: str) -> None:
        """Let the responses of one broker to another arrive later, in the open connections of the other."""
        self.network.stall(int(broker), int(listener), caller=int(listener))

    def _unstall(self) -> None:
        self.network.unstall()

    def _unseat(self) -> None:
        """Have an operator force another election of a controller that keeps its session."""
        self.ensemble.remove(znodes.CONTROLLER)

    def _unmute(self) -> None:
        for other in self.nodes:
            self.network.unblock(self._muted, other)
        self._zkheal(str(self._muted))

    def _zookeeper_of(self, host: str) -> ZkConnection | None:
        return self._node(host).zookeeper()

    def _zkcut(self, broker: str) -> None:
        self._block(broker, str(ZOOKEEPER))
        connection = self._zookeeper_of(broker)
        if connection is not None:
            connection.unreachable()

    def _zkheal(self, broker: str) -> None:
        self._unblock(broker, str(ZOOKEEPER))
        connection = self._zookeeper_of(broker)
        if connection is not None:
            connection.reachable()

    def _zkdrop(self, broker: str) -> None:
        connection = self._zookeeper_of(broker)
        if connection is not None and connection.live:
            connection.broken()

    def _zkexpire(self, broker: str) -> None:
        connection = self._zookeeper_of(broker)
        if connection is not None and connection.session:
            connection.ensemble.end(connection.session)

    def _zklose(self, broker: str) -> None:
        connection = self._zookeeper_of(broker)
        if connection is not None:
            connection.lose_next_reply = True

    def _zkdown(self) -> None:
        self.ensemble.stop()

    def _zkup(self) -> None:
        self.ensemble.start()

    def _zklag(self, follower: str = "1") -> None:
        self.ensemble.lag(int(follower), True)

    def _zkcatchup(self, follower: str = "1") -> None:
        self.ensemble.lag(int(follower), False)

    def _zktrail(self, seconds: str = "0") -> None:
        self.ensemble.trail(float(seconds))

    def _heal(self) -> None:
        self.trace("--- everything is healed")
        self.clients.once_acknowledged = None
        self.ensemble.start()
        for follower in (1, 2):
            self.ensemble.lag(follower, False)
        self.ensemble.trail(0.0)
        for number in self.nodes:
            self._rejoin(str(number))
        self.network.heal()
        self.clients.heal()
        for node in self.nodes.values():
            connection = node.zookeeper()
            if connection is not None:
                connection.lose_next_reply = False
            node.resume()
            if not node.has_failed_disk:
                node.disk.faults.clear()
                self._start(str(node.number))

    def _replace_disks(self) -> None:
        for node in self.nodes.values():
            if node.has_failed_disk:
                node.kill()  # a disk that failed once is used again after a restart only
            node.disk.faults.clear()
            self._start(str(node.number))
